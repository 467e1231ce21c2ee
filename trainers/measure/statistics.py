"""Statistics of a series of step times. Pure Python: a worker need not import scipy for three numbers."""

import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean
from typing import Final

_MIN_STEPS_FOR_INTERVAL: Final = 4


def student_t_95(degrees_of_freedom: int) -> float:
    """The two-sided 95 % quantile."""
    return student_t(0.95, degrees_of_freedom)


@cache
def student_t(confidence: float, degrees_of_freedom: int) -> float:
    """The two-sided quantile of Student's t at any confidence between 0 and 1, by bisection.

    For whole degrees of freedom its distribution is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    if degrees_of_freedom < 1 or not 0 < confidence < 1:
        raise ValueError(f"no quantile at confidence {confidence} with {degrees_of_freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while _within(high, degrees_of_freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees_of_freedom) < confidence else (low, middle)
    return (low + high) / 2


def _within(t: float, dof: int) -> float:
    """The probability that Student's t lies between -t and t."""
    angle = math.atan(t / math.sqrt(dof))
    cosine_squared = math.cos(angle) ** 2
    is_odd = dof % 2 == 1
    term, total = (math.cos(angle), 0.0) if is_odd else (1.0, 0.0)
    for k in range(3 if is_odd else 2, dof + 1, 2):
        total += term
        term *= cosine_squared * (k - 1) / k
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if is_odd else total


def sample_variance(series: Sequence[float]) -> float:
    """Over n - 1, of at least 2 values. In floating point: `statistics.variance` takes fractions, and far longer."""
    mean = fmean(series)
    return math.fsum((value - mean) ** 2 for value in series) / (len(series) - 1)


def batch_means_half_width(series: Sequence[float]) -> float | None:
    """Half the width of a 95 % interval for the mean of an autocorrelated series, by non-overlapping batch means.

    About sqrt(n) batches of sqrt(n) values (Law and Kelton, "Simulation Modeling and Analysis", batch means); a rest
    that fills no batch is left out at the start, where the series is least settled. Same unit as the series; None below
    4 values. It is for the noise that the series shows, not for what is slower than it (`trainers.measure.interval`).
    """
    if len(series) < _MIN_STEPS_FOR_INTERVAL:
        return None
    num_batches = math.isqrt(len(series))
    size = len(series) // num_batches
    rest = len(series) - num_batches * size
    means = [fmean(series[rest + batch * size : rest + (batch + 1) * size]) for batch in range(num_batches)]
    return student_t_95(num_batches - 1) * math.sqrt(sample_variance(means) / num_batches)


def correlation_steps(series: Sequence[float]) -> float:
    """The integrated autocorrelation time of at least 4 values, in steps: 1 where they are independent.

    The variance of the mean by batch means over what it would be for independent values (Law and Kelton): an estimate
    with the batches' error, for a series many times as long. 1 for a constant series.
    """
    half_width, spread = batch_means_half_width(series), sample_variance(series)
    if half_width is None:
        raise ValueError(f"{len(series)} values are too few for a correlation time")
    if spread == 0:
        return 1.0
    standard_error = half_width / student_t_95(math.isqrt(len(series)) - 1)
    return standard_error**2 * len(series) / spread


def percentile(series: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` (0 to 1) of the series lies, linear between neighbours (numpy's default)."""
    if not series:
        raise ValueError("the percentile of no values is not defined")
    ordered = sorted(series)
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
