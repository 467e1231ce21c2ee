"""How far the worker of this process is: noted by the training thread, read from outside whenever somebody asks."""

import sys
import threading
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class WorkerState:
    """Written by the training thread, read by the actor's own. `done` and `total` are in the phase's own unit."""

    phase: str = "starting"
    done: int = 0
    total: int | None = None
    images_per_second: float | None = None
    device_uuid: str | None = None
    group_ready: bool = False  # the process group stands


state = WorkerState()  # a worker process lives for one trial
over = threading.Event()  # this worker's part of the trial has come to its end, in whatever way


def note_progress(phase: str, done: int = 0, total: int | None = None, images_per_second: float | None = None) -> None:
    """Only leaves a note: it is fetched from outside, so that a trial never waits to be heard."""
    state.done, state.total, state.images_per_second = done, total, images_per_second
    state.phase = phase


def current() -> dict[str, Any]:
    """This worker's state; called by the controller between the trial's own instructions."""
    distributed = sys.modules.get("torch.distributed")
    if not state.group_ready and distributed is not None:
        state.group_ready = bool(distributed.is_available() and distributed.is_initialized())
    return asdict(state)
