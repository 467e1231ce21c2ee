"""Fits and forecasts in the answer: what is refused, and what a forecast says."""

import pytest

from service.analysis.analyse import analyse
from service.analysis.answer import AnalysisOptions, AnalysisSeries
from service.analysis.observation import Estimate, Observation
from service.analysis.series import ScalingAsked
from tests.service.analysis_samples import observed, paper_runs, strong_series


def series_of(runs: list[Observation], mode: str = "strong", **options: object) -> AnalysisSeries:
    asked = ScalingAsked(mode=mode)  # type: ignore[arg-type]
    [series] = analyse(runs, asked, AnalysisOptions(**options)).series  # type: ignore[arg-type]
    return series


def test_the_papers_t4s_are_forecast_at_16_and_32() -> None:
    series = series_of(paper_runs("cifar10-strong"), forecast_sizes=[16, 32])
    sixteen, thirty_two = series.forecasts
    assert sixteen.epoch_seconds is not None
    assert sixteen.epoch_seconds_low is not None
    assert sixteen.epoch_seconds_high is not None
    assert 1817.65 / 16 < sixteen.epoch_seconds < 1.15 * 1817.65 / 16
    assert sixteen.epoch_seconds_low < sixteen.epoch_seconds < sixteen.epoch_seconds_high
    assert sixteen.efficiency_low < sixteen.efficiency < sixteen.efficiency_high <= 1
    assert thirty_two.efficiency < sixteen.efficiency
    assert series.chosen_fit == min(series.fits, key=lambda one: one.loo_error).model
    assert sum(one.weight for one in series.fits) == pytest.approx(1)
    assert {one.model for one in series.fits} == {"perfect", "amdahl", "usl", "step_ring", "step_tree"}
    assert any("within one node" in note for note in series.notes)


def test_weak_scaling_forecasts_the_epoch_itself() -> None:
    series = series_of(paper_runs("cifar10-weak"), "weak", forecast_sizes=[16])
    assert series.forecasts[0].epoch_seconds == pytest.approx(200, rel=0.1)


def test_without_sizes_two_and_four_times_the_largest_are_forecast() -> None:
    series = series_of(strong_series([100.0, 51.0, 34.0, 26.0]))
    assert [one.world_size for one in series.forecasts] == [8, 16]
    assert series.forecasts[0].images_per_second == pytest.approx(1000 / (series.forecasts[0].epoch_seconds or 0))


def test_below_four_sizes_it_is_refused() -> None:
    series = series_of(strong_series([100.0, 51.0, 34.0]))
    assert series.forecast_refused == "3 different world sizes have a result, at least 4 are needed"
    assert (series.fits, series.forecasts, series.largest_useful_size) == ([], [], None)


def test_repeats_are_not_sizes() -> None:
    runs = [observed(n, 1 + n % 3, 100.0 / (1 + n % 3), repeat=n) for n in range(9)]
    assert (series_of(runs).forecast_refused or "").startswith("3 different")


def test_mixed_hardware_is_refused() -> None:
    runs = [observed(n, n, 100.0 / n, devices=(["RTX 3070"] * 3 + ["Tesla P4"] * 2)[:n]) for n in range(1, 6)]
    assert (series_of(runs).forecast_refused or "").startswith("mixed hardware")


def test_far_beyond_what_was_tried_is_noted() -> None:
    series = series_of(strong_series([100.0, 51.0, 34.0, 26.0]), forecast_sizes=[16, 64])
    assert series.forecasts[0].note is None
    assert "16 times the largest measured size" in (series.forecasts[1].note or "")


def test_the_largest_useful_size_keeps_the_efficiency_asked_for() -> None:
    runs = strong_series([100.0 / p * (1 + 0.05 * (p - 1)) for p in range(1, 9)])
    found = series_of(runs, efficiency_target=0.60).largest_useful_size
    assert found is not None
    assert found.world_size == pytest.approx(14, abs=1)  # 1 / (1 + 0.05 x 13) = 0.606
    assert found.is_bounded
    assert found.world_size_sure <= found.world_size
    stricter = series_of(runs, efficiency_target=0.9).largest_useful_size
    assert stricter is not None
    assert stricter.world_size < found.world_size


def test_measured_parts_are_used_where_there_are_any() -> None:
    seconds = [100.0, 52.0, 34.5, 26.5]
    plain = series_of(strong_series(seconds), forecast_sizes=[16])
    with_parts = [
        observed(
            n, n, one, compute_seconds=Estimate(0.1), communication_seconds=Estimate(0.0002 * (n - 1)),
            straggler_wait_seconds=Estimate(0.0),
        )
        for n, one in enumerate(seconds, 1)
    ]  # fmt: skip
    fed = series_of(with_parts, forecast_sizes=[16])
    width = [
        (one.epoch_seconds_high or 0) - (one.epoch_seconds_low or 0) for one in (fed.forecasts[0], plain.forecasts[0])
    ]
    assert width[0] < width[1]
