"""Which link carries less than the others: that of one node, or that between two.

An all-reduce between one rank of each of two nodes goes at the rate of the slower end, or of what lies between:

    beta_ij = min(c_i, c_j, l_ij)      c_i = max_j beta_ij is what node i has shown to carry

so a node whose c_i is below the others' has a slow link of its own (card, cable, port), and a pair below what both of
its ends carry elsewhere has something slow between (a route, an oversubscribed switch). A node in one measured pair
only may have either; a single pair of nodes has nothing to be compared with.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high, median_low
from typing import Final, Literal

from service.analysis.finding import Finding, FindingCode
from service.analysis.findings.subject import Subject, level, lower, rank_local, trial_list, upper
from service.analysis.observation import Estimate, LinkObservation, Observation

SLOW_LINK_RATIO: Final = 2 / 3
"""Of what is usual: links of one kind differ by less (routes, interrupts, other traffic), and what breaks costs more: a
card in half its lanes, or one that settled for the next lower rate (a tenth)."""
DEVICE_EXPONENT: Final = 2
"""Where processors move the bytes, a node that computes s times slower moves them s times slower, and waits for its
turn as much again: as far as s^2 explains, it is the device that is slow and not its link."""
_LEAST_DEVICE_FACTOR: Final = 1.1  # what STRAGGLER calls slower

Pair = frozenset[str]


@dataclass(frozen=True)
class _SlowLink:
    run: Observation
    kind: Literal["node", "pair"]
    nodes: tuple[str, ...]
    beta: Estimate
    usual: float

    @property
    def ratio(self) -> float:
        return self.beta.value / self.usual


def slow_link(subject: Subject) -> Iterator[Finding]:
    """One finding for each node or pair that shows in most of the trials that measured it."""
    found: dict[tuple[str, tuple[str, ...]], list[_SlowLink]] = {}
    for run in subject.succeeded:
        for slow in slow_links(run):
            found.setdefault((slow.kind, slow.nodes), []).append(slow)
    for (kind, nodes), slows in sorted(found.items()):
        measured = [run for run in subject.succeeded if _can_compare(run, nodes)]
        if 2 * len(slows) > len(measured):
            yield _told(kind, nodes, slows)


def slow_links(run: Observation) -> list[_SlowLink]:
    """The nodes and pairs of one trial that carry clearly less than the others: both ends of the intervals say so."""
    pairs = _pairs(run.links)
    nodes = sorted(frozenset[str]().union(*pairs))
    if len(pairs) < 2 or len(nodes) < 3:
        return []
    carried = {node: max((beta for pair, beta in pairs.items() if node in pair), key=_value) for node in nodes}
    usual = median_high(beta.value for beta in carried.values())
    sure_usual = median_high(lower(beta) for beta in carried.values())
    factors = _device_factors(run)
    slow: list[_SlowLink] = []
    for node, beta in carried.items():
        if sum(node in pair for pair in pairs) < 2:
            continue  # one pair does not tell its ends from what lies between
        if upper(beta) * factors.get(node, 1.0) < SLOW_LINK_RATIO * sure_usual:
            slow.append(_SlowLink(run, "node", (node,), beta, usual))
    of_slow_nodes = {node for one in slow for node in one.nodes}
    for pair, beta in pairs.items():
        if not of_slow_nodes.isdisjoint(pair):
            continue
        elsewhere = [
            _best([other for others, other in pairs.items() if node in others and others != pair]) for node in pair
        ]
        expected = min([usual, *(one.value for one in elsewhere if one is not None)])
        sure = min([sure_usual, *(lower(one) for one in elsewhere if one is not None)])
        factor = max(factors.get(node, 1.0) for node in pair)
        if upper(beta) * factor < SLOW_LINK_RATIO * sure:
            slow.append(_SlowLink(run, "pair", tuple(sorted(pair)), beta, expected))
    return slow


def beta_between(run: Observation) -> tuple[tuple[str, ...], Estimate] | None:
    """What is known of the network of a trial as a whole: the one pair of nodes, or all ranks together; its nodes."""
    pairs = _pairs(run.links)
    if len(pairs) == 1:
        ((pair, beta),) = pairs.items()
        return tuple(sorted(pair)), beta
    for link in run.links:
        if link.kind == "all" and (known := _known(link)) is not None:
            return tuple(sorted(set(link.nodes))), known
    return None


def _pairs(links: Sequence[LinkObservation]) -> dict[Pair, Estimate]:
    """Bus bandwidth by pair of nodes, in the order of their names."""
    found = {
        frozenset(link.nodes): beta
        for link in links
        if link.kind == "pair" and len(set(link.nodes)) == 2 and (beta := _known(link)) is not None
    }
    return dict(sorted(found.items(), key=lambda one: sorted(one[0])))


def _known(link: LinkObservation) -> Estimate | None:
    beta = link.beta_bytes_per_second
    return beta if beta is not None and beta.value > 0 else None


def _can_compare(run: Observation, nodes: Sequence[str]) -> bool:
    """Whether the trial measured these nodes, or this pair, and others to compare with."""
    pairs = _pairs(run.links)
    return len(pairs) > 1 and any(pair.issuperset(nodes) for pair in pairs)


def _device_factors(run: Observation) -> Mapping[str, float]:
    """How much less a node's links may carry because its slowest worker is slow itself; 1 for the others."""
    local = rank_local(run)
    if not local or (usual := median_low(local.values())) <= 0:
        return {}
    slowest: dict[str, float] = {}
    for rank in run.ranks:
        if rank.node is not None and rank.rank in local:
            slowest[rank.node] = max(slowest.get(rank.node, 0.0), local[rank.rank] / usual)
    return {node: factor**DEVICE_EXPONENT for node, factor in slowest.items() if factor > _LEAST_DEVICE_FACTOR}


def _best(betas: Sequence[Estimate]) -> Estimate | None:
    return max(betas, key=_value, default=None)


def _value(beta: Estimate) -> float:
    return beta.value


def _told(kind: str, nodes: tuple[str, ...], slows: Sequence[_SlowLink]) -> Finding:
    worst = min(slows, key=lambda slow: level(slow.ratio))
    trials = [slow.run.trial for slow in slows]
    if kind == "node":
        what = f"The link of node {nodes[0]} carries {rate_text(worst.beta.value)} with whichever other node"
        usual, advice = "other nodes reach", "look at its network card, cable and port"
    else:
        what = f"The link between the nodes {' and '.join(nodes)} carries {rate_text(worst.beta.value)}"
        usual, advice = "with other nodes both reach", "look at the route and the switches between them"
    return Finding(
        code=FindingCode.SLOW_LINK,
        severity="warning",
        message=f"{what}, and {usual} {rate_text(worst.usual)} ({trial_list(trials)}); {advice}.",
        evidence={
            "kind": kind,
            "nodes": list(nodes),
            "beta_bytes_per_second": worst.beta.value,
            "beta_low_bytes_per_second": worst.beta.low,
            "beta_high_bytes_per_second": worst.beta.high,
            "usual_bytes_per_second": worst.usual,
            "ratio": worst.ratio,
            "trials": trials,
        },
    )


def rate_text(bytes_per_second: float) -> str:
    """ "12.5 MB/s", "1.2 GB/s" """
    return f"{bytes_text(bytes_per_second)}/s"


def bytes_text(count: float) -> str:
    """ "22 MB", in powers of ten as links are rated."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} B"
