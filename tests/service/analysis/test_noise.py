"""Pooled runs and ratios of means, against scipy and drawn samples."""

import math
import random
from statistics import fmean

import pytest
from scipy import stats

from service.analysis.noise import Pooled, compare, pooled, pooled_rate, ratio
from service.analysis.observation import Estimate
from service.analysis.repeats import between_runs


def runs_of(*values: float) -> Pooled:
    found = pooled([Estimate(value) for value in values])
    assert found is not None
    return found


def test_runs_are_pooled_as_the_results_rows_pool_them() -> None:
    found, row = runs_of(0.40, 0.42, 0.43), between_runs([0.40, 0.42, 0.43], 64)
    assert row is not None
    assert (found.value, found.low, found.high) == pytest.approx(
        (row.step_seconds_mean, row.step_seconds_ci95_low, row.step_seconds_ci95_high)
    )
    rate = pooled_rate([Estimate(64 / value) for value in (0.40, 0.42, 0.43)])
    assert rate is not None
    assert rate.value == pytest.approx(row.images_per_second)


def test_one_run_keeps_its_own_interval_and_none_where_it_has_none() -> None:
    single = pooled([Estimate(10.0, 9.8, 10.2)])
    assert single == Pooled(10.0, 1, 9.8, 10.2, "within_run", pytest.approx(0.2 / 1.959964 / 10))
    assert pooled([Estimate(10.0)]) == Pooled(10.0)
    assert pooled([Estimate(0.0)]) is None


def test_the_interval_of_a_ratio_is_fiellers_where_errors_are_small() -> None:
    """Fieller (1954), the exact interval for normal means, with the same quantile."""
    a, b = Pooled(100.0, 1, None, None, "within_run", 0.010), Pooled(40.0, 1, None, None, "within_run", 0.015)
    z, found = stats.norm.ppf(0.975), ratio(a, b)
    g = (z * b.relative_error) ** 2  # type: ignore[operator]
    half = z * math.sqrt(0.010**2 + 0.015**2 - (z * 0.010 * 0.015) ** 2)
    assert found.low == pytest.approx(2.5 * (1 - half) / (1 - g), rel=1e-3)
    assert found.high == pytest.approx(2.5 * (1 + half) / (1 - g), rel=1e-3)


def test_the_interval_of_a_ratio_covers_the_truth() -> None:
    draw = random.Random(4)
    hits = 0
    for _ in range(400):
        a, b = (runs_of(*(draw.gauss(mean, 0.04 * mean) for _ in range(4))) for mean in (50.0, 20.0))
        found = ratio(a, b)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 2.5 <= found.high
    assert stats.binomtest(hits, 400, 0.95).pvalue > 0.001


def test_a_point_over_itself_has_no_error() -> None:
    one = runs_of(1.0, 1.2)
    assert (ratio(one, one).low, ratio(one, one).high) == (1.0, 1.0)


def test_welch_degrees_of_freedom_are_scipys() -> None:
    a, b = (0.98, 1.01, 1.03, 0.99), (1.11, 1.30)
    found = ratio(runs_of(*a), runs_of(*b))
    rel = [stats.sem(side) / fmean(side) for side in (a, b)]
    dof = (rel[0] ** 2 + rel[1] ** 2) ** 2 / (rel[0] ** 4 / 3 + rel[1] ** 4 / 1)
    half = stats.t.ppf(0.975, math.floor(dof)) * math.hypot(*rel)
    assert found.high == pytest.approx(found.value * math.exp(half), rel=1e-3)


class TestTwoPointsDiffer:
    def test_beyond_the_noise_of_their_runs(self) -> None:
        assert compare(runs_of(1.00, 1.01, 0.99), runs_of(1.06, 1.05, 1.07)).verdict == "less"
        assert compare(runs_of(1.00, 1.08, 0.99), runs_of(1.06, 1.01, 1.07)).verdict == "equal"

    def test_never_by_less_than_five_percent_where_one_was_not_repeated(self) -> None:
        once, other = (pooled([Estimate(value, value * 0.999, value * 1.001)]) for value in (1.00, 1.04))
        assert once is not None
        assert other is not None
        assert compare(other, once).verdict == "equal"
        assert not compare(other, once).is_repeated
        assert compare(Pooled(1.2), Pooled(1.0)).verdict == "more"
