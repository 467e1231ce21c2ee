"""Series, their numbers and what is told apart, on hand-made rows and the paper's epochs."""

import math
import random
from dataclasses import replace

import pytest

from service.analysis.analyse import analyse
from service.analysis.answer import AnalysisPoint, AnalysisSeries
from service.analysis.observation import EpochObservation, Estimate, Observation
from service.analysis.scaling import MeasuredPoint as Row
from service.analysis.scaling import Mode, scaling_series
from service.analysis.series import ScalingAsked
from service.states import Reason, TrialState
from tests.service.analysis_samples import observed, paper_runs, strong_series

STRONG = ScalingAsked(mode="strong")


def series_of(observations: list[Observation], asked: ScalingAsked = STRONG) -> list[AnalysisSeries]:
    return analyse(observations, asked).series


def point_at(series: AnalysisSeries, world_size: int) -> AnalysisPoint:
    (found,) = [point for point in series.points if point.world_size == world_size]
    return found


def test_strong_speed_up_is_the_papers_on_its_own_epochs() -> None:
    [series] = series_of(paper_runs("cifar10-strong"))
    assert point_at(series, 8).speedup == pytest.approx(7.76, abs=0.005)
    assert point_at(series, 8).hardware == "8 x Tesla T4"
    assert point_at(series, 8).device_seconds_per_epoch == pytest.approx(8 * 234.2128)
    assert series.baseline_world_size == 1


@pytest.mark.parametrize("mode", ["strong", "weak", "none"])
def test_numbers_are_those_of_the_rows_own_table(mode: Mode) -> None:
    """The command line's table takes each row against the baseline; here it is each point."""
    runs = strong_series([100.0, 60.0, 35.0], step_seconds=None)
    rows = [
        Row(one.trial, one.parameters, one.epoch_seconds.value, one.images_per_second.value)
        for one in runs
        if one.epoch_seconds and one.images_per_second
    ]
    [expected] = scaling_series(rows, mode=mode)
    [series] = series_of(runs, ScalingAsked(mode=mode))
    for row, point in zip(expected.rows, series.points, strict=True):
        assert (point.speedup, point.efficiency) == pytest.approx((row.speedup, row.efficiency))
        assert point.throughput_efficiency == pytest.approx(row.throughput_efficiency)


def test_a_failed_baseline_leaves_null_and_the_reason() -> None:
    [series] = series_of([observed(1, 1, None, reason=Reason.OUT_OF_MEMORY), observed(2, 2, 50.0)])
    assert point_at(series, 2).speedup is None
    assert point_at(series, 2).reason == "the baseline, world size 1, has no result"
    assert point_at(series, 1).reason == "no result: OUT_OF_MEMORY"


def test_repeats_are_one_point_with_an_interval_that_the_speed_up_carries_on() -> None:
    runs = [observed(n, 1, s, repeat=n) for n, s in ((1, 99.0), (2, 100.0), (3, 101.0))]
    runs += [observed(n, 2, s, repeat=n) for n, s in ((4, 49.0), (5, 50.0), (6, 51.0))]
    [series] = series_of(runs)
    point = point_at(series, 2)
    assert (point.runs, point.trials, point.interval_kind) == (3, [4, 5, 6], "between_runs")
    assert point.speedup == 2.0
    assert point.speedup_ci95_low is not None
    assert point.speedup_ci95_high is not None
    assert 1.85 < point.speedup_ci95_low < 2.0 < point.speedup_ci95_high < 2.16


def test_intervals_of_single_runs_are_told_for_what_they_are() -> None:
    runs = [observed(n, n, 10.0 / n, images_per_second=Estimate(100.0 * n, 99.0 * n, 101.0 * n)) for n in (1, 2)]
    [series] = series_of([replace(run, interval_kind="within_run") for run in runs])
    assert any("know nothing of the next run" in note for note in series.notes)
    assert point_at(series, 2).against_previous is not None
    assert point_at(series, 2).throughput_efficiency_ci95_low == pytest.approx(
        math.exp(-math.hypot(0.01, 0.01)), rel=1e-3
    )


def test_neighbours_are_held_against_each_other_not_through_the_baseline() -> None:
    """A baseline that scatters wildly blurs every speed-up, and not the difference between two and four."""
    runs = [observed(n, 1, s, repeat=n) for n, s in ((1, 60.0), (2, 140.0), (3, 100.0))]
    runs += [observed(n, 2, s, repeat=n) for n, s in ((4, 50.0), (5, 50.2), (6, 49.8))]
    runs += [observed(n, 4, s, repeat=n) for n, s in ((7, 40.0), (8, 40.2), (9, 39.8))]
    [series] = series_of(runs)
    four = point_at(series, 4)
    assert four.speedup_ci95_low is not None
    assert four.speedup_ci95_low < 1.0
    assert four.against_previous is not None
    assert four.against_previous.world_size == 2
    assert four.against_previous.ratio == pytest.approx(1.25, rel=1e-3)
    assert four.against_previous.verdict == "more"
    assert four.against_previous.ratio_ci95_low is not None
    assert four.against_previous.ratio_ci95_low > 1.2


def test_mixed_hardware_is_kept_named_and_flagged() -> None:
    kinds = ["RTX 3070"] * 3 + ["Tesla P4"]
    runs = [observed(size, size, 100.0 / size, devices=kinds[:size]) for size in range(1, 5)]
    [series] = series_of(runs)
    assert series.mixed_hardware
    assert point_at(series, 4).hardware == "3 x RTX 3070 + 1 x Tesla P4"
    assert point_at(series, 4).speedup == pytest.approx(4.0)
    assert "Mixed hardware (RTX 3070 and Tesla P4)" in series.notes[0]


