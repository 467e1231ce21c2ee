"""A contended trial in the store: measured once more, and with its first result should nothing come of that."""

from typing import Any

import pytest

from service.job_plan import JobPlan
from service.states import Reason, StudyState, TrialState
from service.store import Database
from service.store.attempts import automatic_attempts_without_progress, finish_study
from service.studies import Studies
from service.views import ResultRow
from tests.service.factories import Job, begin, epoch_row, feed, rank_row, spec, trial_result
from trainers.result import Quality, TrialResult
from trainers.telemetry.rows import CoresRow, ProcessRow, Telemetry

HOG = "contended: others used 0.73 of 2 cores: python (pid 4711) 0.72"
TELEMETRY = Telemetry(
    cores=[
        CoresRow(
            node="n1",
            ranks=[0, 1],
            limit="processors",
            cores=2,
            trial_cores=1.25,
            others_cores=0.73,
            steal_share=0.0,
            others=[ProcessRow(name="python", pid=4711, cores=0.72)],
        )
    ],
    windows=4,
    reading_seconds_per_step=1e-4,
    scan_seconds=0.02,
)


def result(rate: float, *flags: str, pid: int = 1000) -> TrialResult:
    return trial_result(
        metrics={"images_per_second": rate},
        quality=Quality(state="steady", flags=list(flags), notes=[HOG] if flags else []),
        ranks=[rank_row(0, pid=pid), rank_row(1, pid=pid + 1)],
        epochs=[epoch_row(1, train_loss=rate)],
        telemetry=TELEMETRY,
    )


CONTENDED, QUIET = result(50.0, "contended", pid=1000), result(80.0, pid=2000)


@pytest.fixture
def plan(database: Database, studies: Studies) -> JobPlan:
    """A running study of two trials."""
    return begin(database, studies.create(spec(micro_batches=(1, 2)))[0].id)


def first(job: Job) -> list[str]:
    """Trial 1 up to its contended result."""
    return [job.started(1), job.progress(1), job.succeeded(1, result=CONTENDED, total_seconds=9.0, will_retry=True)]


def again(job: Job, end: str, **fields: Any) -> list[str]:
    """Its second attempt, from its start to an end of this kind."""
    started = job.started(1, trial_attempt=2)
    finish = {"succeeded": job.succeeded, "failed": job.failed}[end]
    return [started, finish(1, trial_attempt=2, **fields)]


def finish(database: Database, plan: JobPlan, *, cancelled: bool = False) -> None:
    with database.session() as session:
        finish_study(session, plan.study, cancelled=cancelled, error=None)


def row(studies: Studies, plan: JobPlan) -> ResultRow:
    return studies.results(plan.study).results[0]


def stands(studies: Studies, plan: JobPlan) -> str:
    """Checks that trial 1 has succeeded with its contended result; the note on why."""
    trial = studies.trial(plan.study, 1)
    assert (trial.state, trial.reason, trial.error) == (TrialState.SUCCEEDED, None, None)
    assert [rank.pid for rank in trial.ranks] == [1000, 1001]
    assert [epoch.train_loss for epoch in trial.epochs] == [50.0]
    shown = row(studies, plan)
    assert shown.state is TrialState.SUCCEEDED
    assert shown.metrics.images_per_second == 50.0
    assert shown.quality.flags == ["contended"]
    assert HOG in shown.quality.notes
    assert shown.overhead.total_seconds == 9.0
    assert shown.hardware.backend == "gloo"
    assert any(note.startswith("mfu: ") for note in shown.quality.notes)  # what is null has its reason here too
    return shown.quality.notes[0]


