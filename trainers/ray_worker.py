"""A trial under Ray Train: what each worker runs, and a TorchTrainer that leads it from the calling process.

Ray Train starts an actor for its controller, one that cleans up after it, one that watches for preemption and one where
the ranks wait for each other, for every trial. Each is a Python process that imports torch or Ray beside the trial that
is about to be measured, and wakes many times a second while it is. Here the controller runs in the process that calls
`fit` (the Tune trial's own, kept warm between trials), and the caller does the cleaning. It looks at the workers seldom
and is answered when there is news. The same code measured under torchrun is `trainers.standalone`.

Imported by workers and by the trial's driver function only: the job driver stays without torch.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ray
import ray.train
import ray.train.torch
from ray.exceptions import RayError
from ray.train import (
    ControllerError,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
    WorkerGroupError,
)
from ray.train._internal.utils import get_address_and_port
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.torch.config import _TorchBackend
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution import context as train_context
from ray.train.v2._internal.execution.callback import ReportCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import (
    Worker,
    WorkerGroup,
    WorkerGroupContext,
    WorkerGroupPollStatus,
    WorkerStatus,
)
from ray.train.v2._internal.execution.worker_group import state as worker_group_state
from ray.train.v2._internal.execution.worker_group import worker_group as worker_group_module
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
from ray.train.v2.api.callback import RayTrainCallback
from ray.train.v2.api.config import LoggingConfig
from ray.types import ObjectRef
from ray.util.placement_group import PlacementGroup, placement_group

from trainers import worker_state
from trainers.config import TrialConfig
from trainers.raised_error import RaisedError, describe

RESULT_KEY = "result"

POLL_SECONDS = 2.0  # a poll is answered after so long, or when the trial is over
BETWEEN_POLLS_SECONDS = 0.1
LATE_POLL_SECONDS = 2 * POLL_SECONDS  # from then on a worker counts as hanging, and the others' answers are taken


class PlacementViolation(Exception):
    """A worker sits on another device than it was given."""


class NoResult(Exception):
    """The trial came to its end without a result."""


class WorkerError(Exception):
    """An exception of the trial as it travels to the controller: its description (`RaisedError`) as JSON."""

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description

    def __str__(self) -> str:
        described = RaisedError.model_validate_json(self.description)
        return f"rank {described.rank}: {described.type}: {described.message}"


# ---- on a worker ----


def train_loop(config: dict[str, Any]) -> None:
    """Runs one trial on this worker and reports once, on every rank, when the measurement is over.

    Args:
        config: `{"trial": TrialConfig as a dictionary}`.

    Raises:
        WorkerError: whatever the trial raised, described.
    """
    logging.getLogger("ray.train").setLevel(logging.ERROR)  # else it prints the whole report
    rank = ray.train.get_context().get_world_rank()
    try:
        report = _run(TrialConfig.model_validate(config["trial"]), rank)
    except BaseException as error:  # SystemExit too: no result is a failure
        described = describe(error, rank=rank, node=socket.gethostname())
        raise WorkerError(described.model_dump_json()) from error
    finally:
        worker_state.over.set()
    train_context.logger.setLevel(logging.WARNING)  # it logs the whole report
    ray.train.report(report)


def _run(trial: TrialConfig, rank: int) -> dict[str, Any]:
    from trainers.trial import run_trial

    _check_device()
    result = run_trial(trial, progress=worker_state.note_progress)
    if rank != 0:
        return {}
    if result is None:
        raise NoResult("the trial ended on rank 0 without a result")
    return {RESULT_KEY: result.model_dump_json()}


def _check_device() -> None:
    """The device that Ray gave to this worker must be the one that the trial will use: its local rank's GPU, if any."""
    import torch

    given = ray.train.torch.get_device()
    if given.type != "cuda":
        if torch.cuda.is_available():
            raise PlacementViolation(
                f"Ray gave this worker no GPU, but it can see {torch.cuda.device_count()} and would train on one: "
                "ask for num_gpus, or start the node with CUDA_VISIBLE_DEVICES empty"
            )
        return
    local_rank = int(os.environ["LOCAL_RANK"])
    if given.index != local_rank:
        raise PlacementViolation(f"Ray gave this worker {given}, but its local rank is {local_rank}")
    worker_state.state.device_uuid = str(torch.cuda.get_device_properties(given).uuid)


