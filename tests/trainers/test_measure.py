import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from scipy import stats

from trainers.config import MeasurementConfig
from trainers.measure.statistics import batch_means_half_width, percentile, student_t_95
from trainers.measure.stop_rule import next_window_steps
from trainers.measure.summary import summarise
from trainers.measure.windows import Window, images_per_second, step_seconds_mean, time_window


@dataclass
class FakeClock:
    """A clock that moves only when told to; also the stopwatch that marks on it."""

    now: float = 0.0
    marked: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def mark(self) -> None:
        self.marked.append(self.now)

    def seconds(self) -> list[float]:
        marked, self.marked = self.marked, []
        return [after - before for before, after in pairwise(marked)]


def accumulated_step(clock: FakeClock, accumulation: int, micro: float, update: float) -> Callable[[], None]:
    def run() -> None:
        for _ in range(accumulation):
            clock.wait(micro)
        clock.wait(update)

    return run


class TestWindows:
    @pytest.mark.parametrize(
        ("accumulation", "expected"),
        [
            (1, 16 * 2 * 1 / (0.1 * 1 + 0.05)),  # 213.33 images/s
            (4, 16 * 2 * 4 / (0.1 * 4 + 0.05)),  # 284.44 images/s
        ],
    )
    def test_images_per_second_is_the_global_batch_over_whole_optimizer_steps(
        self, accumulation: int, expected: float
    ) -> None:
        clock = FakeClock()
        step = accumulated_step(clock, accumulation, micro=0.1, update=0.05)
        windows = [time_window(10, step, barrier=lambda: None, clock=clock, marks=clock) for _ in range(3)]
        assert images_per_second(16 * 2 * accumulation, windows) == pytest.approx(expected)
        assert step_seconds_mean(windows) == pytest.approx(0.1 * accumulation + 0.05)
        assert 16 * 2 * accumulation / step_seconds_mean(windows) == images_per_second(32 * accumulation, windows)

    def test_what_happens_between_windows_is_not_counted(self) -> None:
        clock = FakeClock()
        windows = []
        for _ in range(2):
            windows.append(time_window(10, lambda: clock.wait(0.2), barrier=lambda: None, clock=clock, marks=clock))
            clock.wait(100)
        assert images_per_second(8, windows) == pytest.approx(40)

    def test_waiting_for_the_slowest_worker_at_the_end_is_counted_and_at_the_start_is_not(self) -> None:
        clock, barriers = FakeClock(), iter([5.0, 0.5])
        window = time_window(
            10,
            lambda: clock.wait(0.1),
            barrier=lambda: clock.wait(next(barriers)),
            clock=clock,
            marks=clock,
        )
        assert window.seconds == pytest.approx(1.5)
        assert window.step_seconds == pytest.approx([0.1] * 10)


class TestStatistics:
    @pytest.mark.parametrize("dof", [1, 2, 5, 10, 29, 30, 31, 60, 200])
    def test_the_t_quantile_agrees_with_scipy(self, dof: int) -> None:
        assert student_t_95(dof) == pytest.approx(stats.t.ppf(0.975, dof), rel=2e-4)

    def test_the_interval_of_batch_means_by_hand(self) -> None:
        # 9 values, 3 batches of 3: means 1, 2, 3; s = 1; 4.303 x 1 / sqrt(3)
        series = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0]
        assert batch_means_half_width(series) == pytest.approx(4.303 / 3**0.5)

    def test_a_constant_series_has_no_width_and_a_short_one_no_interval(self) -> None:
        assert batch_means_half_width([0.5] * 20) == 0
        assert batch_means_half_width([0.5] * 3) is None

    def test_independent_noise_is_covered_about_as_often_as_promised(self) -> None:
        generator = random.Random(1)
        covered = 0
        for _ in range(400):
            series = [generator.gauss(1, 0.1) for _ in range(100)]
            half_width = batch_means_half_width(series)
            assert half_width is not None
            covered += abs(sum(series) / 100 - 1) <= half_width
        assert 0.90 <= covered / 400 <= 0.99

    def test_percentiles_are_linear_between_neighbours(self) -> None:
        assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
        assert percentile([4.0, 1.0, 3.0, 2.0], 0.95) == pytest.approx(3.85)
        assert percentile([7.0], 0.95) == 7.0


def window(steps: int, step_seconds: float = 0.1) -> Window:
    return Window(steps * step_seconds, (step_seconds,) * steps)


def noisy(steps: int) -> Window:
    generator = random.Random(steps)
    seconds = tuple(generator.uniform(0.05, 0.15) for _ in range(steps))
    return Window(sum(seconds), seconds)


class TestStopRule:
    config = MeasurementConfig(min_steps=20, max_steps=40, max_seconds=100, relative_ci=0.02)

    def decide(self, *windows: Window, used: float = 0, guess: float | None = 0.1, **changes: float) -> int:
        config = self.config.model_copy(update=changes)
        return next_window_steps(config, windows, seconds_used=used, step_seconds_guess=guess)

    def test_a_precise_series_still_gets_its_min_steps(self) -> None:
        assert self.decide() == 10
        assert self.decide(window(10)) == 10
        assert self.decide(window(10), window(10)) == 0

    def test_a_noisy_series_goes_on_to_max_steps_exactly(self) -> None:
        assert self.decide(noisy(10), noisy(10)) == 10
        assert self.decide(noisy(10), noisy(10), noisy(15)) == 5
        assert self.decide(noisy(10), noisy(30)) == 0

    def test_max_seconds_ends_it_and_a_window_that_does_not_fit_is_not_begun(self) -> None:
        assert self.decide(noisy(10), used=100) == 0
        assert self.decide(noisy(10), used=99.5) == 0
        assert self.decide(noisy(10), used=90) == 10

    def test_there_is_always_a_first_window_shortened_to_what_fits(self) -> None:
        assert self.decide(used=95, guess=1.0) == 5
        assert self.decide(used=200, guess=1.0) == 1
        assert self.decide(guess=None) == 10
        assert self.decide(max_steps=3) == 3


class TestSummary:
    def test_the_interval_is_around_the_mean_and_labelled_where_too_wide(self) -> None:
        summary = summarise(32, [noisy(20), noisy(20)], relative_ci=0.02)
        assert summary.measured_steps == 40
        assert summary.step_seconds_ci95_low is not None
        assert summary.step_seconds_ci95_high is not None
        middle = (summary.step_seconds_ci95_low + summary.step_seconds_ci95_high) / 2
        assert middle == pytest.approx(summary.step_seconds_mean)
        assert any("wider than the 2.0% asked for" in note for note in summary.notes)

    def test_a_shortened_window_is_told(self) -> None:
        summary = summarise(32, [window(3)], relative_ci=0.02)
        assert summary.step_seconds_ci95_low is None
        assert any("3 instead of 10 steps" in note for note in summary.notes)
        assert any("too few for an interval" in note for note in summary.notes)
