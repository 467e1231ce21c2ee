"""From the errors of a trial's ranks to one reason and one root cause. Pure: it knows Ray, torch and DeepSpeed by name.

The rank that fails first is seldom the only one to complain: the others find their connections closed. Such
follow-up errors never become the cause while there is another.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from service.events import ErrorCause
from service.states import Reason
from trainers.raised_error import RaisedError


@dataclass(frozen=True)
class Failure:
    """Why a trial attempt failed."""

    reason: Reason
    cause: ErrorCause


_OUT_OF_MEMORY_TYPES = {
    "torch.OutOfMemoryError",  # CUDA's allocator
    "torch.cuda.OutOfMemoryError",  # its name before torch 2.5
    "builtins.MemoryError",
    "ray.exceptions.OutOfMemoryError",  # Ray's memory monitor killed the worker
}
_OUT_OF_MEMORY_TEXT = re.compile(
    # Not "OOM killer": Ray names it as one of many causes whenever a worker is gone.
    r"DefaultCPUAllocator: (can't|not enough)|CUDA out of memory|CUDA error: out of memory|"
    r"CUBLAS_STATUS_ALLOC_FAILED|Cuda failure.*out of memory|running low on memory|std::bad_alloc",
    re.IGNORECASE,
)
_LOST_TYPES = {
    "ray.exceptions.RayActorError",  # base of ActorDiedError and ActorUnavailableError
    "ray.exceptions.WorkerCrashedError",
    "ray.exceptions.NodeDiedError",
    "ray.train.v2._internal.exceptions.WorkerHealthCheckFailedError",
    "ray.train.v2._internal.exceptions.WorkerHealthCheckTimeoutError",
    "ray.train.v2._internal.exceptions.WorkerGroupStartupFailedError",
    "ray.train.v2.api.exceptions.PreemptionError",
}
_QUEUE_TIMEOUT_TYPES = {"ray.train.v2._internal.exceptions.WorkerGroupStartupTimeoutError"}
_INFEASIBLE_TYPES = {"ray.train.v2._internal.exceptions.InsufficientClusterResourcesError"}
_INIT_TIMEOUT_TYPES = {
    "torch.distributed.DistStoreError",  # not every rank came to the rendezvous
    "trainers.preflight.WorkersDidNotMeet",
}
_INVALID_CONFIG_TYPES = {
    "builtins.ValueError",  # pydantic's ValidationError is one
    "trainers.preflight.WorkersDisagree",
    "deepspeed.runtime.config.DeepSpeedConfigError",
    "deepspeed.runtime.config_utils.DeepSpeedConfigError",
}
_NOT_THE_CONFIG_TYPES = {"builtins.UnicodeError", "json.decoder.JSONDecodeError"}  # ValueErrors about data
_INVALID_CONFIG_TEXT = re.compile(r"Check batch related parameters")  # DeepSpeed asserts the batch trio
_PLACEMENT_TYPES = {"trainers.ray_worker.PlacementViolation"}
_NO_RESULT_TYPES = {"builtins.SystemExit", "trainers.ray_worker.NoResult"}
_COLLATERAL_TEXT = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection refused|Broken pipe|Socket closed|"
    r"remote process exited|communicator was aborted|connection was likely closed|ncclRemoteError|Read error",
    re.IGNORECASE,
)
_COLLATERAL_TYPES = {"builtins.RuntimeError", "builtins.ConnectionError"}
# A process that ended by itself, in order, without having reported.
_ENDED_BY_ITSELF = re.compile(r"exit code 0\b|INTENDED_USER_EXIT", re.IGNORECASE)


def failure_of(errors: Sequence[RaisedError]) -> Failure:
    """The reason and the root cause.

    Raises:
        ValueError: no error was given.
    """
    if not errors:
        raise ValueError("a failure needs at least one error")
    root = root_cause(errors)
    return Failure(reason_of(root), as_cause(root))


def root_cause(errors: Sequence[RaisedError]) -> RaisedError:
    """The error that started it: no follow-up if there is another, then the earliest, then the lowest rank."""
    return min(errors, key=lambda e: (is_collateral(e), e.raised_at, e.rank if e.rank is not None else -1))


def reason_of(error: RaisedError) -> Reason:
    """The reason that an error stands for."""
    own = set(error.own_types)
    chain = own | set(error.cause_types)
    if chain & _OUT_OF_MEMORY_TYPES or _OUT_OF_MEMORY_TEXT.search(error.message):
        return Reason.OUT_OF_MEMORY
    if own & _PLACEMENT_TYPES:
        return Reason.PLACEMENT_VIOLATION
    if own & _NO_RESULT_TYPES:
        return Reason.BAD_RESULT
    if own & _INFEASIBLE_TYPES:
        return Reason.INFEASIBLE
    if own & _QUEUE_TIMEOUT_TYPES:
        return Reason.QUEUE_TIMEOUT
    if own & _INIT_TIMEOUT_TYPES:
        return Reason.INIT_TIMEOUT
    if own & _LOST_TYPES:
        return Reason.BAD_RESULT if _ENDED_BY_ITSELF.search(error.message) else Reason.WORKER_LOST
    if (own & _INVALID_CONFIG_TYPES and not own & _NOT_THE_CONFIG_TYPES) or _INVALID_CONFIG_TEXT.search(error.message):
        return Reason.INVALID_CONFIG
    if is_collateral(error):
        return Reason.WORKER_LOST  # somebody it talked to is gone, and nobody else has said why
    return Reason.ERROR


def is_collateral(error: RaisedError) -> bool:
    """Whether this is what a rank says when another one, or the way to it, is gone."""
    from_exchange = set(error.own_types) & _COLLATERAL_TYPES or any(
        name.startswith("torch.distributed.") for name in error.own_types
    )
    return bool(from_exchange and _COLLATERAL_TEXT.search(error.message))


def as_cause(error: RaisedError) -> ErrorCause:
    """The part of an error that is told."""
    return ErrorCause(
        type=error.type,
        message=error.message,
        rank=error.rank,
        node=error.node,
        traceback_tail=list(error.traceback_tail),
    )


def plain_failure(reason: Reason, message: str, *, rank: int | None = None, node: str | None = None) -> Failure:
    """A failure that the runner itself finds, without an exception."""
    return Failure(reason, ErrorCause(type=reason.value, message=message, rank=rank, node=node))
