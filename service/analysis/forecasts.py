"""Fits and forecasts of one series, or the reason why there are none."""

from collections.abc import Sequence
from typing import Final

from service.analysis.answer import AnalysisOptions, AnalysisSeries, Fit, Forecast, UsefulSize
from service.analysis.points import StudyPoint
from service.analysis.scaling import Mode
from service.analysis.series import PointGroup
from service.analysis.shrunk_fit import ShrunkFit, fit

MIN_SIZES: Final = 4
TRIED_DISTANCE: Final = 4  # times the largest measured size: as far as the method was tried on data


def with_forecasts(series: AnalysisSeries, group: PointGroup, options: AnalysisOptions) -> AnalysisSeries:
    """The series with its fits, forecasts and largest useful size. Without sizes asked for: two and four times the
    largest."""
    points = group.measured
    refused = _why_not(points, is_mixed=group.is_mixed)
    if refused is not None:
        return series.model_copy(update={"forecast_refused": refused})
    sizes = [point.world_size for point in points]
    has_epochs = all(point.epoch_seconds is not None for point in points)
    work = [_work(point, series.mode, has_epochs=has_epochs) for point in points]
    parts = [_communication_share(point) for point in points]
    fitted = fit(sizes, work, parts, global_batch=series.hold == "global_batch")
    asked = options.forecast_sizes or [2 * max(sizes), 4 * max(sizes)]
    chosen = min(fitted.models, key=lambda one: one.loo_error).model.name
    return series.model_copy(
        update={
            "fits": _fits(fitted, has_epochs=has_epochs),
            "chosen_fit": chosen,
            "forecasts": [_forecast(fitted, size, series, points, has_epochs=has_epochs) for size in asked],
            "largest_useful_size": _largest_useful(fitted, group.baseline, max(sizes), options.efficiency_target),
            "notes": [*series.notes, *_notes(points, asked)],
        }
    )


def _why_not(points: Sequence[StudyPoint], *, is_mixed: bool) -> str | None:
    sizes = {point.world_size for point in points}
    if is_mixed:
        return "mixed hardware: one curve does not hold for unlike devices"
    if len(sizes) < MIN_SIZES:
        return f"{len(sizes)} different world sizes have a result, at least {MIN_SIZES} are needed"
    if len(points) > len(sizes):
        return "a world size has results on different numbers of nodes"
    return None


def _work(point: StudyPoint, mode: Mode, *, has_epochs: bool) -> float:
    """Work per worker: seconds of an epoch on one worker, or where epochs are not known workers per throughput."""
    if has_epochs and point.epoch_seconds is not None:
        return point.epoch_seconds.value * (1 if mode == "weak" else point.world_size)
    assert point.throughput is not None  # measured points only
    return point.world_size / point.throughput.value


def _communication_share(point: StudyPoint) -> float | None:
    """What a step takes beyond one worker's own part, as a share of that; None where it was not taken apart."""
    compute, communication = point.compute_seconds, point.communication_seconds
    if compute is None or communication is None or compute.value <= 0:
        return None
    own = compute.value + (point.data_wait_seconds.value if point.data_wait_seconds else 0.0)
    waits = point.straggler_wait_seconds.value if point.straggler_wait_seconds else 0.0
    return (communication.value + waits) / own


def _fits(fitted: ShrunkFit, *, has_epochs: bool) -> list[Fit]:
    return [
        Fit(
            model=one.model.name,
            equation=one.model.equation,
            parameters={**one.shares, **({"one_worker_seconds": one.one_worker} if has_epochs else {})},
            loo_error=one.loo_error,
            weight=one.weight,
        )
        for one in fitted.models
    ]


def _forecast(
    fitted: ShrunkFit, size: int, series: AnalysisSeries, points: Sequence[StudyPoint], *, has_epochs: bool
) -> Forecast:
    found = fitted.forecast(size)
    efficiency, low, high = fitted.efficiency(size, series.baseline_world_size)
    parts = 1 if series.mode == "weak" else size
    return Forecast(
        world_size=size,
        epoch_seconds=found.value / parts if has_epochs else None,
        epoch_seconds_low=found.low / parts if has_epochs else None,
        epoch_seconds_high=found.high / parts if has_epochs else None,
        efficiency=efficiency,
        efficiency_low=low,
        efficiency_high=high,
        images_per_second=_rate(found.value, size, series.mode, points, has_epochs=has_epochs),
        note=_distance_note(size, points),
    )


def _rate(work: float, size: int, mode: Mode, points: Sequence[StudyPoint], *, has_epochs: bool) -> float | None:
    """Images per second that go with the forecast: by the images an epoch has on average of the points."""
    if not all(point.has_images_per_second for point in points):
        return None
    per_work = [
        point.throughput.value * _work(point, mode, has_epochs=has_epochs) / point.world_size
        for point in points
        if point.throughput is not None
    ]
    return sum(per_work) / len(per_work) * size / work


def _distance_note(size: int, points: Sequence[StudyPoint]) -> str | None:
    distance = size / max(point.world_size for point in points)
    if distance <= TRIED_DISTANCE:
        return None
    return f"{distance:g} times the largest measured size; the method was tried to {TRIED_DISTANCE} times"


def _notes(points: Sequence[StudyPoint], asked: Sequence[int]) -> list[str]:
    within_one = all(point.nodes == 1 for point in points)
    if within_one and max(asked, default=0) > max(point.world_size for point in points):
        return ["All points ran within one node: forecasts know nothing of a network between nodes."]
    return []


def _largest_useful(fitted: ShrunkFit, baseline: int, largest: int, target: float) -> UsefulSize:
    """By halving: no model's efficiency rises with the world size."""
    end = max(TRIED_DISTANCE * largest, baseline)

    def largest_with(place: int) -> int:
        low, high = baseline, end
        while low < high:
            middle = (low + high + 1) // 2
            if fitted.efficiency(middle, baseline)[place] >= target:
                low = middle
            else:
                high = middle - 1
        return low

    found = largest_with(0)
    return UsefulSize(
        efficiency=target,
        world_size=found,
        world_size_sure=largest_with(1),
        is_bounded=found < end,
        searched_to=end,
    )
