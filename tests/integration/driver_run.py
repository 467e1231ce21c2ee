"""A job driver run by hand, as a child of the test: what it writes, and what becomes of it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.events import Event, TrialFinished, TrialProgress, TrialStarted, parse_event
from service.job_plan import Execution, JobPlan, Placement, PlannedTrial
from service.ray_head import LocalHead
from trainers.config import MeasurementConfig, TrialConfig

REPOSITORY = Path(__file__).parents[2]
# The product's own bounds are far below; a busy machine is slow.
SECONDS = 240.0


def trial(number: int, *, placement: Placement | None = None, **changes: Any) -> PlannedTrial:
    """A tiny trial on real images; the global batch follows from the rest."""
    world_size = changes.get("world_size", 1)
    accumulation = changes.get("gradient_accumulation_steps", 1)
    values: dict[str, Any] = {
        "model": "vit_tiny_patch16_224",
        "image_size": 32,
        "patch_size": 8,
        "num_classes": 10,
        "dataset": "digits",
        "world_size": 1,
        "train_micro_batch_size_per_gpu": 4,
        "train_batch_size": 4 * world_size * accumulation,
        "measurement": MeasurementConfig(min_warmup_steps=1, min_steps=10, max_steps=10, max_seconds=120),
    }
    return PlannedTrial(number=number, placement=placement or Placement(), config=TrialConfig(**values | changes))


def plan(*trials: PlannedTrial, study: str = "teststudy234", attempt: int = 1, **execution: Any) -> JobPlan:
    """Without a second measurement where others used the cores: other tests do, and how many runs there are is told."""
    execution = {"contended_retries": 0, **execution}
    return JobPlan(study=study, attempt=attempt, execution=Execution(**execution), trials=list(trials))


class DriverRun:
    """A running job driver. `events` and `lines` (what is no event) grow while it runs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.events: list[Event] = []
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            event = parse_event(line)
            with self._changed:
                if event is not None:
                    self.events.append(event)
                elif line:
                    self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, wanted: Callable[[Event], bool], seconds: float = SECONDS) -> Event:
        """The first event that is wanted, whether it has been or is still to come."""

        def found() -> Event | None:
            return next((event for event in self.events if wanted(event)), None)

        with self._changed:
            if not self._changed.wait_for(lambda: found() or not self._reader.is_alive(), timeout=seconds):
                raise AssertionError(f"the event has not come within {seconds:g} s; {self._told()}")
            event = found()
        assert event is not None, f"the driver ended without the event; {self._told()}"
        return event

    def measuring(self, number: int, trial_attempt: int = 1) -> TrialProgress:
        """Waits until this trial is in its timed steps."""
        event = self.wait_for(
            lambda event: (
                isinstance(event, TrialProgress)
                and (event.trial, event.trial_attempt) == (number, trial_attempt)
                and event.phase in ("warmup", "measure")
            )
        )
        assert isinstance(event, TrialProgress)
        return event

    def exit_code(self, seconds: float = SECONDS) -> int:
        """Waits for the driver's end."""
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code

    def finished(self, number: int) -> list[TrialFinished]:
        """The ends of this trial's attempts."""
        return [event for event in self.events if isinstance(event, TrialFinished) and event.trial == number]

    def started(self) -> list[tuple[int, int]]:
        """(trial, attempt) in the order in which they started."""
        return [(event.trial, event.trial_attempt) for event in self.events if isinstance(event, TrialStarted)]

    def worker_pids(self) -> set[int]:
        return {pid for event in self.events if isinstance(event, TrialProgress) for pid in event.worker_pids}

    def _told(self) -> str:
        lines = "\n".join(self.lines[-30:])
        ends = [
            f"trial {event.trial} attempt {event.trial_attempt}: {event.reason or event.state}"
            for event in self.events
            if isinstance(event, TrialFinished)
        ]
        return f"{len(self.events)} events, {ends}\n{lines}"


@contextmanager
def driver_run(
    head: LocalHead, folder: Path, job: JobPlan, *, code: Path = REPOSITORY, **variables: str
) -> Iterator[DriverRun]:
    """Runs `python -m service.run_study` on this head, in a folder of its own, and ends it if the test does not."""
    path = folder / f"plan-{job.study}-{job.attempt}.json"
    path.write_text(job.model_dump_json())
    working_directory = folder / f"work-{job.study}-{job.attempt}"
    working_directory.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "service.run_study", str(path)],
        cwd=working_directory,
        env=driver_environment(head, code) | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    run = DriverRun(process)
    try:
        yield run
        assert list(working_directory.iterdir()) == [], "the driver left files in its working directory"
        assert scratch_folders(head, job) == [], "the driver left its scratch folder"
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(25)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert process.stdout is not None
        process.stdout.close()


def driver_environment(head: LocalHead, code: Path) -> dict[str, str]:
    """What a job on this head finds in its environment."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "VITSCALE_"))}
    return kept | {
        "RAY_ADDRESS": gcs_address(head),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(head.token_path),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "PYTHONPATH": str(code),
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"env_vars": {"PYTHONPATH": str(code)}}}),
        "PYTHONUNBUFFERED": "1",
    }


_LEFTOVERS = """
import json, ray
from ray.util.placement_group import placement_group_table
from ray.util.state import list_actors
ray.init(logging_level="ERROR", log_to_driver=False)
groups = [g["name"] for g in placement_group_table().values() if g["state"] != "REMOVED"]
actors = [a.class_name for a in list_actors(limit=1000) if a.state != "DEAD" and a.class_name != "JobSupervisor"]
print(json.dumps(groups + actors))
"""


def leftovers(head: LocalHead) -> list[str]:
    """Placement groups and actors that are on this head now, other than what Ray itself runs jobs with."""
    asked = subprocess.run(
        [sys.executable, "-c", _LEFTOVERS],
        env=driver_environment(head, REPOSITORY) | {"RAY_API_SERVER_ADDRESS": head.connection.dashboard_url},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert asked.returncode == 0, asked.stderr
    found: list[str] = json.loads(asked.stdout.splitlines()[-1])
    return found


def gcs_address(head: LocalHead) -> str:
    """Where the head listens, as Ray itself notes it down."""
    return (ray_directory(head) / "ray_current_cluster").read_text().strip()


def ray_directory(head: LocalHead) -> Path:
    """Ray's temporary directory."""
    return Path(json.loads((head.directory / "head.json").read_text())["temp_dir"]) / "r"


def scratch_folders(head: LocalHead, job: JobPlan) -> list[Path]:
    """What a job has left on the disk."""
    name = f"vitscale-{job.study}-{job.attempt}*"
    return [*ray_directory(head).glob(f"session_latest/{name}"), *Path(tempfile.gettempdir()).glob(name)]


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Waits for a condition; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
