"""Where the warm-up ends: the earliest window from which on the step time is level. Pure.

A start is taken where three things hold for the steps from it on:

- no trend: a straight line through their batch means would change the step time, over as long as has been seen, by no
  more than the tolerance, or by less than its own 95 % error;
- no transient: their mean is within half the tolerance of the mean from the best start by MSER-5, or its standard
  error at most three times the best one (MSER alone cuts a wandering series down to its flattest end);
- enough: a quarter of the seconds seen, and the steps asked for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Final

from trainers.measure.statistics import student_t_95
from trainers.measure.windows import Window, all_step_seconds

MIN_KEPT_SHARE: Final = 0.25  # of the seconds seen: less says too little of what comes
_BATCH_STEPS: Final = 5  # MSER-5's own
_MIN_BATCHES, _MAX_BATCHES = 4, 16
MIN_TREND_STEPS: Final = _MIN_BATCHES * _BATCH_STEPS
_SETTLED_STEEPNESS: Final = 1 / 3
_MSER_EXCESS: Final = 9.0  # of a squared standard error: three times the standard error


@dataclass(frozen=True)
class Trend:
    """A straight line through a stretch of steps. Slopes are per step; changes from begin to end, over the mean."""

    slope: float
    slope_error: float  # standard
    slope_half_width: float  # 95 %
    steps_over_mean: float

    @property
    def change(self) -> float:
        return self.slope * self.steps_over_mean

    @property
    def change_error(self) -> float:
        return self.slope_error * self.steps_over_mean

    @property
    def change_half_width(self) -> float:
        return self.slope_half_width * self.steps_over_mean

    @property
    def is_significant(self) -> bool:
        return abs(self.slope) > self.slope_half_width


@dataclass(frozen=True)
class SteadyPart:
    """The windows from `first_window` on. `reach` is how many times their seconds have been seen in all.

    `trend` is None below 20 steps, which are too few to tell one. `whole` is the trend of all windows.
    """

    first_window: int
    trend: Trend | None
    reach: float
    whole: Trend | None

    def is_level(self, tolerance: float) -> bool:
        """No sign of a trend that would exceed the tolerance over what was seen: it is within one standard error.

        And where a trend was cut off, this part is less than a third as steep: what approaches its level exponentially
        is then about a tenth of the way from it.
        """
        if self.trend is None or abs(self.trend.change) > max(tolerance / self.reach, self.trend.change_error):
            return False
        return self._steepness(self.trend.slope_error, tolerance) < _SETTLED_STEEPNESS

    def may_go_on(self, tolerance: float) -> bool:
        """A trend surely beyond the tolerance was cut off, and for all that is known this part still has it."""
        return self.trend is not None and self._steepness(self.trend.slope_half_width, tolerance) >= 1

    def _steepness(self, margin: float, tolerance: float) -> float:
        """The slope, a margin added, over that of the whole, if a trend surely beyond the tolerance was cut off."""
        if self.first_window == 0 or self.trend is None or self.whole is None:
            return 0.0
        if abs(self.whole.change) - self.whole.change_half_width <= tolerance:
            return 0.0
        same_way = math.copysign(self.trend.slope, self.trend.slope * self.whole.slope)
        return (same_way + margin) / abs(self.whole.slope)


def fit_trend(means: Sequence[float], batch_steps: int = 1) -> Trend:
    """Ordinary least squares over at least 3 means of successive batches of steps; their mean is not zero."""
    count, mean = len(means), fmean(means)
    positions = [index - (count - 1) / 2 for index in range(count)]
    spread = sum(position**2 for position in positions)
    slope = sum(position * value for position, value in zip(positions, means, strict=True)) / spread
    residuals = (value - mean - slope * position for position, value in zip(positions, means, strict=True))
    error = math.sqrt(sum(residual**2 for residual in residuals) / (count - 2) / spread)
    return Trend(
        slope=slope / batch_steps,
        slope_error=error / batch_steps,
        slope_half_width=student_t_95(count - 2) * error / batch_steps,
        steps_over_mean=count * batch_steps / mean,
    )


def steady_part(windows: Sequence[Window], *, warmup_seconds: float, min_steps: int, tolerance: float) -> SteadyPart:
    """The longest steady part of at least one window, or the shortest allowed one where none is steady.

    Args:
        warmup_seconds: seen before the first window.
        min_steps: to be kept, where there are as many.
        tolerance: relative to the mean.
    """
    series = _Series(windows)
    seen = warmup_seconds + series.seconds_from(0)
    allowed = [
        window
        for window in range(len(windows))
        if series.seconds_from(window) >= MIN_KEPT_SHARE * seen
        and series.steps_from(window) >= min(max(min_steps, MIN_TREND_STEPS), series.steps_from(0))
    ] or [0]
    errors, whole = series.mser(), series.trend_from(0)
    best = min(allowed, key=errors.__getitem__)
    parts = []
    for window in allowed:
        part = SteadyPart(window, series.trend_from(window), seen / series.seconds_from(window), whole)
        parts.append(part)
        away = abs(series.mean_from(window) / series.mean_from(best) - 1)
        is_transient = away > tolerance / 2 and errors[window] > _MSER_EXCESS * errors[best]
        if part.trend is None or is_transient:
            continue
        if abs(part.trend.change) <= max(tolerance / part.reach, part.trend.change_half_width):
            return part
    return parts[-1]


class _Series:
    """Sums over the windows from each one on, so that every start is looked at in constant time."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._windows = windows
        self._first_step = [0, *accumulate(window.steps for window in windows)]
        self._step_sums = [0.0, *accumulate(all_step_seconds(windows))]
        self._seconds = [0.0, *accumulate(window.seconds for window in windows)]

    def seconds_from(self, window: int) -> float:
        return self._seconds[-1] - self._seconds[window]

    def steps_from(self, window: int) -> int:
        return self._first_step[-1] - self._first_step[window]

    def mean_from(self, window: int) -> float:
        return self.seconds_from(window) / self.steps_from(window)

    def trend_from(self, window: int) -> Trend | None:
        """Over 4 to 16 batches of at least 5 steps, growing with the series; a rest is left out at the start."""
        count = min(_MAX_BATCHES, self.steps_from(window) // _BATCH_STEPS)
        if count < _MIN_BATCHES:
            return None
        size = self.steps_from(window) // count
        ends = self._step_sums[-1 - count * size :: size]
        return fit_trend([(after - before) / size for before, after in pairwise(ends)], size)

    def mser(self) -> list[float]:
        """The squared standard error of the mean from each window on, as if batches of 5 steps were independent.

        MSER-5 (White 1997; White, Cobb, Spratt 2000) with the median for the mean of a batch: a stall is part of the
        steady state and not what ends the warm-up.
        """
        batches = [
            [median(window.step_seconds[at : at + _BATCH_STEPS]) for at in range(0, window.steps, _BATCH_STEPS)]
            for window in self._windows
        ]
        centre = fmean(value for batch in batches for value in batch)
        errors: list[float] = []
        count, total, squares = 0, 0.0, 0.0
        for batch in reversed(batches):
            for value in batch:
                count, total, squares = count + 1, total + value - centre, squares + (value - centre) ** 2
            errors.append(max(squares / count - (total / count) ** 2, 0.0) / count)
        return errors[::-1]
