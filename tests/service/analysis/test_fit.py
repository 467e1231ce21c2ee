"""The scaling models fitted: truths found again, signs kept, models told apart by what they leave out."""

import numpy as np
import pytest
from scipy import stats

from service.analysis.scaling_models import AMDAHL, PERFECT, STEP_RING, STEP_TREE
from service.analysis.shrunk_fit import NOISE, NOISE_DEGREES, ShrunkFit, fit
from tests.benchmarks.forecast import (
    TRUTHS,
    read_series,
    summarise_forecasts,
    try_all,
    try_truth,
)
from tests.benchmarks.reference_forecasts import averaged, perfect_from_largest

SIZES = [1, 2, 4, 8, 16]


def work_of(shares: list[float], model: object = AMDAHL) -> list[float]:
    columns = model.columns(np.array(SIZES, dtype=float), global_batch=False)  # type: ignore[attr-defined]
    return [float(value) for value in 100 * (1 + columns @ np.array(shares))]


def weight_of(fitted: ShrunkFit, name: str) -> float:
    return next(one.weight for one in fitted.models if one.model.name == name)


def test_a_large_serial_part_is_found_again() -> None:
    fitted = fit(SIZES, work_of([0.05]), models=[AMDAHL])
    assert fitted.models[0].shares["serial_fraction"] == pytest.approx(0.05, rel=0.1)
    assert fitted.models[0].one_worker == pytest.approx(100, rel=0.02)
    assert fitted.forecast(64).value == pytest.approx(100 * (1 + 0.05 * 63), rel=0.1)


def test_the_model_that_is_true_weighs_most() -> None:
    assert max(fit(SIZES, work_of([0.08])).models, key=lambda one: one.weight).model is AMDAHL
    assert max(fit(SIZES, work_of([0.2], STEP_TREE)).models, key=lambda one: one.weight).model is STEP_TREE
    assert max(fit(SIZES, work_of([0.0, 0.4], STEP_RING)).models, key=lambda one: one.weight).model is STEP_RING


def test_no_share_is_negative_even_where_work_shrinks() -> None:
    fitted = fit([1, 2, 4, 8], [110.0, 104.0, 99.0, 95.0])
    assert all(share >= 0 for one in fitted.models for share in one.shares.values())
    assert all(fitted.efficiency(size, 1)[0] <= 1 for size in (2, 8, 32))


def test_the_posterior_of_the_perfect_model_is_students() -> None:
    """Without shares it is the conjugate one: a t around the mean, here with the coarse grid of the noise."""
    work = [100.0, 104.0, 97.0, 101.0, 103.0]
    logs = np.log(work)
    squares = NOISE_DEGREES * NOISE**2 + ((logs - logs.mean()) ** 2).sum()
    degrees = NOISE_DEGREES + len(work) - 1
    scale = np.sqrt(squares / degrees * (1 + 1 / len(work)))
    found = fit(SIZES, work, models=[PERFECT]).forecast(32)
    low, high = np.exp(logs.mean() + stats.t.ppf([0.025, 0.975], degrees) * scale)
    assert (found.low, found.high) == pytest.approx((low, high), rel=0.01)


def test_the_posterior_of_a_share_is_that_of_numerical_integration() -> None:
    """Amdahl alone: a dense grid of share and noise, with scipy's densities."""
    work = np.array(work_of([0.02])) * np.array([1.02, 0.97, 1.01, 1.03, 0.99])
    logs, at = np.log(work), np.array(SIZES, dtype=float)

    noise, share = np.meshgrid(np.linspace(0.005, 0.3, 300), np.linspace(0, 0.2, 400), indexing="ij")
    residual = logs - np.log1p(share[..., None] * (at - 1))
    squares = ((residual - residual.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
    likelihood = noise ** -(len(at) - 1) * np.exp(-squares / 2 / noise**2)
    prior = stats.invgamma.pdf(noise**2, NOISE_DEGREES / 2, scale=NOISE_DEGREES * NOISE**2 / 2) * 2 * noise
    density = likelihood * prior * stats.t.pdf(share * 15 / NOISE, 3)
    fitted = fit(SIZES, work.tolist(), models=[AMDAHL])
    expected = (density * share).sum() / density.sum()
    assert fitted.models[0].shares["serial_fraction"] == pytest.approx(expected, rel=0.03)


def test_intervals_widen_with_the_distance() -> None:
    series = read_series()[1]
    fitted = fit(series.sizes, series.work)
    widths = [(found := fitted.forecast(size)).high / found.low for size in (8, 16, 32, 64)]
    assert widths == sorted(widths)
    assert widths[-1] > 1.5 * widths[0]


def test_measured_communication_narrows_the_forecast_and_moves_it() -> None:
    sizes, work = [1, 2, 4, 8], [100.0, 104.0, 107.0, 119.0]
    alone = fit(sizes, work).forecast(32)
    slow = fit(sizes, work, [0.0, 0.03, 0.09, 0.21]).forecast(32)  # as much as a serial part of 3 % would take
    assert slow.value > alone.value
    quick = fit(sizes, [100.0, 104.0, 99.0, 102.0], [0.0, 0.001, 0.001, 0.002]).forecast(32)
    blind = fit(sizes, [100.0, 104.0, 99.0, 102.0]).forecast(32)
    assert quick.high < blind.high


def test_with_the_global_batch_held_communication_weighs_more_with_every_worker() -> None:
    sizes, work = [1, 2, 4, 8], [100.0, 110.0, 140.0, 220.0]  # 1 + h p log2 p with h = 0.05
    fitted = fit(sizes, work, global_batch=True, models=[STEP_TREE])
    assert fitted.models[0].shares["hop_share"] == pytest.approx(0.05, rel=0.1)
    assert fitted.forecast(16).value == pytest.approx(420, rel=0.1)


def test_scaling_all_times_scales_the_forecast_alone() -> None:
    series = read_series()[0]
    once, again = fit(series.sizes, series.work), fit(series.sizes, [1.7 * one for one in series.work])
    assert again.forecast(32).value == pytest.approx(1.7 * once.forecast(32).value)
    assert again.efficiency(32, 1) == pytest.approx(once.efficiency(32, 1))


def test_on_the_papers_series_the_bounds_hold() -> None:
    """Fitted on sizes 1..k for each k of at least 4, tried on all larger ones: as `make bench` shows."""
    outcomes = summarise_forecasts(read_series())
    assert [(one.unit, one.holds) for one in outcomes] == [
        ("%, median", True),
        ("%, worst", True),
        ("%, mean", True),
    ]
    assert len(outcomes[0].samples) == 30


def test_pooled_interval_score_beats_perfect_scaling_from_the_largest_point() -> None:
    own, reference = (try_all(read_series(), one) for one in (averaged, perfect_from_largest))
    assert sum(row.score for row in own) < 0.85 * sum(row.score for row in reference)


@pytest.mark.parametrize("name", ["perfect", "Amdahl 3 %", "ring, slow link"])
def test_intervals_cover_known_truths_four_times_as_far(name: str) -> None:
    rows = try_truth(TRUTHS[name], 0.03, [1, 2, 4, 6, 8], averaged, draws=25)
    assert sum(row.is_covered for row in rows) >= 21  # of 25 at 95 %: fewer have a chance of 1 in 140