def test_runs_on_unlike_devices_are_not_pooled_and_meet_a_baseline_of_their_kind() -> None:
    runs = [
        observed(1, 1, 100.0, devices=["A"]),
        observed(2, 1, 300.0, devices=["B"], repeat=1),
        observed(3, 2, 150.0, devices=["B", "B"]),
    ]
    [series] = series_of(runs)
    assert [(point.hardware, point.runs) for point in series.points] == [("1 x A", 1), ("1 x B", 1), ("2 x B", 1)]
    assert point_at(series, 2).speedup == 2.0


def test_the_same_sizes_within_a_node_and_across_nodes_are_two_series() -> None:
    runs = [observed(1, 1, 100.0), observed(2, 2, 52.0), observed(3, 4, 27.0)]
    runs += [observed(4, 2, 60.0, nodes=2, repeat=1), observed(5, 4, 40.0, nodes=4, repeat=1)]
    packed, spread = series_of(runs)
    assert (packed.topology, spread.topology) == ("packed", "one worker per node")
    assert point_at(packed, 4).speedup == pytest.approx(100 / 27)
    assert point_at(spread, 4).speedup == pytest.approx(100 / 40)
    [table] = analyse(runs, STRONG).side_by_side
    assert (table.key, table.values) == ("topology", ["packed", "one worker per node"])


def test_series_that_differ_in_one_key_stand_side_by_side() -> None:
    runs = [observed(n, size, 100.0 / size, zero_stage=0) for n, size in ((1, 1), (2, 2))]
    runs += [observed(n, size, 102.0 / size, zero_stage=2) for n, size in ((3, 1), (4, 2))]
    runs += [observed(n, size, 130.0 / size, zero_stage=3) for n, size in ((5, 1), (6, 2))]
    analysis = analyse(runs, STRONG)
    assert [series.distinguished_by for series in analysis.series] == [{"zero_stage": stage} for stage in (0, 2, 3)]
    [table] = analysis.side_by_side
    assert (table.key, table.values, table.series_ids) == ("zero_stage", [0, 2, 3], ["a1", "a2", "a3"])
    assert [row.world_size for row in table.rows] == [1, 2]
    verdicts = [one.verdict for one in table.rows[0].against_best if one is not None]
    assert verdicts == ["equal", "equal", "less"]
    assert table.rows[0].best_series_id == "a1"


def test_an_outlier_first_epoch_is_seen() -> None:
    def epochs(*seconds: float) -> list[EpochObservation]:
        return [EpochObservation(n, one) for n, one in enumerate(seconds, 1)]

    runs = [
        observed(1, 1, 100.0, epochs=epochs(130.0, 100.0, 101.0, 99.0)),
        observed(2, 2, 50.0, epochs=epochs(50.2, 50.0, 50.3, 49.9)),
        observed(3, 4, 25.0, epochs=epochs(40.0, 25.0)),
    ]
    [series] = series_of(runs)
    assert [point.first_epoch_is_outlier for point in series.points] == [True, False, None]
    assert point_at(series, 1).first_epoch_ratio == pytest.approx(1.3)
    assert any("first epoch" in note for note in series.notes)


def test_the_papers_cold_first_epochs_are_seen() -> None:
    [series] = series_of(paper_runs("cifar10-weak"), ScalingAsked(mode="weak"))
    cold = [p.world_size for p in series.points if p.first_epoch_is_outlier and (p.first_epoch_ratio or 1) < 0.95]
    assert cold == [3, 5, 7, 8]


def test_the_cheapest_stands_beside_the_fastest() -> None:
    analysis = analyse(strong_series([100.0, 55.0, 40.0, 35.0], dataset="cifar10"), STRONG)
    [cost] = analysis.costs
    assert (cost.fastest.world_size, cost.cheapest.world_size) == (4, 1)
    assert cost.fastest_costs == pytest.approx(140 / 100)
    assert cost.cheapest_takes == pytest.approx(100 / 35)
    [series] = analysis.series
    assert series.fastest is not None
    assert series.cheapest is not None
    assert (series.fastest.world_size, series.cheapest.world_size) == (4, 1)
    assert series.cheapest.value == 100.0


def test_epochs_alone_are_enough() -> None:
    """Imported rows may know no rates and no steps."""
    runs = [observed(size, size, 100.0, images_per_second=None) for size in (1, 2, 4)]
    [weak] = series_of(runs, ScalingAsked(mode="weak"))
    assert [point.throughput_efficiency for point in weak.points] == [1.0, 1.0, 1.0]
    [strong] = series_of(runs)
    assert [point.throughput_efficiency for point in strong.points] == [1.0, 0.5, 0.25]
    assert strong.points[0].images_per_second is None


def test_parameters_that_are_missing_are_no_obstacle() -> None:
    bare = [Observation(**{**vars(one), "parameters": {"world_size": one.world_size}}) for one in strong_series([9, 5])]
    analysis = analyse(bare, STRONG)
    assert analysis.series[0].points[1].speedup == 1.8
    assert analysis.batch_size == []


def test_nothing_finished_is_said_and_no_error() -> None:
    assert analyse([], STRONG).notes == ["No trial has a result yet."]
    pending = observed(1, 1, None, state=TrialState.PENDING, reason=None)
    assert series_of([pending]) == []
    [series] = series_of([pending, observed(2, 2, 10.0)])
    assert series.points[0].reason == "no result yet"


def test_the_order_of_the_rows_does_not_matter() -> None:
    runs = [observed(n, size, 100.0 / size + n, zero_stage=n % 2) for n, size in enumerate([1, 2, 4, 8] * 2, 1)]
    shuffled = random.Random(1).sample(runs, len(runs))
    assert analyse(shuffled, STRONG) == analyse(runs, STRONG)
