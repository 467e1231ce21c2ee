"""The bytes of model states that a DeepSpeed engine really holds, read back from its tensors.

What is looked for is named in `trainers.memory`. Tensors are views of few flat ones in DeepSpeed, so that storages are
counted, each once, for the first of parameters, master parameters, optimizer state, buffers, gradients that has it.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from trainers.memory import ModelStates


def held_model_states(engine: Any) -> ModelStates:
    """What this rank's `deepspeed.DeepSpeedEngine` holds now. Allocates nothing and waits for nothing."""
    count = _Count()
    parameters = count.new(_parameters(engine))
    master = count.new(_optimized(engine))
    states = count.new(_optimizer_state(engine))
    buffers = count.new(_communication_buffers(engine))
    gradients = count.new(_gradients(engine))
    on_gpu = torch.device(engine.device).type != "cpu"
    return ModelStates(
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        master_parameter_bytes=master,
        optimizer_state_bytes=states,
        communication_buffer_bytes=buffers,
        host_bytes=count.host_bytes if on_gpu else 0,
    )


def engine_tensors(engine: Any) -> Iterator[Tensor]:
    """Every tensor that an engine carries from one optimizer step to the next; one storage may come several times.

    Gradients and what is exchanged through are none: a step begins with them cleared.
    """
    yield from _parameters(engine)
    yield from engine.module.buffers()
    yield from _optimized(engine)
    yield from _optimizer_state(engine)


def loss_scaler(optimizer: Any) -> Any | None:
    """What holds the loss scale of DeepSpeed's optimizer (fp16), under the names it goes by."""
    for name in ("loss_scaler", "loss_scale_config"):
        holder = getattr(optimizer, name, None)
        if holder is not None:
            return holder
    return None


class _Count:
    """Bytes of storages that were not counted before."""

    def __init__(self) -> None:
        self._seen: set[tuple[torch.device, int]] = set()
        self.host_bytes = 0

    def new(self, tensors: Iterable[Tensor]) -> int:
        total = 0
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = (tensor.device, storage.data_ptr())
            if storage.nbytes() == 0 or key in self._seen:
                continue
            self._seen.add(key)
            total += storage.nbytes()
            if tensor.device.type == "cpu":
                self.host_bytes += storage.nbytes()
        return total


def _parameters(engine: Any) -> Iterator[Tensor]:
    for parameter in engine.module.parameters():
        yield parameter.data
        partition = getattr(parameter, "ds_tensor", None)  # stage 3
        if partition is not None:
            yield partition


def _optimized(engine: Any) -> Iterator[Tensor]:
    """What torch's optimizer updates: the parameters themselves, or DeepSpeed's fp32 copies of them."""
    for group in engine.basic_optimizer.param_groups:
        yield from group["params"]
    # Stage 3 hands them to torch's optimizer one part at a time.
    yield from getattr(engine.optimizer, "fp32_partitioned_groups_flat", [])


def _optimizer_state(engine: Any) -> Iterator[Tensor]:
    for state in engine.basic_optimizer.state.values():
        yield from _tensors(state.values())


def _gradients(engine: Any) -> Iterator[Tensor]:
    for parameter in [*engine.module.parameters(), *_optimized(engine)]:
        yield from _tensors([parameter.grad, getattr(parameter, "grad_accum", None)])
    optimizer = engine.optimizer
    yield from _tensors((getattr(optimizer, "averaged_gradients", None) or {}).values())  # stages 1 and 2
    yield from _tensors((getattr(optimizer, "all_grad_tensors", None) or {}).values())
    yield from _tensors((getattr(optimizer, "accumulated_grads_in_cpu", None) or {}).values())  # offload
    yield from _tensors([getattr(optimizer, "fp32_groups_gradients_flat", None)])  # BF16_Optimizer
    yield from _tensors([getattr(optimizer, "grad_partitions_flat_buffer", None)])  # stage 3


def _communication_buffers(engine: Any) -> Iterator[Tensor]:
    for bucket in (getattr(engine.optimizer, "ipg_buckets", None) or {}).values():
        yield from _tensors([bucket.buffer])


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
