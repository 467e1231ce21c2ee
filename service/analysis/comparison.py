"""The same points of two studies side by side: what became slower or faster, beyond the noise and beyond a tolerance.

A point's ratio is b / a of its mean times: above 1, b is slower. It is taken on the log scale, where its error is the
sum of the relative ones (delta method). What enters:

- Repeated runs: the scatter between them. Two or three runs tell little of their own scatter, so the variances of all
  points inform each other: the moderated t of G. K. Smyth, "Linear models and empirical Bayes methods for assessing
  differential expression", Stat. Appl. Genet. Mol. Biol. 3(1), 2004 (`_prior`). Where the points scatter alike it is
  the t test with one variance for all of them; where they do not, nearly each point's own.
- A single run: its own interval, and what it cannot know of the next run. Identical jobs differ by up to 7.8 % (arXiv
  2602.21081), so nothing closer than 5 % is ranked: a scatter of ln(1.05) / (1.96 sqrt 2) = 1.8 % from run to run,
  with which two single runs 5 % apart are just not told apart.

Many points are looked at, and one that is slower by chance must not stop an upgrade: p values are adjusted after
S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6, 1979, so that two studies of
the same truth give any false alarm with at most 5 %, however many points there are. The intervals are of each point
alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict
from scipy import special

from service.analysis.noise import UNREPEATED_TOLERANCE, Pooled
from service.analysis.observation import Observation
from service.analysis.points import StudyPoint, parameters_key, study_points
from service.states import Reason, TrialState

Verdict = Literal["slower", "faster", "equal"]
Quantity = Literal["step_seconds", "epoch_seconds", "seconds_per_image"]

FALSE_ALARM_RATE: Final = 0.05
# From run to run, where a run was not repeated (see above).
_UNREPEATED_SCATTER: Final = math.log1p(UNREPEATED_TOLERANCE) / (1.959964 * math.sqrt(2))
# Runs that agree more closely than this are rounded numbers or copies, not a measurement that is as good as that.
_LEAST_SCATTER: Final = 1e-3
_FEWEST_TO_LEARN_FROM: Final = 6  # points, below which their variances do not inform each other
_PRECISE: Final = 1e6  # degrees of freedom of an error that is known


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ComparedPoint(_Frozen):
    """One point that has a result in both. Seconds are of `quantity`; the ratio is b / a: above 1, b is slower.

    `verdict` is slower or faster only beyond the noise of all points together (`p_value`, after Holm) and beyond the
    tolerance. `equal` is not proof of equality: the interval says what is not excluded.
    """

    parameters: dict[str, Any]
    quantity: Quantity
    a_trials: list[int]
    b_trials: list[int]
    a_seconds: float
    b_seconds: float
    ratio: float
    ratio_ci95_low: float
    ratio_ci95_high: float
    interval_kind: Literal["within_run", "between_runs"]
    p_value: float
    verdict: Verdict
    a_hardware: str
    b_hardware: str


class UnmatchedPoint(_Frozen):
    parameters: dict[str, Any]
    trials: list[int]


class FailedPoint(_Frozen):
    """A point that both studies have and that did not succeed in both. No reason: it was not run to its end."""

    parameters: dict[str, Any]
    without_result_in: Literal["a", "b", "both"]
    a_trials: list[int]
    b_trials: list[int]
    reasons: list[Reason]
    is_regression: bool  # it has a result in a, and failed in b


class ComparedPoints(_Frozen):
    """`overall_ratio`: the geometric mean over the points; a shift that all share may be the machine's."""

    tolerance: float
    points: list[ComparedPoint]
    failed: list[FailedPoint]
    only_in_a: list[UnmatchedPoint]
    only_in_b: list[UnmatchedPoint]
    overall_ratio: float | None
    is_regression: bool
    notes: list[str]


@dataclass(frozen=True)
class Judged:
    """One pair of means, told apart or not."""

    ratio: float
    low: float
    high: float
    is_repeated: bool
    p_value: float  # adjusted
    verdict: Verdict


