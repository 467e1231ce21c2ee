"""Speed-up and efficiency, against the paper's published epochs and hand-made rows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.analysis.scaling import (
    MeasuredPoint,
    RowScaling,
    derived_batch_keys,
    scaling_series,
    step_time_ratio_kind,
)

# arXiv 2602.21081: Vector (Tesla T4), CIFAR-10, micro batch 64, strong, 1..8 GPUs; Tesla, strong, 1..5 GPUs. Seconds.
VECTOR_STRONG = [1817.7, 941.9, 621.7, 489.6, 370.0, 302.3, 288.5, 234.2]
TESLA_STRONG = [713.0, 908.0, 739.0, 986.0, 3436.0]


def point(trial: int, world_size: int, epoch_seconds: float | None, **given: Any) -> MeasuredPoint:
    """A row whose throughput is that of 1,000 images an epoch."""
    micro = given.pop("micro", 4)
    parameters = {
        "world_size": world_size,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": 1,
        "train_batch_size": micro * world_size,
        "zero_stage": given.pop("zero_stage", 0),
    }
    rate = None if epoch_seconds is None else 1000.0 / epoch_seconds
    return MeasuredPoint(trial, parameters, epoch_seconds=epoch_seconds, images_per_second=rate, **given)


def by_trial(points: list[MeasuredPoint], **options: Any) -> dict[int, RowScaling]:
    return {row.trial: row for series in scaling_series(points, **options) for row in series.rows}


def test_strong_speed_up_is_the_papers_on_its_own_epochs() -> None:
    rows = by_trial([point(p, p, t) for p, t in enumerate(VECTOR_STRONG, 1)], mode="strong")
    assert rows[1].speedup == 1.0
    assert rows[8].speedup == pytest.approx(7.76, abs=0.005)
    assert rows[8].efficiency == pytest.approx(7.7613 / 8, abs=1e-4)


def test_a_slow_down_is_not_clipped() -> None:
    rows = by_trial([point(p, p, t) for p, t in enumerate(TESLA_STRONG, 1)], mode="strong")
    assert rows[5].speedup == pytest.approx(713 / 3436)
    assert rows[5].efficiency == pytest.approx(713 / 3436 / 5)


def test_more_than_ideal_is_not_clipped_either() -> None:
    rows = by_trial([point(1, 1, 100.0), point(2, 2, 40.0)], mode="strong")
    assert rows[2].speedup == 2.5
    assert rows[2].efficiency == 1.25


def test_weak_efficiency_is_the_time_ratio_and_the_speed_up_is_scaled_by_the_world_size() -> None:
    rows = by_trial([point(1, 2, 100.0), point(2, 8, 125.0)], mode="weak")
    assert rows[2].efficiency == 0.8
    assert rows[2].speedup == pytest.approx(0.8 * 8 / 2)
    assert rows[1].efficiency == rows[1].speedup == 1.0


def test_without_a_scaling_mode_only_the_throughput_form_is_given() -> None:
    rows = by_trial([point(1, 1, 100.0), point(2, 4, 50.0)], mode="none")
    assert (rows[2].speedup, rows[2].efficiency) == (None, None)
    assert rows[2].throughput_efficiency == pytest.approx(2.0 / 4)


def test_the_throughput_form_stands_where_epoch_seconds_are_not_known() -> None:
    points = [
        MeasuredPoint(1, {"world_size": 1}, images_per_second=100.0, step_seconds_mean=0.1),
        MeasuredPoint(2, {"world_size": 2}, images_per_second=150.0, step_seconds_mean=0.2),
    ]
    row = by_trial(points, mode="strong")[2]
    assert (row.speedup, row.efficiency) == (None, None)
    assert row.throughput_efficiency == 0.75
    assert row.step_time_ratio == 0.5


def test_the_baseline_may_be_named() -> None:
    points = [point(1, 1, 90.0), point(2, 2, 50.0), point(4, 4, 100.0)]
    rows = by_trial(points, mode="strong", baseline_world_size=2)
    assert (rows[2].speedup, rows[2].efficiency) == (1.0, 1.0)
    assert (rows[4].speedup, rows[4].efficiency) == (0.5, 0.25)
    assert rows[1].speedup == pytest.approx(50 / 90)
    assert by_trial(points, mode="weak", baseline_world_size=2)[4].efficiency == 0.5


def test_a_failed_baseline_leaves_null_and_the_reason_never_another_baseline() -> None:
    rows = by_trial([point(1, 1, None), point(2, 2, 50.0), point(3, 4, 30.0)], mode="strong")
    assert all(rows[n].speedup is None and rows[n].efficiency is None for n in (1, 2, 3))
    assert rows[3].throughput_efficiency is None
    assert rows[3].reason == "the baseline, world size 1, has no result"
    assert rows[1].reason == "the trial has no result"


def test_a_baseline_that_was_left_out_of_one_series_is_not_taken_from_another() -> None:
    points = [point(1, 1, 100.0, zero_stage=0), point(2, 2, 60.0, zero_stage=0), point(3, 2, 70.0, zero_stage=3)]
    rows = by_trial(points, mode="strong")
    assert rows[2].speedup == pytest.approx(100 / 60)
    assert rows[3].speedup is None
    assert rows[3].reason == "there is no trial at the baseline, world size 1"


def test_a_failed_point_leaves_the_others_of_its_series_alone() -> None:
    rows = by_trial([point(1, 1, 100.0), point(2, 2, None), point(3, 4, 25.0)], mode="strong")
    assert rows[2].speedup is None
    assert rows[3].speedup == 4.0


def test_repeats_are_each_held_against_the_mean_of_the_baselines_repeats() -> None:
    points = [point(1, 1, 90.0), point(2, 1, 110.0), point(3, 2, 50.0), point(4, 2, 40.0)]
    rows = by_trial(points, mode="strong")
    assert rows[3].speedup == 2.0
    assert rows[4].speedup == 2.5
    assert rows[1].speedup == pytest.approx(100 / 90)


def test_with_the_micro_batch_held_the_global_batch_does_not_part_a_series() -> None:
    points = [point(1, 1, 100.0, micro=4), point(2, 2, 60.0, micro=4), point(3, 1, 80.0, micro=16)]
    series = scaling_series(points, mode="strong", hold="micro_batch")
    assert [[row.trial for row in one.rows] for one in series] == [[1, 2], [3]]
    assert series[0].fixed["train_micro_batch_size_per_gpu"] == 4
    assert not {"world_size", "train_batch_size"} & set(series[0].fixed)


def test_with_the_global_batch_held_the_key_that_shrinks_does_not_part_a_series() -> None:
    points = [point(1, 1, 100.0, micro=64), point(2, 2, 60.0, micro=32), point(3, 4, 40.0, micro=16)]
    series = scaling_series(
        points,
        mode="strong",
        hold="global_batch",
        requested_batch_keys=["train_batch_size", "gradient_accumulation_steps"],
    )
    assert [[row.trial for row in one.rows] for one in series] == [[1, 2, 3]]
    assert series[0].fixed["train_batch_size"] == 64


def test_the_derived_key_follows_from_what_the_spec_gives() -> None:
    micro, accumulation, both = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
    assert derived_batch_keys("micro_batch", [micro, accumulation]) == {both}
    assert derived_batch_keys("global_batch", [both, micro]) == {accumulation}
    assert derived_batch_keys("global_batch", [both, accumulation]) == {micro}


def test_what_the_step_time_ratio_means_depends_on_what_is_held() -> None:
    assert step_time_ratio_kind("micro_batch") == "efficiency"
    assert step_time_ratio_kind("global_batch") == "speedup"


def test_unlike_devices_in_one_series_are_kept_and_flagged() -> None:
    alike = [point(1, 1, 100.0, devices=["T4"]), point(2, 2, 60.0, devices=["T4", "T4"])]
    unlike = [*alike, point(3, 3, 50.0, devices=["T4", "T4", "P4"])]
    assert [one.mixed_hardware for one in scaling_series(alike, mode="strong")] == [False]
    [series] = scaling_series(unlike, mode="strong")
    assert series.mixed_hardware
    assert len(series.rows) == 3


def test_no_rows_make_no_series() -> None:
    assert scaling_series([], mode="strong") == []


@given(
    st.lists(st.floats(min_value=1e-3, max_value=1e6), min_size=2, max_size=8),
    st.sampled_from(["strong", "weak"]),
    st.permutations(range(8)),
)
def test_speed_up_is_efficiency_times_the_growth_whatever_the_order(
    seconds: list[float], mode: str, order: list[int]
) -> None:
    points = [point(n + 1, n + 1, t) for n, t in enumerate(seconds)]
    shuffled = [points[n] for n in order if n < len(points)]
    rows = by_trial(shuffled, mode=mode)
    assert rows == by_trial(points, mode=mode)
    for n, row in rows.items():
        assert row.speedup is not None
        assert row.efficiency is not None
        assert row.speedup == pytest.approx(row.efficiency * n)
