"""What the dispatcher asks of the store: the queue, a job's plan, its end, and what is left after a crash."""

import pytest

from service.errors import NotFound, WrongState
from service.events import StudyFinished
from service.states import Reason, StudyState, TrialState
from service.store import Database
from service.store.attempts import (
    ActiveStudy,
    active_studies,
    apply_lines,
    automatic_attempts_without_progress,
    begin_attempt,
    finish_study,
    oldest_queued,
    set_ray,
)
from service.studies import Studies
from tests.service.factories import Job, begin, feed, spec


def create(studies: Studies, *micro_batches: int, **more: object) -> str:
    return studies.create(spec(micro_batches=micro_batches or (1, 2, 4, 8), **more))[0].id


def finish(database: Database, study_id: str, *, cancelled: bool = False, error: str | None = None) -> None:
    with database.session() as session:
        finish_study(session, study_id, cancelled=cancelled, error=error)


def active(database: Database) -> list[ActiveStudy]:
    with database.session() as session:
        return active_studies(session)


def states(studies: Studies, study_id: str) -> list[str]:
    return [row.state.value for row in studies.results(study_id).results]


class TestQueue:
    def test_the_study_that_waited_longest_is_next(self, database: Database, studies: Studies) -> None:
        first, second = create(studies), create(studies)
        with database.session() as session:
            assert oldest_queued(session) == first
            begin_attempt(session, first)
            assert oldest_queued(session) == second

    def test_a_study_that_comes_back_goes_to_the_end(self, database: Database, studies: Studies) -> None:
        first, second = create(studies), create(studies)
        studies.cancel(first)
        studies.resume(first)
        with database.session() as session:
            assert oldest_queued(session) == second

    def test_an_empty_queue_gives_nothing(self, database: Database) -> None:
        with database.session() as session:
            assert oldest_queued(session) is None


class TestBeginAttempt:
    def test_the_plan_has_what_the_spec_asks_for(self, database: Database, studies: Studies) -> None:
        study_id = create(
            studies, 4, 2, resources={"num_cpus": 2, "num_gpus": 0}, execution={"retries": 3, "isolation": "shared"}
        )
        plan = begin(database, study_id)
        assert (plan.study, plan.attempt) == (study_id, 1)
        assert plan.resources.model_dump() == {"num_cpus": 2, "num_gpus": 0}
        assert (plan.execution.retries, plan.execution.isolation) == (3, "shared")
        assert [(trial.number, trial.repeat, trial.attempt) for trial in plan.trials] == [(1, 0, 1), (2, 0, 1)]
        assert [trial.config.train_micro_batch_size_per_gpu for trial in plan.trials] == [4, 2]
        assert [trial.config.num_threads for trial in plan.trials] == [2, 2]

    def test_trials_come_in_the_planned_order(self, database: Database, studies: Studies) -> None:
        data = spec(micro_batches=range(1, 21), measurement={"order": "random", "repeats": 2})
        order = studies.plan(data).order
        plan = begin(database, studies.create(data)[0].id)
        assert [trial.number for trial in plan.trials] == order
        assert order != sorted(order)

    def test_the_study_runs_from_then_on(self, database: Database, studies: Studies) -> None:
        study_id = create(studies)
        begin(database, study_id)
        view = studies.get(study_id)
        assert view.status is StudyState.RUNNING
        assert view.started_at is not None
        assert active(database) == [
            ActiveStudy(
                study_id=study_id,
                attempt=1,
                state=StudyState.RUNNING,
                submission_id=f"vitscale-{study_id}-1",
                log_position=0,
                trials_left=4,
                finished_event=False,
                started_at=view.started_at,
            )
        ]

    @pytest.mark.parametrize("cancelled", [True, False])
    def test_a_study_that_is_over_or_being_stopped_has_no_next_attempt(
        self, database: Database, studies: Studies, cancelled: bool
    ) -> None:
        study_id = create(studies)
        begin(database, study_id)
        studies.cancel(study_id)
        if cancelled:
            finish(database, study_id)
        with pytest.raises(WrongState, match="cancelled" if cancelled else "cancelling"):
            begin(database, study_id)

    def test_an_unknown_study_is_not_found(self, database: Database) -> None:
        with pytest.raises(NotFound):
            begin(database, "aaaaaaaaaaaa")


