"""Points grouped into series, and the definitions of speed-up and efficiency on their pooled means.

With T = epoch seconds, p = world size, X = throughput, p0 = the baseline's (see `service.analysis.scaling`):

    strong: S = T(p0) / T(p), E = S p0 / p     weak: E = T(p0) / T(p), S = E p / p0     always: X(p) p0 / (X(p0) p)
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.analysis.answer import (
    AnalysisPoint,
    AnalysisSeries,
    Choice,
    Difference,
    PreviousDifference,
    SideBySide,
    SideBySideRow,
)
from service.analysis.noise import Comparison, Pooled, Ratio, compare, ratio
from service.analysis.points import Key, StudyPoint, Topology, parameters_key, topology_of
from service.analysis.scaling import Hold, Mode, derived_batch_keys, step_time_ratio_kind


@dataclass(frozen=True)
class ScalingAsked:
    """How the study means its world sizes to be read (`scaling` of its specification)."""

    mode: Mode = "none"
    hold: Hold = "micro_batch"
    requested_batch_keys: frozenset[str] = frozenset()
    baseline_world_size: int | None = None  # None: the smallest in the study

    @property
    def derived_keys(self) -> frozenset[str]:
        return derived_batch_keys(self.hold, self.requested_batch_keys)


@dataclass(frozen=True)
class PointGroup:
    """A series before it is judged: its points by world size, then trial."""

    series_id: str
    fixed: Mapping[str, Any]
    points: Sequence[StudyPoint]
    topology: Topology | None
    baseline: int

    @property
    def measured(self) -> list[StudyPoint]:
        return [point for point in self.points if point.is_measured]

    @property
    def is_mixed(self) -> bool:
        """Unlike devices within the series, or the same with other cores, threads or backend."""
        devices = {device for point in self.points for device in point.devices}
        fingerprints = {mark for point in self.points for mark in point.fingerprints}
        return len(devices) > 1 or len(fingerprints) > 1

    def baseline_of(self, point: StudyPoint) -> StudyPoint | None:
        """The baseline's point, on the same kind of devices if there are several."""
        found = [one for one in self.measured if one.world_size == self.baseline]
        alike = [one for one in found if one.devices == point.devices]
        return next(iter(alike or found), None)


def point_groups(points: Sequence[StudyPoint], asked: ScalingAsked) -> list[PointGroup]:
    """The series, in the order of their first point."""
    if not points:
        return []
    left_out = asked.derived_keys | {"world_size"}
    baseline = asked.baseline_world_size or min(point.world_size for point in points)
    by_key: dict[Key, list[StudyPoint]] = defaultdict(list)
    for point in points:
        by_key[parameters_key(point.parameters, left_out)].append(point)
    groups: list[PointGroup] = []
    for members in by_key.values():
        fixed = {key: value for key, value in members[0].parameters.items() if key not in left_out}
        for topology, part in _by_topology(members):
            ordered = sorted(part, key=lambda point: (point.world_size, point.trials))
            groups.append(PointGroup(f"a{len(groups) + 1}", fixed, ordered, topology, baseline))
    return groups


def _by_topology(points: list[StudyPoint]) -> list[tuple[Topology | None, list[StudyPoint]]]:
    """Apart where one world size ran on different numbers of nodes: within one and across several are two series. What
    has but one worker belongs to both."""
    nodes: dict[int, set[int | None]] = defaultdict(set)
    for point in points:
        nodes[point.world_size].add(point.nodes)
    if all(len(found) == 1 for found in nodes.values()):
        return [(None, points)]
    parts: dict[Topology, list[StudyPoint]] = {
        topology: [point for point in points if point.world_size == 1 or topology_of(point) == topology]
        for topology in ("packed", "one worker per node")
    }
    return [(topology, part) for topology, part in parts.items() if any(point.world_size > 1 for point in part)]


