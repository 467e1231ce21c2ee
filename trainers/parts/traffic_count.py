"""The bytes that a worker exchanges, counted on the running engine.

All of DeepSpeed's collectives go through `deepspeed.comm.comm.cdb`: a stand-in there passes each on and counts it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from trainers.parts.rows import Collective
from trainers.parts.traffic import Operation, wire_bytes


@dataclass(frozen=True)
class _Counted:
    """How a method of DeepSpeed's backend is counted: which arguments hold the whole tensor, and the group."""

    operation: Operation
    payload: tuple[str, int]  # name, position
    group: tuple[str, int]


_COUNTED: Final = {
    "all_reduce": _Counted("all_reduce", ("tensor", 0), ("group", 2)),
    "inference_all_reduce": _Counted("all_reduce", ("tensor", 0), ("group", 2)),
    "all_reduce_coalesced": _Counted("all_reduce", ("tensors", 0), ("group", 2)),
    "all_gather": _Counted("all_gather", ("tensor_list", 0), ("group", 2)),
    "all_gather_into_tensor": _Counted("all_gather", ("output_tensor", 0), ("group", 2)),
    "all_gather_base": _Counted("all_gather", ("output_tensor", 0), ("group", 2)),
    "all_gather_coalesced": _Counted("all_gather", ("output_tensors", 0), ("group", 2)),
    "reduce_scatter": _Counted("reduce_scatter", ("input_list", 1), ("group", 3)),
    "reduce_scatter_tensor": _Counted("reduce_scatter", ("input_tensor", 1), ("group", 3)),
    "reduce": _Counted("reduce", ("tensor", 0), ("group", 3)),
    "broadcast": _Counted("broadcast", ("tensor", 0), ("group", 2)),
    "all_to_all_single": _Counted("all_to_all", ("input", 1), ("group", 4)),
    "all_to_all": _Counted("all_to_all", ("input_tensor_list", 1), ("group", 2)),
}
# They carry something too, which is not counted: no training step of ours uses them.
_UNCOUNTED: Final = frozenset(
    {"send", "recv", "isend", "irecv", "batch_isend_irecv", "gather", "scatter"}
    | {"broadcast_object_list", "all_gather_object"}
)


@dataclass
class Traffic:
    """What was exchanged so far. `uncounted`: operations that carried something whose size is not known here."""

    uncounted: set[str] = field(default_factory=set)
    _calls: dict[Operation, int] = field(default_factory=dict)
    _payload: dict[Operation, int] = field(default_factory=dict)
    _wire: dict[Operation, float] = field(default_factory=dict)

    def add(self, operation: Operation, payload_bytes: int, group_size: int) -> None:
        """One collective. Among one worker nothing is exchanged, and nothing is counted."""
        if group_size == 1:
            return
        self._calls[operation] = self._calls.get(operation, 0) + 1
        self._payload[operation] = self._payload.get(operation, 0) + payload_bytes
        self._wire[operation] = self._wire.get(operation, 0.0) + wire_bytes(operation, payload_bytes, group_size)

    def collectives(self) -> list[Collective]:
        """A row for each operation, by name."""
        return [
            Collective(
                operation=operation,
                calls=self._calls[operation],
                payload_bytes=self._payload[operation],
                wire_bytes=self._wire[operation],
            )
            for operation in sorted(self._calls)
        ]


@contextmanager
def counted_traffic() -> Iterator[Traffic]:
    """Count this rank's collectives while inside. Take a step in it; all ranks may, none need.

    Nothing is waited for, and what is exchanged is not touched. Stage 3 records the order of modules in its first
    two micro steps: count later ones.
    """
    from deepspeed.comm import comm

    traffic, backend = Traffic(), comm.cdb
    comm.cdb = _CountingBackend(backend, traffic)
    try:
        yield traffic
    finally:
        comm.cdb = backend


class _CountingBackend:
    """DeepSpeed's communication backend, with its collectives counted."""

    def __init__(self, backend: Any, traffic: Traffic) -> None:
        self._backend, self._traffic = backend, traffic

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._backend, name)
        if name in _UNCOUNTED:
            self._traffic.uncounted.add(name)
        counted = _COUNTED.get(name)
        return attribute if counted is None else self._counting(attribute, counted)

    def _counting(self, method: Callable[..., Any], counted: _Counted) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            size = self._backend.get_world_size(_argument(counted.group, args, kwargs))
            payload = sum(tensor.nbytes for tensor in _tensors(_argument(counted.payload, args, kwargs)))
            self._traffic.add(counted.operation, payload, size)
            return method(*args, **kwargs)

        return call


def _argument(where: tuple[str, int], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, position = where
    return args[position] if position < len(args) else kwargs.get(name)


def _tensors(value: Tensor | Iterable[Tensor]) -> Iterable[Tensor]:
    return [value] if isinstance(value, Tensor) else value