def set_rank_environment(master_address: str, master_port: int) -> None:
    """The variables that torch and DeepSpeed read, from Ray's context: host names do not tell local ranks apart."""
    context = ray.train.get_context()
    os.environ.update(
        RANK=str(context.get_world_rank()),
        LOCAL_RANK=str(context.get_local_rank()),
        WORLD_SIZE=str(context.get_world_size()),
        LOCAL_WORLD_SIZE=str(context.get_local_world_size()),
        NODE_RANK=str(context.get_node_rank()),
        MASTER_ADDR=master_address,
        MASTER_PORT=str(master_port),
    )


class PreloadingWorker(RayTrainWorker):  # type: ignore[misc]
    """Loads torch while the controller still asks where everybody is, and answers a poll when there is news."""

    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=_preload, name="preload", daemon=True).start()

    def poll_status(self) -> WorkerStatus:
        """Waits until the trial is over on this rank, `POLL_SECONDS` at most: each poll interrupts the training."""
        worker_state.over.wait(POLL_SECONDS)
        return super().poll_status()


def _preload() -> None:
    # Nothing that looks for devices: CUDA_VISIBLE_DEVICES is only set once all workers are known.
    import timm  # noqa: F401
    import torch  # noqa: F401


# ---- in the calling process ----


class Crew:
    """A trial's workers, as the process that leads them sees them. Nothing here waits without a bound."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = {worker.distributed_context.world_rank: worker for worker in workers}
        self._pending: dict[int, ObjectRef] = {}

    @property
    def members(self) -> list["CrewMember"]:
        return [
            CrewMember(
                rank=rank,
                bundle=worker.placement_group_bundle_index,
                node_id=worker.metadata.node_id,
                pid=worker.metadata.pid,
                gpu_ids=tuple(str(gpu) for gpu in worker.metadata.gpu_ids),
            )
            for rank, worker in sorted(self._workers.items())
        ]

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def ask(self, ranks: Sequence[int]) -> None:
        """Asks these ranks for their state; `answers` has it later."""
        self._pending = {rank: self._workers[rank].execute_async(worker_state.current) for rank in ranks}

    def answers(self, timeout_seconds: float = 0.0) -> dict[int, worker_state.WorkerState]:
        """The answers that have come since; a worker that is dead or stopped gives none."""
        if not self._pending:
            return {}
        refs = {ref: rank for rank, ref in self._pending.items()}
        done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_seconds)
        answers = {}
        for ref in done:
            self._pending.pop(refs[ref])
            with contextlib.suppress(RayError):  # the next poll finds the dead
                answers[refs[ref]] = worker_state.WorkerState(**ray.get(ref))
        return answers

    def silent_ranks(self) -> list[int]:
        """Ranks whose process does not answer at all: stopped, or hung where Python cannot run."""
        refs = {worker.execute_async(worker_state.current): rank for rank, worker in self._workers.items()}
        # A process that is well may be busy with a poll.
        _, silent = ray.wait(list(refs), num_returns=len(refs), timeout=POLL_SECONDS + 1.0)
        return sorted(refs[ref] for ref in silent)

    def deaths(self, ranks: Collection[int], timeout_seconds: float) -> list[RaisedError]:
        """What Ray knows of those of these ranks that are dead."""
        refs = {self._workers[rank].execute_async(worker_state.current): rank for rank in ranks}
        done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_seconds) if refs else ([], [])
        deaths = []
        for ref in done:
            try:
                ray.get(ref)
            except RayError as error:
                deaths.append(describe(error, rank=refs[ref]))
        return deaths


@dataclass(frozen=True)
class CrewMember:
    """Where one worker is. `bundle` is its place in the list of label selectors."""

    rank: int
    bundle: int
    node_id: str
    pid: int
    gpu_ids: tuple[str, ...]


class TrialWatch(Protocol):
    """Follows a trial from the process that calls `fit`; every method is called in its thread."""

    group_name: str  # of the placement group, so that it is found even if this process is gone

    def workers_placed(self) -> None: ...

    def workers_started(self, crew: Crew) -> None: ...

    def polled(self, crew: Crew, failures: Mapping[int, RaisedError]) -> None:
        """After each poll; `failures` by rank, empty while all is well."""

    def reported(self, metrics: Mapping[str, Any]) -> None:
        """Rank 0's one report."""


