"""The points of a study: what ran at one world size on one kind of hardware, with its runs (repeats) pooled."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, Literal

from service.analysis.noise import Pooled, pooled, pooled_rate
from service.analysis.observation import Estimate, Observation
from service.analysis.scaling import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH
from service.states import Reason, TrialState
from trainers.measure.statistics import sample_variance, student_t_95

Key = tuple[tuple[str, str], ...]

_FIRST_EPOCH_SHARE: Final = 0.01  # a first epoch closer to the others than this is not worth a word


@dataclass(frozen=True)
class FirstEpoch:
    """The first epoch against the mean of the others (of the runs that trained at least three). `ratio` has no unit."""

    ratio: float
    is_outlier: bool


@dataclass(frozen=True)
class StudyPoint:
    """One point: where, on what, and what its runs say together. A point without a result has its `reasons`.

    `throughput` is images per second where that is known (`has_images_per_second`), else in a unit of the series' own:
    good for ratios within it.
    """

    parameters: Mapping[str, Any]
    world_size: int
    hardware: str
    devices: frozenset[str]
    nodes: int | None
    trials: tuple[int, ...]  # all runs, whatever came of them
    reasons: tuple[Reason, ...]  # of those that failed
    epoch_seconds: Pooled | None
    step_seconds: Pooled | None
    throughput: Pooled | None
    has_images_per_second: bool
    compute_seconds: Pooled | None
    communication_seconds: Pooled | None
    straggler_wait_seconds: Pooled | None
    data_wait_seconds: Pooled | None
    peak_memory_bytes: int | None
    fingerprints: frozenset[str]
    flags: tuple[str, ...]
    first_epoch: FirstEpoch | None

    @property
    def is_measured(self) -> bool:
        return self.throughput is not None


def parameters_key(parameters: Mapping[str, Any], left_out: Iterable[str]) -> Key:
    """What the parameters have in common, but for some. Values may be unhashable in imported rows; repr also keeps True
    apart from 1."""
    without = frozenset(left_out)
    return tuple(sorted((key, repr(value)) for key, value in parameters.items() if key not in without))


def hardware_name(devices: Sequence[str], world_size: int) -> str:
    """ "2 x Tesla T4", "3 x RTX 3070 + 1 x Tesla P4": in the order of the ranks."""
    if not devices:
        return f"{world_size} x unknown device"
    return " + ".join(f"{count} x {name}" for name, count in Counter(devices).items())


def micro_batch_of(parameters: Mapping[str, Any]) -> int | None:
    """Images per worker and forward pass; from the global batch where only that is known."""
    micro = parameters.get(MICRO_BATCH)
    if micro is not None:
        return int(micro)
    whole, parts = global_batch_of(parameters), int(parameters["world_size"]) * int(parameters.get(ACCUMULATION) or 1)
    return whole // parts if whole is not None and whole % parts == 0 else None


def global_batch_of(parameters: Mapping[str, Any]) -> int | None:
    """Images per optimizer step, of all workers."""
    whole, micro = parameters.get(GLOBAL_BATCH), parameters.get(MICRO_BATCH)
    if whole is not None:
        return int(whole)
    if micro is None:
        return None
    return int(micro) * int(parameters.get(ACCUMULATION) or 1) * int(parameters["world_size"])


def study_points(observations: Iterable[Observation], *, is_weak: bool) -> list[StudyPoint]:
    """All points in the order of their first trial; skipped ones are none. Runs on unlike hardware, or on
    another number of nodes, are not pooled.

    Args:
        is_weak: the data grows with the world size, as far as throughput must be told from epoch seconds alone.
    """
    points: dict[Key, list[Observation]] = defaultdict(list)
    for one in observations:
        if one.state is not TrialState.SKIPPED:
            points[parameters_key(one.parameters, ())].append(one)
    return [_point(group, is_weak) for runs in points.values() for group in _alike(runs)]


def _alike(runs: Sequence[Observation]) -> list[list[Observation]]:
    """The runs by hardware and number of nodes. Runs without a result ran nowhere: they go with the first that did."""
    groups: dict[tuple[str, int | None], list[Observation]] = defaultdict(list)
    without = [run for run in runs if not _has_result(run)]
    for run in runs:
        if _has_result(run):
            kinds = " ".join(sorted(run.devices))
            groups[kinds, run.nodes].append(run)
    found = sorted(groups.values(), key=lambda group: group[0].trial)
    return [[*found[0], *without], *found[1:]] if found else [without]


def _has_result(run: Observation) -> bool:
    measured = (run.images_per_second, run.step_seconds, run.epoch_seconds)
    return run.state is TrialState.SUCCEEDED and any(one is not None and one.value > 0 for one in measured)


def _point(runs: Sequence[Observation], is_weak: bool) -> StudyPoint:
    good = [run for run in runs if _has_result(run)]
    first = (good or runs)[0]
    size = first.world_size
    kind = first.interval_kind
    epoch, step = _pool(good, "epoch_seconds"), _pool(good, "step_seconds")
    rates = _present(good, "images_per_second")
    throughput = pooled_rate(rates, kind)
    has_rate = throughput is not None
    if throughput is None and step is not None and (batch := global_batch_of(first.parameters)) is not None:
        throughput, has_rate = step.inverse(batch), True
    if throughput is None and epoch is not None:
        throughput = epoch.inverse(size if is_weak else 1.0)
    memory = [run.peak_memory_bytes for run in good if run.peak_memory_bytes is not None]
    return StudyPoint(
        parameters=first.parameters,
        world_size=size,
        hardware=hardware_name(first.devices, size),
        devices=frozenset(first.devices),
        nodes=first.nodes,
        trials=tuple(sorted(run.trial for run in runs)),
        reasons=tuple(run.reason for run in runs if run.reason is not None),
        epoch_seconds=epoch,
        step_seconds=step,
        throughput=throughput,
        has_images_per_second=has_rate,
        compute_seconds=_pool(good, "compute_seconds"),
        communication_seconds=_pool_signed(good, "communication_seconds"),
        straggler_wait_seconds=_pool_signed(good, "straggler_wait_seconds"),
        data_wait_seconds=_pool_signed(good, "data_wait_seconds"),
        peak_memory_bytes=max(memory, default=None),
        fingerprints=frozenset(run.fingerprint for run in good if run.fingerprint),
        flags=tuple(sorted({flag for run in good for flag in run.quality_flags})),
        first_epoch=first_epoch(good),
    )


def _present(runs: Sequence[Observation], name: str) -> list[Estimate]:
    return [value for run in runs if (value := getattr(run, name)) is not None]


def _pool(runs: Sequence[Observation], name: str) -> Pooled | None:
    return pooled(_present(runs, name), runs[0].interval_kind) if runs else None


def _pool_signed(runs: Sequence[Observation], name: str) -> Pooled | None:
    """A part of the step, which may come out slightly negative: its mean only."""
    present = _present(runs, name)
    return Pooled(fmean(one.value for one in present), len(present)) if present else None


def first_epoch(runs: Sequence[Observation]) -> FirstEpoch | None:
    """Whether the first epoch lies outside of what the others let one expect.

    Outside: beyond the 95 % prediction interval for one more epoch, m +- t(0.975, k - 1) s sqrt(1 + 1/k) with m and s
    of the k later epochs (Student), and 1 % from their mean at least. None below three epochs. With several runs: the
    mean ratio, an outlier where it is one in most of them.
    """
    ratios, outliers = [], []
    for run in runs:
        seconds = [row.epoch_seconds for row in sorted(run.epochs, key=lambda row: row.epoch)]
        if len(seconds) < 3:
            continue
        later, mean = seconds[1:], fmean(seconds[1:])
        half = student_t_95(len(later) - 1) * math.sqrt(sample_variance(later) * (1 + 1 / len(later)))
        ratios.append(seconds[0] / mean)
        outliers.append(abs(seconds[0] - mean) > max(half, _FIRST_EPOCH_SHARE * mean))
    return FirstEpoch(fmean(ratios), 2 * sum(outliers) > len(outliers)) if ratios else None


Topology = Literal["packed", "one worker per node"]


def topology_of(point: StudyPoint) -> Topology:
    return "one worker per node" if point.nodes == point.world_size and point.world_size > 1 else "packed"
