"""Results rows as a Parquet file: the columns of the CSV (`service.results_columns`) with types.

Whole numbers are int64, others float64; `devices`, `quality_flags` and `quality_notes` are lists of text. A column's
type does not depend on what is in it: without rows, or without a value, it is the same.
"""

from collections.abc import Iterable
from io import BytesIO

import pyarrow as pa
from pyarrow import parquet

from service.results_columns import COLUMNS, TYPES, values
from service.views import ResultRow

_ARROW = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string(), list: pa.list_(pa.string())}
SCHEMA = pa.schema([pa.field(name, _ARROW[TYPES[name]]) for name in COLUMNS])


def parquet_bytes(rows: Iterable[ResultRow]) -> bytes:
    """One file with all rows, compressed (zstd)."""
    lines = [values(row) for row in rows]
    columns = [pa.array([line[place] for line in lines], type=field.type) for place, field in enumerate(SCHEMA)]
    buffer = BytesIO()
    parquet.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), buffer, compression="zstd")
    return buffer.getvalue()
