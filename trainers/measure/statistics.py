"""Statistics of a series of step times. Pure Python: a worker need not import scipy for three numbers."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Final

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom (any statistics table; tested against scipy).
_T_95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z_95: Final = 1.959964
_MIN_STEPS_FOR_INTERVAL: Final = 4


def student_t_95(degrees_of_freedom: int) -> float:
    """The two-sided 95 % quantile. Beyond the table: the first two terms of the expansion in 1/dof (Fisher 1926)."""
    if degrees_of_freedom < 1:
        raise ValueError(f"degrees of freedom must be at least 1, not {degrees_of_freedom}")
    if degrees_of_freedom <= len(_T_95):
        return _T_95[degrees_of_freedom - 1]
    z, dof = _Z_95, degrees_of_freedom
    return z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)


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
