"""What becomes of a study when its workers, its driver function or its cluster do not do their part."""

import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.events import StudyFinished, TrialFinished
from service.ray_head import LocalHead
from service.states import Reason
from tests.integration.driver_run import REPOSITORY, SECONDS, DriverRun, driver_run, plan, trial, until

TRIAL_TIMEOUT_SECONDS = 60.0  # ten times what a tiny trial takes to start on two quiet cores
WITHOUT_END: dict[str, Any] = {
    "dataset": "synthetic",
    "measurement": {"min_steps": 100_000, "max_steps": 100_000, "max_seconds": SECONDS},
}


def leader_of(worker_pid: int) -> psutil.Process:
    """The process of the trial's driver function: a child of the worker's own raylet."""
    raylet = psutil.Process(worker_pid).parent()
    assert raylet is not None
    (leader,) = [child for child in raylet.children() if child.cmdline()[0].startswith("ray::ImplicitFunc")]
    return leader


@pytest.fixture(scope="module")
def killed(local_head: LocalHead, tmp_path_factory: pytest.TempPathFactory) -> DriverRun:
    """A study in which, each time it is tried, trial 1 loses a worker and trial 2 its driver function."""
    job = plan(
        trial(1, world_size=2, **WITHOUT_END), trial(2, **WITHOUT_END), trial(3), study="killedstudy2", retries=1
    )
    with driver_run(local_head, tmp_path_factory.mktemp("killed"), job) as run:
        for attempt in (1, 2):
            os.kill(run.measuring(1, attempt).worker_pids[1], signal.SIGKILL)
        for attempt in (1, 2):
            (pid,) = run.measuring(2, attempt).worker_pids
            leader_of(pid).kill()
        assert run.exit_code() == 0, run.lines
    return run


def test_a_killed_worker_is_a_lost_one_and_the_trial_is_tried_again(killed: DriverRun) -> None:
    first, second = killed.finished(1)
    assert (first.reason, first.will_retry, first.trial_attempt) == (Reason.WORKER_LOST, True, 1)
    assert (second.reason, second.will_retry, second.trial_attempt) == (Reason.WORKER_LOST, False, 2)
    for finished in (first, second):
        assert finished.error is not None
        assert finished.error.rank == 1  # not rank 0, which found its connection closed


def test_a_driver_function_that_dies_is_a_lost_one_too(killed: DriverRun) -> None:
    first, second = killed.finished(2)
    assert (first.reason, first.will_retry, first.trial_attempt) == (Reason.WORKER_LOST, True, 1)
    assert (second.reason, second.will_retry, second.trial_attempt) == (Reason.WORKER_LOST, False, 2)


def test_the_study_goes_on_after_them(killed: DriverRun) -> None:
    assert killed.started() == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]
    assert [finished.state for finished in killed.finished(3)] == ["succeeded"]


def test_no_worker_of_a_killed_trial_is_left(killed: DriverRun) -> None:
    assert len(killed.worker_pids()) == 7
    assert not [pid for pid in killed.worker_pids() if psutil.pid_exists(pid)]


@pytest.fixture(scope="module")
def stopped(local_head: LocalHead, tmp_path_factory: pytest.TempPathFactory) -> DriverRun:
    """A study with a stopped worker in its first trial. That the process is gone is seen to as soon as the trial is."""
    job = plan(
        trial(1, world_size=2, **WITHOUT_END),
        trial(2),
        study="stoppedstudy",
        trial_timeout_seconds=TRIAL_TIMEOUT_SECONDS,
    )
    with driver_run(local_head, tmp_path_factory.mktemp("stopped"), job) as run:
        pid = run.measuring(1).worker_pids[1]
        os.kill(pid, signal.SIGSTOP)
        run.wait_for(lambda event: isinstance(event, TrialFinished) and event.trial == 1)
        until(lambda: not psutil.pid_exists(pid), "the stopped worker is gone", 5)
        assert run.exit_code() == 0, run.lines
    return run


def test_a_stopped_worker_runs_into_the_time_limit_and_is_named(stopped: DriverRun) -> None:
    (finished,) = stopped.finished(1)
    assert (finished.state, finished.reason, finished.will_retry) == ("failed", Reason.TIMEOUT, False)
    assert finished.error is not None
    assert "no answer from the process of rank 1" in finished.error.message
    assert finished.total_seconds is not None
    assert TRIAL_TIMEOUT_SECONDS < finished.total_seconds < TRIAL_TIMEOUT_SECONDS + 30


def test_the_next_trial_runs_after_a_stopped_worker(stopped: DriverRun) -> None:
    assert [finished.state for finished in stopped.finished(2)] == ["succeeded"]


