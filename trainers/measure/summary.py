"""What the windows of a measurement come to: the timing part of a results row. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainers.measure.statistics import batch_means_half_width, percentile
from trainers.measure.windows import (
    MIN_WINDOW_STEPS,
    Window,
    all_step_seconds,
    images_per_second,
    step_seconds_mean,
    total_seconds,
    total_steps,
)


@dataclass(frozen=True)
class TimingSummary:
    """Seconds are per optimizer step; the 95 % interval is within this run, None where there are too few steps."""

    images_per_second: float
    step_seconds_mean: float
    step_seconds_ci95_low: float | None
    step_seconds_ci95_high: float | None
    step_seconds_p50: float
    step_seconds_p95: float
    measured_steps: int
    measured_seconds: float
    notes: list[str]


def summarise(train_batch_size: int, windows: Sequence[Window], relative_ci: float) -> TimingSummary:
    """Sum up at least one window of at least one step each."""
    steps = all_step_seconds(windows)
    mean, half_width = step_seconds_mean(windows), batch_means_half_width(steps)
    notes = []
    if windows[0].steps < MIN_WINDOW_STEPS:
        notes.append(
            f"the window had {windows[0].steps} instead of {MIN_WINDOW_STEPS} steps: max_steps or max_seconds "
            "allowed no more"
        )
    if half_width is None:
        notes.append(f"{len(steps)} steps are too few for an interval")
    elif half_width > relative_ci * mean:
        notes.append(
            f"the interval of {half_width / mean:.1%} on either side is wider than the {relative_ci:.1%} asked for: "
            "max_steps or max_seconds ended the measurement"
        )
    return TimingSummary(
        images_per_second=images_per_second(train_batch_size, windows),
        step_seconds_mean=mean,
        step_seconds_ci95_low=None if half_width is None else mean - half_width,
        step_seconds_ci95_high=None if half_width is None else mean + half_width,
        step_seconds_p50=percentile(steps, 0.5),
        step_seconds_p95=percentile(steps, 0.95),
        measured_steps=total_steps(windows),
        measured_seconds=total_seconds(windows),
        notes=notes,
    )
