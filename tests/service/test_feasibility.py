"""What a cluster could hold when idle, and whether workers sit where they were asked to."""

from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.feasibility import (
    Demand,
    Node,
    PlacedWorker,
    matches,
    resolved_num_gpus,
    why_infeasible,
    why_misplaced,
    why_shared_device,
)
from service.job_plan import Placement, Resources, WorkerGroup


def node(name: str, cpus: float = 2, gpus: float = 0, **labels: str) -> Node:
    return Node(name, "10.0.0.1", cpus, gpus, labels)


def demand(
    world_size: int,
    cpus: int = 1,
    gpus: int = 0,
    strategy: str = "PACK",
    selectors: list[Mapping[str, str]] | None = None,
) -> Demand:
    return Demand(world_size, cpus, gpus, strategy, tuple(selectors or [{}] * world_size))


class TestLabelSelectors:
    @pytest.mark.parametrize(
        ("wanted", "value", "matching"),
        [
            ("t4", "t4", True),
            ("t4", "p4", False),
            ("t4", None, False),
            ("!t4", "p4", True),
            ("!t4", "t4", False),
            ("!t4", None, True),
            ("in(t4, p4)", "p4", True),
            ("in(t4,p4)", "a100", False),
            ("in(t4)", None, False),
            ("!in(t4, p4)", "a100", True),
            ("!in(t4, p4)", "t4", False),
            ("!in(t4, p4)", None, True),
        ],
    )
    def test_they_mean_what_they_mean_to_ray(self, wanted: str, value: str | None, matching: bool) -> None:
        assert matches({"gpu": wanted}, {"gpu": value} if value else {}) is matching

    def test_every_key_must_match(self) -> None:
        assert not matches({"gpu": "t4", "zone": "a"}, {"gpu": "t4", "zone": "b"})


class TestInfeasible:
    def test_what_fits_is_feasible(self) -> None:
        assert why_infeasible(demand(2), [node("a")]) is None
        assert why_infeasible(demand(4), [node("a"), node("b")]) is None

    def test_more_workers_than_the_cluster_can_hold(self) -> None:
        assert "can hold 2 of 3 workers" in (why_infeasible(demand(3), [node("a")]) or "")

    def test_one_worker_larger_than_any_node(self) -> None:
        reason = why_infeasible(demand(1, cpus=3), [node("a"), node("b")])

        assert "no node of 2 has 3 CPU(s)" in (reason or "")

    def test_gpus_count_per_node(self) -> None:
        assert why_infeasible(demand(2, gpus=1), [node("a", gpus=2)]) is None
        assert why_infeasible(demand(2, gpus=1), [node("a", gpus=1), node("b")]) is not None
        assert why_infeasible(demand(1, gpus=1), [node("a")]) is not None

    def test_an_empty_cluster_holds_nothing(self) -> None:
        assert why_infeasible(demand(1), []) is not None

    def test_strict_pack_needs_one_node(self) -> None:
        nodes = [node("a"), node("b")]

        assert why_infeasible(demand(2, strategy="STRICT_PACK"), nodes) is None
        assert "STRICT_PACK" in (why_infeasible(demand(3, strategy="STRICT_PACK"), nodes) or "")

    def test_strict_pack_needs_one_node_that_every_selector_allows(self) -> None:
        nodes = [node("a", gpu="t4"), node("b", gpu="p4")]
        mixed = demand(2, strategy="STRICT_PACK", selectors=[{"gpu": "t4"}, {"gpu": "p4"}])

        assert why_infeasible(mixed, nodes) is not None

    def test_strict_spread_needs_a_node_each(self) -> None:
        nodes = [node("a", cpus=8), node("b", cpus=8)]

        assert why_infeasible(demand(2, strategy="STRICT_SPREAD"), nodes) is None
        assert "STRICT_SPREAD" in (why_infeasible(demand(3, strategy="STRICT_SPREAD"), nodes) or "")

    def test_a_label_that_no_node_has(self) -> None:
        reason = why_infeasible(demand(1, selectors=[{"gpu": "h100"}]), [node("a", gpu="t4")])

        assert "no node with 1 CPU(s) has the labels {'gpu': 'h100'}" in (reason or "")

    def test_selectors_are_matched_as_a_whole(self) -> None:
        """The worker that may go anywhere must not take the place that the choosy one needs."""
        nodes = [node("a", cpus=1, gpu="t4"), node("b", cpus=1)]

        assert why_infeasible(demand(2, selectors=[{}, {"gpu": "t4"}]), nodes) is None
        assert why_infeasible(demand(2, selectors=[{"gpu": "t4"}, {"gpu": "t4"}]), nodes) is not None

    def test_a_placement_with_too_few_workers(self) -> None:
        placement = Placement(workers=[WorkerGroup(label_selector={"gpu": "t4"}, count=2)])
        asked = Demand.of(3, Resources(), 0, placement)

        assert "lists 2 workers" in (why_infeasible(asked, [node("a", cpus=8, gpu="t4")]) or "")

    @given(
        cpus=st.lists(st.integers(0, 3), min_size=1, max_size=3),
        labels=st.lists(st.sampled_from(["x", "y"]), min_size=3, max_size=3),
        wanted=st.lists(st.sampled_from([None, "x", "y"]), min_size=1, max_size=4),
        strategy=st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
    )
    def test_it_agrees_with_trying_every_placement(
        self, cpus: list[int], labels: list[str], wanted: list[str | None], strategy: str
    ) -> None:
        nodes = [node(str(i), cpus=count, kind=labels[i]) for i, count in enumerate(cpus)]
        asked = demand(len(wanted), strategy=strategy, selectors=[{"kind": kind} if kind else {} for kind in wanted])

        def holds(places: tuple[int, ...]) -> bool:
            if strategy == "STRICT_PACK" and len(set(places)) > 1:
                return False
            if strategy == "STRICT_SPREAD" and len(set(places)) < len(places):
                return False
            return all(places.count(i) <= cpus[i] for i in set(places)) and all(
                kind in (None, labels[i]) for kind, i in zip(wanted, places, strict=True)
            )

        possible = any(holds(places) for places in product(range(len(nodes)), repeat=len(wanted)))
        assert (why_infeasible(asked, nodes) is None) == possible


