"""A job's log taken in: what events do to the rows, and that reading any of it again changes nothing."""

from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from sqlalchemy import func, select

from service.events import MARK, StudyFinished, StudyStarted
from service.ingest import MAX_LINE_CHARACTERS
from service.job_plan import JobPlan
from service.states import Reason, TrialState
from service.store import Database, log_intake
from service.store.tables import Attempt, AttemptEpoch, AttemptRank, Base, StoredEvent, StoredLogLine, Study, Trial
from service.studies import Studies
from tests.service.factories import (
    Job,
    begin,
    epoch_row,
    error_cause,
    feed,
    rank_row,
    spec,
    trial_result,
)
from trainers.result import EpochRow, RankRow

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def plan(database: Database, studies: Studies) -> JobPlan:
    """A running study of four trials."""
    return begin(database, studies.create(spec(micro_batches=(1, 2, 4, 8)))[0].id)


class TestTrials:
    def test_a_started_trial_runs(self, database: Database, studies: Studies, plan: JobPlan) -> None:
        feed(database, plan, [Job(plan).started(2, at=AT)])
        trial = studies.trial(plan.study, 2)
        assert (trial.state, trial.attempt) == (TrialState.RUNNING, 1)
        assert [(a.attempt, a.study_attempt, a.state, a.started_at) for a in trial.attempts] == [
            (1, 1, TrialState.RUNNING, AT)
        ]

    def test_progress_is_shown_while_it_runs(self, database: Database, studies: Studies, plan: JobPlan) -> None:
        job = Job(plan)
        lines = [job.started(2), job.progress(2, phase="warmup", done=3)]
        feed(database, plan, [*lines, job.progress(2, done=20, total=400, images_per_second=81.5)])
        progress = studies.get(plan.study).progress
        assert (progress.done, progress.total) == (0, 4)
        assert [running.model_dump() for running in progress.running] == [
            {"trial": 2, "attempt": 1, "phase": "measure", "done": 20, "total": 400, "images_per_second": 81.5}
        ]
        feed(database, plan, [job.succeeded(2)], start=3)
        progress = studies.get(plan.study).progress
        assert (progress.done, progress.running) == (1, [])

    def test_a_success_is_kept_with_all_that_was_reported(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        result = trial_result(epochs=[epoch_row(1), epoch_row(2, eval_loss=None)], ranks=[rank_row(1), rank_row(0)])
        feed(database, plan, [job.started(1, at=AT), job.succeeded(1, at=AT, result=result)])
        trial = studies.trial(plan.study, 1)
        assert (trial.state, trial.reason, trial.error) == (TrialState.SUCCEEDED, None, None)
        ranks = [rank.model_dump(exclude={"epoch_seconds"}) for rank in trial.ranks]
        assert ranks == [rank_row(0).model_dump(), rank_row(1).model_dump()]
        epochs = [epoch.model_dump() for epoch in trial.epochs]
        assert epochs == [epoch_row(1).model_dump(), epoch_row(2, eval_loss=None).model_dump()]
        attempt = trial.attempts[0]
        assert attempt.overhead.model_dump() == {
            "queue_seconds": 0.5,
            "startup_seconds": 3.0,
            "compile_seconds": None,
            "warmup_seconds": 1.0,
            "measure_seconds": 4.0,
            "parts_seconds": None,
            "total_seconds": 10.0,
        }
        assert attempt.deepspeed_config == result.deepspeed_config
        assert attempt.versions == result.versions
        assert attempt.loss_history == [2.3, 2.1]
        assert attempt.finished_at == AT

    def test_a_failure_is_kept_with_reason_and_cause(self, database: Database, studies: Studies, plan: JobPlan) -> None:
        job = Job(plan)
        feed(database, plan, [job.started(1), job.failed(1, Reason.OUT_OF_MEMORY)])
        trial = studies.trial(plan.study, 1)
        assert (trial.state, trial.reason, trial.error) == (TrialState.FAILED, Reason.OUT_OF_MEMORY, error_cause())
        row = studies.results(plan.study).results[0]
        assert row.overhead.total_seconds == 4.0
        assert row.quality.notes == [
            "Nothing is measured: the trial failed with OUT_OF_MEMORY (ValueError: a bad value)."
        ]

    def test_a_trial_that_is_run_again_waits_and_shows_its_last_attempt(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        feed(database, plan, [job.started(1), job.failed(1, Reason.WORKER_LOST, will_retry=True)])
        assert studies.trial(plan.study, 1).state is TrialState.PENDING
        again = [job.started(1, trial_attempt=2), job.succeeded(1, trial_attempt=2)]
        feed(database, plan, again, start=2)
        trial = studies.trial(plan.study, 1)
        assert (trial.state, trial.attempt, trial.reason) == (TrialState.SUCCEEDED, 2, None)
        assert [(a.state, a.reason) for a in trial.attempts] == [
            (TrialState.FAILED, Reason.WORKER_LOST),
            (TrialState.SUCCEEDED, None),
        ]
        assert len(trial.ranks) == 2

    def test_an_end_without_a_beginning_is_an_attempt_all_the_same(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        feed(database, plan, [Job(plan).failed(1, Reason.INFEASIBLE, at=AT, total_seconds=5.0)])
        attempt = studies.trial(plan.study, 1).attempts[0]
        assert (attempt.reason, attempt.finished_at) == (Reason.INFEASIBLE, AT)
        assert (AT - attempt.started_at).total_seconds() == 5.0

    def test_an_attempt_whose_end_was_never_told_was_lost(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        feed(database, plan, [job.started(1), job.started(1, trial_attempt=2)])
        attempts = studies.trial(plan.study, 1).attempts
        assert [(a.state, a.reason) for a in attempts] == [
            (TrialState.FAILED, Reason.WORKER_LOST),
            (TrialState.RUNNING, None),
        ]

    def test_what_is_finished_is_not_changed_by_a_later_event(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        feed(database, plan, job.run(1))
        before = studies.trial(plan.study, 1)
        late = [job.failed(1), job.started(1, trial_attempt=2), job.progress(1), job.succeeded(1, trial_attempt=3)]
        feed(database, plan, late, start=3)
        assert studies.trial(plan.study, 1) == before

    def test_a_success_without_a_result_is_a_bad_result(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        feed(database, plan, [Job(plan).succeeded(1, result=None)])
        trial = studies.trial(plan.study, 1)
        assert (trial.state, trial.reason) == (TrialState.FAILED, Reason.BAD_RESULT)

    def test_a_cancelled_trial_is_cancelled(self, database: Database, studies: Studies, plan: JobPlan) -> None:
        job = Job(plan)
        feed(database, plan, [job.started(1), job.succeeded(1, state="cancelled", result=None)])
        assert studies.trial(plan.study, 1).state is TrialState.CANCELLED
        assert studies.results(plan.study).results[0].quality.notes == ["Nothing is measured: the trial was cancelled."]

    def test_texts_from_the_cluster_are_made_harmless(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        result = trial_result(deepspeed_config={"a\x00": float("inf")}, versions={"torch": "2\x1b[31m"})
        line = job.succeeded(1, result=result).replace('"a\\u0000":null', '"a\\u0000":1e999')
        feed(database, plan, [line, job.failed(2, error=error_cause(message="a\x00b"))])
        attempt = studies.trial(plan.study, 1).attempts[0]
        assert attempt.deepspeed_config == {"a\ufffd": None}
        assert attempt.versions == {"torch": "2"}
        error = studies.trial(plan.study, 2).error
        assert error is not None
        assert error.message == "a\ufffdb"


class TestStudy:
    def test_the_resolved_number_of_gpus_is_noted(self, database: Database, studies: Studies, plan: JobPlan) -> None:
        feed(database, plan, [Job(plan).line(StudyStarted, num_trials=4, num_gpus_per_worker=0)])
        assert studies.get(plan.study).notes == ["resources.num_gpus: auto was 0 per worker"]

    def test_missing_events_are_noted(self, database: Database, studies: Studies, plan: JobPlan) -> None:
        job = Job(plan)
        lines = job.run(1)
        feed(database, plan, [lines[0], lines[2]])
        assert studies.get(plan.study).notes == ["Attempt 1: events 2 to 2 are missing from the log"]
        assert studies.trial(plan.study, 1).state is TrialState.SUCCEEDED

    def test_events_are_kept_but_for_progress_and_results(self, database: Database, plan: JobPlan) -> None:
        job = Job(plan)
        feed(database, plan, [*job.run(1), job.line(StudyFinished)])
        with database.reading() as session:
            events = list(session.scalars(select(StoredEvent).order_by(StoredEvent.id)))
        assert [(event.seq, event.type) for event in events] == [
            (1, "trial_started"),
            (3, "trial_finished"),
            (4, "study_finished"),
        ]
        assert "result" not in events[1].payload


class TestBadLines:
    def test_an_event_that_cannot_be_read_is_kept_and_noted(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        started = job.started(1)
        feed(database, plan, ["hello", started[:-5], job.progress(1)])
        view = studies.get(plan.study)
        assert view.notes[0].startswith(
            "Attempt 1, line 2 of the log: an event could not be used and is kept as a log line"
        )
        assert [(line.position, line.text) for line in studies.study_logs(plan.study)] == [
            (0, "hello"),
            (1, started[:-5]),
        ]
        assert studies.trial(plan.study, 1).state is TrialState.RUNNING  # the progress told of it

    def test_an_event_of_a_trial_that_the_study_does_not_have_is_noted(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        feed(database, plan, [job.started(99), job.started(1)])
        assert "the study has no trial 99" in studies.get(plan.study).notes[0]
        assert studies.trial(plan.study, 1).state is TrialState.RUNNING

    def test_events_of_another_study_or_attempt_are_dropped(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        other = plan.model_copy(update={"study": "aaaaaaaaaaaa"})
        later = plan.model_copy(update={"attempt": 2})
        feed(database, plan, [Job(other).started(1), Job(later).started(1)])
        assert studies.trial(plan.study, 1).state is TrialState.PENDING
        assert studies.study_logs(plan.study) == []

    def test_notes_are_bounded(self, database: Database, studies: Studies, plan: JobPlan) -> None:
        feed(database, plan, [f"{MARK}{n}" for n in range(200)])
        notes = studies.get(plan.study).notes
        assert len(notes) == 51
        assert notes[-1] == "More was noted than is kept here."


class TestLogLines:
    def test_lines_belong_to_the_only_running_trial(self, database: Database, studies: Studies, plan: JobPlan) -> None:
        job = Job(plan)
        lines = ["before", job.started(1), "during", job.succeeded(1), "between", job.started(2), "later"]
        feed(database, plan, lines)
        assert [line.text for line in studies.trial_logs(plan.study, 1)] == ["during"]
        assert [line.text for line in studies.trial_logs(plan.study, 2)] == ["later"]
        assert [line.text for line in studies.study_logs(plan.study)] == ["before", "between"]

    def test_with_several_running_the_workers_pid_tells(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        events = [job.progress(1, worker_pids=[11, 12]), job.progress(2, worker_pids=[13])]
        lines = ["\x1b[36m(RayTrainWorker pid=13)\x1b[0m a", "(RayTrainWorker pid=12, ip=10.0.0.1) b", "c pid=99", "d"]
        feed(database, plan, [*events, *lines])
        assert [line.text for line in studies.trial_logs(plan.study, 1)] == ["(RayTrainWorker pid=12, ip=10.0.0.1) b"]
        assert [line.text for line in studies.trial_logs(plan.study, 2)] == ["(RayTrainWorker pid=13) a"]
        assert [line.text for line in studies.study_logs(plan.study)] == ["c pid=99", "d"]

    def test_the_number_of_lines_is_bounded_and_the_bound_is_told_once(
        self, database: Database, studies: Studies, plan: JobPlan, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_intake, "MAX_LOG_LINES", 3)
        feed(database, plan, ["a", "b"])
        feed(database, plan, ["c", "d", "e"], start=2)
        feed(database, plan, ["f"], start=5)
        texts = [line.text for line in studies.study_logs(plan.study)]
        assert texts == ["a", "b", "c", "[3 lines are kept per study; those that follow are not]"]

    def test_events_are_still_taken_beyond_the_bound(
        self, database: Database, studies: Studies, plan: JobPlan, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_intake, "MAX_LOG_LINES", 1)
        feed(database, plan, ["a", "b", "c", *Job(plan).run(1)])
        assert studies.trial(plan.study, 1).state is TrialState.SUCCEEDED

    def test_a_long_line_is_cut(self, database: Database, studies: Studies, plan: JobPlan) -> None:
        feed(database, plan, ["x" * 100_000])
        assert len(studies.study_logs(plan.study)[0].text) == MAX_LINE_CHARACTERS


def eventful_log(plan: JobPlan) -> list[str]:
    """A log with a retry, a failure, a lost end, an unknown trial, output, and lines that cannot be read."""
    job = Job(plan)
    return [
        "starting",
        job.line(StudyStarted, at=AT, num_trials=4, num_gpus_per_worker=0),
        job.started(1, at=AT),
        "(RayTrainWorker pid=11) hello",
        job.progress(1, at=AT, done=1, worker_pids=[11]),
        job.failed(1, Reason.WORKER_LOST, at=AT, will_retry=True),
        "",
        job.started(1, at=AT, trial_attempt=2),
        job.started(2, at=AT),
        "both run",
        job.succeeded(1, at=AT, trial_attempt=2, result=trial_result(epochs=[epoch_row(1)])),
        job.started(77, at=AT),
        MARK + "{broken",
        job.failed(2, Reason.OUT_OF_MEMORY, at=AT),
        job.progress(3, at=AT, done=7, total=9),
        job.started(4, at=AT),
        job.succeeded(4, at=AT)[:-7],
        job.started(4, at=AT, trial_attempt=2),
        job.line(StudyFinished, at=AT, error="stopped"),
    ]


def snapshot(database: Database, study_id: str) -> dict[str, Any]:
    """All that was stored of the study, without row ids and without its own id."""
    tables = {
        "trials": (Trial, Trial.study_id == study_id),
        "attempts": (Attempt, Attempt.study_id == study_id),
        "events": (StoredEvent, StoredEvent.study_id == study_id),
        "lines": (StoredLogLine, StoredLogLine.study_id == study_id),
        "ranks": (AttemptRank, AttemptRank.attempt_id.in_(select(Attempt.id).where(Attempt.study_id == study_id))),
        "epochs": (AttemptEpoch, AttemptEpoch.attempt_id.in_(select(Attempt.id).where(Attempt.study_id == study_id))),
    }
    own = {"id", "study_id", "trial_id", "attempt_id"}
    with database.reading() as session:
        stored: dict[str, Any] = {
            name: sorted(
                str({c.name: getattr(row, c.name) for c in table.__table__.columns if c.name not in own})
                for row in session.scalars(select(table).where(condition))
            )
            for name, (table, condition) in tables.items()
        }
        study = session.get(Study, study_id)
        assert study is not None
        times = {"created_at", "queued_at", "started_at", "attempt_started_at", "id"}
        stored["study"] = {c.name: getattr(study, c.name) for c in Study.__table__.columns if c.name not in times}
    return {name: str(value).replace(study_id, "ID") for name, value in stored.items()}


@pytest.mark.slow
class TestReplay:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(reads=st.lists(st.tuples(st.integers(0, 19), st.integers(1, 19)), max_size=8))
    def test_any_way_of_reading_and_reading_again_ends_in_the_same_rows(
        self, database: Database, studies: Studies, reads: list[tuple[int, int]]
    ) -> None:
        once, bits = (begin(database, studies.create(spec(micro_batches=(1, 2, 4, 8)))[0].id) for _ in range(2))
        feed(database, once, eventful_log(once))
        log = eventful_log(bits)
        position = 0
        for start, length in reads:
            begin_at = min(start, position)  # never a gap: a log is followed from what is known
            feed(database, bits, log[begin_at : begin_at + length], start=begin_at)
            position = max(position, min(begin_at + length, len(log)))
        feed(database, bits, log[position:], start=position)
        feed(database, bits, log)
        assert snapshot(database, bits.study) == snapshot(database, once.study)

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(garbage=st.lists(st.tuples(st.integers(0, 12), st.text() | st.text().map(lambda t: MARK + t)), max_size=10))
    def test_garbage_between_events_changes_no_trial(
        self, database: Database, studies: Studies, garbage: list[tuple[int, str]]
    ) -> None:
        clean, dirty = (begin(database, studies.create(spec(micro_batches=(1, 2, 4, 8)))[0].id) for _ in range(2))
        logs = []
        for plan in (clean, dirty):
            job = Job(plan)
            logs.append([job.started(1, at=AT), job.failed(1, at=AT), job.succeeded(2, at=AT), job.progress(3, at=AT)])
        for place, text in garbage:
            logs[1].insert(place, text)
        feed(database, clean, logs[0])
        feed(database, dirty, logs[1])
        expected, found = snapshot(database, clean.study), snapshot(database, dirty.study)
        for table in ("trials", "attempts", "events", "ranks", "epochs"):
            assert found[table] == expected[table]

    def test_the_same_events_at_other_positions_are_not_taken_twice(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        lines = eventful_log(plan)
        feed(database, plan, lines)
        with database.reading() as session:
            before = session.scalar(select(func.count()).select_from(Attempt))
        rows = studies.results(plan.study)
        feed(database, plan, lines, start=len(lines))
        with database.reading() as session:
            assert session.scalar(select(func.count()).select_from(Attempt)) == before
        assert studies.results(plan.study) == rows


@pytest.mark.parametrize(("table", "model"), [(AttemptRank, RankRow), (AttemptEpoch, EpochRow)])
def test_all_that_is_reported_of_a_rank_and_an_epoch_has_a_column(table: type[Base], model: type[BaseModel]) -> None:
    columns = {column.name: column.nullable for column in table.__table__.columns}
    fields = {name: type(None) in get_args(field.annotation) for name, field in model.model_fields.items()}
    assert fields.keys() <= columns.keys()
    assert all(columns[name] for name, may_be_null in fields.items() if may_be_null)
    # Of an imported run less is known, so more may be null.
    assert {name for name, may_be_null in columns.items() if not may_be_null} <= {"attempt_id", *fields}