def fit(
    trial: TrialConfig,
    watch: TrialWatch,
    *,
    num_cpus: int,
    num_gpus: int,
    strategy: str,
    label_selectors: list[dict[str, str]] | None,
    queue_timeout_seconds: float,
    storage_path: str,
) -> list[RaisedError]:
    """Runs a trial to its end on workers of its own, which are gone or going on return.

    Args:
        num_cpus: per worker, as `num_gpus`.
        queue_timeout_seconds: how long the workers may wait for their places.
        storage_path: a folder that Ray Train may write a few small files to.

    Returns:
        What went wrong, on the ranks where it did; nothing if every rank came to its end.
    """
    os.environ.update(_CONTROLLER_ENVIRONMENT)
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(queue_timeout_seconds)
    logging.getLogger("ray.train").setLevel(logging.CRITICAL)  # what goes wrong is returned
    try:
        LeadingTrainer(
            train_loop,
            watch=watch,
            train_loop_config={"trial": trial.model_dump(mode="json")},
            scaling_config=ScalingConfig(
                num_workers=trial.world_size,
                use_gpu=num_gpus > 0,
                resources_per_worker={"CPU": num_cpus, **({"GPU": num_gpus} if num_gpus else {})},
                placement_strategy=strategy,
                label_selector=label_selectors,
            ),
            run_config=RunConfig(
                name="trial",
                storage_path=storage_path,
                # A trial is tried again by its driver function, as an attempt of its own, or not at all.
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
                logging_config=LoggingConfig(log_level="ERROR"),
            ),
        ).fit()
    except WorkerGroupError as error:
        return [_described_failure(rank, failure) for rank, failure in sorted(error.worker_failures.items())]
    except ControllerError as error:
        return [_described_failure(None, error.controller_failure)]
    except (TrainingFailedError, RayError, ValueError) as error:
        return [describe(error)]
    return []


_CONTROLLER_ENVIRONMENT = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # an actor of its own for each trial
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
}


class _RankEnvironmentBackend(_TorchBackend):  # type: ignore[misc]
    """Tells the ranks about each other. The trial makes its process group itself, exactly as under torchrun."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: WorkerGroup, backend_config: TorchConfig) -> None:  # noqa: ARG002
        address, port = worker_group.execute_single(0, get_address_and_port)
        worker_group.execute(set_rank_environment, address, port)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: TorchConfig) -> None:
        """Nothing: the processes end, and their group with them."""


@dataclass
class TrialTorchConfig(TorchConfig):  # type: ignore[misc]
    """TorchConfig without a process group made ahead of the trial."""

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        return _RankEnvironmentBackend


class _WatchCallback(WorkerGroupCallback, ReportCallback):  # type: ignore[misc]
    def __init__(self, watch: TrialWatch) -> None:
        self.watch = watch
        self.crew = Crew([])

    def after_worker_group_poll_status(self, worker_group_status: WorkerGroupPollStatus) -> None:
        failures = {rank: _described_failure(rank, error) for rank, error in worker_group_status.errors.items()}
        self.watch.polled(self.crew, failures)

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:  # noqa: ARG002
        self.watch.reported(metrics[0])


class _WatchedPlacementGroup(DefaultPlacementGroupHandle):  # type: ignore[misc]
    def __init__(self, group: PlacementGroup, watch: TrialWatch) -> None:
        super().__init__(group)
        self._watch = watch

    def wait(self, timeout_seconds: float = 30) -> bool:
        ready = bool(super().wait(timeout_seconds))
        if ready:
            self._watch.workers_placed()
        return ready


class _WatchedWorkerGroup(WorkerGroup):  # type: ignore[misc]
    _worker_cls = PreloadingWorker

    @property
    def _watcher(self) -> _WatchCallback:
        return next(callback for callback in self._callbacks if isinstance(callback, _WatchCallback))

    def _create_placement_group(
        self,
        scaling_config: ScalingConfig,  # noqa: ARG002
        worker_group_context: WorkerGroupContext,
    ) -> DefaultPlacementGroupHandle:
        group = placement_group(
            bundles=[worker_group_context.resources_per_worker] * worker_group_context.num_workers,
            strategy=worker_group_context.placement_strategy,
            bundle_label_selector=worker_group_context.label_selector,
            name=self._watcher.watch.group_name,
        )
        return _WatchedPlacementGroup(group, self._watcher.watch)

    def _create_workers(self, *args: Any, **kwargs: Any) -> list[Worker]:
        workers: list[Worker] = super()._create_workers(*args, **kwargs)
        watcher = self._watcher
        watcher.crew = Crew(workers)
        watcher.watch.workers_started(watcher.crew)
        return workers

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: dict[str, Any]) -> dict[str, Any]:
        """The job's own environment and nothing more: only then may a worker process that is already there be taken."""
        return dict(custom_runtime_env)


