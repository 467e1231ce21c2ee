"""The arithmetic of a step taken apart, against values made another way."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from trainers.measure.statistics import student_t
from trainers.parts.estimate import AloneStep, Pair, estimate, mean_with_interval


def pair(step: float, *ranks: Sequence[tuple[float, float]]) -> Pair:
    return Pair(step, [[AloneStep(*values) for values in steps] for steps in ranks])


def drawn_pairs(
    generator: random.Random, means: Sequence[float], *, exchange: float, noise: float, count: int = 8, steps: int = 5
) -> list[Pair]:
    """Ranks that compute for `means` with independent noise, and an exchange on top of the slowest of each step."""

    def steps_of_ranks() -> list[list[float]]:
        return [[generator.gauss(mean, noise) for _ in range(steps)] for mean in means]

    pairs = []
    for _ in range(count):
        waited = np.array(steps_of_ranks()).max(axis=0).mean() + exchange
        pairs.append(pair(float(waited), *([(seconds, 0.0) for seconds in rank] for rank in steps_of_ranks())))
    return pairs


class TestParts:
    def test_by_hand(self) -> None:
        # Rank 0: 1.0 and 3.0, rank 1: 2.0 and 2.0; of each step 0.25 is waiting for data.
        one = pair(3.5, [(1.0, 0.25), (3.0, 0.25)], [(2.0, 0.25), (2.0, 0.25)])
        parts = estimate([one, one])
        assert parts.compute.value == 1.75
        assert parts.data_wait.value == 0.25
        assert parts.straggler_wait.value == pytest.approx(0.5)  # slowest 2 and 3, mean 2
        assert parts.straggler_persistent.value == 0  # both ranks take 2.0
        assert parts.straggler_jitter.value == pytest.approx(0.5)
        assert parts.communication is not None
        assert parts.communication_share is not None
        assert parts.communication.value == pytest.approx(1.0)
        assert parts.communication_share.value == pytest.approx(1 / 3.5)

    def test_against_numpy_on_drawn_blocks(self) -> None:
        pairs = drawn_pairs(random.Random(1), [0.2, 0.3, 0.25], exchange=0.1, noise=0.02)
        alone = np.array(
            [[[step.seconds for step in rank] for rank in each.alone] for each in pairs]
        )  # [pair, rank, k]
        steps = np.array([each.step_seconds for each in pairs])
        parts = estimate(pairs)
        communication = steps - alone.max(axis=1).mean(axis=1)
        assert parts.communication is not None
        assert parts.communication.value == pytest.approx(communication.mean())
        low, high = stats.t.interval(0.95, len(pairs) - 1, communication.mean(), stats.sem(communication))
        assert (parts.communication.ci95_low, parts.communication.ci95_high) == pytest.approx((low, high))
        persistent = alone.mean(axis=(0, 2)).max() - alone.mean()
        assert parts.straggler_persistent.value == pytest.approx(persistent)
        assert parts.straggler_wait.value == pytest.approx(alone.max(axis=1).mean() - alone.mean())
        assert [rank.compute.value for rank in parts.ranks] == pytest.approx(list(alone.mean(axis=(0, 2))))

    def test_they_add_up_for_the_trial_and_for_each_rank(self) -> None:
        parts = estimate(drawn_pairs(random.Random(2), [0.2, 0.4], exchange=0.1, noise=0.05))
        assert parts.communication is not None
        whole = parts.compute.value + parts.data_wait.value + parts.straggler_wait.value + parts.communication.value
        assert whole == pytest.approx(parts.step.value)
        for rank in parts.ranks:
            assert rank.data_wait is not None
            assert rank.communication is not None
            own = rank.compute.value + rank.data_wait.value + rank.straggler_wait.value + rank.communication.value
            assert own == pytest.approx(parts.step.value)

    def test_communication_below_zero_is_shown(self) -> None:
        parts = estimate([pair(0.9, [(1.0, 0.0)], [(1.0, 0.0)])] * 4)
        assert parts.communication is not None
        assert parts.communication.value == pytest.approx(-0.1)

    def test_one_worker_communicates_with_nobody(self) -> None:
        parts = estimate([pair(1.01, [(1.0, 0.1)])] * 4)
        assert (parts.communication, parts.communication_share, parts.slowest_rank) == (None, None, None)
        assert (parts.straggler_wait.value, parts.compute.value) == (0, pytest.approx(0.9))

    def test_intervals_cover_the_exchange_about_as_often_as_promised(self) -> None:
        generator, covered = random.Random(3), 0
        for _ in range(300):
            found = estimate(drawn_pairs(generator, [0.2, 0.2], exchange=0.05, noise=0.02)).communication
            assert found is not None
            assert found.ci95_low is not None
            assert found.ci95_high is not None
            covered += found.ci95_low <= 0.05 <= found.ci95_high
        assert 0.91 <= covered / 300 <= 0.99

    def test_one_pair_has_no_interval(self) -> None:
        assert mean_with_interval([0.5]).ci95_low is None

    def test_pairs_of_unlike_ranks_are_refused(self) -> None:
        with pytest.raises(ValueError, match="of the same ranks"):
            estimate([pair(1.0, [(1.0, 0.0)]), pair(1.0, [(1.0, 0.0)], [(1.0, 0.0)])])


class TestSlowestRank:
    def test_a_slow_rank_is_named(self) -> None:
        assert estimate(drawn_pairs(random.Random(4), [0.2, 0.2, 0.3], exchange=0, noise=0.02)).slowest_rank == 2

    @pytest.mark.parametrize("world_size", [2, 4])
    def test_among_equal_ranks_one_is_named_in_fewer_than_one_of_twenty_runs(self, world_size: int) -> None:
        generator = random.Random(5)
        named = [
            estimate(drawn_pairs(generator, [0.2] * world_size, exchange=0, noise=0.02)).slowest_rank
            for _ in range(200)
        ]
        assert sum(rank is not None for rank in named) <= 14  # 5 % of 200, and two standard errors

    def test_three_pairs_name_nobody(self) -> None:
        assert estimate([pair(1.0, [(1.0, 0.0)], [(2.0, 0.0)])] * 3).slowest_rank is None


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("dof", [1, 2, 3, 10, 31])
def test_the_t_quantile_agrees_with_scipy(confidence: float, dof: int) -> None:
    assert student_t(confidence, dof) == pytest.approx(stats.t.ppf(0.5 + confidence / 2, dof), rel=1e-9)
