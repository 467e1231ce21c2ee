"""The part of a trial's result that takes its step apart. Pure.

Seconds are per optimizer step unless the name says otherwise. "Wire bytes" are what one worker sends in a collective:
2 (p - 1) / p x size for an all-reduce among p, half of that for an all-gather or a reduce-scatter.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

CommunicationSource = Literal["exchange_left_out", "profiler"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Measured(_Strict):
    """A mean with its 95 % interval, whose ends are null where there is too little to tell."""

    value: float
    ci95_low: float | None = None
    ci95_high: float | None = None


class RankParts(_Strict):
    """One rank's step: the four add up to that of the trial.

    compute and data_wait are the rank's own; straggler_wait is what it waits for the slowest rank of each step;
    communication, which no rank can avoid, is the trial's. compute and data_wait are null where the source is a
    profiler that cannot tell them apart.
    """

    compute: Measured
    data_wait: Measured | None = None
    straggler_wait: Measured
    communication: Measured | None = None  # null at world size 1


class Collective(_Strict):
    """One kind of collective in one optimizer step of one worker."""

    operation: str  # all_reduce | all_gather | reduce_scatter | reduce | broadcast
    calls: int
    payload_bytes: int  # the size in the field's sense: of the whole (gathered, unscattered) tensor
    wire_bytes: float


class StepParts(_Strict):
    """The parts of a trial's step, as means over steps and ranks; they add up to `step`.

    `slowest_rank` is named only where its compute is surely above all others'.
    """

    source: CommunicationSource
    pairs: int  # blocks with and without the exchange
    steps_per_block: int
    step: Measured  # between barriers, in the blocks with the exchange
    compute: Measured
    data_wait: Measured | None = None
    straggler_wait: Measured
    straggler_persistent: Measured  # the slowest rank is always the same
    straggler_jitter: Measured  # ... or a different one from step to step
    communication: Measured | None = None  # exposed: what overlaps with compute is not in it; null at world size 1
    communication_share: Measured | None = None  # of `step`
    slowest_rank: int | None = None
    profiled_communication: Measured | None = None  # exposed, by the profiler: an independent estimate
    profiled_collectives_seconds: float | None = None  # exposed or hidden, waiting for others left out
    decode: Measured | None = None  # input_pipeline: loader. In the loader's processes, beside the training
    copy_to_device: Measured | None = None  # input_pipeline: loader. Part of data_wait
    collectives: list[Collective] = Field(default_factory=list)  # counted in one step
    wire_bytes: float | None = None  # of all of them
    estimated_wire_bytes: float | None = None  # by formula (`trainers.parts.traffic`)


class LinkPoint(_Strict):
    """All-reduces of one size: how long one takes."""

    size_bytes: int
    repeats: int
    seconds: Measured


class LinkRow(_Strict):
    """All-reduce among some ranks: t = alpha + wire bytes / beta, so that beta does not depend on how many they are."""

    kind: Literal["all", "pair"]  # all ranks, or one rank of each of two nodes
    ranks: list[int]
    nodes: list[str]  # the node of each rank
    points: list[LinkPoint]
    alpha_seconds: Measured | None = None  # null where the sizes do not tell it
    beta_bytes_per_second: Measured | None = None  # the bus bandwidth
    note: str | None = None