class TestAfterACrash:
    def test_finished_trials_stand_and_exactly_the_rest_runs_again(self, database: Database, studies: Studies) -> None:
        study_id = create(studies)
        plan = begin(database, study_id)
        job = Job(plan)
        feed(database, plan, [*job.run(1), *job.run(2), job.started(3)])
        rows = studies.results(study_id).results[:2]

        again = begin(database, study_id)
        assert [(trial.number, trial.attempt) for trial in again.trials] == [(3, 2), (4, 1)]
        assert states(studies, study_id) == ["succeeded", "succeeded", "pending", "pending"]
        lost = studies.trial(study_id, 3).attempts
        assert [(a.attempt, a.state, a.reason) for a in lost] == [(1, TrialState.FAILED, Reason.WORKER_LOST)]
        assert lost[0].error is not None
        assert lost[0].error.message == "the job ended before the trial did"
        assert "attempt 2 runs what is left" in studies.get(study_id).notes[-1]

        job = Job(again)
        feed(database, again, [*job.run(3), *job.run(4), job.line(StudyFinished)])
        finish(database, study_id)
        assert studies.get(study_id).status is StudyState.SUCCEEDED
        assert studies.results(study_id).results[:2] == rows
        assert [len(studies.trial(study_id, n).attempts) for n in (1, 2, 3, 4)] == [1, 1, 2, 1]
        assert [row.attempt for row in studies.results(study_id).results] == [1, 1, 2, 1]

    def test_what_the_old_job_still_says_is_dropped(self, database: Database, studies: Studies) -> None:
        study_id = create(studies)
        old = begin(database, study_id)
        job = Job(old)
        feed(database, old, [job.started(1)])
        new = begin(database, study_id)
        feed(database, old, ["noise", job.succeeded(1)], start=1)
        # ... also where its events turn up in the new one's log
        feed(database, new, [job.succeeded(1)])
        assert states(studies, study_id) == ["pending"] * 4
        assert studies.study_logs(study_id) == []

    def test_the_new_log_is_read_from_its_beginning(self, database: Database, studies: Studies) -> None:
        study_id = create(studies)
        plan = begin(database, study_id)
        feed(database, plan, ["a", "b", Job(plan).line(StudyFinished, cancelled=True, error="stopped")])
        assert active(database)[0].log_position == 3
        assert active(database)[0].finished_event
        assert (active(database)[0].finished_cancelled, active(database)[0].finished_error) == (True, "stopped")
        begin(database, study_id)
        assert active(database)[0].log_position == 0
        assert not active(database)[0].finished_event

    def test_attempts_without_progress_are_counted_until_a_trial_finishes(
        self, database: Database, studies: Studies
    ) -> None:
        def count() -> int:
            with database.session() as session:
                return automatic_attempts_without_progress(session, study_id)

        study_id = create(studies)
        begin(database, study_id)
        assert count() == 0
        begin(database, study_id)
        plan = begin(database, study_id)
        assert count() == 2
        job = Job(plan)
        feed(database, plan, [job.started(1), job.failed(1, Reason.WORKER_LOST, will_retry=True)])
        assert count() == 2
        feed(database, plan, [job.failed(2)], start=2)
        assert count() == 0
        begin(database, study_id)
        finish(database, study_id)
        studies.resume(study_id)
        begin(database, study_id)
        assert count() == 0


