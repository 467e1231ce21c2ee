"""Timing the links between the workers: all-reduces of several sizes, among all of them and node by node.

In every group the lowest rank leads: it times, and tells the others how often to repeat from what it has seen. An
untimed all-reduce goes before each timed stretch: nobody leaves it before all have come, and what a shaped link lets
pass at once is used up. Sizes take turns, so that a stall of the machine falls on all of them and not on one.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations
from typing import Any, Final, Literal

import torch
import torch.distributed as dist

from trainers.parts.link_fit import SizeTimes, fit_link
from trainers.parts.rows import LinkRow
from trainers.world import World

SMALLEST_BYTES: Final = 4 * 1024
LARGEST_BYTES: Final = 64 * 1024 * 1024
LARGEST_PAIR_BYTES: Final = 4 * 1024 * 1024
MIN_SIZES: Final = 6
_ELEMENT_BYTES: Final = 4  # fp32
_FACTOR: Final = 2  # from one size to the next: all smaller ones together cost as much as the largest
# Beyond so many nodes pairs that have no node in common are timed at once: there are n (n - 1) / 2 of them.
_MAX_NODES_ONE_BY_ONE: Final = 8
_SHARE_OF_MAX_SECONDS: Final = 0.25
_SHARE_OF_ALL: Final = 0.5  # of the budget, where there are pairs to time as well
_STRETCH_SECONDS: Final = 0.01  # a timed stretch is at least so long: a clock's error and a late start are lost in it
_MAX_IN_A_ROW: Final = 50
_MIN_ROUNDS: Final = 3
_MAX_ROUNDS: Final = 25
# A size is tried where one all-reduce of it should take less than this share of the budget: it is done twice in the
# trial, and in each of three rounds, with all smaller ones together as often again.
_SHARE_OF_LARGEST: Final = 1 / 20
# A group whose link is dead is given up after so much more than its budget.
_PATIENCE: Final = timedelta(seconds=60)


def measure_links(world: World, gradient_bytes: int, budget_seconds: float) -> list[LinkRow]:
    """What the links carry; every rank takes part.

    Args:
        gradient_bytes: the largest size among all ranks, within 128 KiB and 64 MiB. Pairs: at most 4 MiB.
        budget_seconds: for all of it but making the groups. A link too slow for it is timed at smaller sizes, but at
            least up to 128 KiB.

    Returns:
        On rank 0 the row of all ranks, then one for each pair of nodes if there are several; [] on the others, and
        at world size 1.
    """
    if world.size == 1:
        return []
    nodes = _node_names(world)
    first_ranks = sorted({node: rank for rank, node in reversed(list(enumerate(nodes)))}.values())
    pairs = list(combinations(first_ranks, 2))
    share = _SHARE_OF_ALL if pairs else 1.0
    largest = min(max(gradient_bytes, SMALLEST_BYTES * _FACTOR ** (MIN_SIZES - 1)), LARGEST_BYTES)
    rows: list[LinkRow] = []
    everybody = _Group(world, list(range(world.size)), dist.group.WORLD, sizes_up_to(largest), share * budget_seconds)
    rows += everybody.rows("all", nodes)
    world.barrier()
    rounds = _rounds(first_ranks)
    for pairs_at_once in rounds:
        seconds = (1 - share) * budget_seconds / len(rounds)
        note = "timed at the same time as other pairs of nodes" if len(pairs_at_once) > 1 else None
        rows += _time_pairs(world, pairs_at_once, nodes, min(largest, LARGEST_PAIR_BYTES), seconds, note)
    gathered = world.gather(rows)
    if gathered is None:
        return []
    return sorted((row for of_rank in gathered for row in of_rank), key=lambda row: (row.kind, row.ranks))


def budget_seconds(num_nodes: int, max_seconds: float) -> float:
    """What `measure_links` should have: a quarter of a measurement's `max_seconds`, within what its links are worth.

    Within one node 2 to 10 s. Over a network a link of 100 Mbit/s needs 10 s for sizes that tell its rate, and each
    further round of pairs 3 s; a minute at most.
    """
    if num_nodes == 1:
        return min(max(_SHARE_OF_MAX_SECONDS * max_seconds, 2.0), 10.0)
    pairs = num_nodes * (num_nodes - 1) // 2
    rounds = pairs if num_nodes <= _MAX_NODES_ONE_BY_ONE else num_nodes
    return min(10.0 + 3.0 * (rounds - 1), 60.0)


def sizes_up_to(largest_bytes: int) -> list[int]:
    """Sizes in bytes, each twice the one before it, whole fp32 elements: from about 4 KiB to the largest."""
    steps = max(MIN_SIZES - 1, math.floor(math.log(largest_bytes / SMALLEST_BYTES, _FACTOR)))
    return [max(1, largest_bytes // _FACTOR**step // _ELEMENT_BYTES) * _ELEMENT_BYTES for step in range(steps, -1, -1)]


def _node_names(world: World) -> list[str]:
    """Each rank's node: its host name, with the address where two nodes share the name."""
    told: list[Any] = [None] * world.size
    dist.all_gather_object(told, (world.node, world.node_ip))
    addresses = {name: {ip for other, ip in told if other == name} for name, _ in told}
    return [name if len(addresses[name]) == 1 else f"{name} ({ip})" for name, ip in told]