def differing(fixed: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The keys that do not have one and the same value throughout."""
    keys = {key for one in fixed for key in one}
    return frozenset(key for key in keys if len({repr(one.get(key)) for one in fixed}) > 1)


def series_answer(group: PointGroup, asked: ScalingAsked, distinguishing: frozenset[str]) -> AnalysisSeries:
    """The series with all but its fits."""
    previous: StudyPoint | None = None
    shown = []
    for point in group.points:
        shown.append(_point(group, point, previous, asked))
        previous = point if point.is_measured else previous
    distinguished: dict[str, Any] = {key: group.fixed[key] for key in group.fixed if key in distinguishing}
    return AnalysisSeries(
        series_id=group.series_id,
        fixed=dict(group.fixed),
        distinguished_by=distinguished if group.topology is None else {**distinguished, "topology": group.topology},
        mode=asked.mode,
        hold=asked.hold,
        step_time_ratio_kind=step_time_ratio_kind(asked.hold),
        baseline_world_size=group.baseline,
        topology=group.topology,
        mixed_hardware=group.is_mixed,
        points=shown,
        fastest=_fastest(group.measured),
        cheapest=_cheapest(group.measured),
        notes=_notes(group),
    )


def _point(group: PointGroup, point: StudyPoint, previous: StudyPoint | None, asked: ScalingAsked) -> AnalysisPoint:
    epoch, rate, step = point.epoch_seconds, point.throughput, point.step_seconds
    base = group.baseline_of(point)
    growth = point.world_size / group.baseline
    speedup, efficiency = _speedup(base, point, asked.mode, growth)
    by_rate = ratio(rate, base.throughput) if base and base.throughput and rate else None
    by_step = ratio(base.step_seconds, step).value if base and base.step_seconds and step else None
    shown_rate = rate if point.has_images_per_second else None
    interval_kind = next((one.kind for one in (epoch, rate, step) if one is not None and one.kind is not None), None)
    return AnalysisPoint(
        world_size=point.world_size,
        hardware=point.hardware,
        nodes=point.nodes,
        trials=list(point.trials),
        runs=max((one.runs for one in (epoch, rate, step) if one is not None), default=0),
        interval_kind=interval_kind,
        **_ends("epoch_seconds", epoch),
        step_seconds=None if step is None else step.value,
        **_ends("images_per_second", shown_rate),
        device_seconds_per_epoch=None if epoch is None else epoch.value * point.world_size,
        **_ends("speedup", speedup),
        **_ends("efficiency", efficiency),
        **_ends("throughput_efficiency", None if by_rate is None else by_rate.times(1 / growth)),
        step_time_ratio=by_step,
        against_previous=_against_previous(point, previous),
        compute_seconds=_value(point.compute_seconds),
        data_wait_seconds=_value(point.data_wait_seconds),
        straggler_wait_seconds=_value(point.straggler_wait_seconds),
        communication_seconds=_value(point.communication_seconds),
        peak_memory_bytes=point.peak_memory_bytes,
        first_epoch_ratio=None if point.first_epoch is None else point.first_epoch.ratio,
        first_epoch_is_outlier=None if point.first_epoch is None else point.first_epoch.is_outlier,
        flags=list(point.flags),
        reason=_why_null(group, point, base),
    )


def _speedup(
    base: StudyPoint | None, point: StudyPoint, mode: Mode, growth: float
) -> tuple[Ratio | None, Ratio | None]:
    if base is None or base.epoch_seconds is None or point.epoch_seconds is None or mode == "none":
        return None, None
    found = ratio(base.epoch_seconds, point.epoch_seconds)
    return (found, found.times(1 / growth)) if mode == "strong" else (found.times(growth), found)


def _against_previous(point: StudyPoint, previous: StudyPoint | None) -> PreviousDifference | None:
    if previous is None or previous.throughput is None or point.throughput is None:
        return None
    found = difference(compare(point.throughput, previous.throughput))
    return PreviousDifference(world_size=previous.world_size, **found.model_dump())


def difference(found: Comparison) -> Difference:
    return Difference(
        ratio=found.ratio.value,
        ratio_ci95_low=found.ratio.low,
        ratio_ci95_high=found.ratio.high,
        verdict=found.verdict,
        is_repeated=found.is_repeated,
    )


def _why_null(group: PointGroup, point: StudyPoint, base: StudyPoint | None) -> str | None:
    if not point.is_measured:
        return why_unmeasured(point)
    if base is not None:
        return None
    if any(one.world_size == group.baseline for one in group.points):
        return f"the baseline, world size {group.baseline}, has no result"
    return f"there is no trial at the baseline, world size {group.baseline}"


def why_unmeasured(point: StudyPoint) -> str:
    reasons = ", ".join(sorted({reason.value for reason in point.reasons}))
    return f"no result: {reasons}" if reasons else "no result yet"


def _notes(group: PointGroup) -> list[str]:
    notes = []
    if group.is_mixed:
        kinds = sorted({device for point in group.points for device in point.devices})
        what = " and ".join(kinds) if len(kinds) > 1 else "other cores, threads or another backend at some sizes"
        notes.append(f"Mixed hardware ({what}): efficiency holds the unlike devices against each other.")
    if any(point.throughput is not None and point.throughput.kind == "within_run" for point in group.points):
        notes.append("Intervals of single runs know nothing of the next run, which may differ by several percent.")
    outliers = [str(p.world_size) for p in group.points if p.first_epoch is not None and p.first_epoch.is_outlier]
    if outliers:
        notes.append(f"The first epoch stands apart from the later ones at world size {', '.join(outliers)}.")
    return notes


def _fastest(points: Sequence[StudyPoint]) -> Choice | None:
    rates = {point.world_size: point.throughput for point in points if point.throughput is not None}
    return _choice(rates, largest=True)


def _cheapest(points: Sequence[StudyPoint]) -> Choice | None:
    """Least device-seconds for the same data: by throughput per worker, which also holds where the data grows."""
    per_worker = {
        point.world_size: point.throughput.inverse(point.world_size)
        for point in points
        if point.throughput is not None and point.epoch_seconds is not None
    }
    found = _choice(per_worker, largest=False)
    if found is None:
        return None
    seconds = next(p.epoch_seconds for p in points if p.world_size == found.world_size and p.epoch_seconds is not None)
    return found.model_copy(update={"value": seconds.value * found.world_size})


def _choice(values: Mapping[int, Pooled], *, largest: bool) -> Choice | None:
    if not values:
        return None
    pick = max if largest else min
    best = pick(values, key=lambda size: values[size].value)
    equal = [size for size, one in values.items() if size != best and compare(one, values[best]).verdict == "equal"]
    return Choice(world_size=best, value=values[best].value, equal=equal)


def side_by_side(groups: Sequence[PointGroup]) -> list[SideBySide]:
    """For each key in which series differ: those that differ in nothing else, held against the best at each size."""
    found: list[SideBySide] = []
    for key in sorted(differing([_labelled(group) for group in groups])):
        families: dict[Key, list[PointGroup]] = defaultdict(list)
        for group in groups:
            labelled = _labelled(group)
            if key in labelled:
                families[parameters_key(labelled, {key})].append(group)
        found += [_table(key, family) for family in families.values() if len(family) > 1]
    return [table for table in found if table.rows]


def _labelled(group: PointGroup) -> dict[str, Any]:
    return {**group.fixed, **({} if group.topology is None else {"topology": group.topology})}


def _table(key: str, family: Sequence[PointGroup]) -> SideBySide:
    at: dict[int, dict[str, Pooled]] = defaultdict(dict)
    for group in family:
        for point in group.measured:
            if point.throughput is not None and point.has_images_per_second:
                at[point.world_size].setdefault(group.series_id, point.throughput)
    ids = [group.series_id for group in family]
    rows = []
    for size, rates in sorted(at.items()):
        if len(rates) < 2:
            continue
        best = max(rates, key=lambda series_id: rates[series_id].value)
        against = [difference(compare(rates[one], rates[best])) if one in rates else None for one in ids]
        rows.append(SideBySideRow(world_size=size, best_series_id=best, against_best=against))
    return SideBySide(key=key, values=[_labelled(group)[key] for group in family], series_ids=ids, rows=rows)


def _ends(name: str, found: Pooled | Ratio | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {name: found.value, f"{name}_ci95_low": found.low, f"{name}_ci95_high": found.high}


def _value(found: Pooled | None) -> float | None:
    return None if found is None else found.value