class TestOnceMore:
    def test_the_trial_waits_and_its_attempt_keeps_the_result(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        feed(database, plan, first(Job(plan)))
        trial = studies.trial(plan.study, 1)
        assert (trial.state, trial.attempt) == (TrialState.PENDING, 1)
        (attempt,) = trial.attempts
        assert attempt.state is TrialState.SUCCEEDED
        assert attempt.metrics is not None
        assert attempt.metrics.images_per_second == 50.0
        assert attempt.quality is not None
        assert attempt.quality.flags == ["contended"]
        assert attempt.telemetry == TELEMETRY
        assert row(studies, plan).metrics.images_per_second is None
        progress = studies.get(plan.study).progress
        assert (progress.done, progress.total) == (0, 2)

    @pytest.mark.parametrize("second", [QUIET, result(60.0, "contended", pid=2000)], ids=["quiet", "contended again"])
    def test_the_second_result_stands(
        self, database: Database, studies: Studies, plan: JobPlan, second: TrialResult
    ) -> None:
        job = Job(plan)
        feed(database, plan, [*first(job), *again(job, "succeeded", result=second)])
        trial = studies.trial(plan.study, 1)
        assert (trial.state, trial.attempt) == (TrialState.SUCCEEDED, 2)
        assert [attempt.state for attempt in trial.attempts] == [TrialState.SUCCEEDED] * 2
        assert [rank.pid for rank in trial.ranks] == [2000, 2001]
        shown = row(studies, plan)
        assert shown.metrics.images_per_second == second.metrics.images_per_second
        assert shown.quality.flags == second.quality.flags
        assert studies.get(plan.study).progress.done == 1

    def test_a_contended_result_is_progress(self, database: Database, plan: JobPlan) -> None:
        later = begin(database, plan.study)
        feed(database, later, first(Job(later)))
        with database.session() as session:
            assert automatic_attempts_without_progress(session, plan.study) == 0

    @pytest.mark.parametrize("end", ["succeeded", "failed"])
    def test_reading_it_all_twice_changes_nothing(
        self, database: Database, studies: Studies, plan: JobPlan, end: str
    ) -> None:
        job = Job(plan)
        lines = [*first(job), *again(job, end)]
        feed(database, plan, lines)
        before = studies.trial(plan.study, 1), row(studies, plan), studies.get(plan.study)
        feed(database, plan, lines)
        feed(database, plan, lines, start=len(lines))  # the same events once more, further down the log
        assert (studies.trial(plan.study, 1), row(studies, plan), studies.get(plan.study)) == before

    def test_reading_it_line_by_line_comes_to_the_same(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        for position, line in enumerate([*first(job), *again(job, "failed")]):
            feed(database, plan, [line], start=position)
            feed(database, plan, [line], start=position)
        assert "attempt 2 failed" in stands(studies, plan)


class TestNothingIsLost:
    def test_the_first_result_stands_where_the_second_attempt_fails(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        feed(database, plan, [*first(job), *again(job, "failed", reason=Reason.OUT_OF_MEMORY)])
        assert stands(studies, plan) == (
            "These are the numbers of attempt 1, which was to be measured once more: "
            "attempt 2 failed with OUT_OF_MEMORY (ValueError: a bad value)."
        )
        assert [(a.state, a.reason) for a in studies.trial(plan.study, 1).attempts] == [
            (TrialState.SUCCEEDED, None),
            (TrialState.FAILED, Reason.OUT_OF_MEMORY),
        ]
        feed(database, plan, [job.succeeded(2)], start=10)
        finish(database, plan)
        view = studies.get(plan.study)
        assert view.status is StudyState.SUCCEEDED
        assert view.trial_counts["succeeded"] == 2

    def test_a_second_attempt_that_is_tried_again_does_not_end_it(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        feed(database, plan, [*first(job), *again(job, "failed", reason=Reason.WORKER_LOST, will_retry=True)])
        assert studies.trial(plan.study, 1).state is TrialState.PENDING
        feed(database, plan, [job.succeeded(1, trial_attempt=3, result=QUIET)], start=10)
        assert row(studies, plan).metrics.images_per_second == 80.0

    def test_it_stands_where_the_second_attempt_is_cancelled(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        feed(database, plan, [*first(job), *again(job, "succeeded", state="cancelled", result=None)])
        assert "attempt 2 was cancelled." in stands(studies, plan)

    @pytest.mark.parametrize("is_running", [True, False], ids=["while it runs", "before it runs"])
    def test_it_stands_where_the_study_is_cancelled(
        self, database: Database, studies: Studies, plan: JobPlan, is_running: bool
    ) -> None:
        job = Job(plan)
        feed(database, plan, [*first(job), *([job.started(1, trial_attempt=2)] if is_running else [])])
        studies.cancel(plan.study)
        finish(database, plan, cancelled=True)
        assert ("attempt 2 was cancelled." if is_running else "the study ended before") in stands(studies, plan)
        assert studies.trial(plan.study, 2).state is TrialState.CANCELLED
        assert studies.get(plan.study).status is StudyState.CANCELLED

    @pytest.mark.parametrize("is_running", [True, False], ids=["while it runs", "before it runs"])
    def test_it_stands_where_the_job_is_lost_for_good(
        self, database: Database, studies: Studies, plan: JobPlan, is_running: bool
    ) -> None:
        job = Job(plan)
        feed(database, plan, [*first(job), *([job.started(1, trial_attempt=2)] if is_running else [])])
        finish(database, plan)
        assert ("attempt 2 was lost." if is_running else "the study ended before") in stands(studies, plan)
        studies.resume(plan.study)  # trial 2 never finished
        assert [trial.number for trial in begin(database, plan.study).trials] == [2]

    def test_the_next_job_measures_it_once_more_and_knows_that_it_is_the_last_time(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        feed(database, plan, [*first(job), job.started(1, trial_attempt=2)])
        new = begin(database, plan.study)
        assert [(trial.number, trial.attempt, trial.contended_attempts) for trial in new.trials] == [
            (1, 3, 1),
            (2, 1, 0),
        ]
        feed(database, new, Job(new).run(1))
        assert row(studies, plan).metrics.images_per_second == 80.0
        assert [a.state for a in studies.trial(plan.study, 1).attempts] == ["succeeded", "failed", "succeeded"]

    def test_a_trial_that_only_failed_before_has_nothing_to_stand_on(
        self, database: Database, studies: Studies, plan: JobPlan
    ) -> None:
        job = Job(plan)
        feed(database, plan, [job.failed(1, Reason.WORKER_LOST, will_retry=True), *again(job, "failed")])
        assert studies.trial(plan.study, 1).state is TrialState.FAILED
