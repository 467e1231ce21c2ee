"""Keeps the state of a training while something is tried with its engine, and puts it back to the bit.

Kept: every tensor of the engine (parameters, master parameters, optimizer state) in host memory,
the loss scale, DeepSpeed's and torch's counters, and the random number generators.
"""

import copy
from typing import Any

import psutil
import torch

from trainers.held_states import engine_tensors, loss_scaler

_MEMORY_SHARE = 0.8  # of what the host has left, for all ranks of a node together
# Of the engine and of its optimizer: numbers that a step moves.
_ENGINE_COUNTERS = (
    "global_steps",
    "global_samples",
    "micro_steps",
    "skipped_steps",
    "_step_applied",
    "_global_grad_norm",
)
_OPTIMIZER_COUNTERS = (
    "micro_step_id",
    "overflow",
    "_global_grad_norm",
    "step_count",
    "cur_iter",
    "last_overflow_iter",
    "cur_scale",
    "dynamic_loss_scale",
    "external_loss_scale",
    "custom_loss_scaler",
)


class StateMoved(RuntimeError):
    """The engine keeps its state otherwise than when it was copied, so that it cannot be put back."""


class EngineState:
    """The state of one rank's engine at the time it was made, at the end of an optimizer step."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        copies: dict[tuple[torch.device, int], torch.UntypedStorage] = {}
        self._kept: list[torch.UntypedStorage | None] = []  # of each tensor; None where it holds nothing now
        for tensor in engine_tensors(engine):
            storage = tensor.untyped_storage()
            key = (tensor.device, storage.data_ptr())
            if storage.nbytes() and key not in copies:
                copies[key] = torch.UntypedStorage(storage.nbytes(), device="cpu").copy_(storage)  # type: ignore[no-untyped-call]
            self._kept.append(copies[key] if storage.nbytes() else None)
        self._engine_counters = _read(engine, _ENGINE_COUNTERS)
        self._optimizer_counters = _read(engine.optimizer, _OPTIMIZER_COUNTERS)
        scaler = loss_scaler(engine.optimizer)
        self._scale = None if scaler is None else copy.copy(vars(scaler))
        self._cpu_generator = torch.get_rng_state()
        self._cuda_generator = torch.cuda.get_rng_state() if torch.device(engine.device).type == "cuda" else None

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, at the end of an optimizer step again.

        Tensor by tensor, not storage by storage: stage 3 gathers what it keeps whole into new memory at every step.

        Raises:
            StateMoved: the engine has other tensors now.
        """
        tensors, restored = list(engine_tensors(self._engine)), set[tuple[torch.device, int]]()
        if len(tensors) != len(self._kept):
            raise StateMoved(f"the engine has {len(tensors)} tensors, and had {len(self._kept)}")
        for tensor, kept in zip(tensors, self._kept, strict=True):
            storage = tensor.untyped_storage()
            key = (tensor.device, storage.data_ptr())
            if storage.nbytes() != (0 if kept is None else kept.nbytes()):
                raise StateMoved(f"a tensor of {0 if kept is None else kept.nbytes()} bytes has {storage.nbytes()} now")
            if kept is not None and key not in restored:
                storage.copy_(kept)
                restored.add(key)
        _write(self._engine, self._engine_counters)
        _write(self._engine.optimizer, self._optimizer_counters)
        scaler = loss_scaler(self._engine.optimizer)
        if scaler is not None and self._scale is not None:
            vars(scaler).update(self._scale)
        torch.set_rng_state(self._cpu_generator)
        if self._cuda_generator is not None:
            torch.cuda.set_rng_state(self._cuda_generator)


def fits_in_host_memory(engine: Any, ranks_of_node: int) -> bool:
    """Whether the node's memory takes a copy of the state of each of its ranks."""
    storages = {
        (tensor.device, tensor.untyped_storage().data_ptr()): tensor.untyped_storage().nbytes()
        for tensor in engine_tensors(engine)
    }
    needed = sum(storages.values())
    return bool(needed * ranks_of_node <= _MEMORY_SHARE * psutil.virtual_memory().available)


def _read(holder: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: copy.copy(vars(holder)[name]) for name in names if name in vars(holder)}


def _write(holder: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(holder, name, value)
