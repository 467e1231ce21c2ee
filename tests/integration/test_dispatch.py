"""The queue on a real Ray, with a scripted job driver: what happens to a study around its trials."""

from pathlib import Path

import pytest

from service.dispatch import Dispatcher
from service.job_attempt import ENV_VARS
from service.ray_head import LocalHead
from service.ray_jobs import RayJobs
from service.settings import Settings
from service.states import StudyState, TrialState
from tests.integration.running_server import running_server
from tests.integration.scripted_job import package
from tests.service.factories import spec

FOUR = (1, 2, 4, 8)


def test_a_study_runs_from_the_queue_to_its_results(tmp_path: Path, local_head: LocalHead) -> None:
    with running_server(tmp_path, local_head, package({})) as server:
        study, _ = server.studies.create(spec(micro_batches=FOUR))
        done = server.finished(study.id)
        assert done.status == StudyState.SUCCEEDED
        assert done.trial_counts["succeeded"] == 4
        assert done.error is None
        assert done.ray.job_id == f"vitscale-{study.id}-1"
        assert done.ray.dashboard_url == local_head.connection.dashboard_url
        assert [line.text for line in server.studies.trial_logs(study.id, 2)] == ["trial 2 runs"]
        rows = server.studies.results(study.id).results
        assert [row.metrics.images_per_second for row in rows] == [80.0] * 4


def test_one_study_runs_at_a_time_the_oldest_first(tmp_path: Path, local_head: LocalHead) -> None:
    with running_server(tmp_path, local_head, package({}, trial_seconds=3)) as server:
        first, _ = server.studies.create(spec())
        second, _ = server.studies.create(spec())
        server.running_trial(first.id, 1)
        assert server.studies.get(second.id).status == StudyState.QUEUED
        began, ended = server.finished(second.id).started_at, server.finished(first.id).finished_at
        assert began is not None
        assert ended is not None
        assert began >= ended


def test_two_studies_run_side_by_side_where_that_is_allowed(tmp_path: Path, local_head: LocalHead) -> None:
    hang = package({1: {1: "hang"}})
    with running_server(tmp_path, local_head, hang, max_running_studies=2) as server:
        ids = [server.studies.create(spec())[0].id for _ in range(2)]
        for study_id in ids:
            server.running_trial(study_id, 1)
        for study_id in ids:
            server.studies.cancel(study_id)
        assert {server.finished(study_id).status for study_id in ids} == {StudyState.CANCELLED}


def test_a_cancelled_study_ends_its_running_trial_and_its_job(tmp_path: Path, local_head: LocalHead) -> None:
    with running_server(tmp_path, local_head, package({1: {2: "hang"}})) as server:
        study, _ = server.studies.create(spec(micro_batches=FOUR))
        server.running_trial(study.id, 2)
        server.studies.cancel(study.id)
        done = server.finished(study.id, seconds=40)
        assert done.status == StudyState.CANCELLED
        assert done.trial_counts["succeeded"] == 1
        assert done.trial_counts["cancelled"] == 3
        with RayJobs(local_head.connection) as jobs:
            server.wait("job over", lambda: jobs.info(f"vitscale-{study.id}-1").status.is_terminal, 40)  # type: ignore[union-attr]


def test_a_resumed_study_runs_what_never_finished(tmp_path: Path, local_head: LocalHead) -> None:
    with running_server(tmp_path, local_head, package({1: {2: "hang"}})) as server:
        study, _ = server.studies.create(spec(micro_batches=FOUR))
        server.running_trial(study.id, 2)
        server.studies.cancel(study.id)
        server.finished(study.id)
        server.studies.resume(study.id)
        assert server.finished(study.id).status == StudyState.SUCCEEDED
        runs = server.attempts_of(study.id)
        assert runs[1] == [(1, TrialState.SUCCEEDED, None)]
        assert runs[2] == [(1, TrialState.CANCELLED, None), (2, TrialState.SUCCEEDED, None)]
        assert runs[4] == [(2, TrialState.SUCCEEDED, None)]


def test_a_job_that_never_gets_anywhere_is_given_up_with_its_cause(tmp_path: Path, local_head: LocalHead) -> None:
    always = {attempt: {1: "exit"} for attempt in range(1, 10)}
    with running_server(tmp_path, local_head, package(always)) as server:
        study, _ = server.studies.create(spec())
        done = server.finished(study.id, seconds=150)
        assert done.status == StudyState.FAILED
        assert done.ray.job_id == f"vitscale-{study.id}-4"  # the first, and three by itself
        assert "4 attempts in a row" in (done.error or "")
        assert "exit code 3" in (done.error or "")
        assert "trial 1 runs" in (done.error or "")  # the end of the job's log


def test_stopping_the_dispatcher_leaves_a_running_study_as_it_is(tmp_path: Path, local_head: LocalHead) -> None:
    with running_server(tmp_path, local_head, package({1: {1: "hang"}})) as server:
        study, _ = server.studies.create(spec())
        server.running_trial(study.id, 1)
        server.dispatcher.stop(5.0)
        assert server.studies.get(study.id).status == StudyState.RUNNING
        again = Dispatcher(server.database, Settings(_env_file=None, data_dir=tmp_path), local_head, package({}))
        again.start()
        server.studies.cancel(study.id)
        again.wake()
        try:
            assert server.finished(study.id, seconds=40).status == StudyState.CANCELLED  # its job was taken up
        finally:
            again.stop(5.0)


def test_a_driver_that_does_not_heed_a_stop_is_ended(
    tmp_path: Path, local_head: LocalHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENV_VARS, "RAY_JOB_STOP_WAIT_TIME_S", "2")
    with running_server(tmp_path, local_head, package({1: {1: "deaf"}})) as server:
        study, _ = server.studies.create(spec())
        server.running_trial(study.id, 1)
        server.studies.cancel(study.id)
        done = server.finished(study.id, seconds=40)
        assert done.status == StudyState.CANCELLED
        assert server.attempts_of(study.id)[1] == [(1, TrialState.CANCELLED, None)]
