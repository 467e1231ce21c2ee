"""What the windows of a measurement come to: the timing part of a results row. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainers.config import MeasurementConfig
from trainers.measure.assessment import Assessment, State, assess
from trainers.measure.interval import Interval
from trainers.measure.statistics import percentile
from trainers.measure.windows import (
    MIN_WINDOW_STEPS,
    Window,
    all_step_seconds,
    images_per_second,
    total_seconds,
    total_steps,
)


@dataclass(frozen=True)
class TimingSummary:
    """Seconds are per optimizer step, of the kept windows; the interval is None where there are too few steps."""

    images_per_second: float
    step_seconds_mean: float
    interval: Interval | None
    step_seconds_p50: float
    step_seconds_p95: float
    measured_steps: int
    skipped_steps: int
    measured_seconds: float
    truncated_steps: int  # measured as well, but found to be warm-up
    truncated_seconds: float
    state: State
    flags: list[str]
    notes: list[str]

    @property
    def step_seconds_ci95_low(self) -> float | None:
        return None if self.interval is None else self.step_seconds_mean - self.interval.half_width

    @property
    def step_seconds_ci95_high(self) -> float | None:
        return None if self.interval is None else self.step_seconds_mean + self.interval.half_width


def summarise(
    train_batch_size: int, windows: Sequence[Window], config: MeasurementConfig, *, warmup_seconds: float
) -> TimingSummary:
    """Sum up at least one window of at least one step each."""
    assessment = assess(config, windows, warmup_seconds=warmup_seconds)
    steps = all_step_seconds(assessment.kept)
    return TimingSummary(
        images_per_second=images_per_second(train_batch_size, assessment.kept),
        step_seconds_mean=assessment.mean,
        interval=assessment.interval,
        step_seconds_p50=percentile(steps, 0.5),
        step_seconds_p95=percentile(steps, 0.95),
        measured_steps=total_steps(assessment.kept),
        skipped_steps=sum(window.skipped_steps for window in assessment.kept),
        measured_seconds=total_seconds(assessment.kept),
        truncated_steps=total_steps(assessment.truncated),
        truncated_seconds=total_seconds(assessment.truncated),
        state=assessment.state,
        flags=assessment.flags,
        notes=_notes(assessment),
    )


def _notes(assessment: Assessment) -> list[str]:
    """What a reader of the numbers must know, a sentence each."""
    notes, asked, ended = [], assessment.config.relative_ci, "max_steps or max_seconds ended it"
    steps, trend, width = total_steps(assessment.kept), assessment.steady.trend, assessment.relative_half_width
    if assessment.kept[0].steps < MIN_WINDOW_STEPS:
        notes.append(
            f"the window had {assessment.kept[0].steps} instead of {MIN_WINDOW_STEPS} steps: max_steps or max_seconds "
            "allowed no more"
        )
    if assessment.interval is None:
        notes.append(f"{steps} steps are too few for an interval")
    if trend is None:
        notes.append(f"steadiness was not assessed: {steps} steps are too few to tell a drift")
    if assessment.is_drifting and trend is not None:
        notes.append(f"the step time changed by {trend.change:+.1%} over the {steps} steps kept when {ended}")
    if assessment.is_unstable:
        notes.append(
            f"the noise alone makes an interval of {assessment.relative_noise:.1%} on either side, wider than the "
            f"{asked:.1%} asked for: {ended}"
        )
    elif width is not None and width > asked:
        notes.append(
            f"with the allowance for slow wander the interval is {width:.1%} on either side, wider than the "
            f"{asked:.1%} asked for: {ended}"
        )
    if assessment.was_seen_briefly:
        notes.append(
            f"only {assessment.seconds_seen:.3g} s were seen, max_steps ended it: a device that warms up for minutes "
            "may slow still"
        )
    return notes
