"""Speed-up and efficiency of rows that differ in world size only.

With T = epoch seconds, p = world size, X = images per second and p0 = the baseline's world size:

    strong (the dataset is fixed):             S = T(p0) / T(p)     E = S p0 / p
    weak   (the dataset grows with p):         E = T(p0) / T(p)     S = E p / p0   (scaled speed-up)
    in every mode, from the throughput alone:  E_X = X(p) p0 / (X(p0) p)

Slow-downs are never clipped: an efficiency above 1 or a speed-up below 1 is shown as it is. Where the baseline was not
measured (it failed, was left out, or is not there) the numbers are null, never taken against another point.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

Mode = Literal["none", "strong", "weak"]
Hold = Literal["micro_batch", "global_batch"]

MICRO_BATCH = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"
GLOBAL_BATCH = "train_batch_size"


@dataclass(frozen=True)
class MeasuredPoint:
    """What is needed of one results row. A trial without a result has null metrics (and still names its parameters)."""

    trial: int
    parameters: Mapping[str, Any]  # flat, as in a results row; `world_size` is required
    epoch_seconds: float | None = None
    images_per_second: float | None = None
    step_seconds_mean: float | None = None
    devices: Sequence[str] = ()  # names, one per rank


@dataclass(frozen=True)
class RowScaling:
    """One row against the mean of the baseline's repeats. Ratios have no unit. `reason` says why numbers are null."""

    trial: int
    baseline_world_size: int
    speedup: float | None = None
    efficiency: float | None = None
    throughput_efficiency: float | None = None
    step_time_ratio: float | None = None  # step seconds at p0 / at p
    reason: str | None = None


@dataclass(frozen=True)
class ScalingSeries:
    """Rows of the same requested parameters but world size and the batch key that `hold` derives."""

    fixed: Mapping[str, Any]  # the parameters that all rows share
    rows: list[RowScaling] = field(default_factory=list)  # by world size, then trial
    mixed_hardware: bool = False  # unlike devices within the series: kept, and to be read with care


def step_time_ratio_kind(hold: Hold) -> Literal["efficiency", "speedup"]:
    """What step seconds at p0 over step seconds at p mean: a step's work grows with p where the micro batch is held,
    and stays the same where the global batch is."""
    return "efficiency" if hold == "micro_batch" else "speedup"


def derived_batch_keys(hold: Hold, requested: Iterable[str]) -> frozenset[str]:
    """The batch keys that follow from the world size, so that they do not part a series.

    Args:
        hold: what the study holds constant.
        requested: the batch keys the spec gives; with `global_batch` held, the one of micro batch and accumulation that
            is not given is derived. Where it is not known which was given, the micro batch counts as derived.
    """
    if hold == "micro_batch":
        return frozenset({GLOBAL_BATCH})
    given = set(requested)
    if MICRO_BATCH in given and ACCUMULATION not in given:
        return frozenset({ACCUMULATION})
    return frozenset({MICRO_BATCH})


def scaling_series(
    points: Sequence[MeasuredPoint],
    *,
    mode: Mode,
    hold: Hold = "micro_batch",
    requested_batch_keys: Iterable[str] = (),
    baseline_world_size: int | None = None,
) -> list[ScalingSeries]:
    """Every point's speed-up and efficiency, series by series in the order of their first point.

    Args:
        points: measured or not, in any order; repeats of a point are points of their own.
        mode: with `none` there is no speed-up by epochs, and only the throughput form is given.
        baseline_world_size: null takes the smallest world size among the points, measured or not: a smallest one that
            failed leaves the numbers null.
    """
    if not points:
        return []
    left_out = derived_batch_keys(hold, requested_batch_keys) | {"world_size"}
    baseline = baseline_world_size if baseline_world_size is not None else min(_world_size(p) for p in points)
    groups: dict[tuple[tuple[str, str], ...], list[MeasuredPoint]] = defaultdict(list)
    for point in points:
        groups[_series_key(point, left_out)].append(point)
    return [_series(group, mode, baseline, left_out) for group in groups.values()]


def _series(group: list[MeasuredPoint], mode: Mode, baseline: int, left_out: frozenset[str]) -> ScalingSeries:
    at_baseline = [point for point in group if _world_size(point) == baseline]
    ordered = sorted(group, key=lambda point: (_world_size(point), point.trial))
    return ScalingSeries(
        fixed={key: value for key, value in group[0].parameters.items() if key not in left_out},
        rows=[_row(point, at_baseline, mode, baseline) for point in ordered],
        mixed_hardware=len({device for point in group for device in point.devices}) > 1,
    )


def _row(point: MeasuredPoint, at_baseline: list[MeasuredPoint], mode: Mode, baseline: int) -> RowScaling:
    size = _world_size(point)
    epoch_ratio = _ratio(_mean(p.epoch_seconds for p in at_baseline), point.epoch_seconds)
    throughput_ratio = _ratio(point.images_per_second, _mean(p.images_per_second for p in at_baseline))
    speedup = efficiency = None
    if epoch_ratio is not None and mode == "strong":
        speedup, efficiency = epoch_ratio, epoch_ratio * baseline / size
    elif epoch_ratio is not None and mode == "weak":
        speedup, efficiency = epoch_ratio * size / baseline, epoch_ratio
    return RowScaling(
        trial=point.trial,
        baseline_world_size=baseline,
        speedup=speedup,
        efficiency=efficiency,
        throughput_efficiency=None if throughput_ratio is None else throughput_ratio * baseline / size,
        step_time_ratio=_ratio(_mean(p.step_seconds_mean for p in at_baseline), point.step_seconds_mean),
        reason=None if throughput_ratio is not None else _why_null(point, at_baseline, baseline),
    )


def _why_null(point: MeasuredPoint, at_baseline: list[MeasuredPoint], baseline: int) -> str:
    if point.images_per_second is None:
        return "the trial has no result"
    if not at_baseline:
        return f"there is no trial at the baseline, world size {baseline}"
    return f"the baseline, world size {baseline}, has no result"


def _world_size(point: MeasuredPoint) -> int:
    return int(point.parameters["world_size"])


def _series_key(point: MeasuredPoint, left_out: frozenset[str]) -> tuple[tuple[str, str], ...]:
    # Values may be unhashable in imported rows; repr also keeps True apart from 1.
    return tuple(sorted((key, repr(value)) for key, value in point.parameters.items() if key not in left_out))


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Null where a side is missing, or the denominator is not a positive time or rate."""
    if numerator is None or denominator is None or denominator <= 0:
        return None
    return numerator / denominator
