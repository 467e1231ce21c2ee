"""Two studies side by side: what is told apart, what is not, and how often that is wrong."""

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from service.analysis.comparison import ComparedPoints, compare_points, judge
from service.analysis.noise import Pooled, pooled
from service.analysis.observation import Estimate, Observation
from service.states import Reason, TrialState
from tests.service.analysis.observed import observed


def study(seconds: Sequence[Sequence[float]], **fields: Any) -> list[Observation]:
    """One point for each of `seconds`, told apart by its micro batch, with one trial for each of its runs."""
    return [
        observed(10 * place + run + 1, value, repeat=run, micro_batch=8 * (place + 1), **fields)
        for place, runs in enumerate(seconds)
        for run, value in enumerate(runs)
    ]


def compared(a: Sequence[Observation], b: Sequence[Observation], tolerance: float = 0.05) -> ComparedPoints:
    return compare_points(a, b, tolerance=tolerance)


def verdicts(found: ComparedPoints) -> list[str]:
    return [point.verdict for point in found.points]


class TestRepeated:
    A = ((1.0, 1.01, 0.99), (2.0, 2.02, 1.98))

    def test_a_slow_down_beyond_noise_and_tolerance_is_a_regression(self) -> None:
        found = compared(study(self.A), study([[1.2, 1.21, 1.19], self.A[1]]))
        assert verdicts(found) == ["slower", "equal"]
        assert found.is_regression
        point = found.points[0]
        assert point.ratio == pytest.approx(1.2, rel=1e-3)
        assert (point.a_trials, point.b_trials) == ([1, 2, 3], [1, 2, 3])
        assert (point.quantity, point.interval_kind) == ("step_seconds", "between_runs")
        assert (point.a_seconds, point.b_seconds) == pytest.approx((1.0, 1.2))
        assert found.overall_ratio == pytest.approx(math.sqrt(1.2), rel=1e-3)

    def test_within_the_tolerance_it_is_none_however_sure(self) -> None:
        runs = [[value * 1.04 for value in values] for values in self.A]
        assert verdicts(compared(study(self.A), study(runs), tolerance=0.05)) == ["equal", "equal"]
        assert verdicts(compared(study(self.A), study(runs), tolerance=0.03)) == ["slower", "slower"]

    def test_within_the_noise_it_is_none_however_large(self) -> None:
        found = compared(study([[1.0, 1.3, 0.8]]), study([[1.2, 1.6, 0.9]]))
        assert verdicts(found) == ["equal"]
        assert not found.is_regression
        assert any("not proof of equality" in note for note in found.notes)

    def test_the_other_way_round_it_is_faster(self) -> None:
        a, b = study(self.A), study([[1.2, 1.21, 1.19], self.A[1]])
        forth, back = compared(a, b).points[0], compared(b, a).points[0]
        assert (back.verdict, back.p_value) == ("faster", pytest.approx(forth.p_value))
        assert back.ratio == pytest.approx(1 / forth.ratio)
        assert back.ratio_ci95_low == pytest.approx(1 / forth.ratio_ci95_high)

    def test_one_point_alone_has_the_interval_and_p_value_of_the_t_test(self) -> None:
        """The error of ln(mean) is the relative one, so scipy's t test of nearly equal times agrees closely."""
        a, b = (1.0, 1.002, 0.999), (1.003, 1.006, 1.004, 1.001)
        point = compared(study([a]), study([b])).points[0]
        reference = stats.ttest_ind(np.log(b), np.log(a))
        low, high = reference.confidence_interval(0.95)
        assert point.p_value == pytest.approx(reference.pvalue, rel=0.02)
        assert math.log(point.ratio_ci95_low) == pytest.approx(low, rel=0.02, abs=2e-5)
        assert math.log(point.ratio_ci95_high) == pytest.approx(high, rel=0.02)

    def test_points_that_scatter_alike_share_one_variance(self) -> None:
        shape = np.array([-1.0, 0.0, 1.0]) * 0.01
        pairs = [(runs(np.exp(shape)), runs(np.exp(shape + 0.03))) for _ in range(8)]
        half = (math.log(judge(pairs, 0.0)[0].high) - 0.03) / math.sqrt(2 / 3)
        assert half == pytest.approx(stats.t.ppf(0.975, 32) * math.sqrt(variance(shape)), rel=0.01)