def compare_points(a: Sequence[Observation], b: Sequence[Observation], *, tolerance: float) -> ComparedPoints:
    """All points of two studies, in the order of a's trials and then b's.

    Args:
        tolerance: a share of the time, 0 or more: what is slower by no more than this is no regression.
    """
    left_out = _keys_of_one_study(a, b)
    pairs, only_a, only_b = _matched(_points(a), _points(b), left_out)
    measured = [(pair, quantity) for pair in pairs if (quantity := _quantity(*pair)) is not None]
    judged = judge([_pooled_pair(*pair, quantity) for pair, quantity in measured], tolerance)
    points = [_compared(*pair, quantity, found) for (pair, quantity), found in zip(measured, judged, strict=True)]
    failed = [_failed(*pair) for pair in pairs if _quantity(*pair) is None]
    return ComparedPoints(
        tolerance=tolerance,
        points=points,
        failed=failed,
        only_in_a=[_unmatched(point) for point in only_a],
        only_in_b=[_unmatched(point) for point in only_b],
        overall_ratio=math.exp(fmean(math.log(point.ratio) for point in points)) if points else None,
        is_regression=any(p.verdict == "slower" for p in points) or any(point.is_regression for point in failed),
        notes=_notes(points, left_out, tolerance),
    )


def judge(pairs: Sequence[tuple[Pooled, Pooled]], tolerance: float) -> list[Judged]:
    """Each pair (a, b) of mean times, judged among all of them."""
    together = _prior([_scatter(a, b) for a, b in pairs if _is_repeated(a, b)])
    raw = [(math.log(b.value / a.value), *_error(a, b, together)) for a, b in pairs]
    p_values = _holm([2 * float(special.stdtr(freedom, -abs(shift) / error)) for shift, error, freedom in raw])
    return [
        _judged(shift, float(special.stdtrit(freedom, 0.975)) * error, _is_repeated(a, b), p_value, tolerance)
        for (a, b), (shift, error, freedom), p_value in zip(pairs, raw, p_values, strict=True)
    ]


def _judged(shift: float, half: float, is_repeated: bool, p_value: float, tolerance: float) -> Judged:
    beyond = p_value < FALSE_ALARM_RATE and abs(shift) > math.log1p(tolerance)
    verdict: Verdict = ("slower" if shift > 0 else "faster") if beyond else "equal"
    return Judged(math.exp(shift), math.exp(shift - half), math.exp(shift + half), is_repeated, p_value, verdict)


# --- the errors of means ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Prior:
    """What all pairs together say of one: `variance` weighs as much as `degrees` degrees of freedom of its own."""

    variance: float
    degrees: float
    most_degrees: float  # all that there are: the sum over the pairs


def _is_repeated(a: Pooled, b: Pooled) -> bool:
    return min(a.runs, b.runs) >= 2


def _scatter(a: Pooled, b: Pooled) -> tuple[float, int]:
    """The variance of one run on the log scale, from the runs of both sides, and its degrees of freedom."""
    squares = sum((side.relative_error or 0.0) ** 2 * side.runs * (side.runs - 1) for side in (a, b))
    degrees = a.runs + b.runs - 2
    return max(squares / degrees, _LEAST_SCATTER**2), degrees


def _error(a: Pooled, b: Pooled, prior: _Prior | None) -> tuple[float, float]:
    """The standard error of ln(b / a), and its degrees of freedom."""
    if prior is None or not _is_repeated(a, b):
        # The mean of several runs in one study is not better known than one run, as long as the other has but one.
        single = sum((side.relative_error or 0.0) ** 2 + _UNREPEATED_SCATTER**2 for side in (a, b))
        return math.sqrt(single), _PRECISE
    spread, degrees = _scatter(a, b)
    share = 1 / a.runs + 1 / b.runs
    if math.isinf(prior.degrees):
        return math.sqrt(prior.variance * share), prior.most_degrees
    together = (prior.degrees * prior.variance + degrees * spread) / (prior.degrees + degrees)
    return math.sqrt(together * share), min(prior.degrees + degrees, prior.most_degrees)


