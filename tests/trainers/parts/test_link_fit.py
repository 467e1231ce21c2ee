"""alpha and beta of links whose truth is known, against numpy's and scipy's fits, and which link is called slow."""

import random
from collections.abc import Callable
from statistics import median

import numpy as np
import pytest
from scipy import stats

from trainers.parts.link_fit import LinkFit, SizeTimes, fit_link
from trainers.parts.rows import Measured

SIZES = [4096 * 2**step for step in range(14)]  # to 32 MiB
ALPHA, BETA = 3e-4, 1.25e8  # a gigabit link


def line(wire: float) -> float:
    return ALPHA + wire / BETA


def times(
    seconds_of: Callable[[float], float], *, workers: int = 2, repeats: int = 7, noise: float = 0.0, seed: int = 0
) -> list[SizeTimes]:
    scatter = random.Random(seed)
    return [
        SizeTimes(
            size,
            tuple(
                seconds_of(2 * (workers - 1) / workers * size) * (1 + noise * scatter.gauss(0, 1))
                for _ in range(repeats)
            ),
        )
        for size in SIZES
    ]


def told(fit: LinkFit) -> tuple[Measured, Measured]:
    assert fit.alpha_seconds is not None
    assert fit.beta_bytes_per_second is not None
    return fit.alpha_seconds, fit.beta_bytes_per_second


def holds(measured: Measured, truth: float) -> bool:
    assert measured.ci95_low is not None
    assert measured.ci95_high is not None
    return measured.ci95_low <= truth <= measured.ci95_high


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_a_line_is_found_whatever_the_number_of_workers(workers: int) -> None:
    alpha, beta = told(fit_link(times(line, workers=workers), workers))
    assert alpha.value == pytest.approx(ALPHA)
    assert beta.value == pytest.approx(BETA)


def test_the_slope_is_that_of_numpy_and_its_interval_that_of_student() -> None:
    given = [SizeTimes(one.size_bytes, (median(one.seconds),)) for one in times(line, noise=0.1, seed=4)]
    seconds = np.array([one.seconds[0] for one in given])
    wire = np.array([one.size_bytes for one in given], float)
    large = int(np.argmax(seconds >= 3 * seconds.min()))
    assert large < len(given) // 2
    (slope, _), covariance = np.polyfit(wire[large:], seconds[large:], 1, w=1 / seconds[large:], cov=True)
    half = stats.t.ppf(0.975, len(given) - large - 2) * np.sqrt(covariance[0, 0])
    alpha, beta = told(fit_link(given, 2))
    assert beta.value == pytest.approx(1 / slope)
    assert beta.ci95_low == pytest.approx(1 / (slope + half), rel=1e-3)  # quantiles are tabled to 4 digits
    assert beta.ci95_high == pytest.approx(1 / (slope - half), rel=1e-3)
    assert alpha.value == pytest.approx(np.average(seconds - slope * wire, weights=1 / seconds**2))


@pytest.mark.parametrize("repeats", [3, 5, 6, 9, 17, 25])
def test_the_interval_of_a_size_is_that_of_the_median(repeats: int) -> None:
    fit = fit_link([SizeTimes(SIZES[0], tuple(range(1, repeats + 1)), in_a_row=4)], 2)
    seconds = fit.points[0].seconds
    assert fit.points[0].repeats == 4 * repeats
    assert seconds.value == (repeats + 1) / 2
    below = int(stats.binom.ppf(0.025, repeats, 0.5))  # the values are their own ranks
    if 2 * stats.binom.cdf(0, repeats, 0.5) > 0.05:
        assert (seconds.ci95_low, seconds.ci95_high) == (None, None)
    else:
        assert (seconds.ci95_low, seconds.ci95_high) == (below, repeats + 1 - below)


def test_intervals_hold_the_truth_in_19_of_20_fits() -> None:
    fits = [told(fit_link(times(line, noise=0.05, seed=seed), 2)) for seed in range(200)]
    assert sum(holds(beta, BETA) for _, beta in fits) >= 184
    assert sum(holds(alpha, ALPHA) for alpha, _ in fits) >= 184
    assert all(beta.value == pytest.approx(BETA, rel=0.1) for _, beta in fits)


def test_a_latency_of_a_thousandth_of_the_largest_time_is_not_drowned() -> None:
    alpha, _ = told(fit_link(times(line, noise=0.05, seed=1), 2))
    assert alpha.value == pytest.approx(ALPHA, rel=0.15)
    assert alpha.ci95_low is not None
    assert alpha.ci95_low > 0


def test_stalls_do_not_own_the_fit() -> None:
    scatter = random.Random(2)
    stalled = [
        SizeTimes(one.size_bytes, tuple(s + (0.5 if scatter.random() < 0.2 else 0) for s in one.seconds))
        for one in times(line, noise=0.02, repeats=9, seed=2)
    ]
    assert max(stalled[0].seconds) > 0.5
    alpha, beta = told(fit_link(stalled, 2))
    assert beta.value == pytest.approx(BETA, rel=0.03)
    assert alpha.value == pytest.approx(ALPHA, rel=0.1)


@pytest.mark.parametrize("megabits", [100, 200, 400])
def test_a_token_bucket_does_not_bend_the_bandwidth_and_alpha_stays_above_zero(megabits: int) -> None:
    rate = megabits * 1e6 / 8

    def shaped(wire: float) -> float:
        return 1e-4 + wire / 1.25e9 + max(0.0, wire - 65536) / rate

    fit = fit_link(times(shaped, noise=0.02, seed=3), 2)
    alpha, beta = told(fit)
    assert beta.value == pytest.approx(rate, rel=0.05)
    assert alpha.value >= 0
    assert alpha.ci95_low == 0


def test_what_is_left_below_zero_is_shown_as_zero_and_said() -> None:
    fit = fit_link(times(lambda wire: wire / BETA * (0.5 if wire < 1e5 else 1)), 2)
    alpha, _ = told(fit)
    assert (alpha.value, alpha.ci95_low) == (0, 0)
    assert alpha.ci95_high is not None
    assert alpha.ci95_high > 0
    assert fit.note is not None
    assert "held at 0" in fit.note


def nothing_to_send() -> LinkFit:
    return fit_link(times(line), 1)


def two_sizes() -> LinkFit:
    return fit_link(times(line)[:2], 2)


def falling() -> LinkFit:
    return fit_link(times(lambda wire: 1 / wire), 2)


@pytest.mark.parametrize(
    ("fit", "why"), [(nothing_to_send, "one worker"), (two_sizes, "2 sizes"), (falling, "bandwidth does not show")]
)
def test_what_the_sizes_do_not_tell_is_null_with_a_reason(fit: Callable[[], LinkFit], why: str) -> None:
    shown = fit()
    assert (shown.alpha_seconds, shown.beta_bytes_per_second) == (None, None)
    assert shown.note is not None
    assert why in shown.note


def test_a_bandwidth_without_a_bound_has_no_interval() -> None:
    scattered = [SizeTimes(size, (1.0 - 0.3 * (-1) ** step + step / 100,)) for step, size in enumerate(SIZES)]
    fit = fit_link(scattered, 2)
    _, beta = told(fit)
    assert (beta.ci95_low, beta.ci95_high) == (None, None)
    assert fit.note is not None
    assert "scatter too much" in fit.note