class TestOnce:
    def test_nothing_closer_than_five_percent_is_ranked(self) -> None:
        a, b = study([[1.0]]), study([[1.05]])
        point = compared(a, b, tolerance=0.0).points[0]
        assert (point.verdict, point.interval_kind) == ("equal", "within_run")
        assert any("without repeats nothing closer than 5% is ranked" in n for n in compared(a, b).notes)

    def test_a_large_difference_is(self) -> None:
        assert verdicts(compared(study([[1.0]]), study([[1.15]]))) == ["slower"]

    def test_among_many_points_it_must_be_larger(self) -> None:
        """The paper's identical jobs differ by up to 7.8 %: one of 24 that does so is no regression."""
        a, b = study([[1.0]] * 24), study([[1.078]] + [[1.0]] * 23)
        assert not compared(a, b).is_regression
        assert verdicts(compared(a[:1], b[:1])) == ["slower"]

    def test_a_wide_interval_of_the_run_counts(self) -> None:
        assert verdicts(compared(study([[1.0]], interval=0.2), study([[1.15]], interval=0.2))) == ["equal"]

    def test_rows_without_any_interval_are_compared_too(self) -> None:
        found = compared(study([[1.0], [2.0]], interval=None), study([[1.3], [2.04]], interval=None))
        assert verdicts(found) == ["slower", "equal"]

    def test_one_side_repeated_is_not_repeated(self) -> None:
        point = compared(study([[1.0, 1.001, 0.999]]), study([[1.04]]), tolerance=0.0).points[0]
        assert (point.verdict, point.interval_kind) == ("equal", "within_run")

    def test_epochs_are_compared_where_there_are_no_steps(self) -> None:
        a, b = (study([[value]], step_seconds=None, images_per_second=None) for value in (1.0, 1.2))
        point = compared(a, b).points[0]
        assert (point.quantity, point.verdict, point.ratio) == ("epoch_seconds", "slower", pytest.approx(1.2))


class TestWhichPoints:
    def test_points_of_only_one_study_are_listed(self) -> None:
        found = compared(study([[1.0], [2.0]]), [*study([[1.0]]), observed(9, 1.0, micro_batch=512)])
        assert [point.parameters["train_micro_batch_size_per_gpu"] for point in found.points] == [8]
        assert [point.parameters["train_micro_batch_size_per_gpu"] for point in found.only_in_a] == [16]
        assert [(p.parameters["train_micro_batch_size_per_gpu"], p.trials) for p in found.only_in_b] == [(512, [9])]

    def test_what_ran_in_a_and_fails_in_b_is_a_regression(self) -> None:
        broken = observed(1, None, micro_batch=8, reason=Reason.OUT_OF_MEMORY)
        found = compared(study([[1.0]]), [broken])
        assert found.is_regression
        assert [(one.without_result_in, one.reasons) for one in found.failed] == [("b", [Reason.OUT_OF_MEMORY])]
        assert not compared([broken], study([[1.0]])).is_regression
        assert not compared([broken], [broken]).is_regression

    def test_what_was_not_run_to_its_end_is_none(self) -> None:
        found = compared(study([[1.0]]), [observed(1, None, micro_batch=8, state=TrialState.CANCELLED)])
        assert not found.is_regression
        assert found.failed[0].reasons == []

    def test_a_parameter_that_only_one_study_names_does_not_part_them(self) -> None:
        a = study([[1.0], [2.0]])
        b = study([[1.0], [2.0]], parameters={"learning_rate": 1e-4})
        found = compared(a, b)
        assert (len(found.points), found.only_in_a, found.only_in_b) == (2, [], [])
        assert any("learning_rate" in note for note in found.notes)

    def test_one_that_varies_there_does(self) -> None:
        b = [observed(n, 1.0, micro_batch=8, parameters={"patch_size": size}) for n, size in ((1, 16), (2, 32))]
        found = compared(study([[1.0]]), b)
        assert (len(found.points), len(found.only_in_a), len(found.only_in_b)) == (0, 1, 2)

    def test_other_hardware_is_compared_and_named(self) -> None:
        point = compared(study([[1.0]]), study([[0.5]], device="NVIDIA A100-SXM4-80GB")).points[0]
        assert (point.a_hardware, point.b_hardware) == ("1 x Tesla T4", "1 x NVIDIA A100-SXM4-80GB")
        assert point.verdict == "faster"

    def test_nothing_in_common_is_no_regression(self) -> None:
        found = compared([], study([[1.0]]))
        assert (found.points, found.overall_ratio, found.is_regression) == ([], None, False)


