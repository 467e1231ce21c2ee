"""What the rules look at: a study's trials and its analysis, and the parts of a step as far as they are known."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from service.analysis.answer import Analysis, AnalysisPoint, AnalysisSeries
from service.analysis.noise import UNREPEATED_TOLERANCE
from service.analysis.observation import Estimate, Observation
from service.analysis.points import Key, global_batch_of, parameters_key
from service.analysis.scaling import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH
from service.states import TrialState

BATCH_KEYS = frozenset({MICRO_BATCH, ACCUMULATION, GLOBAL_BATCH})
_NAMES = {MICRO_BATCH: "micro batch", ACCUMULATION: "accumulation", GLOBAL_BATCH: "global batch"}


@dataclass(frozen=True)
class Subject:
    """`observations` in the order of their trials."""

    observations: Sequence[Observation]
    analysis: Analysis

    @cached_property
    def succeeded(self) -> list[Observation]:
        return [one for one in self.observations if one.state is TrialState.SUCCEEDED]

    @cached_property
    def _by_trial(self) -> dict[int, Observation]:
        return {one.trial: one for one in self.succeeded}

    def runs_of(self, point: AnalysisPoint) -> list[Observation]:
        """The runs of a point that have a result."""
        return [self._by_trial[trial] for trial in point.trials if trial in self._by_trial]

    @cached_property
    def varied(self) -> frozenset[str]:
        """The parameters in which trials differ."""
        keys = {key for one in self.observations for key in one.parameters}
        return frozenset(key for key in keys if len({repr(one.parameters.get(key)) for one in self.observations}) > 1)

    def told(self, parameters: Mapping[str, Any]) -> str:
        """What sets these parameters apart from the study's others: "world size 2, micro batch 16"."""
        keys = [key for key in parameters if key in self.varied and parameters[key] is not None]
        if GLOBAL_BATCH in keys and not {MICRO_BATCH, ACCUMULATION, "world_size"}.isdisjoint(keys):
            keys.remove(GLOBAL_BATCH)
        keys.sort(key=lambda key: (key != "world_size", key != MICRO_BATCH, key))
        return ", ".join(f"{_NAMES.get(key, key.replace('_', ' '))} {parameters[key]}" for key in keys)

    def at(self, parameters: Mapping[str, Any], before: str = " at ") -> str:
        """As `told`, to follow a word; nothing where nothing sets them apart."""
        said = self.told(parameters)
        return f"{before}{said}" if said else ""


def grouped(runs: Iterable[Observation], left_out: Iterable[str]) -> list[list[Observation]]:
    """The runs that have all parameters in common but these."""
    groups: dict[Key, list[Observation]] = {}
    for one in runs:
        groups.setdefault(parameters_key(one.parameters, left_out), []).append(one)
    return list(groups.values())


def trial_list(trials: Iterable[int], most: int = 6) -> str:
    """ "trial 3", "trials 3, 4 and 9 more" """
    numbers = list(dict.fromkeys(trials))
    shown = ", ".join(map(str, numbers[:most]))
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return f"trial{'s' if len(numbers) > 1 else ''} {shown}{more}"


def device_kinds(run: Observation) -> frozenset[str]:
    return frozenset(run.devices) or frozenset(rank.device for rank in run.ranks if rank.device)


def step_seconds(run: Observation) -> float | None:
    """Of one optimizer step, from whatever tells it."""
    if run.step_seconds is not None:
        return _positive(run.step_seconds.value)
    batch = global_batch_of(run.parameters)
    if run.images_per_second is not None and batch is not None:
        rate = _positive(run.images_per_second.value)
        return None if rate is None else batch / rate
    known = [rank.step_seconds for rank in run.ranks if rank.step_seconds is not None]
    return _positive(fmean(known)) if known else None


def step_of_parts(run: Observation) -> float | None:
    """Of the pass that took the step apart, where there was one: its parts are shares of that step."""
    if run.parts_step_seconds is not None:
        return _positive(run.parts_step_seconds.value)
    return step_seconds(run)


@dataclass(frozen=True)
class Exchange:
    """Seconds of a step that the exchange of gradients takes. `holds_waiting`: for slower workers, too, perhaps."""

    seconds: float
    low: float
    holds_waiting: bool


def exchange_of(run: Observation) -> Exchange | None:
    """What is known of it: the trial's own part, or else the least of the ranks' (who waits least shows it best)."""
    part = run.communication_seconds
    if part is not None:
        return Exchange(part.value, lower(part), holds_waiting=False)
    known = [rank.communication_seconds for rank in run.ranks if rank.communication_seconds is not None]
    return Exchange(min(known), min(known), holds_waiting=True) if known else None


def rank_compute(run: Observation) -> dict[int, float]:
    """Compute seconds of a step, by rank, of those that tell it."""
    return {rank.rank: rank.compute_seconds for rank in run.ranks if rank.compute_seconds is not None}


def rank_local(run: Observation) -> dict[int, float]:
    """Seconds of a step that a rank spends for itself, computing and waiting for data, of those that tell it."""
    waits = {rank.rank: rank.data_wait_seconds or 0.0 for rank in run.ranks}
    return {rank: seconds + waits[rank] for rank, seconds in rank_compute(run).items()}


def knows_all_workers(run: Observation) -> bool:
    return len(rank_compute(run)) == run.world_size


@dataclass(frozen=True)
class Sure:
    """A ratio and where it surely lies: its 95 % interval, and without repeats no less than 5 % to either side."""

    value: float
    low: float
    high: float


def sure_efficiency(series: AnalysisSeries, point: AnalysisPoint) -> Sure | None:
    """Throughput per worker against the baseline's."""
    value = point.throughput_efficiency
    if value is None:
        return None
    low = value if point.throughput_efficiency_ci95_low is None else point.throughput_efficiency_ci95_low
    high = value if point.throughput_efficiency_ci95_high is None else point.throughput_efficiency_ci95_high
    bases = [one for one in series.points if one.world_size == series.baseline_world_size]
    if not all(one.interval_kind == "between_runs" for one in (point, *bases)):
        low, high = min(low, value / (1 + UNREPEATED_TOLERANCE)), max(high, value * (1 + UNREPEATED_TOLERANCE))
    return Sure(value, low, high)


def level(share: float) -> float:
    """A share to rank by: without the last digits, in which equal ones differ by rounding. The first of equals wins."""
    return round(share, 9)


def lower(estimate: Estimate) -> float:
    """The lower end of its interval, or the value where it has none."""
    return estimate.value if estimate.low is None else estimate.low


def upper(estimate: Estimate) -> float:
    """The upper end of its interval, or the value where it has none."""
    return estimate.value if estimate.high is None else estimate.high


def half_width(estimate: Estimate | None) -> float | None:
    """Half the interval as a share of the value; None where there is no interval."""
    if estimate is None or estimate.low is None or estimate.high is None or estimate.value <= 0:
        return None
    return (estimate.high - estimate.low) / 2 / estimate.value


def _positive(value: float) -> float | None:
    return value if value > 0 else None
