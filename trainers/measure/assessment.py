"""What the windows of a measurement say so far: which of them count, how good their mean is, and a verdict. Pure.

The same windows give the same assessment: it is made on rank 0 between windows, and once more for the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from trainers.config import MeasurementConfig
from trainers.measure.interval import Interval, interval_of
from trainers.measure.steadiness import SteadyPart, steady_part
from trainers.measure.windows import Window, all_step_seconds, step_seconds_mean, total_seconds, total_steps

# A trial is seen for this share of `max_seconds` (135 s by default) before it may end: the reference GPUs take 160 to
# 250 s to slow or overshoot for two minutes, and a short look cannot tell that something stays level.
MIN_SEEN_SHARE: Final = 0.45
_DRIFT_SHARE: Final = 0.75  # of `relative_ci`: a larger change from begin to end of what was kept is a drift

State = Literal["steady", "unassessed", "unstable", "drifting"]


@dataclass(frozen=True)
class Assessment:
    """`mean` and `interval` are seconds per optimizer step, of the kept windows alone."""

    config: MeasurementConfig
    kept: Sequence[Window]
    truncated: Sequence[Window]  # measured, but still part of the warm-up
    seconds_seen: float  # in all, warm-up and truncated windows included
    mean: float
    interval: Interval | None
    steady: SteadyPart

    @property
    def relative_noise(self) -> float | None:
        return None if self.interval is None else self.interval.noise_half_width / self.mean

    @property
    def relative_half_width(self) -> float | None:
        return None if self.interval is None else self.interval.half_width / self.mean

    @property
    def is_drifting(self) -> bool:
        """The kept steps themselves change by more than is allowed for, or nothing says that they no longer do."""
        trend = self.steady.trend
        if trend is not None and trend.is_significant and abs(trend.change) > _DRIFT_SHARE * self.config.relative_ci:
            return True
        return self.steady.may_go_on(self.config.relative_ci)

    @property
    def is_unstable(self) -> bool:
        """The noise is wider than asked for. More steps would narrow it; the allowance for wander they would not."""
        return self.relative_noise is not None and self.relative_noise > self.config.relative_ci

    @property
    def state(self) -> State:
        """One word for it; "unassessed" where there are too few steps to tell a trend (20) or an interval (4)."""
        if self.is_drifting:
            return "drifting"
        if self.is_unstable:
            return "unstable"
        return "unassessed" if self.interval is None or self.steady.trend is None else "steady"

    @property
    def flags(self) -> list[str]:
        return ["drifting"] * self.is_drifting + ["unstable"] * self.is_unstable

    @property
    def was_seen_briefly(self) -> bool:
        return self.seconds_seen < MIN_SEEN_SHARE * self.config.max_seconds

    @property
    def is_final(self) -> bool:
        """Nothing is left to wait for: seen long enough, level, and the noise within what was asked for."""
        return (
            total_steps(self.kept) >= self.config.min_steps
            and not self.was_seen_briefly
            and self.relative_noise is not None
            and self.relative_noise <= self.config.relative_ci
            and self.steady.is_level(self.config.relative_ci / 2)
            and not self.is_drifting
        )


def assess(config: MeasurementConfig, windows: Sequence[Window], *, warmup_seconds: float) -> Assessment:
    """Assess at least one window of at least one step each; `warmup_seconds` were spent before the first."""
    steady = steady_part(
        windows, warmup_seconds=warmup_seconds, min_steps=config.min_steps, tolerance=config.relative_ci / 2
    )
    kept = windows[steady.first_window :]
    return Assessment(
        config=config,
        kept=kept,
        truncated=windows[: steady.first_window],
        seconds_seen=warmup_seconds + total_seconds(windows),
        mean=step_seconds_mean(kept),
        interval=interval_of(all_step_seconds(kept)),
        steady=steady,
    )