def _prior(scatters: Sequence[tuple[float, int]]) -> _Prior | None:
    """Smyth 2004, section 6.2: log variances are met by their first two moments under a scaled F distribution.

    Where they differ by no more than chance, all are one: their mean, weighted by degrees of freedom. Few variances
    do not tell how variances differ: each then stands alone.
    """
    if not scatters:
        return None
    total = sum(degrees for _, degrees in scatters)
    pooled = sum(spread * degrees for spread, degrees in scatters) / total
    if len(scatters) < _FEWEST_TO_LEARN_FROM:
        return _Prior(pooled, 0.0, total)
    centred = [
        math.log(spread) - float(special.digamma(degrees / 2)) + math.log(degrees / 2) for spread, degrees in scatters
    ]
    excess = variance(centred) - fmean(float(special.polygamma(1, degrees / 2)) for _, degrees in scatters)
    if excess <= 0:
        return _Prior(pooled, math.inf, total)
    half = _trigamma_inverse(excess)
    return _Prior(math.exp(fmean(centred) + float(special.digamma(half)) - math.log(half)), 2 * half, total)


def _trigamma_inverse(value: float) -> float:
    """Newton's iteration on 1 / trigamma, which is convex and nearly linear (Smyth 2004, appendix)."""
    if value > 1e7:
        return 1 / math.sqrt(value)
    if value < 1e-6:
        return 1 / value
    found = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, found))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, found))
        found += step
        if -step / found < 1e-8:
            break
    return found


