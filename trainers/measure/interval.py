"""How far the mean step time of one run can be trusted: its noise, and an allowance for slow wander. Pure.

What a run of minutes can see of itself is noise. The mean of hours differs from it by more: clocks follow temperature,
a network's load comes and goes, with power at ever lower frequencies (flicker noise). The Allan deviation of the
reference runs over a network stays at 0.5 to 1 % from 100 to 600 s, where that of independent noise would fall by 2.4.
No short series shows how much of it is still to come, so the allowance is taken from reference logs and named apart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from trainers.measure.statistics import batch_means_half_width, correlation_steps

# From the step logs of 27 public runs (16 on Tesla T4, 11 on RTX 3070 and mixed GPUs over Ethernet; arXiv 2602.21081):
# stretches of 40 to 300 s against their run's own mean over 700 to 34 000 s. The squared deviation is, by maximum
# likelihood, 3 to 4 times the squared standard error by batch means, plus (0.25 to 0.4 % of the mean) squared: rounded
# here to 1 + 1.5^2 and 0.7 % / 1.96. The nominal 95 % cover 85 % of the runs from their start, 92 % of starts
# in their middle; fitted on half of the runs, 84 % of the other half. What is missed: devices in waves of 2 %.
WANDER_OVER_NOISE: Final = 1.5
WANDER_FLOOR: Final = 0.007  # of the mean
WANDER_SOURCE: Final = "reference_logs"


@dataclass(frozen=True)
class Interval:
    """95 % half widths around a mean, in the unit of the series.

    `correlation_steps` is the integrated autocorrelation time: so many steps tell as much as one independent step.
    """

    noise_half_width: float
    wander_half_width: float
    correlation_steps: float

    @property
    def half_width(self) -> float:
        """Of noise and wander together, which are independent: squares add."""
        return math.hypot(self.noise_half_width, self.wander_half_width)


def interval_of(series: Sequence[float]) -> Interval | None:
    """The interval around the mean of a level series of positive values; None below 4 values."""
    noise = batch_means_half_width(series)
    if noise is None:
        return None
    return Interval(
        noise_half_width=noise,
        wander_half_width=math.hypot(WANDER_OVER_NOISE * noise, WANDER_FLOOR * fmean(series)),
        correlation_steps=correlation_steps(series),
    )
