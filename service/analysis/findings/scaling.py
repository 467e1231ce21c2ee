"""Series that scale as well as can be, and those that scale better than that."""

from collections.abc import Iterator
from statistics import geometric_mean
from typing import Final

from service.analysis.answer import AnalysisPoint, AnalysisSeries
from service.analysis.finding import Finding, FindingCode
from service.analysis.findings.subject import Subject, Sure, level, sure_efficiency, trial_list

NEAR_IDEAL_EFFICIENCY: Final = 0.90
"""Throughput per worker against the baseline's: the share at which a batch counts as being as good as the best, too."""
_FEWEST_SIZES: Final = 2  # beyond the baseline: one alone may be lucky


def near_ideal(subject: Subject) -> Iterator[Finding]:
    """Each series on one kind of device whose efficiency is surely near ideal at its largest size, and may be at all
    of them. Sizes scatter by as much as runs do, so the range over all of them is told with it."""
    for series in subject.analysis.series:
        found = _efficiencies(series)
        if series.mixed_hardware or len(found) < _FEWEST_SIZES or _superlinear(subject, series, found):
            continue
        largest, sure = found[-1]
        if sure.low < NEAR_IDEAL_EFFICIENCY or any(one.high < NEAR_IDEAL_EFFICIENCY for _, one in found):
            continue
        values = [one.value for _, one in found]
        mean = geometric_mean(values)
        yield Finding(
            code=FindingCode.NEAR_IDEAL,
            severity="info",
            message=(
                f"Scaling is near ideal up to world size {largest.world_size}{subject.at(series.distinguished_by)}: "
                f"efficiency {sure.value:.2f} there (95 % between {sure.low:.2f} and {sure.high:.2f}), and "
                f"{min(values):.2f} to {max(values):.2f} over all sizes (mean {mean:.2f}); larger sizes are worth "
                "measuring."
            ),
            evidence={
                "world_size": largest.world_size,
                "efficiency": sure.value,
                "efficiency_ci95_low": sure.low,
                "efficiency_ci95_high": sure.high,
                "efficiencies": {str(point.world_size): one.value for point, one in found},
                "mean_efficiency": mean,
                "series_id": series.series_id,
                "trials": _trials(series, [point for point, _ in found]),
            },
        )


def baseline_suspect(subject: Subject) -> Iterator[Finding]:
    """Each series with sizes that are surely better than perfect: the baseline is slow, or the work is not the same."""
    for series in subject.analysis.series:
        beyond = _superlinear(subject, series, _efficiencies(series))
        if not beyond:
            continue
        worst, sure = max(beyond, key=lambda one: level(one[1].value))
        base = [trial for point in _bases(series) for trial in point.trials]
        smaller = series.hold == "global_batch"
        other = " (or a smaller micro batch suits the device better)" if smaller else ""
        yield Finding(
            code=FindingCode.BASELINE_SUSPECT,
            severity="warning",
            message=(
                f"Better than perfect scaling{subject.at(series.distinguished_by)}: at world size {worst.world_size} "
                f"each worker is {sure.value - 1:.0%} faster than at the baseline ({trial_list(base)}), which was then "
                f"slow{other}; run the baseline again, with measurement.repeats: 3, before its speed-ups are used."
            ),
            evidence={
                "world_size": worst.world_size,
                "efficiency": sure.value,
                "efficiency_ci95_low": sure.low,
                "baseline_world_size": series.baseline_world_size,
                "baseline_trials": base,
                "superlinear_world_sizes": [point.world_size for point, _ in beyond],
                "series_id": series.series_id,
                "trials": _trials(series, [point for point, _ in beyond]),
            },
        )


def _efficiencies(series: AnalysisSeries) -> list[tuple[AnalysisPoint, Sure]]:
    """By world size, of all but the baseline."""
    found = [
        (point, sure)
        for point in series.points
        if point.world_size > series.baseline_world_size and (sure := sure_efficiency(series, point)) is not None
    ]
    return sorted(found, key=lambda one: one[0].world_size)


def _superlinear(
    subject: Subject, series: AnalysisSeries, found: list[tuple[AnalysisPoint, Sure]]
) -> list[tuple[AnalysisPoint, Sure]]:
    """Those surely above 1, on the baseline's kind of devices."""
    kinds = {_kinds(subject, point) for point in _bases(series)}
    return [(point, sure) for point, sure in found if sure.low > 1 and _kinds(subject, point) in kinds]


def _kinds(subject: Subject, point: AnalysisPoint) -> frozenset[str]:
    return frozenset(device for run in subject.runs_of(point) for device in run.devices)


def _bases(series: AnalysisSeries) -> list[AnalysisPoint]:
    return [point for point in series.points if point.world_size == series.baseline_world_size]


def _trials(series: AnalysisSeries, points: list[AnalysisPoint]) -> list[int]:
    return sorted({trial for point in [*_bases(series), *points] for trial in point.trials})
