"""What becomes of a study when its workers, its driver function or its cluster do not do their part."""

import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from service.events import StudyFinished, TrialStarted
from service.ray_head import LocalHead
from service.states import Reason
from tests.integration.driver_run import REPOSITORY, DriverRun, driver_run, plan, trial, until

TRIAL_TIMEOUT_SECONDS = 45.0  # several times what a tiny trial takes; a stopped one is ended after it
LONG = {"measurement": {"min_warmup_steps": 1, "min_steps": 100_000, "max_steps": 100_000, "max_seconds": 600}}


class TestWorkers:
    """One study: a worker is killed in the first trial, stopped in the second; the third is left in peace."""

    @pytest.fixture(scope="class")
    def run(self, local_head: LocalHead, tmp_path_factory: pytest.TempPathFactory) -> DriverRun:
        job = plan(
            trial(1, world_size=2, dataset="synthetic", **LONG),
            trial(2, world_size=2, dataset="synthetic", **LONG),
            trial(3, world_size=2),
            study="workerfaults",
            retries=1,
            trial_timeout_seconds=TRIAL_TIMEOUT_SECONDS,
        )
        with driver_run(local_head, tmp_path_factory.mktemp("faults"), job) as run:
            for attempt in (1, 2):
                os.kill(run.measuring(1, attempt).worker_pids[1], signal.SIGKILL)
            os.kill(run.measuring(2).worker_pids[1], signal.SIGSTOP)
            assert run.exit_code() == 0, run.lines
        return run

    def test_a_killed_worker_is_a_lost_one_and_the_trial_is_tried_again(self, run: DriverRun) -> None:
        first, second = run.finished(1)
        assert (first.reason, first.will_retry, first.trial_attempt) == (Reason.WORKER_LOST, True, 1)
        assert (second.reason, second.will_retry, second.trial_attempt) == (Reason.WORKER_LOST, False, 2)
        assert first.error is not None
        assert first.error.rank == 1  # not rank 0, which found its connection closed

    def test_a_stopped_worker_runs_into_the_time_limit_and_is_named(self, run: DriverRun) -> None:
        (finished,) = run.finished(2)
        assert (finished.reason, finished.will_retry) == (Reason.TIMEOUT, False)
        assert finished.error is not None
        assert "no answer from the process of rank 1" in finished.error.message
        assert finished.total_seconds is not None
        assert TRIAL_TIMEOUT_SECONDS < finished.total_seconds < TRIAL_TIMEOUT_SECONDS + 30

    def test_the_next_trial_runs(self, run: DriverRun) -> None:
        assert run.started() == [(1, 1), (1, 2), (2, 1), (3, 1)]
        assert [finished.state for finished in run.finished(3)] == ["succeeded"]

    def test_no_process_is_left_not_even_the_stopped_one(self, run: DriverRun) -> None:
        assert len(run.worker_pids()) == 8
        assert not [pid for pid in run.worker_pids() if psutil.pid_exists(pid)]


def test_a_terminated_driver_ends_its_trial_and_says_so(local_head: LocalHead, tmp_path: Path) -> None:
    job = plan(trial(1, world_size=2, dataset="synthetic", **LONG), trial(2), study="cancelstudy2")
    with driver_run(local_head, tmp_path, job) as run:
        pids = run.measuring(1).worker_pids
        waiting = plan(trial(1, world_size=2), study="queuedstudy2", queue_timeout_seconds=2)
        with driver_run(local_head, tmp_path, waiting) as other:
            assert other.exit_code() == 0
        (waited,) = other.finished(1)
        asked = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        assert run.exit_code() == 0
        assert time.monotonic() - asked < 20
    assert (waited.state, waited.reason) == ("failed", Reason.QUEUE_TIMEOUT)  # all CPUs were the other study's
    assert run.started() == [(1, 1)]
    assert [finished.state for finished in run.finished(1)] == ["cancelled"]
    last = run.events[-1]
    assert isinstance(last, StudyFinished)
    assert last.cancelled
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "the workers are gone", 5)


def test_a_driver_function_that_dies_is_replaced_and_its_workers_go_with_it(
    local_head: LocalHead, tmp_path: Path
) -> None:
    job = plan(trial(1, dataset="synthetic", **LONG), trial(2), study="leaderstudy2", max_failed_trials=0)
    with driver_run(local_head, tmp_path, job) as run:
        for attempt in (1, 2):
            (pid,) = run.measuring(1, attempt).worker_pids
            leader = next(
                process
                for process in psutil.process_iter(["cmdline"])
                if (process.info["cmdline"] or [""])[0].startswith("ray::")
                and "lead_trial" in process.info["cmdline"][0]
            )
            leader.kill()
            until(lambda pid=pid: not psutil.pid_exists(pid), "its worker is gone")  # type: ignore[misc]
        assert run.exit_code() == 0
    first, second = run.finished(1)
    assert (first.reason, first.will_retry) == (Reason.WORKER_LOST, True)
    assert (second.reason, second.will_retry) == (Reason.WORKER_LOST, False)
    assert not any(isinstance(event, TrialStarted) and event.trial == 2 for event in run.events)
    last = run.events[-1]
    assert isinstance(last, StudyFinished)
    assert "max_failed_trials" in (last.error or "")


class TestBrokenTrials:
    """Trials that break in ways of their own, run from a copy of the code with another trainers/trial.py."""

    @pytest.fixture(scope="class")
    def run(self, local_head: LocalHead, tmp_path_factory: pytest.TempPathFactory) -> DriverRun:
        folder = tmp_path_factory.mktemp("broken")
        for package in ("trainers", "service"):
            shutil.copytree(
                REPOSITORY / package, folder / "code" / package, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(Path(__file__).with_name("stub_trial.py"), folder / "code" / "trainers" / "trial.py")
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
        with driver_run(local_head, folder, job, code=folder / "code") as run:
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
    def test_the_reason_and_the_rank_it_began_on(
        self, run: DriverRun, number: int, reason: Reason, kind: str, rank: int
    ) -> None:
        (finished,) = run.finished(number)
        assert finished.error is not None
        assert (finished.state, finished.reason, finished.error.type, finished.error.rank) == (
            "failed",
            reason,
            kind,
            rank,
        )
