"""Timing the links of processes on this machine, over gloo."""

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.torchrun import run_under_torchrun
from trainers.parts.links import _rounds, sizes_up_to
from trainers.parts.rows import LinkRow

GRADIENT_BYTES = 8 * 1024 * 1024


def measured(folder: Path, budget_seconds: float, *nodes: str) -> list[dict[str, Any]]:
    """What each rank tells; `nodes` are host name and address of each."""
    rows = folder / "rows.json"
    arguments = (str(rows), str(budget_seconds), str(GRADIENT_BYTES), *nodes)
    run_under_torchrun(len(nodes), "tests.trainers.parts.timing_links", *arguments)
    told: list[dict[str, Any]] = json.loads(rows.read_text(encoding="utf-8"))
    return told


@pytest.mark.parametrize("largest", [131072, 1_000_000, 22_000_000, 64 * 1024 * 1024])
def test_sizes_are_whole_elements_and_double_up_to_the_largest(largest: int) -> None:
    sizes = sizes_up_to(largest)
    assert sizes[-1] == largest // 4 * 4
    assert 4096 <= sizes[0] < 8192
    assert len(sizes) >= 6
    assert all(size % 4 == 0 for size in sizes)
    assert all(larger / size == pytest.approx(2, rel=0.01) for size, larger in pairwise(sizes))


@pytest.mark.parametrize("nodes", [2, 3, 8, 9, 10, 13])
def test_every_pair_has_its_turn_once_and_no_rank_two_at_a_time(nodes: int) -> None:
    ranks = [3 * node for node in range(nodes)]
    rounds = _rounds(ranks)
    assert sorted(pair for one in rounds for pair in one) == list(combinations(ranks, 2))
    assert all(len({rank for pair in one for rank in pair}) == 2 * len(one) for one in rounds)
    if nodes > 8:
        assert len(rounds) == nodes - 1 + nodes % 2
    else:
        assert all(len(one) == 1 for one in rounds)


def check(row: LinkRow) -> None:
    sizes = [point.size_bytes for point in row.points]
    assert len(sizes) >= 6
    assert sizes == sorted(set(sizes))
    assert all(point.repeats >= 3 for point in row.points)
    assert all(0 < point.seconds.value < 5 for point in row.points)
    assert row.beta_bytes_per_second is not None
    assert 1e6 < row.beta_bytes_per_second.value < 1e12
    assert row.alpha_seconds is not None
    assert 0 <= row.alpha_seconds.value <= row.points[-1].seconds.value


@pytest.mark.slow
def test_workers_of_one_node_have_one_link(tmp_path: Path) -> None:
    on_rank_0, on_rank_1 = measured(tmp_path, 3, "one/10.0.0.1", "one/10.0.0.1")
    (row,) = [LinkRow.model_validate(one) for one in on_rank_0["rows"]]
    check(row)
    assert (row.kind, row.ranks, row.nodes) == ("all", [0, 1], ["one", "one"])
    assert on_rank_1["rows"] == []


@pytest.mark.slow
def test_three_nodes_have_three_pairs_beside_and_leave_no_group_behind(tmp_path: Path) -> None:
    told = measured(tmp_path, 4, "host/10.0.0.1", "other/10.0.0.2", "host/10.0.0.3")
    rows = [LinkRow.model_validate(one) for one in told[0]["rows"]]
    for row in rows:
        check(row)
    names = ["host (10.0.0.1)", "other", "host (10.0.0.3)"]
    assert [(row.kind, row.ranks) for row in rows] == [
        ("all", [0, 1, 2]),
        ("pair", [0, 1]),
        ("pair", [0, 2]),
        ("pair", [1, 2]),
    ]
    assert all(row.nodes == [names[rank] for rank in row.ranks] for row in rows)
    assert all(one["groups_left"] == 0 for one in told)
    assert all(one["rows"] == [] for one in told[1:])


@pytest.mark.slow
def test_a_node_is_spoken_for_by_its_lowest_rank_and_a_small_budget_by_smaller_sizes(tmp_path: Path) -> None:
    told = measured(tmp_path, 0.05, "a/10.0.0.1", "a/10.0.0.1", "b/10.0.0.2")
    everybody, pair = [LinkRow.model_validate(one) for one in told[0]["rows"]]
    assert (pair.kind, pair.ranks, pair.nodes) == ("pair", [0, 2], ["a", "b"])
    assert everybody.points[-1].size_bytes < GRADIENT_BYTES
    assert everybody.note is not None
    assert "largest sizes would have taken too long" in everybody.note