def _holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values, in the given order."""
    adjusted, largest = [1.0] * len(p_values), 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


# --- which points belong together ------------------------------------------------------------------------------------


def _points(observations: Sequence[Observation]) -> list[StudyPoint]:
    told = [one for one in observations if one.state is not TrialState.SKIPPED and "world_size" in one.parameters]
    return study_points(sorted(told, key=lambda one: one.trial), is_weak=False)


def _keys_of_one_study(a: Sequence[Observation], b: Sequence[Observation]) -> frozenset[str]:
    """Parameters that only one study names, where they have one value throughout: nothing to tell points apart by."""
    named = [_named_values(study) for study in (a, b)]
    if not all(named):
        return frozenset()
    found = set()
    for own, other in (named, named[::-1]):
        found |= {key for key, values in own.items() if key not in other and len(values) == 1}
    return frozenset(found)


def _named_values(study: Sequence[Observation]) -> dict[str, set[str]]:
    values: dict[str, set[str]] = {}
    for one in study:
        for key, value in one.parameters.items():
            values.setdefault(key, set()).add(repr(value))
    return {key: found for key, found in values.items() if found != {"None"}}


def _matched(
    a: Sequence[StudyPoint], b: Sequence[StudyPoint], left_out: frozenset[str]
) -> tuple[list[tuple[StudyPoint, StudyPoint]], list[StudyPoint], list[StudyPoint]]:
    """Pairs of the same parameters: on like hardware where there are several, and the only ones left else."""
    others: dict[Any, list[StudyPoint]] = {}
    for point in b:
        others.setdefault(_identity(point, left_out), []).append(point)
    waiting: dict[Any, list[StudyPoint]] = {}
    pairs: list[tuple[StudyPoint, StudyPoint]] = []
    for point in a:
        key = _identity(point, left_out)
        alike = next((other for other in others.get(key, []) if other.hardware == point.hardware), None)
        if alike is None:
            waiting.setdefault(key, []).append(point)
        else:
            pairs.append((point, alike))
            others[key].remove(alike)
    only_a = []
    for key, points in waiting.items():
        if len(points) == 1 and len(others.get(key, [])) == 1:
            pairs.append((points[0], others.pop(key)[0]))
        else:
            only_a += points
    only_b = [point for points in others.values() for point in points]
    return sorted(pairs, key=lambda pair: pair[0].trials), only_a, only_b


def _identity(point: StudyPoint, left_out: frozenset[str]) -> Any:
    named: Mapping[str, Any] = {key: value for key, value in point.parameters.items() if value is not None}
    return parameters_key(named, left_out)


def _quantity(a: StudyPoint, b: StudyPoint) -> Quantity | None:
    """What was measured in both. None: one of them has no result."""
    if a.step_seconds is not None and b.step_seconds is not None:
        return "step_seconds"
    if a.epoch_seconds is not None and b.epoch_seconds is not None:
        return "epoch_seconds"
    if a.throughput is not None and b.throughput is not None and a.has_images_per_second and b.has_images_per_second:
        return "seconds_per_image"
    return None


def _pooled_pair(a: StudyPoint, b: StudyPoint, quantity: Quantity) -> tuple[Pooled, Pooled]:
    sides = [_seconds(point, quantity) for point in (a, b)]
    return sides[0], sides[1]


def _seconds(point: StudyPoint, quantity: Quantity) -> Pooled:
    if quantity == "seconds_per_image":
        assert point.throughput is not None
        return point.throughput.inverse()
    found = point.step_seconds if quantity == "step_seconds" else point.epoch_seconds
    assert found is not None
    return found


# --- how it is told --------------------------------------------------------------------------------------------------


def _compared(a: StudyPoint, b: StudyPoint, quantity: Quantity, judged: Judged) -> ComparedPoint:
    return ComparedPoint(
        parameters=dict(a.parameters),
        quantity=quantity,
        a_trials=list(a.trials),
        b_trials=list(b.trials),
        a_seconds=_seconds(a, quantity).value,
        b_seconds=_seconds(b, quantity).value,
        ratio=judged.ratio,
        ratio_ci95_low=judged.low,
        ratio_ci95_high=judged.high,
        interval_kind="between_runs" if judged.is_repeated else "within_run",
        p_value=judged.p_value,
        verdict=judged.verdict,
        a_hardware=a.hardware,
        b_hardware=b.hardware,
    )


def _failed(a: StudyPoint, b: StudyPoint) -> FailedPoint:
    where: Literal["a", "b", "both"] = "a" if b.is_measured else "b" if a.is_measured else "both"
    return FailedPoint(
        parameters=dict(a.parameters),
        without_result_in=where,
        a_trials=list(a.trials),
        b_trials=list(b.trials),
        reasons=sorted({*a.reasons, *b.reasons}),
        is_regression=a.is_measured and not b.is_measured and bool(b.reasons),
    )


def _unmatched(point: StudyPoint) -> UnmatchedPoint:
    return UnmatchedPoint(parameters=dict(point.parameters), trials=list(point.trials))


def _notes(points: Sequence[ComparedPoint], left_out: frozenset[str], tolerance: float) -> list[str]:
    notes = []
    single = sum(point.interval_kind == "within_run" for point in points)
    if single:
        notes.append(
            f"{single} of {len(points)} points were run only once in one of the studies: without repeats nothing "
            f"closer than {UNREPEATED_TOLERANCE:.0%} is ranked (measurement.repeats: 3 would tell more)."
        )
    unsure = [p for p in points if p.verdict == "equal" and p.ratio_ci95_high > 1 + tolerance]
    if unsure:
        worst = max(point.ratio_ci95_high for point in unsure) - 1
        notes.append(
            f"Noise leaves room at {len(unsure)} of {len(points)} points for a slow-down beyond the tolerance that "
            f"was not seen (up to {worst:.0%}): equal is not proof of equality."
        )
    if left_out:
        notes.append(f"Only one of the studies names {', '.join(sorted(left_out))}; the points were matched without.")
    return notes
