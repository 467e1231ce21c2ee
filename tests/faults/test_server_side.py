"""Whatever dies around the trials: what finished stays, the rest runs again, and nobody waits for ever."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from service import dispatch, job_attempt
from service.ray_head import LocalHead
from service.ray_head_keeper import marked_processes
from service.states import StudyState, TrialState
from tests.integration.running_server import RunningServer, running_server
from tests.integration.scripted_job import package
from tests.service.factories import spec

FOUR = (1, 2, 4, 8)
ONCE = [(1, TrialState.SUCCEEDED, None)]
AGAIN = [(2, TrialState.SUCCEEDED, None)]
LOST_THEN_AGAIN = [(1, TrialState.FAILED, "WORKER_LOST"), *AGAIN]


@pytest.fixture
def own_head(tmp_path: Path) -> Iterator[LocalHead]:
    """A head that a test may ill-treat. The dispatcher starts it."""
    head = LocalHead(tmp_path / "own", num_cpus=2)
    yield head
    head.stop()


def head_processes(head: LocalHead) -> list[psutil.Process]:
    """All of Ray's processes of the head; not its keeper."""
    assert head._keeper is not None
    return [process for process in marked_processes(str(head._temp_dir)) if process.pid != head._keeper.pid]


def head_process(head: LocalHead, name: str) -> psutil.Process:
    return next(process for process in head_processes(head) if process.name() == name)


def assert_first_two_stand_and_the_rest_ran_again(server: RunningServer, study_id: str) -> None:
    done = server.finished(study_id, seconds=150)
    assert done.status == StudyState.SUCCEEDED
    assert done.trial_counts["succeeded"] == 4
    assert server.attempts_of(study_id) == {1: ONCE, 2: ONCE, 3: LOST_THEN_AGAIN, 4: AGAIN}


def test_a_killed_driver_costs_the_running_trial_only(tmp_path: Path, local_head: LocalHead) -> None:
    with running_server(tmp_path, local_head, package({1: {3: "die"}})) as server:
        study, _ = server.studies.create(spec(micro_batches=FOUR))
        assert_first_two_stand_and_the_rest_ran_again(server, study.id)
        notes = " ".join(server.studies.get(study.id).notes)
        assert "attempt 2 runs what is left" in notes


def test_a_killed_head_costs_the_running_trial_only(tmp_path: Path, own_head: LocalHead) -> None:
    with running_server(tmp_path, own_head, package({1: {3: "hang"}})) as server:
        study, _ = server.studies.create(spec(micro_batches=FOUR))
        server.running_trial(study.id, 3, seconds=200)
        first = str(own_head._temp_dir)
        head_process(own_head, "gcs_server").kill()
        assert_first_two_stand_and_the_rest_ran_again(server, study.id)
        assert str(own_head._temp_dir) != first
        assert marked_processes(first) == []


def test_a_hung_head_blocks_nobody_and_goes_on_when_it_wakes(
    tmp_path: Path, own_head: LocalHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_attempt, "IDLE_SECONDS", 5.0)
    with running_server(tmp_path, own_head, package({}, trial_seconds=3), ray_timeout_seconds=2) as server:
        study, _ = server.studies.create(spec(micro_batches=FOUR))
        server.running_trial(study.id, 2, seconds=200)
        stopped = head_processes(own_head)
        for process in stopped:
            process.suspend()
        try:
            began = time.monotonic()
            waiting, _ = server.studies.create(spec())
            assert server.studies.get(study.id).status == StudyState.RUNNING
            assert server.studies.get(waiting.id).status == StudyState.QUEUED
            assert time.monotonic() - began < 2
            server.wait(
                "the study says what it waits for",
                lambda: any("Waiting for Ray" in note for note in server.studies.get(study.id).notes),
                seconds=120,
            )
        finally:
            for process in stopped:
                process.resume()
        done = server.finished(study.id, seconds=150)
        assert done.status == StudyState.SUCCEEDED
        assert server.attempts_of(study.id) == dict.fromkeys((1, 2, 3, 4), ONCE)


def test_a_head_that_stays_hung_is_replaced(
    tmp_path: Path, own_head: LocalHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (dispatch, job_attempt):
        monkeypatch.setattr(module, "HUNG_SECONDS", 5.0)
    monkeypatch.setattr(job_attempt, "IDLE_SECONDS", 3.0)
    with running_server(tmp_path, own_head, package({1: {3: "hang"}}), ray_timeout_seconds=2) as server:
        study, _ = server.studies.create(spec(micro_batches=FOUR))
        server.running_trial(study.id, 3, seconds=200)
        for process in head_processes(own_head):
            process.suspend()
        assert_first_two_stand_and_the_rest_ran_again(server, study.id)


def test_a_cancellation_does_not_wait_for_a_hung_head(
    tmp_path: Path, own_head: LocalHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_attempt, "CANCEL_HUNG_SECONDS", 5.0)
    monkeypatch.setattr(job_attempt, "IDLE_SECONDS", 3.0)
    with running_server(tmp_path, own_head, package({1: {1: "hang"}}), ray_timeout_seconds=2) as server:
        study, _ = server.studies.create(spec())
        server.running_trial(study.id, 1, seconds=200)
        for process in head_processes(own_head):
            process.suspend()
        server.studies.cancel(study.id)
        assert server.finished(study.id, seconds=90).status == StudyState.CANCELLED


def test_a_killed_server_takes_the_study_up_again(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.faults.server_process", str(tmp_path), json.dumps({1: {3: "hang"}})]
    process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    study_id, temp_dir = process.stdout.readline().split()
    head = LocalHead(tmp_path, num_cpus=2)
    try:
        with running_server(tmp_path, head, package({})) as server:
            # A second server on the same data directory, as long as the first lives: it leaves the study alone.
            server.running_trial(study_id, 3, seconds=150)
            assert server.studies.get(study_id).ray.job_id == f"vitscale-{study_id}-1"
            assert "Another VitScale server" in (server.dispatcher.ray_problem or "")
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            assert_first_two_stand_and_the_rest_ran_again(server, study_id)
            assert marked_processes(temp_dir) == []
            assert not Path(temp_dir).exists()
    finally:
        head.stop()
