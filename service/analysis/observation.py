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
    straggler_wait_seconds: float | None = None
    compute_low_seconds: float | None = None  # the 95 % interval of its compute
    compute_high_seconds: float | None = None


@dataclass(frozen=True)
class LinkObservation:
    """What all-reduces among some ranks say: each takes alpha + the bytes that one rank sends / beta."""

    kind: Literal["all", "pair"]  # all ranks, or one rank of each of two nodes
    nodes: Sequence[str]  # of each of these ranks
    alpha_seconds: Estimate | None = None
    beta_bytes_per_second: Estimate | None = None  # the bus bandwidth


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
    # Of trials that took their step apart.
    parts_step_seconds: Estimate | None = None  # of that pass: what the parts add up to, and are shares of
    straggler_persistent_seconds: Estimate | None = None  # the slowest is always the same rank
    straggler_jitter_seconds: Estimate | None = None  # ... or a different one from step to step
    communication_share: Estimate | None = None  # exposed
    communication_source: str | None = None
    communication_wire_bytes: float | None = None  # sent by one worker in one step
    decode_seconds: Estimate | None = None  # in the loader's processes, beside the training
    copy_to_device_seconds: Estimate | None = None  # within data_wait_seconds
    links: Sequence[LinkObservation] = ()

    @property
    def world_size(self) -> int:
        return int(self.parameters["world_size"])
