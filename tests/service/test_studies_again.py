"""Studies stopped, taken up again, and how far they are."""

from datetime import UTC, datetime

import pytest

from service.errors import (
    WrongState,
)
from service.states import Reason, StudyState, TrialState
from service.store import Database
from service.store.attempts import finish_study
from service.studies import Studies
from tests.service.factories import Job, begin, create, feed, open_studies, run


class TestCancel:
    def test_a_queued_study_is_cancelled_at_once(self, studies: Studies) -> None:
        view = studies.cancel(create(studies).id)
        assert view.status is StudyState.CANCELLED
        assert view.finished_at is not None
        assert view.trial_counts["cancelled"] == 2

    def test_a_running_one_is_left_to_the_dispatcher(self, database: Database) -> None:
        woken: list[bool] = []
        studies = open_studies(database, wake=lambda: woken.append(True))
        view = create(studies)
        begin(database, view.id)
        assert studies.cancel(view.id).status is StudyState.CANCELLING
        assert studies.cancel(view.id).status is StudyState.CANCELLING  # asking again is no mistake
        assert len(woken) == 3
        assert studies.get(view.id).trial_counts["pending"] == 2

    def test_one_that_is_over_cannot_be_cancelled(self, database: Database, studies: Studies) -> None:
        view = create(studies)
        run(database, view.id)
        with pytest.raises(WrongState, match=f"Study {view.id} is succeeded: there is nothing to cancel"):
            studies.cancel(view.id)


class TestAgain:
    def states(self, studies: Studies, study_id: str) -> list[str]:
        return [row.state.value for row in studies.results(study_id).results]

    def test_resume_takes_up_what_never_finished(self, database: Database, studies: Studies) -> None:
        view = create(studies, micro_batches=(1, 2, 4, 8))
        plan = begin(database, view.id)
        job = Job(plan)
        feed(database, plan, [job.succeeded(1), job.failed(2), job.started(3)])
        studies.cancel(view.id)
        with database.session() as session:
            finish_study(session, view.id, cancelled=True, error=None)
        resumed = studies.resume(view.id)
        assert (resumed.status, resumed.finished_at, resumed.error) == (StudyState.QUEUED, None, None)
        assert self.states(studies, view.id) == ["succeeded", "failed", "pending", "pending"]
        assert [(t.number, t.attempt) for t in begin(database, view.id).trials] == [(3, 2), (4, 1)]

    def test_resume_takes_up_a_trial_whose_job_ended_before_it(self, database: Database, studies: Studies) -> None:
        view = create(studies, micro_batches=(1, 2, 4))
        plan = begin(database, view.id)
        job = Job(plan)
        feed(database, plan, [job.failed(1, Reason.WORKER_LOST), job.started(2)])
        with database.session() as session:
            finish_study(session, view.id, cancelled=False, error="the cluster is gone")
        assert self.states(studies, view.id) == ["failed", "failed", "pending"]
        studies.resume(view.id)
        assert self.states(studies, view.id) == ["failed", "pending", "pending"]

    def test_resume_with_nothing_left_says_what_can_be_done(self, database: Database, studies: Studies) -> None:
        view = create(studies)
        run(database, view.id, failing=(2,))
        with pytest.raises(WrongState, match="partial: every trial of it has finished: retry runs the 1 failed again"):
            studies.resume(view.id)
        assert studies.get(view.id).status is StudyState.PARTIAL

    def test_retry_takes_up_what_failed_too_findings_included(self, database: Database, studies: Studies) -> None:
        view = create(studies, micro_batches=(1, 2, 4))
        plan = begin(database, view.id)
        job = Job(plan)
        feed(database, plan, [job.succeeded(1), job.failed(2, Reason.OUT_OF_MEMORY), job.failed(3)])
        with database.session() as session:
            finish_study(session, view.id, cancelled=False, error=None)
        before = studies.results(view.id).results[0]
        assert studies.retry(view.id).status is StudyState.QUEUED
        row = studies.results(view.id).results[1]
        assert (row.state, row.reason, row.overhead.total_seconds) == (TrialState.PENDING, None, None)
        run(database, view.id)
        assert studies.get(view.id).status is StudyState.SUCCEEDED
        assert studies.results(view.id).results[0] == before
        trial = studies.trial(view.id, 2)
        assert [(a.attempt, a.state) for a in trial.attempts] == [(1, "failed"), (2, "succeeded")]

    def test_retry_of_a_full_success_is_refused(self, database: Database, studies: Studies) -> None:
        view = create(studies)
        run(database, view.id)
        with pytest.raises(WrongState, match="all trials succeeded"):
            studies.retry(view.id)

    @pytest.mark.parametrize("verb", ["resume", "retry"])
    def test_one_that_is_not_over_cannot_be_started_again(
        self, database: Database, studies: Studies, verb: str
    ) -> None:
        view = create(studies)
        with pytest.raises(WrongState, match="queued"):
            getattr(studies, verb)(view.id)
        begin(database, view.id)
        with pytest.raises(WrongState, match="running"):
            getattr(studies, verb)(view.id)

    def test_the_start_of_a_study_is_its_first(self, database: Database, studies: Studies) -> None:
        view = create(studies)
        run(database, view.id, failing=(1,))
        started = studies.get(view.id).started_at
        studies.retry(view.id)
        run(database, view.id)
        assert studies.get(view.id).started_at == started


class TestProgress:
    def test_the_time_left_is_estimated_from_finished_trials(self, database: Database, studies: Studies) -> None:
        view = create(studies, micro_batches=(1, 2, 4, 8))
        plan = begin(database, view.id)
        job = Job(plan)
        feed(database, plan, [job.succeeded(1, total_seconds=10.0), job.failed(2, total_seconds=20.0)])
        assert studies.get(view.id).progress.seconds_left == 30.0  # two left, 15 s each
        feed(database, plan, [job.started(3, at=datetime(2000, 1, 1, tzinfo=UTC))], start=2)
        assert studies.get(view.id).progress.seconds_left == 15.0  # the running one should be done by now
        feed(database, plan, [job.started(4, at=datetime(2099, 1, 1, tzinfo=UTC))], start=3)
        # Side by side; the second one's clock is ahead of ours, so nothing is taken off for it.
        assert studies.get(view.id).progress.seconds_left == 7.5

    def test_a_study_that_is_over_has_no_time_left(self, database: Database, studies: Studies) -> None:
        view = create(studies)
        run(database, view.id)
        assert studies.get(view.id).progress.model_dump() == {
            "done": 2,
            "total": 2,
            "running": [],
            "seconds_left": None,
        }
