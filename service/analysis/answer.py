"""What the analysis of one study says: the models of `GET /studies/{id}/analysis`.

Seconds are of an epoch unless the name says step. Ratios and efficiencies have no unit; intervals are 95 % ones, null
where the data has none. Whatever could not be concluded is null, with a reason beside it. Slow-downs are never clipped.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.analysis.finding import Finding
from service.analysis.noise import IntervalKind, Verdict
from service.analysis.points import Topology
from service.analysis.scaling import Hold, Mode
from service.states import StudyState


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Difference(_Answer):
    """Throughput of a point as a ratio to another's, each with its own error: not through a common baseline."""

    ratio: float
    ratio_ci95_low: float | None
    ratio_ci95_high: float | None
    verdict: Verdict  # equal: within the noise
    is_repeated: bool  # both were run more than once; else nothing closer than 5 % is told apart


class PreviousDifference(Difference):
    world_size: int  # of the next smaller point


class AnalysisPoint(_Answer):
    """One world size of a series, its runs pooled. `interval_kind` is that of all intervals here."""

    world_size: int
    hardware: str
    nodes: int | None
    trials: list[int]
    runs: int  # with a result
    interval_kind: IntervalKind | None = None
    epoch_seconds: float | None = None
    epoch_seconds_ci95_low: float | None = None
    epoch_seconds_ci95_high: float | None = None
    step_seconds: float | None = None
    images_per_second: float | None = None
    images_per_second_ci95_low: float | None = None
    images_per_second_ci95_high: float | None = None
    device_seconds_per_epoch: float | None = None  # world size x epoch seconds: what an epoch costs
    speedup: float | None = None
    speedup_ci95_low: float | None = None
    speedup_ci95_high: float | None = None
    efficiency: float | None = None
    efficiency_ci95_low: float | None = None
    efficiency_ci95_high: float | None = None
    throughput_efficiency: float | None = None  # X(p) p0 / (X(p0) p), in every mode
    throughput_efficiency_ci95_low: float | None = None
    throughput_efficiency_ci95_high: float | None = None
    step_time_ratio: float | None = None  # step seconds at p0 / at p; what it means: the series' step_time_ratio_kind
    against_previous: PreviousDifference | None = None
    compute_seconds: float | None = None  # of a step, as the three below
    data_wait_seconds: float | None = None
    straggler_wait_seconds: float | None = None
    communication_seconds: float | None = None
    peak_memory_bytes: int | None = None
    first_epoch_ratio: float | None = None  # to the mean of the later epochs; null below three epochs
    first_epoch_is_outlier: bool | None = None
    flags: list[str] = Field(default_factory=list)
    reason: str | None = None  # why numbers are null


class Fit(_Answer):
    """One scaling model on a series: its shares (posterior means, see `service.analysis.shrunk_fit`) and
    `one_worker_seconds`, y(1). `loo_error`: root mean square of the relative errors of each size, forecast from the
    others; `weight`: its part in the forecasts."""

    model: str
    equation: str
    parameters: dict[str, float]
    loo_error: float
    weight: float


class Forecast(_Answer):
    world_size: int
    epoch_seconds: float | None
    epoch_seconds_low: float | None
    epoch_seconds_high: float | None
    efficiency: float  # against the baseline, both on the fitted curve: a single run's noise is in the seconds only
    efficiency_low: float
    efficiency_high: float
    images_per_second: float | None
    note: str | None = None


class UsefulSize(_Answer):
    """The largest world size that keeps the efficiency asked for: as forecast, and as is sure (the interval's lower
    end). Not `is_bounded`: the search ended before the forecast efficiency fell."""

    efficiency: float
    world_size: int
    world_size_sure: int
    is_bounded: bool
    searched_to: int


class Choice(_Answer):
    """A point that was picked, and which others of the series are equal to it within the noise."""

    world_size: int
    value: float
    equal: list[int] = Field(default_factory=list)  # world sizes


class AnalysisSeries(_Answer):
    """Points of the same requested parameters but the world size and the batch key that `hold` derives."""

    series_id: str
    fixed: dict[str, Any]
    distinguished_by: dict[str, Any]  # the part of `fixed` in which the study's series differ
    mode: Mode
    hold: Hold
    step_time_ratio_kind: Literal["efficiency", "speedup"]
    baseline_world_size: int
    topology: Topology | None = None  # where the same sizes ran on different numbers of nodes
    mixed_hardware: bool
    points: list[AnalysisPoint]
    fastest: Choice | None = None  # images per second, or epochs per second where those are not known
    cheapest: Choice | None = None  # device-seconds per epoch
    fits: list[Fit] = Field(default_factory=list)
    chosen_fit: str | None = None
    forecasts: list[Forecast] = Field(default_factory=list)
    largest_useful_size: UsefulSize | None = None
    forecast_refused: str | None = None
    notes: list[str] = Field(default_factory=list)


class SideBySideRow(_Answer):
    """One world size: of each series in order, its throughput against the best one's; null where it has none."""

    world_size: int
    best_series_id: str
    against_best: list[Difference | None]


class SideBySide(_Answer):
    """Series that differ in one key only."""

    key: str
    values: list[Any]  # of each series in order
    series_ids: list[str]
    rows: list[SideBySideRow]


class BatchPoint(_Answer):
    """`against_best`: its throughput as a ratio to the best batch's."""

    train_micro_batch_size_per_gpu: int
    trials: list[int]
    images_per_second: float | None = None
    epoch_seconds: float | None = None
    against_best: Difference | None = None
    device_seconds_per_epoch: float | None = None
    peak_memory_bytes: int | None = None
    reason: str | None = None  # why it has no result


class SweetSpot(_Answer):
    train_micro_batch_size_per_gpu: int
    tied: list[int]  # every batch that the rule lets through, this one first
    ratio_to_best: float
    next_doubling_gain: float | None  # share of throughput gained by the next doubling; null where none was measured
    reason: str


class MemoryFrontier(_Answer):
    """Micro batches. Null: none ran, or none ran out of memory."""

    largest_that_ran: int | None
    smallest_out_of_memory: int | None
    peak_memory_bytes: int | None  # of the largest that ran


class BatchSizes(_Answer):
    """Points that differ in their batch only."""

    fixed: dict[str, Any]
    distinguished_by: dict[str, Any]
    hardware: str
    points: list[BatchPoint]
    sweet_spot: SweetSpot | None
    sweet_spot_refused: str | None = None
    memory: MemoryFrontier


class CostChoice(_Answer):
    series_id: str
    world_size: int
    epoch_seconds: float
    device_seconds_per_epoch: float


class Cost(_Answer):
    """Of all points that train the same model on the same data: the fastest epoch and the cheapest one."""

    fixed: dict[str, Any]
    fastest: CostChoice
    cheapest: CostChoice
    fastest_costs: float  # device-seconds, as a ratio to the cheapest
    cheapest_takes: float  # epoch seconds, as a ratio to the fastest


class AnalysisOptions(_Answer):
    """What was asked for."""

    sweet_spot_ratio: float = 0.90
    efficiency_target: float = 0.80
    forecast_sizes: list[int] = Field(default_factory=list)


class Analysis(_Answer):
    options: AnalysisOptions
    series: list[AnalysisSeries]
    side_by_side: list[SideBySide]
    batch_size: list[BatchSizes]
    costs: list[Cost]
    findings: list[Finding]
    notes: list[str]


class StudyAnalysis(Analysis):
    """The answer of `GET /studies/{id}/analysis`."""

    study_id: str
    status: StudyState
