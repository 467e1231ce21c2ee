"""How many steps the next window has, and when the measurement is over. Decided on rank 0, between windows. Pure."""

from collections.abc import Sequence

from trainers.config import MeasurementConfig
from trainers.measure.assessment import assess
from trainers.measure.windows import MIN_WINDOW_STEPS, Window, step_seconds_mean, total_steps


def next_window_steps(
    config: MeasurementConfig,
    windows: Sequence[Window],
    *,
    warmup_seconds: float,
    seconds_used: float,
    step_seconds_guess: float | None,
) -> int:
    """Optimizer steps of the next window, or 0 where the measurement is over.

    It goes on until what is kept of it is final (`Assessment.is_final`); `max_steps` and `max_seconds` (of warm-up and
    measurement together) end it in any case. A window has 10 steps, and a tenth of what was measured once that is more;
    fewer than 10 only where `max_steps` allows no more, or no more fit into what is left of `max_seconds` in the first
    window. There is always a first window.

    Args:
        windows: measured so far.
        warmup_seconds: spent before the first of them.
        seconds_used: by warm-up and measurement together, with what was done between windows.
        step_seconds_guess: of one step, from the warm-up's last one; None where nothing is known.
    """
    done = total_steps(windows)
    seconds_left, steps_left = config.max_seconds - seconds_used, config.max_steps - done
    if windows and (steps_left <= 0 or seconds_left <= 0):
        return 0
    if windows and assess(config, windows, warmup_seconds=warmup_seconds).is_final:
        return 0
    tenth = done // (10 * MIN_WINDOW_STEPS) * MIN_WINDOW_STEPS
    steps = min(max(MIN_WINDOW_STEPS, tenth), steps_left)
    # By the last window, where that was slower: a device that slows as it warms must not run over.
    step_seconds = max(step_seconds_mean(windows), step_seconds_mean(windows[-1:])) if windows else step_seconds_guess
    if step_seconds and steps * step_seconds > seconds_left:
        fitting = int(seconds_left / step_seconds)
        # Only the first window may be short (there must be one); a later one that does not fit is not begun.
        if not windows:
            return max(1, fitting)
        return fitting if fitting >= MIN_WINDOW_STEPS else 0
    return steps
