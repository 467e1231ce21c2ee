"""How many trials run side by side, and in which order."""

from service.admission import Admission
from service.feasibility import Demand, Node

NODES = (Node("a", "10.0.0.1", 4, 0),)


def demand(world_size: int, gpus: int = 0) -> Demand:
    return Demand(world_size, 1, gpus, "PACK", ({},) * world_size)


def admission(sizes: list[int], *, exclusive: bool = False, most: int | None = None, gpus: int = 0) -> Admission:
    return Admission([demand(size, gpus) for size in sizes], NODES, exclusive=exclusive, max_concurrent=most)


def test_exclusive_runs_one_at_a_time() -> None:
    trials = admission([1, 1], exclusive=True)
    assert trials.max_concurrent == 1
    trials.started(0)
    assert not trials.may_start(1)
    trials.ended(0)
    assert trials.may_start(1)


def test_shared_runs_as_many_as_fit() -> None:
    trials = admission([2, 1, 1, 1])
    assert trials.max_concurrent == 4
    for position in range(3):
        assert trials.may_start(position)
        trials.started(position)
    assert not trials.may_start(3)
    trials.ended(1)
    assert trials.may_start(3)


def test_a_trial_larger_than_what_is_free_waits_for_its_turn() -> None:
    trials = admission([1, 4])
    trials.started(0)
    assert not trials.may_start(1)
    trials.ended(0)
    assert trials.may_start(1)


def test_shared_keeps_to_the_limit_given() -> None:
    trials = admission([1, 1, 1], most=2)
    assert trials.max_concurrent == 2
    trials.started(0)
    trials.started(1)
    assert not trials.may_start(2)


def test_a_trial_that_no_cluster_holds_is_let_in_alone_so_that_it_can_fail() -> None:
    assert admission([9]).may_start(0)
    assert admission([1], gpus=1).may_start(0)
    assert admission([1], gpus=1).max_concurrent == 1


def test_past_the_last_trial_there_is_nothing_to_hold_back() -> None:
    trials = admission([1])
    trials.started(0)
    assert trials.may_start(1)
