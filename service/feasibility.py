"""Could a trial's workers ever be placed on these nodes, and were they placed as asked? Pure: nodes in, words out.

Label selectors are Ray's: `value`, `!value`, `in(a, b)`, `!in(a, b)`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from service.job_plan import Placement, Resources

_OPERATOR = re.compile(r"^(?P<negated>!?)(?:in\((?P<several>.*)\)|(?P<single>.*))$")


@dataclass(frozen=True)
class Node:
    """A live node: all it has, not what is free at the moment."""

    node_id: str
    address: str
    num_cpus: float
    num_gpus: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Demand:
    """What one trial asks of the cluster. `selectors` has one entry per worker."""

    world_size: int
    num_cpus: int
    num_gpus: int
    strategy: str
    selectors: tuple[Mapping[str, str], ...]

    @classmethod
    def of(cls, world_size: int, resources: Resources, num_gpus: int, placement: Placement) -> "Demand":
        selectors = placement.label_selectors(world_size)
        return cls(
            world_size,
            resources.num_cpus,
            num_gpus,
            placement.strategy,
            tuple(selectors) if selectors is not None else ({},) * world_size,
        )


@dataclass(frozen=True)
class PlacedWorker:
    """Where a worker of a trial really is. `selector_index` is the entry of `selectors` it was placed for."""

    rank: int
    selector_index: int
    node_id: str
    gpu_ids: tuple[str, ...] = ()


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels satisfies the selector. A missing label satisfies only a negation."""
    return all(_value_matches(wanted, labels.get(key)) for key, wanted in selector.items())


def _value_matches(wanted: str, value: str | None) -> bool:
    parts = _OPERATOR.match(wanted)
    assert parts is not None  # the pattern takes any text
    several = parts["several"]
    accepted = {part.strip() for part in several.split(",")} if several is not None else {parts["single"]}
    return (value in accepted) != bool(parts["negated"])


def why_infeasible(demand: Demand, nodes: Sequence[Node]) -> str | None:
    """Why these nodes could never hold the trial, were they all idle; None where they could.

    Exact for workers that all ask for the same resources: a maximum matching of workers to the places of the nodes.
    """
    if len(demand.selectors) < demand.world_size:
        return (
            f"the placement lists {len(demand.selectors)} workers, but the world size is {demand.world_size}: "
            "list at least as many"
        )
    places = {node.node_id: _places(demand, node) for node in nodes}
    asked = _asked(demand)
    if not any(places.values()):
        return f"no node of {len(nodes)} has {asked} for one worker{_largest(nodes)}"
    for selector in demand.selectors:
        if not any(places[node.node_id] and matches(selector, node.labels) for node in nodes):
            return f"no node with {asked} has the labels {dict(selector)}"
    if demand.strategy == "STRICT_PACK":
        if any(
            places[node.node_id] >= demand.world_size and all(matches(s, node.labels) for s in demand.selectors)
            for node in nodes
        ):
            return None
        return (
            f"STRICT_PACK: no single node has room for {demand.world_size} workers with {asked} each"
            f" that all their label selectors allow{_largest(nodes)}"
        )
    if demand.strategy == "STRICT_SPREAD":
        places = {node_id: min(count, 1) for node_id, count in places.items()}
    placed = _maximum_matching(demand, nodes, places)
    if placed >= demand.world_size:
        return None
    spread = " on nodes of their own (STRICT_SPREAD)" if demand.strategy == "STRICT_SPREAD" else ""
    return (
        f"the cluster's {len(nodes)} node(s) can hold {placed} of {demand.world_size} workers with {asked} each{spread}"
    )


def _places(demand: Demand, node: Node) -> int:
    """How many workers this node holds when idle."""
    limits = []
    if demand.num_cpus:
        limits.append(int(node.num_cpus // demand.num_cpus))
    if demand.num_gpus:
        limits.append(int(node.num_gpus // demand.num_gpus))
    return min(min(limits), demand.world_size) if limits else demand.world_size


def _maximum_matching(demand: Demand, nodes: Sequence[Node], places: Mapping[str, int]) -> int:
    """How many workers can be placed at once: augmenting paths from workers to the places of the nodes."""
    held: dict[str, list[int]] = {node.node_id: [] for node in nodes}

    def place(worker: int, visited: set[str]) -> bool:
        for node in nodes:
            node_id = node.node_id
            if node_id in visited or not matches(demand.selectors[worker], node.labels):
                continue
            visited.add(node_id)
            if len(held[node_id]) < places[node_id]:
                held[node_id].append(worker)
                return True
            for position, other in enumerate(held[node_id]):
                if place(other, visited):
                    held[node_id][position] = worker
                    return True
        return False

    return sum(place(worker, set()) for worker in range(demand.world_size))


def why_misplaced(demand: Demand, workers: Sequence[PlacedWorker], nodes: Sequence[Node]) -> str | None:
    """What about the real placement is not as asked; None where all is well."""
    labels = {node.node_id: node.labels for node in nodes}
    for worker in workers:
        selector = demand.selectors[worker.selector_index]
        if not matches(selector, labels.get(worker.node_id, {})):
            return (
                f"rank {worker.rank} runs on node {worker.node_id[:12]} with labels"
                f" {dict(labels.get(worker.node_id, {}))}, but {dict(selector)} was asked for"
            )
    used = [worker.node_id for worker in workers]
    if demand.strategy == "STRICT_PACK" and len(set(used)) > 1:
        return f"STRICT_PACK was asked for, but the workers run on {len(set(used))} nodes"
    if demand.strategy == "STRICT_SPREAD" and len(set(used)) < len(used):
        return f"STRICT_SPREAD was asked for, but {len(used)} workers run on {len(set(used))} node(s)"
    owner: dict[tuple[str, str], int] = {}
    for worker in workers:
        for gpu in worker.gpu_ids:
            other = owner.setdefault((worker.node_id, gpu), worker.rank)
            if other != worker.rank:
                return f"ranks {other} and {worker.rank} were given the same GPU {gpu} of one node"
    return None


def why_shared_device(device_uuids: Mapping[int, str | None]) -> str | None:
    """Which ranks sit on one and the same GPU, from the devices they really opened."""
    owner: dict[str, int] = {}
    for rank, uuid in sorted(device_uuids.items()):
        if uuid is None:
            continue
        other = owner.setdefault(uuid, rank)
        if other != rank:
            return f"ranks {other} and {rank} both use the GPU {uuid}"
    return None


def resolved_num_gpus(asked: int | str, nodes: Sequence[Node]) -> int:
    """GPUs per worker: `auto` is 1 where any node has a GPU, else 0."""
    if isinstance(asked, int):
        return asked
    return 1 if any(node.num_gpus >= 1 for node in nodes) else 0


def _asked(demand: Demand) -> str:
    gpus = f" and {demand.num_gpus} GPU(s)" if demand.num_gpus else ""
    return f"{demand.num_cpus} CPU(s){gpus}"


def _largest(nodes: Sequence[Node]) -> str:
    if not nodes:
        return ""
    return f" (the most any has: {max(n.num_cpus for n in nodes):g} CPUs, {max(n.num_gpus for n in nodes):g} GPUs)"
