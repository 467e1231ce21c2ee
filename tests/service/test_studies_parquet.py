"""Results as Parquet: the columns of the CSV, with types that do not depend on what is in them."""

from io import BytesIO

import pyarrow as pa
from pyarrow import parquet

from service.results_columns import COLUMNS
from service.results_parquet import parquet_bytes
from service.store import Database
from tests.service.factories import Job, begin, feed, open_studies, spec, trial_result


def read(content: bytes) -> pa.Table:
    return parquet.ParquetFile(BytesIO(content)).read()


def test_without_rows_there_are_the_typed_columns() -> None:
    table = read(parquet_bytes([]))
    assert (table.num_rows, tuple(table.column_names)) == (0, COLUMNS)
    kinds = {
        "trial": pa.int64(),
        "model": pa.string(),
        "world_size": pa.int64(),
        "dataset_fraction": pa.float64(),
        "zero_stage": pa.int64(),
        "activation_checkpointing": pa.bool_(),
        "placement": pa.string(),
        "images_per_second": pa.float64(),
        "measured_steps": pa.int64(),
        "interval_kind": pa.string(),
        "quality_flags": pa.list_(pa.string()),
        "devices": pa.list_(pa.string()),
        "between_runs_runs": pa.int64(),
        "between_runs_spread": pa.float64(),
    }
    assert {name: table.schema.field(name).type for name in kinds} == kinds


def test_rows_hold_values_of_their_type_and_null_where_there_is_none(database: Database) -> None:
    studies = open_studies(database)
    view, _ = studies.create(spec(micro_batches=(4, 8)))
    plan = begin(database, view.id)
    job = Job(plan)
    quality = trial_result().quality.model_copy(update={"flags": ["drifting", "contended"]})
    feed(database, plan, [job.succeeded(1, result=trial_result(quality=quality)), job.failed(2)])
    table = read(studies.results_parquet(view.id))
    assert table.schema == read(parquet_bytes([])).schema
    first, second = table.to_pylist()
    assert (first["trial"], first["state"], first["reason"]) == (1, "succeeded", None)
    assert (first["train_micro_batch_size_per_gpu"], first["activation_checkpointing"]) == (4, False)
    assert (first["images_per_second"], first["mfu"], first["total_seconds"]) == (80.0, None, 10.0)
    assert first["quality_flags"] == ["drifting", "contended"]
    assert first["devices"] == ["Some CPU", "Some CPU"]
    assert (second["reason"], second["images_per_second"], second["devices"]) == ("ERROR", None, [])
