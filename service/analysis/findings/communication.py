"""How much of a step the exchange of gradients takes, what goes over which link in it, and what would halve it."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from service.analysis.finding import Finding, FindingCode
from service.analysis.findings.bound import (
    MOST_SHARE,
    Bound,
    alike_but_batch,
    bounded,
    listed,
    others,
    share_of,
    within,
)
from service.analysis.findings.links import beta_between, bytes_text, rate_text
from service.analysis.findings.subject import (
    Subject,
    exchange_of,
    level,
    lower,
    step_of_parts,
    trial_list,
)
from service.analysis.observation import Estimate, Observation
from service.analysis.points import micro_batch_of
from service.analysis.scaling import ACCUMULATION
from service.states import Reason

COMMUNICATION_SHARE: Final = 0.20
"""Of the step. From here on a free exchange would train at least 25 % faster: several times what runs differ by."""
COMMUNICATION_CRITICAL: Final = 0.50
"""Of the step. From here on workers talk for longer than they compute."""


def communication_bound(subject: Subject) -> Iterator[Finding]:
    """One finding for all world sizes and batches of otherwise equal parameters: the worst, and the list.

    What halves the exchange's share: with c its seconds, w the rest of the step and s = c / (c + w), the share is s / 2
    where w is (2 - s) / (1 - s) times as long, or c that much shorter. The rest grows with the micro batch and with
    accumulation, while c stays (a ring moves 2 (p - 1) / p times the gradients, whatever the batch).
    """
    for bound in bounded(subject, _exchanging, COMMUNICATION_SHARE):
        worst = max(bound, key=lambda one: level(one.share))
        assert worst.exchange is not None
        factor = halving_factor(worst.share)
        ways = _ways_to_halve(subject, worst, factor)
        waits = worst.exchange.holds_waiting
        condition = "if all of it is exchange, " if waits else ""
        carried, link = _carried(worst.run)
        yield Finding(
            code=FindingCode.COMMUNICATION_BOUND,
            severity="critical" if worst.share >= COMMUNICATION_CRITICAL else "warning",
            message=(
                f"{_exchange_named(worst)} takes {worst.share:.0%}{within(worst)} of a step"
                f"{subject.at(worst.run.parameters)} ({trial_list([worst.run.trial])}{others(bound)}){carried}; "
                f"{condition}its share would halve with {', or '.join(way for way, _ in ways)}."
            ),
            evidence={
                "share": worst.share,
                "share_low": worst.low,
                "share_high": worst.high,
                "communication_seconds": worst.seconds,
                "step_seconds": worst.step,
                "source": worst.run.communication_source,
                "holds_waiting": waits,
                **link,
                "halving_factor": factor,
                "halved_by": {key: value for _, found in ways for key, value in found.items()},
                "points": listed(bound),
                "trials": [one.run.trial for one in bound],
            },
        )


def _exchange_named(bound: Bound) -> str:
    if bound.exchange is not None and bound.exchange.holds_waiting:
        return "The exchange of gradients, with the waiting for slower workers,"
    if bound.run.communication_source is not None:
        return "Exposed communication, the exchange of gradients as far as computing does not hide it,"
    return "The exchange of gradients"


def _carried(run: Observation) -> tuple[str, dict[str, Any]]:
    """What goes over the link in a step, and what that carries, as far as each is known: in words, and as evidence."""
    sent, network = run.communication_wire_bytes, beta_between(run)
    words = [] if sent is None else [f"each worker sends {bytes_text(sent)} a step"]
    evidence: dict[str, Any] = {"communication_wire_bytes": sent, "link": None}
    if network is not None:
        nodes, beta = network
        words.append(f"{_place(nodes)} {rate_text(beta.value)}")
        evidence["link"] = {
            "nodes": list(nodes),
            "beta_bytes_per_second": beta.value,
            "beta_low_bytes_per_second": beta.low,
            "beta_high_bytes_per_second": beta.high,
            "wire_seconds": None if sent is None else sent / beta.value,
        }
    return f"; {', and '.join(words)}" if words else "", evidence


def _place(nodes: Sequence[str]) -> str:
    if len(nodes) == 1:
        return f"within node {nodes[0]} an exchange goes at"
    if len(nodes) == 2:
        return f"the link between the nodes {' and '.join(nodes)} carries"
    return f"the network between {len(nodes)} nodes carries"


def halving_factor(share: float) -> float:
    """How much longer the rest of the step must be for half the share, or how much shorter the exchange."""
    capped = min(share, MOST_SHARE)
    return (2 - capped) / (1 - capped)


def _ways_to_halve(subject: Subject, worst: Bound, factor: float) -> list[tuple[str, dict[str, Any]]]:
    """Each in words, and as evidence. What the data shows not to fit, or not to help, is left out."""
    parameters = worst.run.parameters
    ways: list[tuple[str, dict[str, Any]]] = []
    batch = micro_batch_of(parameters)
    if batch is not None:
        larger = math.ceil(batch * factor)
        bursts = _out_of_memory(subject, worst.run)
        seen = _seen_at_larger_batch(subject, worst)
        if seen is not None:
            found, share = seen
            words = f"micro batch {found} (there it is {share:.0%})"
            ways.append((words, {"train_micro_batch_size_per_gpu": found, "measured_share": share}))
        elif bursts is None or larger < bursts:
            ways.append((f"micro batch {larger}", {"train_micro_batch_size_per_gpu": larger}))
    stage = int(parameters.get("zero_stage") or 0)
    if stage <= 1:  # from stage 2 on, every micro step has an exchange of its own
        steps = math.ceil(int(parameters.get(ACCUMULATION) or 1) * factor)
        ways.append((f"{ACCUMULATION} {steps}", {ACCUMULATION: steps}))
    ways.append((f"a link {factor:.1f} times as fast", {"link_factor": factor}))
    return ways


def _out_of_memory(subject: Subject, run: Observation) -> int | None:
    """The smallest micro batch that ran out of memory where all else is equal."""
    burst = [
        batch
        for one in alike_but_batch(subject, run)
        if one.reason is Reason.OUT_OF_MEMORY and (batch := micro_batch_of(one.parameters)) is not None
    ]
    return min(burst, default=None)


def _seen_at_larger_batch(subject: Subject, worst: Bound) -> tuple[int, float] | None:
    """The smallest larger micro batch that was measured to have at most half the share, and its share."""
    own = micro_batch_of(worst.run.parameters) or 0
    found: list[tuple[int, float]] = []
    for one in alike_but_batch(subject, worst.run):
        other, batch = _exchanging(one), micro_batch_of(one.parameters)
        same = one.parameters.get(ACCUMULATION) == worst.run.parameters.get(ACCUMULATION)
        if other is not None and batch is not None and same and batch > own and other.share <= worst.share / 2:
            found.append((batch, other.share))
    return min(found, default=None)


def _exchanging(run: Observation) -> Bound | None:
    """The lower end of the interval decides, where there is one: within the noise of the limit there is no finding."""
    step, exchange = step_of_parts(run), exchange_of(run)
    if step is None or exchange is None or run.world_size == 1:
        return None
    share = run.communication_share or share_of(run.communication_seconds, step) or Estimate(exchange.seconds / step)
    if lower(share) < COMMUNICATION_SHARE <= share.value:
        return None
    return Bound(run, step, exchange.seconds, share.value, exchange, share.low, share.high)
