"""Results as CSV: one line per trial, read back with the standard reader."""

import csv
from io import StringIO

import pytest

from service.results_columns import COLUMNS
from service.results_csv import csv_text
from service.states import TrialState
from service.store import Database
from tests.service.factories import Job, begin, error_cause, feed, open_studies, spec, trial_result


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text, newline="")))


def test_without_rows_there_is_the_header() -> None:
    assert csv_text([]) == ",".join(COLUMNS) + "\r\n"


def test_column_names_are_unique() -> None:
    assert len(set(COLUMNS)) == len(COLUMNS)


def test_rows_hold_parameters_metrics_and_the_rest(database: Database) -> None:
    studies = open_studies(database)
    view, _ = studies.create(spec(micro_batches=(4, 8)))
    plan = begin(database, view.id)
    job = Job(plan)
    quality = trial_result().quality.model_copy(update={"flags": ["drifting", "contended"]})
    succeeded = job.succeeded(1, result=trial_result(quality=quality))
    feed(database, plan, [succeeded, job.failed(2, error=error_cause(message='a "quoted", text\nof two lines'))])

    first, second = read(studies.results_csv(view.id))
    assert (first["trial"], first["state"], first["reason"]) == ("1", "succeeded", "")
    assert first["train_micro_batch_size_per_gpu"] == "4"
    assert first["activation_checkpointing"] == "false"
    assert (first["images_per_second"], first["mfu"], first["total_seconds"]) == ("80.0", "", "10.0")
    assert first["quality_flags"] == "drifting; contended"
    assert first["devices"] == "Some CPU; Some CPU"
    assert (second["trial"], second["state"], second["reason"]) == ("2", "failed", "ERROR")
    assert second["images_per_second"] == ""
    assert '"quoted", text' in second["quality_notes"]


@pytest.mark.slow
def test_all_rows_are_there_and_a_state_narrows_them(database: Database) -> None:
    studies = open_studies(database)
    view, _ = studies.create(spec(micro_batches=range(1, 502), measurement={"order": "given", "repeats": 2}))
    plan = begin(database, view.id)
    feed(database, plan, [Job(plan).succeeded(1001)])
    assert [row["trial"] for row in read(studies.results_csv(view.id))] == [str(n) for n in range(1, 1003)]
    assert [row["trial"] for row in read(studies.results_csv(view.id, state=TrialState.SUCCEEDED))] == ["1001"]
    assert read(studies.results_csv(view.id, state=TrialState.FAILED)) == []
