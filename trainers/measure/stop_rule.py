"""How many steps the next window has, and when the measurement is over. Decided on rank 0, between windows. Pure."""

from collections.abc import Sequence

from trainers.config import MeasurementConfig
from trainers.measure.statistics import batch_means_half_width
from trainers.measure.windows import (
    MIN_WINDOW_STEPS,
    Window,
    all_step_seconds,
    step_seconds_mean,
    total_steps,
)


def next_window_steps(
    config: MeasurementConfig, windows: Sequence[Window], *, seconds_used: float, step_seconds_guess: float | None
) -> int:
    """Optimizer steps of the next window, or 0 where the measurement is over.

    It goes on until `min_steps` are measured, then until the 95 % within-run interval is within `relative_ci` of the
    mean on either side; `max_steps` and `max_seconds` (of warm-up and measurement together) end it in any case. A
    window has at least 10 steps; fewer only where no more are allowed by `max_steps`, or fit into what is left of
    `max_seconds` in the first window. There is always a first window.

    Args:
        windows: measured so far.
        seconds_used: by warm-up and measurement together.
        step_seconds_guess: of one step, from the warm-up's last one; None where nothing is known.
    """
    done = total_steps(windows)
    seconds_left = config.max_seconds - seconds_used
    steps_left = config.max_steps - done
    if windows and (steps_left <= 0 or seconds_left <= 0 or _is_precise(config, windows)):
        return 0
    steps = min(MIN_WINDOW_STEPS, steps_left)
    step_seconds = step_seconds_mean(windows) if windows else step_seconds_guess
    if step_seconds and steps * step_seconds > seconds_left:
        # Only the first window is shortened (there must be one); a later one that does not fit is not begun.
        return 0 if windows else max(1, int(seconds_left / step_seconds))
    return steps


def _is_precise(config: MeasurementConfig, windows: Sequence[Window]) -> bool:
    if total_steps(windows) < config.min_steps:
        return False
    half_width = batch_means_half_width(all_step_seconds(windows))
    return half_width is not None and half_width <= config.relative_ci * step_seconds_mean(windows)