class _FixedWorkers(FixedScalingPolicy):  # type: ignore[misc]
    """As many workers as asked for, with no word to Ray Data's autoscaling actor, which would outlive the study."""

    def after_controller_start(self, train_run_context: Any) -> None: ...

    def _maybe_send_resource_request(self) -> None: ...


class _Controller(TrainController):  # type: ignore[misc]
    worker_group_cls = _WatchedWorkerGroup

    async def _poll_workers(self) -> WorkerGroupPollStatus:
        await asyncio.sleep(BETWEEN_POLLS_SECONDS)
        return self._worker_group.poll_status(timeout=LATE_POLL_SECONDS)


class _Answer:
    """A method of an actor, called as one is, that gives back its `data` at once."""

    @staticmethod
    def remote(*, data: Any, **_: Any) -> ObjectRef:
        return ray.put(data)


class _NoBarrier:
    """In place of Ray Train's SynchronizationActor, where the ranks agree on the name of a checkpoint's folder.

    There is no checkpoint, and the ranks have met in the trial's last collective before each reports once.
    """

    broadcast_from_rank_zero = _Answer()

    @classmethod
    def options(cls, **_: Any) -> "type[_NoBarrier]":
        return cls

    @classmethod
    def remote(cls, **_: Any) -> "_NoBarrier":
        return cls()


worker_group_module.SynchronizationActor = _NoBarrier
worker_group_state._shutdown_sync_actor = lambda _: None


# One starts an actor that looks for placement groups left behind, the other one that hands out Ray Data's shards.
_ACTORS_NOT_NEEDED = (PlacementGroupCleanerCallback, DatasetsCallback)


class LeadingTrainer(TorchTrainer):  # type: ignore[misc]
    """A TorchTrainer whose controller runs in the calling thread. `fit` raises what TorchTrainer's raises."""

    def __init__(self, train_loop_per_worker: Any, *, watch: TrialWatch, **kwargs: Any) -> None:
        self._trial_watch = watch
        super().__init__(train_loop_per_worker, torch_config=TrialTorchConfig(), **kwargs)

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        kept = [c for c in super()._create_default_callbacks() if not isinstance(c, _ACTORS_NOT_NEEDED)]
        return [*kept, _WatchCallback(self._trial_watch)]

    def _initialize_and_run_controller(self, **controller: Any) -> Result:
        leader = _Controller(**{**controller, "scaling_policy": _FixedWorkers(self.scaling_config)})
        asyncio.run(leader.run())
        return leader.get_result()


def _described_failure(rank: int | None, failure: BaseException) -> RaisedError:
    """What a rank raised, in its own words; an error of Ray's about a rank is described here."""
    base = getattr(failure, "_base_exc", failure)  # Train wraps what its training thread raised
    if isinstance(base, WorkerError):
        return RaisedError.model_validate_json(base.description)
    return describe(getattr(base, "health_check_failure", base), rank=rank)
