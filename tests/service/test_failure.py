"""The reason and the root cause that a trial's errors stand for."""

import json

import pytest
from pydantic import ValidationError

from service.failure import failure_of, is_collateral, plain_failure, reason_of, root_cause
from service.states import Reason
from trainers.config import TrialConfig
from trainers.raised_error import MESSAGE_CHARACTERS, TRACEBACK_TAIL_LINES, RaisedError, describe


def raised(error: BaseException, rank: int | None = None) -> RaisedError:
    """The description of an error that was really raised."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - described, as on a worker
        return describe(caught, rank=rank, node="node-a")


def named(own_type: str, message: str = "", *, rank: int | None = 0, at: float = 0.0) -> RaisedError:
    """An error of a library that is not loaded here."""
    return RaisedError(type=own_type.rpartition(".")[2], message=message, own_types=[own_type], rank=rank, raised_at=at)


LOST = (
    "The actor died unexpectedly before finishing this task. Worker exit type: SYSTEM_ERROR. Worker unexpectedly exits "
    "with a connection error code 2. End of file. Some common causes include: (1) the process was killed by the OOM "
    "killer due to high memory usage, (2) ray stop --force was called, or (3) the worker crashed unexpectedly"
)
CLOSED = "[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:38117"


def invalid_config() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        TrialConfig.model_validate({})
    return caught.value


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (named("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB"), Reason.OUT_OF_MEMORY),
        (
            raised(RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")),
            Reason.OUT_OF_MEMORY,
        ),
        (raised(RuntimeError("CUDA error: out of memory")), Reason.OUT_OF_MEMORY),
        (raised(MemoryError()), Reason.OUT_OF_MEMORY),
        (
            named("ray.exceptions.RayActorError", "Task was killed due to the node running low on memory."),
            Reason.OUT_OF_MEMORY,
        ),
        (named("ray.exceptions.RayActorError", LOST), Reason.WORKER_LOST),
        (named("ray.exceptions.RayActorError", "Worker exits with an exit code 0."), Reason.BAD_RESULT),
        (
            named("ray.train.v2._internal.exceptions.WorkerGroupStartupTimeoutError", "timed out"),
            Reason.QUEUE_TIMEOUT,
        ),
        (named("torch.distributed.DistStoreError", "timed out waiting for clients"), Reason.INIT_TIMEOUT),
        (named("trainers.preflight.WorkersDidNotMeet", "rank 1 did not come"), Reason.INIT_TIMEOUT),
        (named("trainers.preflight.WorkersDisagree", "torch must be the same"), Reason.INVALID_CONFIG),
        (named("trainers.ray_worker.PlacementViolation", "cuda:1"), Reason.PLACEMENT_VIOLATION),
        (named("trainers.ray_worker.NoResult", "no result"), Reason.BAD_RESULT),
        (raised(SystemExit(0)), Reason.BAD_RESULT),
        (raised(ValueError("no such model")), Reason.INVALID_CONFIG),
        (raised(invalid_config()), Reason.INVALID_CONFIG),
        (named("deepspeed.runtime.config.DeepSpeedConfigError", "bad"), Reason.INVALID_CONFIG),
        (raised(AssertionError("Check batch related parameters. 8 != 2 * 2 * 1")), Reason.INVALID_CONFIG),
        (raised(UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")), Reason.ERROR),
        (raised(json.JSONDecodeError("Expecting value", "", 0)), Reason.ERROR),
        (raised(AssertionError("an invariant")), Reason.ERROR),
        (raised(ZeroDivisionError("division by zero")), Reason.ERROR),
        (raised(RuntimeError(CLOSED)), Reason.WORKER_LOST),
    ],
    ids=lambda value: value.value if isinstance(value, Reason) else f"{value.type}-{value.message[:24]}",
)
def test_an_error_stands_for_a_reason(error: RaisedError, reason: Reason) -> None:
    assert reason_of(error) is reason


def test_out_of_memory_is_found_below_another_error() -> None:
    error = RuntimeError("building the model failed")
    error.__cause__ = MemoryError()

    assert reason_of(raised(error)) is Reason.OUT_OF_MEMORY


def test_a_value_error_below_another_error_does_not_blame_the_configuration() -> None:
    error = RuntimeError("outer")
    error.__cause__ = ValueError("inner")

    assert reason_of(raised(error)) is Reason.ERROR


class TestRootCause:
    def test_the_rank_that_failed_is_named_though_others_complained_first(self) -> None:
        follow_up = named("builtins.RuntimeError", CLOSED, rank=0, at=1.0)
        cause = named("builtins.KeyError", "'head.weight'", rank=1, at=2.0)

        assert root_cause([follow_up, cause]) is cause

    def test_the_earliest_of_several_is_the_cause(self) -> None:
        late = named("builtins.KeyError", "late", rank=0, at=5.0)
        early = named("builtins.KeyError", "early", rank=3, at=4.0)

        assert root_cause([late, early]) is early

    def test_a_lost_worker_explains_closed_connections(self) -> None:
        failure = failure_of(
            [
                named("torch.distributed.DistBackendError", "NCCL communicator was aborted", rank=0, at=1.0),
                named("ray.exceptions.RayActorError", "The actor died unexpectedly", rank=1, at=9.0),
            ]
        )

        assert failure.reason is Reason.WORKER_LOST
        assert failure.cause.rank == 1

    def test_only_errors_of_the_exchange_are_follow_ups(self) -> None:
        assert is_collateral(named("builtins.RuntimeError", CLOSED))
        assert is_collateral(named("torch.distributed.DistBackendError", "remote process exited"))
        assert not is_collateral(named("builtins.FileNotFoundError", "Broken pipe.png"))
        assert not is_collateral(named("builtins.RuntimeError", "size mismatch"))

    def test_without_an_error_there_is_no_failure(self) -> None:
        with pytest.raises(ValueError, match="at least one error"):
            failure_of([])


class TestDescription:
    def test_it_keeps_type_message_rank_node_and_the_end_of_the_traceback(self) -> None:
        described = raised(KeyError("blocks"), rank=2)
        cause = failure_of([described]).cause

        assert (cause.type, cause.message, cause.rank, cause.node) == ("KeyError", "'blocks'", 2, "node-a")
        assert cause.traceback_tail[-1] == "KeyError: 'blocks'"
        assert any("raise error" in line for line in cause.traceback_tail)

    def test_it_survives_being_sent_as_json(self) -> None:
        described = raised(ZeroDivisionError("division by zero"), rank=0)

        assert RaisedError.model_validate_json(described.model_dump_json()) == described

    def test_long_messages_and_tracebacks_are_bounded(self) -> None:
        def deep(level: int) -> None:
            if level == 0:
                raise ValueError("x" * 100_000)
            deep(level - 1)

        try:
            deep(100)
        except ValueError as error:
            described = describe(error)

        assert len(described.message) <= MESSAGE_CHARACTERS + 4
        assert len(described.traceback_tail) <= TRACEBACK_TAIL_LINES

    def test_causes_that_refer_to_each_other_end(self) -> None:
        first, second = RuntimeError("first"), RuntimeError("second")
        first.__cause__, second.__cause__ = second, first

        assert describe(first).cause_types == ["builtins.RuntimeError"]


def test_what_the_runner_finds_itself_carries_its_reason() -> None:
    failure = plain_failure(Reason.TIMEOUT, "no result within 5 s", rank=1)

    assert (failure.reason, failure.cause.type, failure.cause.rank) == (Reason.TIMEOUT, "TIMEOUT", 1)
