"""One trial's outcome as the analysis sees it: own trials and rows measured elsewhere alike.

Seconds are per optimizer step unless the name says otherwise; a global batch is `train_batch_size` images. Whatever was
not measured is None, never a guess.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from service.states import Reason, TrialState


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval; both ends are None where the data has no interval."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class RankObservation:
    """One worker's part."""

    rank: int
    node: str | None = None
    device: str | None = None
    step_seconds: float | None = None
    compute_seconds: float | None = None
    data_wait_seconds: float | None = None
    communication_seconds: float | None = None  # waiting included, where the source cannot tell
    peak_memory_bytes: int | None = None


@dataclass(frozen=True)
class EpochObservation:
    """One whole epoch, from 1; a mean over ranks."""

    epoch: int
    epoch_seconds: float
    train_loss: float | None = None
    train_accuracy: float | None = None
    eval_accuracy: float | None = None


@dataclass(frozen=True)
class Observation:
    """One trial: what was asked, on what it ran, what came out.

    `parameters` are flat, as in a results row, `world_size` among them; an imported row has those it was given.
    """

    trial: int
    repeat: int
    state: TrialState
    parameters: Mapping[str, Any]
    reason: Reason | None = None
    devices: Sequence[str] = ()  # names, one per rank
    nodes: int | None = None
    fingerprint: str | None = None
    images_per_second: Estimate | None = None
    step_seconds: Estimate | None = None
    epoch_seconds: Estimate | None = None
    interval_kind: Literal["within_run", "between_runs"] | None = None
    compute_seconds: Estimate | None = None
    data_wait_seconds: Estimate | None = None
    straggler_wait_seconds: Estimate | None = None
    communication_seconds: Estimate | None = None
    peak_memory_bytes: int | None = None
    mfu: float | None = None
    eval_accuracy: float | None = None
    train_accuracy: float | None = None
    quality_state: str = "unassessed"
    quality_flags: Sequence[str] = ()
    ranks: Sequence[RankObservation] = field(default=())
    epochs: Sequence[EpochObservation] = field(default=())

    @property
    def world_size(self) -> int:
        return int(self.parameters["world_size"])
