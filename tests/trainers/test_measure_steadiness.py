import random
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from trainers.measure.steadiness import SteadyPart, Trend, _Series, fit_trend, steady_part
from trainers.measure.windows import Window


def windows_of(seconds: list[float], size: int = 10) -> list[Window]:
    chunks = [tuple(seconds[at : at + size]) for at in range(0, len(seconds), size)]
    return [Window(sum(chunk), chunk) for chunk in chunks]


def noisy(count: int, mean: float = 1.0, spread: float = 0.01, seed: int = 1) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(mean, spread) for _ in range(count)]


def find(seconds: list[float], *, warmup_seconds: float = 0, min_steps: int = 20) -> SteadyPart:
    return steady_part(windows_of(seconds), warmup_seconds=warmup_seconds, min_steps=min_steps, tolerance=0.01)


class TestTrend:
    def test_it_agrees_with_scipys_regression(self) -> None:
        values = [1.0, 1.3, 1.1, 1.6, 1.4, 1.9, 2.0]
        trend, reference = fit_trend(values), stats.linregress(range(7), values)
        half_width = stats.t.ppf(0.975, 5) * reference.stderr
        assert trend.slope == pytest.approx(reference.slope)
        assert trend.slope_error == pytest.approx(reference.stderr)
        assert trend.slope_half_width == pytest.approx(half_width, rel=1e-3)
        assert trend.is_significant == (reference.pvalue < 0.05)
        assert trend.change_half_width == pytest.approx(half_width * 7 / fmean(values), rel=1e-3)

    def test_a_straight_line_changes_by_its_slope_times_its_length(self) -> None:
        trend = fit_trend([9.0, 10.0, 11.0], batch_steps=5)
        assert (trend.slope, trend.slope_half_width) == (pytest.approx(0.2), pytest.approx(0))
        assert trend.change == pytest.approx(0.2 * 15 / 10)

    def test_it_is_over_batches_that_grow_with_the_series(self) -> None:
        seconds = noisy(163)
        # 16 batches of 10; a rest of 3 is left out at the start.
        means = np.array(seconds[3:]).reshape(16, 10).mean(axis=1).tolist()
        trend = _Series(windows_of(seconds)).trend_from(0)
        assert trend is not None
        assert trend.change == pytest.approx(fit_trend(means).change)
        assert trend.slope == pytest.approx(fit_trend(means).slope / 10)

    def test_fewer_than_twenty_steps_tell_none(self) -> None:
        assert _Series(windows_of(noisy(19))).trend_from(0) is None
        assert _Series(windows_of(noisy(20))).trend_from(0) is not None


def test_the_mser_of_each_start_is_the_variance_of_medians_of_five_over_their_number() -> None:
    seconds = noisy(60)
    medians = np.median(np.array(seconds).reshape(12, 5), axis=1)
    expected = [medians[2 * window :].var() / len(medians[2 * window :]) for window in range(6)]
    assert _Series(windows_of(seconds)).mser() == pytest.approx(expected)


class TestSteadyPart:
    def test_a_level_series_is_kept_whole(self) -> None:
        part = find(noisy(200))
        assert (part.first_window, part.reach) == (0, pytest.approx(1.0))

    def test_a_slow_start_is_cut_off_where_it_ends(self) -> None:
        assert find(noisy(30, mean=1.5) + noisy(170)).first_window == 3

    def test_a_ramp_is_cut_off_about_where_it_levels(self) -> None:
        ramp = [value - 0.2 * (1 - step / 80) for step, value in enumerate(noisy(80, spread=0.002))]
        # At step 80; by step 60 what is left of it changes the mean by 0.4 %.
        assert 6 <= find(ramp + noisy(120, spread=0.002)).first_window <= 9

    def test_a_stall_does_not_end_the_warm_up(self) -> None:
        seconds = noisy(200)
        seconds[25] += 3
        assert find(seconds).first_window == 0

    def test_a_ramp_without_end_leaves_the_last_quarter_and_may_go_on(self) -> None:
        part = find([value + 0.002 * step for step, value in enumerate(noisy(200))])
        assert part.first_window == 15  # of 20
        assert part.may_go_on(0.02)
        assert not part.is_level(0.01)

    def test_what_was_seen_before_the_windows_counts_towards_the_quarter(self) -> None:
        part = find([value + 0.002 * step for step, value in enumerate(noisy(200))], warmup_seconds=200)
        assert part.first_window < 15
        assert part.reach > 2

    def test_the_steps_asked_for_are_kept_in_any_case(self) -> None:
        assert find(noisy(30, mean=1.5) + noisy(30), min_steps=50).first_window == 1
        assert find(noisy(10, mean=1.5) + noisy(10), min_steps=50).first_window == 0

    def test_one_step_is_a_part_without_a_trend(self) -> None:
        part = find([0.5])
        assert (part.first_window, part.trend) == (0, None)
        assert not part.is_level(0.01)


def changing_by(change: float, error: float) -> Trend:
    """Over a stretch of one step and mean 1; its 95 % half width is twice its standard error."""
    return Trend(change, error, 2 * error, steps_over_mean=1.0)


class TestVerdicts:
    flat, steep = changing_by(0.002, 0.003), changing_by(0.10, 0.01)

    def test_level_means_within_the_tolerance_over_all_that_was_seen_or_within_its_error(self) -> None:
        assert SteadyPart(2, changing_by(0.004, 0.001), reach=2.0, whole=None).is_level(0.01)
        assert not SteadyPart(2, changing_by(0.006, 0.001), reach=2.0, whole=None).is_level(0.01)
        assert SteadyPart(2, changing_by(0.006, 0.007), reach=2.0, whole=None).is_level(0.01)

    def test_a_cut_off_trend_is_over_only_where_the_rest_is_surely_flatter(self) -> None:
        assert SteadyPart(5, changing_by(0.02, 0.04), reach=2.0, whole=self.steep).may_go_on(0.02)
        assert not SteadyPart(5, self.flat, reach=2.0, whole=self.steep).may_go_on(0.02)
        assert not SteadyPart(5, changing_by(-0.05, 0.04), reach=2.0, whole=self.steep).may_go_on(0.02)

    def test_what_was_not_cut_off_or_is_not_sure_cannot_go_on(self) -> None:
        assert not SteadyPart(0, self.steep, reach=1.0, whole=self.steep).may_go_on(0.02)
        assert not SteadyPart(5, self.steep, reach=2.0, whole=changing_by(0.03, 0.01)).may_go_on(0.02)
