"""What the job driver knows about its trials while they run, and the events it writes about them. Pure.

Messages come from the trials' driver functions through Tune's reports; Tune may show the last one twice.
"""

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from service.event_writer import EventWriter
from service.events import ErrorCause
from service.job_plan import JobPlan
from service.states import Reason

MESSAGE_KEY = "vitscale"  # the one metric that a driver function reports to Tune


@dataclass(frozen=True)
class WorkerProcess:
    """A worker's process, for as long as it has to be seen off."""

    node_id: str
    pid: int


@dataclass
class OpenAttempt:
    """A trial attempt that has started and not finished."""

    trial: int
    trial_attempt: int
    leader: list[WorkerProcess] = field(default_factory=list)  # of its driver function, once it has spoken
    processes: list[WorkerProcess] = field(default_factory=list)  # of its workers
    started_at: float = field(default_factory=time.monotonic)


def message(kind: str, serial: int, *, processes: list[WorkerProcess] | None = None, **fields: Any) -> str:
    """One message of a driver function: kind started, progress or finished; `serial` counts up within its run."""
    known = [[process.node_id, process.pid] for process in processes or []]
    return json.dumps({"kind": kind, "serial": serial, "processes": known, "fields": fields})


class StudyRecord:
    """Turns messages into events, numbers the attempts, and closes what is left open. Threads may share it."""

    def __init__(self, plan: JobPlan, writer: EventWriter) -> None:
        self._plan = plan
        self._writer = writer
        self._open: dict[int, OpenAttempt] = {}
        self._next_attempt = {trial.number: trial.attempt for trial in plan.trials}
        self._last_serial: dict[int, int] = {}
        self._finished: set[int] = set()
        self._measured = {trial.number for trial in plan.trials if trial.contended_attempts}
        self._closed = False
        self._lock = threading.RLock()
        self._num_failed = 0

    @property
    def too_many_failed(self) -> bool:
        """Whether more trials have failed than the study allows."""
        limit = self._plan.execution.max_failed_trials
        return limit is not None and self._num_failed > limit

    def take(self, trial: int, text: str) -> None:
        """Takes a driver function's message. Shown twice, or after the study was closed: dropped."""
        data = json.loads(text)
        with self._lock:
            if self._closed or data["serial"] <= self._last_serial.get(trial, 0):
                return
            self._last_serial[trial] = data["serial"]
            processes = [WorkerProcess(*process) for process in data["processes"]]
            if data["kind"] == "started":
                self._start(trial, processes)
            elif data["kind"] == "progress":
                attempt = self._open[trial]
                attempt.processes = processes or attempt.processes
                self._writer.trial_progress(trial=trial, trial_attempt=attempt.trial_attempt, **data["fields"])
            else:
                self._finish(trial, **data["fields"])

    def driver_function_lost(self, trial: int, reason: Reason, error: ErrorCause, *, will_retry: bool) -> None:
        """The trial's driver function is gone without having said how the trial ended."""
        with self._lock:
            self._last_serial.pop(trial, None)  # a new one counts from the start
            if self._closed or trial in self._finished:
                return
            if trial not in self._open:
                self._start(trial)
            self._finish(trial, state="failed", reason=reason, error=error, will_retry=will_retry)

    def open_attempt(self, trial: int) -> OpenAttempt | None:
        with self._lock:
            return self._open.get(trial)

    def overdue(self, seconds: float) -> list[OpenAttempt]:
        """The attempts that have been open for longer than this."""
        now = time.monotonic()
        with self._lock:
            return [attempt for attempt in self._open.values() if now - attempt.started_at > seconds]

    def close(self) -> list[OpenAttempt]:
        """From here on nothing is taken. The attempts that are still open."""
        with self._lock:
            self._closed = True
            return list(self._open.values())

    def cancel(self, attempt: OpenAttempt) -> None:
        """Writes the end of an attempt that was open when the study was closed."""
        with self._lock:
            self._finish(attempt.trial, state="cancelled")

    def _start(self, trial: int, leader: list[WorkerProcess] | None = None) -> None:
        attempt = OpenAttempt(trial, self._next_attempt[trial], leader or [])
        self._next_attempt[trial] += 1
        self._open[trial] = attempt
        self._writer.trial_started(trial=trial, trial_attempt=attempt.trial_attempt)

    def _finish(self, trial: int, *, state: str, will_retry: bool = False, **fields: Any) -> None:
        attempt = self._open.pop(trial)
        if state == "succeeded":
            self._measured.add(trial)
        if not will_retry:
            self._finished.add(trial)
            # An attempt to measure once more that fails leaves the trial with the result it has.
            self._num_failed += state == "failed" and trial not in self._measured
        self._writer.trial_finished(
            trial=trial, trial_attempt=attempt.trial_attempt, state=state, will_retry=will_retry, **fields
        )