class TestMisplaced:
    nodes = (node("a", gpu="t4"), node("b", gpu="p4"))

    def test_workers_where_they_were_asked_to_be(self) -> None:
        asked = demand(2, selectors=[{"gpu": "t4"}, {"gpu": "p4"}])

        # Ranks are given node by node, not in the order of the selectors.
        assert why_misplaced(asked, [PlacedWorker(0, 1, "b"), PlacedWorker(1, 0, "a")], self.nodes) is None

    def test_a_worker_on_a_node_with_another_label(self) -> None:
        asked = demand(1, selectors=[{"gpu": "t4"}])

        assert "rank 0" in (why_misplaced(asked, [PlacedWorker(0, 0, "b")], self.nodes) or "")

    def test_strategies(self) -> None:
        apart = [PlacedWorker(0, 0, "a"), PlacedWorker(1, 1, "b")]
        together = [PlacedWorker(0, 0, "a"), PlacedWorker(1, 1, "a")]

        assert why_misplaced(demand(2, strategy="STRICT_PACK"), apart, self.nodes) is not None
        assert why_misplaced(demand(2, strategy="STRICT_PACK"), together, self.nodes) is None
        assert why_misplaced(demand(2, strategy="STRICT_SPREAD"), together, self.nodes) is not None
        assert why_misplaced(demand(2, strategy="STRICT_SPREAD"), apart, self.nodes) is None
        assert why_misplaced(demand(2, strategy="SPREAD"), together, self.nodes) is None

    def test_two_ranks_with_one_gpu(self) -> None:
        same = [PlacedWorker(0, 0, "a", ("0",)), PlacedWorker(1, 1, "a", ("0",))]
        other_node = [PlacedWorker(0, 0, "a", ("0",)), PlacedWorker(1, 1, "b", ("0",))]

        assert "same GPU 0" in (why_misplaced(demand(2), same, self.nodes) or "")
        assert why_misplaced(demand(2), other_node, self.nodes) is None

    def test_two_ranks_that_opened_one_device(self) -> None:
        assert why_shared_device({0: "GPU-1", 1: "GPU-1"}) == "ranks 0 and 1 both use the GPU GPU-1"
        assert why_shared_device({0: "GPU-1", 1: "GPU-2"}) is None
        assert why_shared_device({0: None, 1: None}) is None


def test_auto_is_one_gpu_where_there_is_any() -> None:
    assert resolved_num_gpus("auto", [node("a"), node("b", gpus=4)]) == 1
    assert resolved_num_gpus("auto", [node("a")]) == 0
    assert resolved_num_gpus(2, [node("a")]) == 2
