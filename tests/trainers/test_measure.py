import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, variance

import numpy as np
import pytest
from scipy import stats

from tests.trainers.step_series import STEP_SECONDS, autocorrelated
from trainers.measure.interval import interval_of
from trainers.measure.statistics import (
    batch_means_half_width,
    correlation_steps,
    percentile,
    sample_variance,
    student_t_95,
)
from trainers.measure.windows import images_per_second, step_seconds_mean, time_window


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

    def test_the_variance_agrees_with_the_standard_library(self) -> None:
        series = [0.1, 0.25, 0.2, 0.19, 0.3]
        assert sample_variance(series) == pytest.approx(variance(series), rel=1e-14)

    def test_the_interval_of_batch_means_by_hand(self) -> None:
        # 9 values, 3 batches of 3: means 1, 2, 3; s = 1; 4.30265 x 1 / sqrt(3)
        series = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0]
        assert batch_means_half_width(series) == pytest.approx(4.302652730 / 3**0.5)

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

    @pytest.mark.parametrize(("phi", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.9, 19.0)])
    def test_the_correlation_time_of_an_autoregressive_series_is_the_known_one(
        self, phi: float, expected: float
    ) -> None:
        found = [
            correlation_steps(autocorrelated(phi)(np.random.default_rng(seed), 10_000, 0.1).seconds)
            for seed in range(5)
        ]
        assert fmean(found) == pytest.approx(expected, rel=0.25)

    def test_a_constant_series_has_the_correlation_time_of_an_independent_one(self) -> None:
        assert correlation_steps([0.5] * 9) == 1.0
        with pytest.raises(ValueError, match="3 values are too few"):
            correlation_steps([0.5] * 3)

    def test_percentiles_are_linear_between_neighbours(self) -> None:
        assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
        assert percentile([4.0, 1.0, 3.0, 2.0], 0.95) == pytest.approx(3.85)
        assert percentile([7.0], 0.95) == 7.0


class TestInterval:
    def test_noise_and_wander_by_hand(self) -> None:
        # Batch means 1, 2, 3: noise 4.30265 / sqrt(3) = 2.4843. Wander: 1.5 of that, and 0.7 % of 2, squares added.
        interval = interval_of([1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0])
        assert interval is not None
        assert interval.noise_half_width == pytest.approx(2.484138, rel=1e-6)
        assert interval.wander_half_width == pytest.approx(math.sqrt(3.726207**2 + 0.014**2), rel=1e-5)
        assert interval.half_width == pytest.approx(math.sqrt(2.484138**2 + 3.726207**2 + 0.014**2), rel=1e-5)
        # The variance of the mean, (2.484138 / 4.30265)^2, over that of independent values, 0.75 / 9.
        assert interval.correlation_steps == pytest.approx((1 / 3) / (0.75 / 9), rel=1e-4)

    def test_without_noise_the_wander_of_the_reference_logs_is_left(self) -> None:
        interval = interval_of([0.5] * 20)
        assert interval is not None
        assert (interval.noise_half_width, interval.half_width) == (0, pytest.approx(0.0035))

    def test_three_values_have_no_interval(self) -> None:
        assert interval_of([0.5] * 3) is None

    def test_it_grows_with_the_correlation_of_the_steps(self) -> None:
        widths = []
        for phi in (0.0, 0.5, 0.9):
            interval = interval_of(autocorrelated(phi)(np.random.default_rng(3), 2000, 0.1).seconds)
            assert interval is not None
            widths.append(interval.noise_half_width / STEP_SECONDS)
        # 1.96 x 0.1 / sqrt(2000) x sqrt((1 + phi) / (1 - phi))
        assert widths == pytest.approx([0.0044, 0.0076, 0.0191], rel=0.3)
