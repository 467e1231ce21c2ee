"""A step taken apart, from the trial's report to what is shown of it, and through a change of the schema."""

import csv
import re
from io import BytesIO, StringIO
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from pyarrow import parquet

from service.analysis.answer import AnalysisOptions
from service.analysis.finding import FindingCode
from service.store import Database, observed_rows
from service.store.database import MIGRATIONS
from service.store.null_reasons import null_notes
from service.studies import Studies
from service.views import RowMetrics
from tests.service.factories import Job, begin, create, feed, rank_row, spec, trial_result
from tests.service.parts_samples import link_row, part_metrics, rank_parts, step_parts, taken_apart_result
from trainers.result import Metrics, Quality, TrialResult

ON = {"order": "given", "communication": True}


@pytest.fixture
def study_id(database: Database, studies: Studies) -> str:
    """One trial, asked to take its step apart, with its result."""
    return stored(database, studies, taken_apart_result())


def stored(database: Database, studies: Studies, result: TrialResult) -> str:
    axes = {**spec(micro_batches=(4,))["parameters"], "world_size": {"value": 2}}
    view = create(studies, measurement=ON, parameters=axes)
    plan = begin(database, view.id)
    feed(database, plan, [Job(plan).succeeded(1, result=result)])
    return view.id


def notes_on(key: str, notes: list[str]) -> list[str]:
    return [note for note in notes if re.search(rf"\b{key}\b", note)]


def test_a_row_has_the_keys_of_the_report_in_its_order() -> None:
    assert list(RowMetrics.model_fields) == list(Metrics.model_fields)


def test_the_trial_gets_the_question_and_its_answer_is_shown_whole(studies: Studies, study_id: str) -> None:
    trial = studies.trial(study_id, 1)
    assert trial.config is not None
    assert trial.config["measurement"]["communication"] is True
    (attempt,) = trial.attempts
    assert (attempt.parts, attempt.links) == (step_parts(), [link_row("n1", "n2")])
    assert [(rank.node, rank.straggler_wait_seconds) for rank in trial.ranks] == [("n1", 0.014), ("n2", 0.002)]
    assert [rank.parts for rank in trial.ranks] == [rank.parts for rank in taken_apart_result().ranks]


def test_rows_csv_and_parquet_have_the_parts_with_their_intervals(studies: Studies, study_id: str) -> None:
    metrics = studies.results(study_id).results[0].metrics
    expected = part_metrics(step_parts())
    assert {key: getattr(metrics, key) for key in expected} == expected
    (line,) = csv.DictReader(StringIO(studies.results_csv(study_id), newline=""))
    (row,) = parquet.ParquetFile(BytesIO(studies.results_parquet(study_id))).read().to_pylist()
    assert {key: row[key] for key in expected} == expected
    assert {key: line[key] for key in expected} == {key: str(value) for key, value in expected.items()}


class TestReasons:
    def notes(
        self, *, workers: int = 2, is_taken_apart: bool = True, told: tuple[str, ...] = (), **metrics: Any
    ) -> Any:
        row = trial_result(metrics=metrics).metrics
        return null_notes(row, told, workers=workers, is_taken_apart=is_taken_apart)

    def test_off_is_said_of_every_part(self) -> None:
        (note,) = notes_on("communication_share_ci95_low", self.notes(is_taken_apart=False))
        assert note.endswith("(measurement.communication is off)")
        assert len(notes_on("compute_seconds", [note])) == len(notes_on("communication_wire_bytes", [note])) == 1

    def test_on_without_an_answer_is_not_called_off(self) -> None:
        (note,) = notes_on("communication_seconds", self.notes())
        assert note.endswith(": the step could not be taken apart")

    def test_one_worker_exchanges_nothing(self) -> None:
        alone = part_metrics(step_parts(communication=None, communication_share=None, wire_bytes=None))
        (note,) = notes_on("communication_seconds", self.notes(workers=1, **alone))
        assert note.endswith(": one worker exchanges nothing")
        assert "communication_source" not in note  # that is known
        assert not notes_on("compute_seconds", self.notes(workers=1, **alone))

    def test_a_profile_does_not_know_what_was_waited_for(self) -> None:
        profiled = part_metrics(step_parts(source="profiler", data_wait=None))
        (note,) = notes_on("data_wait_seconds", self.notes(**profiled))
        assert "a profile does not tell" in note

    def test_what_the_trial_says_itself_is_not_said_again(self) -> None:
        assert not notes_on("compute_seconds", self.notes(told=("compute_seconds: no memory for a twin",)))


