"""Time is taken in windows of whole optimizer steps between barriers; what happens between windows is not counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

MIN_WINDOW_STEPS: Final = 10


class Marks(Protocol):
    """A stopwatch on the training device (`trainers.device.Stopwatch`)."""

    def mark(self) -> None: ...

    def seconds(self) -> list[float]: ...


@dataclass(frozen=True)
class Window:
    """`seconds`: from barrier to barrier. `step_seconds`: this rank's own step ends, one difference per step.

    `skipped_steps` of them left the weights as they were (fp16, an overflow).
    """

    seconds: float
    step_seconds: tuple[float, ...]
    skipped_steps: int = 0

    @property
    def steps(self) -> int:
        return len(self.step_seconds)


def time_window(
    steps: int,
    run_step: Callable[[], None],
    *,
    barrier: Callable[[], None],
    clock: Callable[[], float],
    marks: Marks,
) -> Window:
    """Run and time `steps` optimizer steps.

    `run_step` runs one whole optimizer step (every micro step of its accumulation, and the update). `barrier` returns
    once every worker, and its device, has come to it; `clock` gives seconds from any origin.
    """
    barrier()
    start = clock()
    marks.mark()
    for _ in range(steps):
        run_step()
        marks.mark()
    barrier()
    seconds = clock() - start
    return Window(seconds, tuple(marks.seconds()))


def images_per_second(train_batch_size: int, windows: Sequence[Window]) -> float:
    """B x steps / seconds over all windows, B being the images of one optimizer step of all workers together."""
    return train_batch_size * total_steps(windows) / total_seconds(windows)


def step_seconds_mean(windows: Sequence[Window]) -> float:
    """Seconds per optimizer step over all windows: B divided by it is `images_per_second`."""
    return total_seconds(windows) / total_steps(windows)


def total_steps(windows: Sequence[Window]) -> int:
    return sum(window.steps for window in windows)


def total_seconds(windows: Sequence[Window]) -> float:
    return sum(window.seconds for window in windows)


def all_step_seconds(windows: Sequence[Window]) -> list[float]:
    return [seconds for window in windows for seconds in window.step_seconds]
