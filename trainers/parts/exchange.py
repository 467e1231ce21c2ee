"""Leaves the exchange between workers out of a DeepSpeed engine's steps, at any ZeRO stage.

All of DeepSpeed's collectives go through one object, `deepspeed.comm.comm.cdb`. A stand-in there does in a worker what
a collective does to the worker's own part, and nothing else: what DeepSpeed does around it (flattening, copying, adding
up) stays, at world size 1 as well, and is not called communication. The numbers that come of it are wrong; the state
must be put back afterwards (`trainers.parts.engine_state`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor


class ExchangeUnknown(RuntimeError):
    """DeepSpeed asked for a collective that the stand-in does not know how to leave out."""


@contextmanager
def exchange_left_out() -> Iterator[None]:
    """While inside, every collective of DeepSpeed is done in this worker alone."""
    from deepspeed.comm import comm

    real = comm.cdb
    comm.cdb = _Alone(real)
    try:
        yield
    finally:
        comm.cdb = real


class _Done:
    """What an asynchronous collective hands back, ended before it began."""

    def wait(self, *_: Any, **__: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _handle(async_op: bool) -> _Done | None:
    return _Done() if async_op else None


class _Alone:
    """In the place of `deepspeed.comm.torch.TorchBackend`. Its names and orders of arguments are DeepSpeed's.

    Collectives that leave a worker's own tensor where it is (all_reduce, reduce, broadcast) do nothing. A gather fills
    every worker's place with this worker's part: numbers of the right size, where memory as it was could hold anything.
    """

    # Not collectives, or none that a step has a part in: asked of the real one.
    _PASSED_ON = frozenset(
        {
            "get_rank",
            "get_world_size",
            "get_world_group",
            "get_global_rank",
            "get_backend",
            "has_all_gather_into_tensor",
            "has_reduce_scatter_tensor",
            "has_all_reduce_coalesced",
            "has_coalescing_manager",
            "is_initialized",
            "initialized",
            "using_mpi",
            "name",
        }
    )

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        if name in self._PASSED_ON:
            return getattr(self._real, name)
        raise ExchangeUnknown(f"DeepSpeed calls {name} in a step, and how to leave it out is not known")

    def all_reduce(self, tensor: Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> Any:  # noqa: ARG002
        return _handle(async_op)

    def inference_all_reduce(self, tensor: Tensor, op: Any = None, group: Any = None) -> Tensor:  # noqa: ARG002
        return tensor

    def all_reduce_coalesced(
        self,
        tensors: list[Tensor],  # noqa: ARG002
        op: Any = None,  # noqa: ARG002
        group: Any = None,  # noqa: ARG002
        async_op: bool = False,
    ) -> Any:
        return _handle(async_op)

    def reduce(self, tensor: Tensor, dst: int, op: Any = None, group: Any = None, async_op: bool = False) -> Any:  # noqa: ARG002
        return _handle(async_op)

    def broadcast(self, tensor: Tensor, src: int, group: Any = None, async_op: bool = False) -> Any:  # noqa: ARG002
        return _handle(async_op)

    def barrier(self, *_: Any, async_op: bool = False, **__: Any) -> Any:
        return _handle(async_op)

    def all_gather(self, tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False) -> Any:  # noqa: ARG002
        for place in tensor_list:
            place.copy_(tensor)
        return _handle(async_op)

    def all_gather_into_tensor(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
    ) -> Any:
        # The input may be a view of its own place in the output.
        part, size = input_tensor.reshape(-1), dist.get_world_size(group)
        for place in output_tensor.view(-1).chunk(size):
            if place.data_ptr() != part.data_ptr():
                place.copy_(part)
        return _handle(async_op)

    def all_gather_coalesced(
        self, output_tensors: list[Tensor], input_tensors: list[Tensor], group: Any = None, async_op: bool = False
    ) -> Any:
        for output, own in zip(output_tensors, input_tensors, strict=True):
            self.all_gather_into_tensor(output, own, group)
        return _handle(async_op)

    def reduce_scatter(
        self,
        output: Tensor,
        input_list: list[Tensor],
        op: Any = None,  # noqa: ARG002
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        output.copy_(input_list[dist.get_rank(group)])
        return _handle(async_op)

    def reduce_scatter_tensor(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        op: Any = None,  # noqa: ARG002
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        own = input_tensor.view(-1).chunk(dist.get_world_size(group))[dist.get_rank(group)]
        output_tensor.view(-1).copy_(own)
        return _handle(async_op)