def test_an_earlier_attempt_that_stands_has_its_reasons_too(database: Database, studies: Studies) -> None:
    view = create(studies, micro_batches=(4,), measurement=ON)
    plan = begin(database, view.id)
    job = Job(plan)
    contended = taken_apart_result(quality=Quality(state="steady", flags=["contended"]))
    first = job.succeeded(1, result=contended, will_retry=True)
    feed(database, plan, [first, job.started(1, trial_attempt=2), job.failed(1, trial_attempt=2)])
    row = studies.results(view.id).results[0]
    assert row.metrics.communication_share == 0.40
    assert not [note for note in row.quality.notes if "taken apart" in note]


class TestMigration:
    def test_rows_of_before_get_the_keys_and_a_reason_and_go_back_without(
        self, database: Database, studies: Studies, study_id: str
    ) -> None:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        stored = sa.text(
            "SELECT outcome_json, result, config FROM trials JOIN attempts ON attempts.trial_id = trials.id"
        )
        with database._engine.begin() as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "0004")
            (before,) = connection.execute(stored).all()
            command.upgrade(config, "head")
        assert "communication_seconds" in before.outcome_json + before.result  # as it was before
        for text in before:
            assert "communication_share" not in text
            assert '"links"' not in text
        assert '"communication"' not in before.config
        row = studies.results(study_id).results[0]
        assert list(row.metrics.model_dump()) == list(RowMetrics.model_fields)
        assert (row.metrics.compute_seconds, row.metrics.compute_seconds_ci95_low) == (0.05, None)
        assert notes_on("communication_share", row.quality.notes)[0].endswith("the version that measured this")
        trial = studies.trial(study_id, 1)
        assert (trial.attempts[0].parts, trial.attempts[0].links, trial.ranks[0].parts) == (None, [], None)


def test_the_analysis_rests_on_the_parts_and_links_of_the_attempt_that_stands(
    studies: Studies, study_id: str, database: Database
) -> None:
    found = {finding.code: finding for finding in studies.analysis(study_id, AnalysisOptions()).findings}
    bound = found[FindingCode.COMMUNICATION_BOUND]
    assert (bound.evidence["share"], bound.evidence["share_low"]) == (0.40, pytest.approx(0.37))
    assert "each worker sends 22 MB a step, and the link between the nodes n1 and n2 carries 12.5 MB/s" in bound.message
    slow = found[FindingCode.STRAGGLER]
    assert (slow.evidence["rank"], slow.evidence["node"]) == (1, "n2")
    assert slow.evidence["persistent_share_low"] == pytest.approx(0.05)
    with database.reading() as session:
        (ranks,) = observed_rows.rank_observations(session, study_id).values()
    assert [(rank.compute_low_seconds, rank.straggler_wait_seconds) for rank in ranks] == [
        (pytest.approx(0.043), 0.014),
        (pytest.approx(0.055), 0.002),
    ]


def test_nodes_that_share_a_host_name_are_told_apart_as_their_links_are(database: Database, studies: Studies) -> None:
    shared = [
        rank_row(0, node="gpu", node_ip="10.0.0.1", **rank_parts(0.044, 0.014)),
        rank_row(1, node="gpu", node_ip="10.0.0.2", **rank_parts(0.056, 0.002)),
    ]
    study_id = stored(database, studies, taken_apart_result(ranks=shared))
    findings = studies.analysis(study_id, AnalysisOptions()).findings
    (slow,) = [finding for finding in findings if finding.code is FindingCode.STRAGGLER]
    assert slow.evidence["node"] == "gpu (10.0.0.2)"
