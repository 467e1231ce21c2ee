"""Real trials on a busy machine: what is noticed, whom it names, and that a contended trial is measured once more."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.ray_head import LocalHead
from tests.integration.driver_run import driver_run, plan
from tests.integration.driver_run import trial as planned_trial
from tests.integration.test_standalone import REPOSITORY, TIMEOUT_SECONDS, trial
from trainers.config import TrialConfig
from trainers.result import TrialResult

# Runs a trial in which no reading may be taken between a window's first and last barrier.
GUARDED = """
import sys
from trainers import trial
from trainers.standalone import main
from trainers.telemetry import host, recorder

time_window, inside = trial.time_window, []

def guarded(steps, run_step, *, barrier, **rest):
    def outer_barrier():
        inside.clear() if inside else None
        barrier()
        if outer_barrier.first:
            inside.append(True)
        outer_barrier.first = False
    outer_barrier.first = True
    return time_window(steps, run_step, barrier=outer_barrier, **rest)

def forbid(owner, name):
    method = getattr(owner, name)
    def checked(*arguments, **more):
        assert not inside, f"{name} was called inside a window"
        checked.calls += 1
        return method(*arguments, **more)
    checked.calls = 0
    setattr(owner, name, checked)
    return checked

trial.time_window = guarded
watched = [forbid(host.HostReader, name) for name in
           ("own_cpu_seconds", "pool_counters", "process_times", "find_children", "uses")]
watched.append(forbid(recorder.Recorder, "readings"))
code = main(sys.argv[1:])
assert all(each.calls for each in watched)
sys.exit(code)
"""


@contextmanager
def hogs(count: int, processors: set[int] | None = None) -> Iterator[list[int]]:
    """Processes that compute without end. Yields their ids."""

    def stay() -> None:
        if processors is not None:
            os.sched_setaffinity(0, processors)

    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=stay) for _ in range(count)]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def run(config: TrialConfig, folder: Path, *command: str, processors: set[int] | None = None) -> TrialResult:
    """The trial in one process, without a launcher."""
    path = folder / "trial.json"
    path.write_text(config.model_dump_json(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *(command or ("-m", "trainers.standalone")), "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        preexec_fn=None if processors is None else lambda: os.sched_setaffinity(0, processors),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return TrialResult.model_validate_json(done.stdout)


def test_a_process_that_computes_on_the_trials_core_is_noticed_and_named(tmp_path: Path) -> None:
    core = {max(os.sched_getaffinity(0))}
    config = trial(world_size=1, measurement={"min_warmup_steps": 1, "min_steps": 40, "max_steps": 40})
    with hogs(1, core) as (hog,):
        result = run(config, tmp_path, processors=core)
    assert "contended" in result.quality.flags
    (note,) = [note for note in result.quality.notes if note.startswith("contended: others used")]
    assert result.telemetry is not None
    (row,) = result.telemetry.cores
    # On other cores others may compute too, of which nothing tells that they never came to this one.
    (named,) = [process for process in row.others if process.pid == hog]
    assert named.name.startswith("python")
    assert named.cores is not None
    assert named.cores > 0.2
    assert all(f"{process.name} (pid {process.pid})" in note for process in row.others[:3])
    assert (row.cores, row.ranks) == (1, [0])
    assert row.others_cores > 0.3
    assert row.trial_cores + row.others_cores == pytest.approx(1.0, abs=0.15)


def test_reading_stays_outside_of_windows_and_takes_under_one_percent_of_a_step(tmp_path: Path) -> None:
    script = tmp_path / "guarded.py"
    script.write_text(GUARDED, encoding="utf-8")
    config = trial(world_size=1, measurement={"min_warmup_steps": 2, "min_steps": 40, "max_steps": 40})
    result = run(config, tmp_path, str(script))
    assert result.telemetry is not None
    assert result.telemetry.windows == result.metrics.measured_steps / 10 > 0
    assert 0 < result.telemetry.reading_seconds_per_step < 0.01 * result.metrics.step_seconds_mean
    (row,) = result.telemetry.cores
    assert 0.3 < row.trial_cores < 1.5  # one thread, whatever else the machine does
    assert result.telemetry.devices == []


def test_a_contended_trial_is_measured_once_more_and_what_came_of_both_is_told(
    local_head: LocalHead, tmp_path: Path
) -> None:
    measurement = {"min_warmup_steps": 1, "min_steps": 20, "max_steps": 20, "max_seconds": 120}
    job = plan(planned_trial(1, world_size=2, measurement=measurement), study="busystudy234", contended_retries=1)
    with hogs(os.cpu_count() or 1), driver_run(local_head, tmp_path, job) as driver:
        assert driver.exit_code() == 0, driver.lines
    first, second = driver.finished(1)
    assert [(end.trial_attempt, end.state, end.will_retry) for end in (first, second)] == [
        (1, "succeeded", True),
        (2, "succeeded", False),
    ]
    for end in (first, second):
        assert end.result is not None
        assert "contended" in end.result.quality.flags
