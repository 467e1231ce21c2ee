"""One attempt at a trial, from being wanted until nothing of it is left: bounds, verdicts, progress. Pure of Ray.

It runs in the trial's driver function. Ray's part is behind `trainers.ray_worker.fit`, which calls back here, and
behind `Cluster`. Every wait has a bound: for a place (queue timeout), the process group (INIT_TIMEOUT_SECONDS), the
result (trial timeout), the clean-up.
"""

import logging
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ValidationError

from service.failure import Failure, failure_of, is_collateral, plain_failure
from service.feasibility import Demand, Node, PlacedWorker, why_infeasible, why_misplaced, why_shared_device
from service.job_plan import JobPlan, PlannedTrial
from service.states import Reason
from service.study_record import WorkerProcess
from trainers.raised_error import RaisedError
from trainers.result import TrialResult

if TYPE_CHECKING:
    from trainers.ray_worker import Crew

INIT_TIMEOUT_SECONDS = 300.0  # workers placed -> process group: loading torch from a cold network disk is slow
STATE_INTERVAL_SECONDS = 1.0  # how often rank 0 is asked how far it is
ROLL_CALL_SECONDS = 5.0  # how long the others may take to answer once one has found its connections closed
EXIT_GRACE_SECONDS = 3.0
CLEAN_UP_SECONDS = 30.0

logger = logging.getLogger(__name__)


class Report(Protocol):
    """Tells the job driver something about the trial."""

    def __call__(self, kind: str, *, processes: list[WorkerProcess] | None = None, **fields: Any) -> None: ...


class Cluster(Protocol):
    """What an attempt needs of Ray besides its workers."""

    def live_nodes(self) -> list[Node]: ...

    def remove_groups(self, prefix: str, timeout_seconds: float) -> list[str]:
        """Removes placement groups, and with them the workers in them. Returns those that remain."""

    def see_off(self, processes: Sequence[WorkerProcess], grace_seconds: float, timeout_seconds: float) -> list[str]:
        """Waits for processes on whatever node, kills what stays. Returns what remains."""


@dataclass(frozen=True)
class Outcome:
    """How one attempt ended: a result or a failure."""

    result: TrialResult | None
    failure: Failure | None
    queue_seconds: float | None  # wanted -> workers placed
    total_seconds: float  # wanted -> everything gone