def runs(values: Any) -> Pooled:
    found = pooled([Estimate(float(value)) for value in values])
    assert found is not None
    return found


def draws(generator: np.random.Generator, points: int, repeats: int, scatter: Any, slow: int = 0) -> Any:
    """Two studies of one truth, but for the first `slow` points, which take 10 % longer in b."""
    shift = np.where(np.arange(points) < slow, math.log(1.1), 0.0)
    for_each = np.broadcast_to(scatter, (points,))
    a, b = generator.normal(0, 1, (2, points, repeats)) * for_each[None, :, None]
    return [(runs(np.exp(x)), runs(np.exp(y + s))) for x, y, s in zip(a, b, shift, strict=True)]


class TestHowOftenItIsWrong:
    """24 points with 3 repeats each, 1.5 % from run to run, with a tolerance of nothing: all that is said is said by
    the statistics."""

    def share_with(
        self, verdict: str, tolerance: float, *, draws_made: int, slow: int = 0, uneven: bool = False
    ) -> float:
        generator = np.random.default_rng(20260221)
        said = []
        for _ in range(draws_made):
            scatter = 0.015 * (np.exp(generator.normal(0, 0.5, 24)) if uneven else 1.0)
            found = judge(draws(generator, 24, 3, scatter, slow), tolerance)
            said.append(any(one.verdict == verdict for one in found[: slow or None]))
        return fmean(said)

    @pytest.mark.slow
    @pytest.mark.parametrize("uneven", [False, True])
    def test_studies_of_the_same_truth_give_a_false_alarm_in_one_of_twenty_at_most(self, uneven: bool) -> None:
        assert self.share_with("slower", 0.0, draws_made=400, uneven=uneven) <= 0.05

    @pytest.mark.slow
    def test_a_slow_down_of_ten_percent_is_found(self) -> None:
        assert self.share_with("slower", 0.05, draws_made=100, slow=1) >= 0.95

    def test_both_in_short(self) -> None:
        assert self.share_with("slower", 0.0, draws_made=15) <= 1 / 15
        assert self.share_with("slower", 0.05, draws_made=15, slow=1) == 1.0


@settings(max_examples=8, deadline=None)
@given(
    times=st.lists(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=3), min_size=1, max_size=5),
    factor=st.floats(0.01, 100),
    order=st.randoms(use_true_random=False),
)
def test_units_and_the_order_of_rows_do_not_matter(times: list[list[float]], factor: float, order: Any) -> None:
    a, b = study(times), study([[1.1 * value for value in values] for values in times])
    first = compared(a, b)
    scaled = [study([[factor * k * value for value in values] for values in times]) for k in (1, 1.1)]
    for rows in scaled:
        order.shuffle(rows)
    second = compared(*scaled)
    assert verdicts(first) == verdicts(second)
    for one, other in zip(first.points, second.points, strict=True):
        assert other.ratio == pytest.approx(one.ratio)
        assert other.ratio_ci95_high == pytest.approx(one.ratio_ci95_high)
        assert other.p_value == pytest.approx(one.p_value, abs=1e-9)
