"""How sure a number is: runs of one point pooled, the ratio of two such means, and whether two points differ at all.

Pooled, k runs: mean +- t(0.975, k - 1) s / sqrt(k) (as `service.analysis.repeats`). One run keeps the interval it has.

The ratio a / b of two independent means is taken on the log scale, where its error is the sum of the relative ones
(delta method; V. H. Franz, "Ratios: A short guide to confidence limits and proper use", arXiv 0710.2024, 2007):

    s^2 = (se_a / a)^2 + (se_b / b)^2      95 % interval: a / b x exp(+- t(0.975, d) s)
    d = s^4 / ((se_a / a)^4 / d_a + (se_b / b)^4 / d_b)     (Welch, Biometrika 34, 1947; Satterthwaite 1946)

A single run's interval knows nothing of the next run. The paper's identical one-GPU jobs differ by up to 7.8 %
(arXiv 2602.21081), so where a side was not repeated, nothing closer than 5 % is ranked.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal

from service.analysis.observation import Estimate
from trainers.measure.statistics import sample_variance, student_t_95

IntervalKind = Literal["within_run", "between_runs"]
Verdict = Literal["more", "less", "equal"]

UNREPEATED_TOLERANCE: Final = 0.05
_Z_95: Final = 1.959964


@dataclass(frozen=True)
class Pooled:
    """The mean of a point's runs. `relative_error` is its standard error as a share of `value`; None: not known.

    `degrees_of_freedom` of that error; None: many.
    """

    value: float
    runs: int = 1
    low: float | None = None
    high: float | None = None
    kind: IntervalKind | None = None
    relative_error: float | None = None
    degrees_of_freedom: int | None = None

    def inverse(self, times: float = 1.0) -> "Pooled":
        """`times` / this, with its interval. An end that would not be a positive number is None."""
        low, high = self.low, self.high
        return Pooled(
            value=times / self.value,
            runs=self.runs,
            low=None if high is None or high <= 0 else times / high,
            high=None if low is None or low <= 0 else times / low,
            kind=self.kind,
            relative_error=self.relative_error,
            degrees_of_freedom=self.degrees_of_freedom,
        )


@dataclass(frozen=True)
class Ratio:
    """Without a unit; both ends are None where a side has no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> "Ratio":
        scaled = [None if end is None else end * factor for end in (self.low, self.high)]
        return Ratio(self.value * factor, *scaled)


@dataclass(frozen=True)
class Comparison:
    """One point against another: `equal` is within the noise, and says nothing about which is better."""

    ratio: Ratio
    verdict: Verdict
    is_repeated: bool  # both sides were run more than once


def pooled(runs: Sequence[Estimate], kind: IntervalKind | None = "within_run") -> Pooled | None:
    """The runs of one point together; None where there is none that is above 0.

    Args:
        runs: the same quantity, in the same unit, of each run.
        kind: of the runs' own intervals, which count where there is one run only.
    """
    good = [run for run in runs if run.value > 0]
    if len(good) >= 2:
        return _between_runs([run.value for run in good])
    return _single(good[0], kind) if good else None


def pooled_rate(runs: Sequence[Estimate], kind: IntervalKind | None = "within_run") -> Pooled | None:
    """As `pooled`, of rates: the mean is that of the times they stand for (work / mean seconds)."""
    times = pooled([_inverse(run) for run in runs if run.value > 0], kind)
    return None if times is None else times.inverse()


def ratio(numerator: Pooled, denominator: Pooled) -> Ratio:
    """Of two independent means. A point over itself is 1, without error."""
    if numerator is denominator:
        return Ratio(1.0, 1.0, 1.0)
    value = numerator.value / denominator.value
    first, second = numerator.relative_error, denominator.relative_error
    if first is None or second is None:
        return Ratio(value)
    error = math.hypot(first, second)
    half = _quantile(_welch_degrees(numerator, denominator, error)) * error
    return Ratio(value, value * math.exp(-half), value * math.exp(half))


def compare(numerator: Pooled, denominator: Pooled) -> Comparison:
    """Whether the first is more or less than the second, beyond the noise."""
    found = ratio(numerator, denominator)
    is_repeated = numerator.kind == denominator.kind == "between_runs"
    is_apart = found.low is None or found.high is None or not found.low <= 1 <= found.high
    if not is_repeated:
        is_apart = is_apart and abs(found.value - 1) > UNREPEATED_TOLERANCE
    return Comparison(found, ("more" if found.value > 1 else "less") if is_apart else "equal", is_repeated)


def _between_runs(values: Sequence[float]) -> Pooled:
    mean, runs = fmean(values), len(values)
    error = math.sqrt(sample_variance(values) / runs)
    half = student_t_95(runs - 1) * error
    return Pooled(mean, runs, mean - half, mean + half, "between_runs", error / mean, runs - 1)


def _single(run: Estimate, kind: IntervalKind | None) -> Pooled:
    if run.low is None or run.high is None or kind is None:
        return Pooled(run.value)
    half = (run.high - run.low) / 2
    return Pooled(run.value, 1, run.low, run.high, kind, half / _Z_95 / run.value)


def _inverse(run: Estimate) -> Estimate:
    if run.low is None or run.high is None or run.low <= 0:
        return Estimate(1 / run.value)
    return Estimate(1 / run.value, 1 / run.high, 1 / run.low)


def _welch_degrees(first: Pooled, second: Pooled, error: float) -> int | None:
    spent = sum(
        side.relative_error**4 / side.degrees_of_freedom
        for side in (first, second)
        if side.relative_error is not None and side.degrees_of_freedom is not None
    )
    if spent == 0:
        return None
    return max(1, math.floor(error**4 / spent * (1 + 1e-9)))


def _quantile(degrees_of_freedom: int | None) -> float:
    return _Z_95 if degrees_of_freedom is None else student_t_95(degrees_of_freedom)