def test_a_terminated_driver_ends_its_trial_and_says_so(local_head: LocalHead, tmp_path: Path) -> None:
    """Before, while it holds all CPUs, another study's trial finds no room."""
    job = plan(trial(1, world_size=2, **WITHOUT_END), trial(2), study="endedstudy23")
    waiting = plan(trial(1, world_size=2), study="waitingstudy", queue_timeout_seconds=1)
    with driver_run(local_head, tmp_path, job) as run:
        run.measuring(1)
        with driver_run(local_head, tmp_path, waiting) as other:
            assert other.exit_code() == 0, other.lines
        asked = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        assert run.exit_code() == 0
        assert time.monotonic() - asked < 20
    (waited,) = other.finished(1)
    assert (waited.reason, waited.will_retry, waited.queue_seconds) == (Reason.QUEUE_TIMEOUT, False, None)
    assert run.started() == [(1, 1)]
    assert [finished.state for finished in run.finished(1)] == ["cancelled"]
    last = run.events[-1]
    assert isinstance(last, StudyFinished)
    assert last.cancelled
    until(lambda: not any(psutil.pid_exists(pid) for pid in run.worker_pids()), "the workers are gone", 5)


def code_with_stub(folder: Path, module: str) -> Path:
    """A copy of the code with another module in trainers/."""
    for package in ("trainers", "service"):
        shutil.copytree(REPOSITORY / package, folder / "code" / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name(f"stub_{module}.py"), folder / "code" / "trainers" / f"{module}.py")
    return folder / "code"


def test_workers_that_never_meet_run_into_the_bound_of_their_start(local_head: LocalHead, tmp_path: Path) -> None:
    """However slow the machine: workers that have not even started by then end in the same way."""
    job = plan(trial(1, model="never-joins", world_size=2), study="lonelystudy2", retries=1, trial_timeout_seconds=12)
    with driver_run(local_head, tmp_path, job, code=code_with_stub(tmp_path, "trial")) as run:
        assert run.exit_code() == 0, run.lines
    first, second = run.finished(1)
    assert (first.reason, first.will_retry, second.reason, second.will_retry) == (
        Reason.INIT_TIMEOUT,
        True,
        Reason.INIT_TIMEOUT,
        False,
    )
    assert first.error is not None
    assert "no process group after 12 s" in first.error.message


def test_workers_of_unlike_versions_are_refused_before_they_are_measured(local_head: LocalHead, tmp_path: Path) -> None:
    job = plan(trial(1, world_size=2), study="unlikestudy2", retries=1)
    with driver_run(local_head, tmp_path, job, code=code_with_stub(tmp_path, "versions")) as run:
        assert run.exit_code() == 0, run.lines
    (finished,) = run.finished(1)
    assert (finished.reason, finished.will_retry) == (Reason.INVALID_CONFIG, False)
    assert finished.error is not None
    assert finished.error.type == "WorkersDisagree"
    assert re.fullmatch(
        r"torch must be the same on all nodes: 2\.14\.1 on node .* \(.*; rank 0\), 2\.9\.0 on node .* \(.*; rank 1\)",
        finished.error.message,
    )


@pytest.fixture(scope="module")
def broken(local_head: LocalHead, tmp_path_factory: pytest.TempPathFactory) -> DriverRun:
    """Trials that break in ways of their own."""
    folder = tmp_path_factory.mktemp("broken")
    job = plan(
        trial(1, model="no-result"),
        trial(2, model="garbage"),
        trial(3, model="leaves"),
        trial(4, model="out-of-memory"),
        trial(5, model="one-rank-raises", world_size=2),
        trial(6, model="vanishes", world_size=2),
        isolation="shared",
        retries=0,
        study="brokenstudy2",
    )
    with driver_run(local_head, folder, job, code=code_with_stub(folder, "trial")) as run:
        assert run.exit_code() == 0, run.lines
    return run


@pytest.mark.parametrize(
    ("number", "reason", "kind", "rank"),
    [
        (1, Reason.BAD_RESULT, "NoResult", 0),
        (2, Reason.BAD_RESULT, "BAD_RESULT", 0),
        (3, Reason.BAD_RESULT, "SystemExit", 0),
        (4, Reason.OUT_OF_MEMORY, "RuntimeError", 0),
        (5, Reason.ERROR, "KeyError", 1),
        (6, Reason.WORKER_LOST, "ActorDiedError", 1),
    ],
)
def test_a_broken_trial_has_its_reason_and_the_rank_it_began_on(
    broken: DriverRun, number: int, reason: Reason, kind: str, rank: int
) -> None:
    (finished,) = broken.finished(number)
    assert finished.error is not None
    assert (finished.state, finished.reason, finished.error.type, finished.error.rank) == ("failed", reason, kind, rank)