def _rounds(ranks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The pairs of ranks, in rounds of those timed at once: one by one, or beyond 8 as in a tournament.

    The circle method: one stands still while the others move on by a place, n - 1 rounds for an even n.
    """
    if len(ranks) <= _MAX_NODES_ONE_BY_ONE:
        return [[pair] for pair in combinations(ranks, 2)]
    places: list[int | None] = [*ranks, *([None] if len(ranks) % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        facing = zip(places[: len(places) // 2], reversed(places[len(places) // 2 :]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def _time_pairs(
    world: World,
    pairs: Sequence[tuple[int, int]],
    nodes: Sequence[str],
    largest_bytes: int,
    budget_seconds: float,
    note: str | None,
) -> list[LinkRow]:
    """The rows of those pairs that this rank leads. All ranks make all groups, in one order."""
    rows: list[LinkRow] = []
    timeout = timedelta(seconds=budget_seconds) + _PATIENCE
    groups = [dist.new_group(list(pair), timeout=timeout) for pair in pairs]
    for pair, group in zip(pairs, groups, strict=True):
        if world.rank in pair:
            members = _Group(world, list(pair), group, sizes_up_to(largest_bytes), budget_seconds)
            rows += members.rows("pair", nodes, note)
    world.barrier()
    for pair, group in zip(pairs, groups, strict=True):
        if world.rank in pair:
            dist.destroy_process_group(group)
    return rows


@dataclass
class _Group:
    """Some ranks, this one among them, and the times of their all-reduces."""

    world: World
    ranks: list[int]
    group: Any  # a process group
    sizes: list[int]
    budget_seconds: float
    _times: dict[int, list[float]] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        return self.world.rank == self.ranks[0]

    def rows(self, kind: Literal["all", "pair"], nodes: Sequence[str], note: str | None = None) -> list[LinkRow]:
        """One row on the leader, none on the others."""
        in_a_row = self.time_all()
        if not self.leads:
            return []
        times = [SizeTimes(size, tuple(self._times[size]), count) for size, count in in_a_row.items()]
        fit = fit_link(times, len(self.ranks))
        left_out = len(self.sizes) - len(in_a_row)
        too_long = f"the {left_out} largest sizes would have taken too long" if left_out else None
        return [
            LinkRow(
                kind=kind,
                ranks=self.ranks,
                nodes=[nodes[rank] for rank in self.ranks],
                points=fit.points,
                alpha_seconds=fit.alpha_seconds,
                beta_bytes_per_second=fit.beta_bytes_per_second,
                note="; ".join(text for text in (fit.note, too_long, note) if text) or None,
            )
        ]

    def time_all(self) -> dict[int, int]:
        """Time rounds over all sizes while the budget lasts. Returns how many all-reduces of each go in a row."""
        start = time.perf_counter()
        first = self.try_out()
        in_a_row = {
            size: int(self.from_leader(min(_MAX_IN_A_ROW, math.ceil(_STRETCH_SECONDS / seconds))))
            for size, seconds in first.items()
        }
        self._times = {size: [] for size in in_a_row}
        round_seconds = 0.0
        for done in range(_MAX_ROUNDS):
            round_start = time.perf_counter()
            has_time = round_start - start + round_seconds <= self.budget_seconds
            if not self.from_leader(float(done < _MIN_ROUNDS or has_time)):
                break
            for size, count in in_a_row.items():
                self._times[size].append(self.time_stretch(size, count))
            round_seconds = time.perf_counter() - round_start
        return in_a_row

    def try_out(self) -> dict[int, float]:
        """Seconds of one all-reduce of each size, up to the largest that the budget allows."""
        seconds: dict[int, float] = {}
        for size in self.sizes:
            if len(seconds) >= MIN_SIZES and not self.fits(size, seconds):
                break
            seconds[size] = self.time_stretch(size, 1)
        return seconds

    def fits(self, size: int, seconds: dict[int, float]) -> bool:
        """Whether the next size should not take too long. What was just timed is timed again before it is given up."""
        last = max(seconds)
        for _ in range(2):
            expected = seconds[last] * size / last
            if self.from_leader(float(expected <= _SHARE_OF_LARGEST * self.budget_seconds)):
                return True
            seconds[last] = min(seconds[last], self.time_stretch(last, 1))
        return False

    def time_stretch(self, size_bytes: int, count: int) -> float:
        """Seconds of one all-reduce of this size, as this rank sees it, over `count` of them in a row."""
        tensor = torch.zeros(size_bytes // _ELEMENT_BYTES, dtype=torch.float32, device=self.world.device)
        self.all_reduce(tensor)
        start = time.perf_counter()
        for _ in range(count):
            dist.all_reduce(tensor, group=self.group)
        self.synchronize()
        return (time.perf_counter() - start) / count

    def all_reduce(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor, group=self.group)
        self.synchronize()

    def synchronize(self) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)

    def from_leader(self, value: float) -> float:
        """The leader's number on every rank of the group."""
        number = torch.tensor([value], dtype=torch.float64, device=self.world.device)
        dist.broadcast(number, src=self.ranks[0], group=self.group)
        return float(number.item())
