"""Exposed communication from spans, by hand and against a grid of instants."""

import random

import numpy as np
import pytest

from trainers.parts.exposure import RankProfile, Span, exposed_seconds, union, without_waiting


def spans(*ends: tuple[float, float]) -> list[Span]:
    return [Span(start, end) for start, end in ends]


class TestExposedSeconds:
    def test_what_an_operator_covers_is_hidden(self) -> None:
        profile = RankProfile(spans((0, 10)), spans((2, 5), (4, 6), (9, 12)))
        assert exposed_seconds(profile) == [10 - 4 - 1]

    def test_a_second_collective_at_the_same_time_counts_once(self) -> None:
        profile = RankProfile(spans((0, 4), (2, 6), (3, 5)), [])
        assert exposed_seconds(profile) == [4, 2, 0]

    def test_against_a_grid_of_instants(self) -> None:
        generator = random.Random(1)

        def draw(count: int) -> list[Span]:
            starts = sorted(generator.randrange(0, 900) for _ in range(count))
            return [Span(start, start + generator.randrange(1, 60)) for start in starts]

        profile = RankProfile(draw(20), draw(40))

        def holds(drawn: list[Span]) -> np.ndarray:
            instants = np.arange(1000) + 0.5
            return np.any([(span.start < instants) & (instants < span.end) for span in drawn], axis=0)

        expected = (holds(list(profile.collectives)) & ~holds(list(profile.operators))).sum()
        assert sum(exposed_seconds(profile)) == pytest.approx(expected)


def test_the_union_of_spans_is_in_order_and_apart() -> None:
    assert union(spans((5, 6), (0, 2), (1, 3), (3, 4))) == spans((0, 4), (5, 6))


class TestWithoutWaiting:
    def test_the_rank_that_comes_last_waits_for_nobody(self) -> None:
        # Rank 0 comes early to the first collective, rank 1 to the second: each is 1 s of exchange.
        assert without_waiting([[3.0, 1.0], [1.0, 5.0]]) == 2.0

    def test_ranks_with_unlike_collectives_tell_nothing(self) -> None:
        assert without_waiting([[1.0], [1.0, 2.0]]) is None