class TestFinishStudy:
    @pytest.mark.parametrize(
        ("failing", "expected"), [((), "succeeded"), ((1,), "partial"), ((1, 2), "failed")], ids=str
    )
    def test_the_state_follows_from_the_trials(
        self, database: Database, studies: Studies, failing: tuple[int, ...], expected: str
    ) -> None:
        study_id = create(studies, 4, 8)
        plan = begin(database, study_id)
        job = Job(plan)
        feed(database, plan, [job.failed(n) if n in failing else job.succeeded(n) for n in (1, 2)])
        finish(database, study_id)
        view = studies.get(study_id)
        assert view.status == expected
        assert view.finished_at is not None
        assert active(database) == []

    def test_where_nothing_succeeded_the_first_cause_is_the_studys_error(
        self, database: Database, studies: Studies
    ) -> None:
        study_id = create(studies, 4, 8)
        plan = begin(database, study_id)
        job = Job(plan)
        feed(database, plan, [job.failed(1, Reason.OUT_OF_MEMORY), job.failed(2)])
        finish(database, study_id)
        expected = "No trial succeeded. The first to fail was trial 1, OUT_OF_MEMORY: ValueError: a bad value"
        assert studies.get(study_id).error == expected

    def test_a_given_error_comes_before_what_the_job_said(self, database: Database, studies: Studies) -> None:
        said, given = create(studies), create(studies)
        for study_id in (said, given):
            plan = begin(database, study_id)
            feed(database, plan, [Job(plan).line(StudyFinished, error="too many trials failed")])
        finish(database, said)
        finish(database, given, error="the cluster is gone")
        assert studies.get(said).error == "too many trials failed"
        assert studies.get(given).error == "the cluster is gone"

    def test_untouched_trials_stay_pending_and_a_running_one_was_lost(
        self, database: Database, studies: Studies
    ) -> None:
        study_id = create(studies)
        plan = begin(database, study_id)
        job = Job(plan)
        feed(database, plan, [job.succeeded(1), job.started(2)])
        finish(database, study_id, error="the cluster is gone")
        assert studies.get(study_id).status is StudyState.PARTIAL
        assert states(studies, study_id) == ["succeeded", "failed", "pending", "pending"]
        row = studies.results(study_id).results[1]
        assert row.reason is Reason.WORKER_LOST
        assert "the job ended before the trial did" in row.quality.notes[0]

    def test_of_a_cancelled_study_what_is_left_is_cancelled_and_what_is_finished_stands(
        self, database: Database, studies: Studies
    ) -> None:
        study_id = create(studies)
        plan = begin(database, study_id)
        job = Job(plan)
        feed(database, plan, [job.succeeded(1), job.failed(2), job.started(3)])
        studies.cancel(study_id)
        finish(database, study_id)  # a study that is being cancelled ends cancelled, whatever the job's own end
        assert studies.get(study_id).status is StudyState.CANCELLED
        assert states(studies, study_id) == ["succeeded", "failed", "cancelled", "cancelled"]
        assert [a.state for a in studies.trial(study_id, 3).attempts] == [TrialState.CANCELLED]
        assert studies.trial(study_id, 4).attempts == []

    def test_a_running_study_whose_job_was_stopped_can_end_cancelled(
        self, database: Database, studies: Studies
    ) -> None:
        study_id = create(studies)
        begin(database, study_id)
        finish(database, study_id, cancelled=True)
        assert studies.get(study_id).status is StudyState.CANCELLED

    def test_one_that_is_over_does_not_change(self, database: Database, studies: Studies) -> None:
        study_id = create(studies, 4)
        plan = begin(database, study_id)
        feed(database, plan, Job(plan).run(1))
        finish(database, study_id)
        before = studies.get(study_id)
        finish(database, study_id, cancelled=True, error="late")
        feed(database, plan, [Job(plan).failed(1)], start=10)
        assert studies.get(study_id) == before

    def test_a_queued_study_can_fail(self, database: Database, studies: Studies) -> None:
        study_id = create(studies)
        finish(database, study_id, error="it could not be submitted")
        view = studies.get(study_id)
        assert (view.status, view.error) == (StudyState.FAILED, "it could not be submitted")

    def test_one_taken_up_again_and_not_started_fails_though_trials_had_succeeded(
        self, database: Database, studies: Studies
    ) -> None:
        study_id = create(studies, 4, 8)
        plan = begin(database, study_id)
        feed(database, plan, Job(plan).run(1))
        finish(database, study_id)
        studies.resume(study_id)
        finish(database, study_id, error="it could not be submitted")
        assert studies.get(study_id).status is StudyState.FAILED
        assert states(studies, study_id) == ["succeeded", "pending"]


def test_the_job_and_its_dashboard_are_shown(database: Database, studies: Studies) -> None:
    study_id = create(studies)
    begin(database, study_id)
    with database.session() as session:
        set_ray(session, study_id, f"vitscale-{study_id}-1", "http://127.0.0.1:8265")
    view = studies.get(study_id)
    assert (view.ray.job_id, view.ray.dashboard_url) == (f"vitscale-{study_id}-1", "http://127.0.0.1:8265")


def test_a_unit_of_work_that_fails_takes_in_nothing(database: Database, studies: Studies) -> None:
    study_id = create(studies)
    plan = begin(database, study_id)
    job = Job(plan)
    lines = list(enumerate(job.run(1)))

    def die_in_the_middle() -> None:
        with database.session() as session:
            apply_lines(session, study_id, 1, lines)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        die_in_the_middle()
    assert active(database)[0].log_position == 0
    feed(database, plan, [line for _, line in lines])
    assert states(studies, study_id)[0] == "succeeded"
    assert len(studies.trial(study_id, 1).attempts) == 1
