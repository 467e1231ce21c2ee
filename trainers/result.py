"""What one trial reports: the schema between trainers and service. Pure: no torch.

Seconds are per optimizer step unless the name says otherwise. What was not measured is null, with a reason in
`quality.notes`. Never NaN or infinity.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainers.memory import ModelStates
from trainers.parts.rows import CommunicationSource, LinkRow, RankParts, StepParts
from trainers.telemetry.rows import Telemetry


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Metrics(_Strict):
    """The `metrics` object of a results row (see the HTTP contract)."""

    images_per_second: float
    images_per_second_per_worker: float
    step_seconds_mean: float
    step_seconds_ci95_low: float | None
    step_seconds_ci95_high: float | None
    interval_kind: Literal["within_run", "between_runs"] | None
    # The two independent parts of the 95 % interval: (high - low) / 2 is the root of the sum of their squares.
    step_seconds_noise_half_width: float | None = None  # what the kept steps show, autocorrelation respected
    step_seconds_wander_half_width: float | None = None  # an allowance for what is slower than the measurement
    wander_source: Literal["reference_logs"] | None = None
    correlation_steps: float | None = None  # so many steps tell as much as one independent step
    step_seconds_p50: float
    step_seconds_p95: float
    measured_steps: int  # kept; all rates and intervals are over these
    truncated_steps: int = 0  # measured before them and found to be warm-up still
    skipped_steps: int
    epoch_seconds: float | None
    epoch_seconds_source: Literal["measured", "derived"] | None
    epoch_seconds_without_first: float | None = None  # mean over measured epochs but the first; null below two epochs
    images_seen: int
    # The step taken apart (`measurement.communication`): the four add up to the step of that pass (`parts.step`).
    compute_seconds: float | None = None
    compute_seconds_ci95_low: float | None = None
    compute_seconds_ci95_high: float | None = None
    data_wait_seconds: float | None = None
    data_wait_seconds_ci95_low: float | None = None
    data_wait_seconds_ci95_high: float | None = None
    straggler_wait_seconds: float | None = None
    straggler_wait_seconds_ci95_low: float | None = None
    straggler_wait_seconds_ci95_high: float | None = None
    straggler_persistent_seconds: float | None = None  # of it: the slowest is always the same rank
    straggler_jitter_seconds: float | None = None  # of it: now this rank, now that
    communication_seconds: float | None = None  # exposed
    communication_seconds_ci95_low: float | None = None
    communication_seconds_ci95_high: float | None = None
    communication_share: float | None = None  # of the step
    communication_share_ci95_low: float | None = None
    communication_share_ci95_high: float | None = None
    communication_source: CommunicationSource | None = None
    communication_wire_bytes: float | None = None  # sent by one worker in one step, counted
    peak_memory_bytes: int
    model_state_bytes: int | None = None  # parameters, gradients, optimizer state: read back, of the worst-off worker
    estimated_model_state_bytes: int | None = None  # ... by formula (`trainers.memory`)
    forward_flops_per_image: float
    achieved_flops_per_second: float
    peak_flops_per_device: float | None = None  # dense, FLOP/s; the mean where devices differ
    peak_flops_source: str | None = None
    mfu: float | None = None  # achieved_flops_per_second / (world size x peak_flops_per_device)
    train_loss: float | None = None
    train_accuracy: float | None = None
    eval_loss: float | None = None
    eval_accuracy: float | None = None


class Quality(_Strict):
    state: Literal["steady", "unassessed", "unstable", "drifting"]
    flags: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)


class RankRow(_Strict):
    """One worker's part, gathered on rank 0."""

    rank: int
    local_rank: int
    node: str  # host name
    node_ip: str
    pid: int
    device: str  # e.g. "Tesla T4" or the CPU's model name
    device_uuid: str | None = None
    peak_memory_bytes: int  # allocated on CUDA; on CPU RSS above its value after imports
    reserved_memory_bytes: int | None = None
    model_states: ModelStates | None = None  # read back from the engine in one more step after the measured ones
    step_seconds_mean: float | None = None
    compute_seconds: float | None = None
    data_wait_seconds: float | None = None
    straggler_wait_seconds: float | None = None
    communication_seconds: float | None = None  # waiting for others included, where the source cannot tell
    parts: RankParts | None = None  # the same with their intervals


class EpochRow(_Strict):
    """One whole epoch, if epochs were asked for. Losses and accuracies are means over ranks."""

    epoch: int  # from 1
    epoch_seconds: float  # barrier to barrier around training only
    steps: int
    images_seen: int
    train_loss: float | None  # null: not finite, the training diverged
    train_accuracy: float
    eval_loss: float | None
    eval_accuracy: float | None


class TrialOverhead(_Strict):
    """Seconds spent outside the measurement, as the trial itself knows them (queue and total are the runner's)."""

    startup_seconds: float  # trial code entered -> first warm-up step
    compile_seconds: float | None = None  # torch.compile, with the one step in which it happens; null without
    warmup_seconds: float
    measure_seconds: float
    parts_seconds: float | None = None  # taking a step apart and measuring the links; null where not asked for


class Hardware(_Strict):
    devices: list[str]  # one per rank
    nodes: int
    backend: str  # the one really used: gloo | nccl
    fingerprint: str  # hash of device kinds, cores, threads and backend: the points of one series share it
    num_threads: int


class TrialResult(_Strict):
    """The one report of a finished trial (rank 0, with what all ranks know)."""

    metrics: Metrics
    quality: Quality
    overhead: TrialOverhead
    hardware: Hardware
    ranks: list[RankRow]
    telemetry: Telemetry | None = None  # the machine's, while it was measured
    parts: StepParts | None = None  # where a step's time goes, if asked for
    links: list[LinkRow] = Field(default_factory=list)  # what the links between the workers carry, if asked for
    epochs: list[EpochRow] = Field(default_factory=list)
    loss_history: list[float] = Field(default_factory=list)  # mean over ranks, per optimizer step, as run (bounded)
    deepspeed_config: dict[str, Any]  # read back from the engine
    versions: dict[str, str]  # python, torch, deepspeed, timm, ...
