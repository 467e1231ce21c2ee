"""What the repeats of one point say together: the mean of the runs, its interval, and how far they lie apart.

The runs are separate trials, each with processes, memory and devices of its own, so their means are independent:

    mean m = sum(m_i) / k     95 % interval: m +- t(0.975, k - 1) s / sqrt(k)     spread = (max m_i - min m_i) / m

with m_i the mean step seconds of run i, k runs, and s their sample standard deviation (Student, "The probable error of
a mean", Biometrika 6, 1908). It holds what a run cannot see of itself: where it was placed, how warm the device was.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal

from pydantic import BaseModel, ConfigDict

from trainers.measure.statistics import student_t_95


class BetweenRuns(BaseModel):
    """Seconds are per optimizer step. `spread` is a share of the mean, without a unit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runs: int
    interval_kind: Literal["between_runs"] = "between_runs"
    images_per_second: float  # of the mean step
    step_seconds_mean: float
    step_seconds_ci95_low: float
    step_seconds_ci95_high: float
    spread: float


def between_runs(step_seconds_means: Sequence[float], train_batch_size: int) -> BetweenRuns | None:
    """The runs of one point together, or None below two runs.

    Args:
        step_seconds_means: of each run that has a result, each above 0.
        train_batch_size: images of one optimizer step of all workers.
    """
    runs = len(step_seconds_means)
    if runs < 2:
        return None
    mean = fmean(step_seconds_means)
    half_width = student_t_95(runs - 1) * stdev(step_seconds_means) / math.sqrt(runs)
    return BetweenRuns(
        runs=runs,
        images_per_second=train_batch_size / mean,
        step_seconds_mean=mean,
        step_seconds_ci95_low=mean - half_width,
        step_seconds_ci95_high=mean + half_width,
        spread=(max(step_seconds_means) - min(step_seconds_means)) / mean,
    )