class TrialAttempt:
    """Runs one attempt; it is the `TrialWatch` of its own trial."""

    def __init__(
        self, planned: PlannedTrial, job: JobPlan, group_name: str, cluster: Cluster, report: Report, scratch: Path
    ) -> None:
        num_gpus = job.resources.num_gpus
        if not isinstance(num_gpus, int):
            raise ValueError("num_gpus is resolved when the study starts, before any trial")
        self.group_name = group_name
        self._planned = planned
        self._job = job
        self._cluster = cluster
        self._report = report
        self._scratch = scratch
        self._demand = Demand.of(planned.config.world_size, job.resources, num_gpus, planned.placement)
        self._wanted_at = time.monotonic()
        self._placed_at: float | None = None
        self._crew: Crew | None = None
        self._processes: list[WorkerProcess] = []
        self._group_ready = False
        self._devices: dict[int, str | None] = {}
        self._asked_at = 0.0
        self._told: dict[str, Any] = {}
        self._deaths: list[RaisedError] = []
        self._result_json: str | None = None
        self._verdict: Failure | None = None

    def run(self) -> Outcome:
        """Runs the attempt to its end, and until nothing of it is left."""
        infeasible = why_infeasible(self._demand, self._cluster.live_nodes())
        if infeasible:
            return self._outcome(plain_failure(Reason.INFEASIBLE, infeasible))
        self._tell(phase="queued")
        over = threading.Event()
        watchdog = threading.Thread(target=self._watch_the_clock, args=(over,), name="watchdog", daemon=True)
        watchdog.start()
        try:
            errors = self._fit()
        finally:
            over.set()
            watchdog.join()
            left = self._clean_up()
        if left:
            logger.warning("something of the trial is still there after %g s: %s", CLEAN_UP_SECONDS, left)
        if self._verdict:
            return self._outcome(self._verdict)
        return self._outcome(failure_of([*errors, *self._deaths])) if errors else self._outcome(self._read_result())

    def _fit(self) -> list[RaisedError]:
        from trainers.ray_worker import fit

        with tempfile.TemporaryDirectory(prefix="trial-", dir=self._scratch) as storage:
            return fit(
                self._planned.config,
                self,
                num_cpus=self._demand.num_cpus,
                num_gpus=self._demand.num_gpus,
                strategy=self._demand.strategy,
                label_selectors=self._planned.placement.label_selectors(self._demand.world_size),
                queue_timeout_seconds=self._job.execution.queue_timeout_seconds,
                storage_path=storage,
            )

    def _read_result(self) -> TrialResult | Failure:
        if self._result_json is None:
            return plain_failure(Reason.BAD_RESULT, "the workers ended without an error and without a result")
        try:
            result = TrialResult.model_validate_json(self._result_json)
        except ValidationError as error:
            return plain_failure(Reason.BAD_RESULT, f"the result does not fit its schema: {error}", rank=0)
        if len(result.ranks) != self._demand.world_size:
            text = f"the result tells of {len(result.ranks)} ranks; the world size is {self._demand.world_size}"
            return plain_failure(Reason.BAD_RESULT, text, rank=0)
        return result

    def _outcome(self, ended: TrialResult | Failure) -> Outcome:
        return Outcome(
            result=ended if isinstance(ended, TrialResult) else None,
            failure=ended if isinstance(ended, Failure) else None,
            queue_seconds=None if self._placed_at is None else self._placed_at - self._wanted_at,
            total_seconds=time.monotonic() - self._wanted_at,
        )

    # ---- TrialWatch: called while the trial is led ----

    def workers_placed(self) -> None:
        self._placed_at = time.monotonic()

    def workers_started(self, crew: "Crew") -> None:
        self._crew = crew
        self._processes = [WorkerProcess(member.node_id, member.pid) for member in crew.members]
        self._tell(phase="starting")
        placed = [PlacedWorker(m.rank, m.bundle, m.node_id, m.gpu_ids) for m in crew.members]
        misplaced = why_misplaced(self._demand, placed, self._cluster.live_nodes())
        if misplaced:
            self._end(plain_failure(Reason.PLACEMENT_VIOLATION, misplaced))

    def polled(self, crew: "Crew", failures: Mapping[int, RaisedError]) -> None:
        if failures:
            if all(is_collateral(failure) for failure in failures.values()):
                # They lost their connections to someone: the cause is whoever is dead, if anybody is.
                others = {member.rank for member in crew.members} - set(failures)
                self._deaths = crew.deaths(others, ROLL_CALL_SECONDS)
            return
        for rank, state in crew.answers().items():
            if state.group_ready:
                self._group_ready = True
                self._see_device(rank, state.device_uuid)
            if rank == 0:
                self._tell(
                    phase=state.phase, done=state.done, total=state.total, images_per_second=state.images_per_second
                )
        now = time.monotonic()
        if not crew.has_pending and now - self._asked_at >= STATE_INTERVAL_SECONDS:
            self._asked_at = now
            all_seen = len(self._devices) == self._demand.world_size
            crew.ask([0] if all_seen else range(self._demand.world_size))

    def reported(self, metrics: Mapping[str, Any]) -> None:
        from trainers.ray_worker import RESULT_KEY

        self._result_json = metrics.get(RESULT_KEY)

    def _see_device(self, rank: int, uuid: str | None) -> None:
        self._devices[rank] = uuid
        shared = why_shared_device(self._devices)
        if shared:
            self._end(plain_failure(Reason.PLACEMENT_VIOLATION, shared))

    def _tell(self, **fields: Any) -> None:
        """Reports progress, unless it is what was told last."""
        fields = {**fields, "worker_pids": [process.pid for process in self._processes]}
        if fields != self._told:
            self._told = fields
            self._report("progress", processes=self._processes, **fields)

    # ---- bounds ----

    def _watch_the_clock(self, over: threading.Event) -> None:
        """Ends the attempt when a bound has passed. The wait for a place is bounded where it happens."""
        trial_timeout = self._job.execution.trial_timeout_seconds
        init_timeout = min(INIT_TIMEOUT_SECONDS, trial_timeout)
        while not over.wait(0.5):
            if self._placed_at is None:
                continue
            running = time.monotonic() - self._placed_at
            if running > init_timeout and not self._group_ready:
                text = f"the workers were placed, but had no process group after {init_timeout:g} s"
                self._end(plain_failure(Reason.INIT_TIMEOUT, f"{text}; {self._who_answers()}"))
                return
            if running > trial_timeout:
                phase = " ".join(f"{key} {self._told[key]}" for key in ("phase", "done") if key in self._told)
                text = f"no result within trial_timeout_seconds = {trial_timeout:g} (last known: {phase})"
                self._end(plain_failure(Reason.TIMEOUT, f"{text}; {self._who_answers()}"))
                return

    def _who_answers(self) -> str:
        if self._crew is None:
            return "not every worker process has started"
        silent = self._crew.silent_ranks()
        if not silent:
            return "every rank's process answers"
        return f"no answer from the process of rank {', '.join(map(str, silent))}"

    def _end(self, verdict: Failure) -> None:
        """Ends the attempt from outside: without its workers, whoever leads it comes back with an error."""
        self._verdict = self._verdict or verdict
        self._cluster.remove_groups(self.group_name, timeout_seconds=0)
        self._cluster.see_off(self._processes, grace_seconds=0, timeout_seconds=CLEAN_UP_SECONDS)

    def _clean_up(self) -> list[str]:
        """Waits until the attempt's placement group and processes, and with these their memory, are gone."""
        left = self._cluster.remove_groups(self.group_name, CLEAN_UP_SECONDS)
        return left + self._cluster.see_off(self._processes, EXIT_GRACE_SECONDS, CLEAN_UP_SECONDS)
