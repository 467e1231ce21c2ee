"""Results rows as CSV after RFC 4180: one line per trial, fields quoted where needed, lines ended with CR LF.

The columns are those of `service.results_columns`. What is null is an empty field. Booleans are true and false; several
values in one field are joined with "; ".
"""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO

from service.results_columns import COLUMNS, values
from service.views import ResultRow


def csv_text(rows: Iterable[ResultRow]) -> str:
    """The rows as CSV with a header, which is there without rows too."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows([_field(value) for value in values(row)] for row in rows)
    return text.getvalue()


def _field(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; ".join(str(item) for item in value)
    return str(value)
