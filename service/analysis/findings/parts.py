"""Where a step's time goes besides computing: the exchange of gradients, and waiting for data."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from service.analysis.finding import Finding, FindingCode
from service.analysis.findings.subject import (
    BATCH_KEYS,
    Exchange,
    Subject,
    exchange_of,
    grouped,
    level,
    step_seconds,
    trial_list,
)
from service.analysis.observation import Observation
from service.analysis.points import micro_batch_of
from service.analysis.scaling import ACCUMULATION
from service.states import Reason

COMMUNICATION_SHARE: Final = 0.20
"""Of the step. From here on a free exchange would train at least 25 % faster: several times what runs differ by."""
COMMUNICATION_CRITICAL: Final = 0.50
"""Of the step. From here on workers talk for longer than they compute."""
DATA_SHARE: Final = 0.10
"""Of the step. Waiting for data can be had for nothing, so it is told earlier than the exchange; and a tenth is beyond
the 7.8 % that identical runs differ by."""
_MOST_SHARE: Final = 0.95  # above, the rest of the step is not known well enough to divide by


@dataclass(frozen=True)
class _Bound:
    """A run with a part of the step that is too large."""

    run: Observation
    step: float
    seconds: float
    share: float
    exchange: Exchange | None = None


def communication_bound(subject: Subject) -> Iterator[Finding]:
    """One finding for all world sizes and batches of otherwise equal parameters: the worst, and the list.

    What halves the exchange's share: with c its seconds, w the rest of the step and s = c / (c + w), the share is s / 2
    where w is (2 - s) / (1 - s) times as long, or c that much shorter. The rest grows with the micro batch and with
    accumulation, while c stays (a ring moves 2 (p - 1) / p times the gradients, whatever the batch).
    """
    for bound in _bounded(subject, _exchanging, COMMUNICATION_SHARE):
        worst = max(bound, key=lambda one: level(one.share))
        assert worst.exchange is not None
        factor = halving_factor(worst.share)
        ways = _ways_to_halve(subject, worst, factor)
        waits = worst.exchange.holds_waiting
        condition = "if all of it is exchange, " if waits else ""
        what = (
            "The exchange of gradients, with the waiting for slower workers," if waits else "The exchange of gradients"
        )
        yield Finding(
            code=FindingCode.COMMUNICATION_BOUND,
            severity="critical" if worst.share >= COMMUNICATION_CRITICAL else "warning",
            message=(
                f"{what} takes {worst.share:.0%} of a step{subject.at(worst.run.parameters)} "
                f"({trial_list([worst.run.trial])}{_others(bound)}); {condition}its share would halve with "
                f"{', or '.join(way for way, _ in ways)}."
            ),
            evidence={
                "share": worst.share,
                "communication_seconds": worst.seconds,
                "step_seconds": worst.step,
                "holds_waiting": waits,
                "halving_factor": factor,
                "halved_by": {key: value for _, found in ways for key, value in found.items()},
                "points": _listed(bound),
                "trials": [one.run.trial for one in bound],
            },
        )


def halving_factor(share: float) -> float:
    """How much longer the rest of the step must be for half the share, or how much shorter the exchange."""
    capped = min(share, _MOST_SHARE)
    return (2 - capped) / (1 - capped)


def _ways_to_halve(subject: Subject, worst: _Bound, factor: float) -> list[tuple[str, dict[str, Any]]]:
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


def _alike_but_batch(subject: Subject, run: Observation) -> list[Observation]:
    return next(group for group in grouped(subject.observations, BATCH_KEYS) if any(one is run for one in group))


def _out_of_memory(subject: Subject, run: Observation) -> int | None:
    """The smallest micro batch that ran out of memory where all else is equal."""
    burst = [
        batch
        for one in _alike_but_batch(subject, run)
        if one.reason is Reason.OUT_OF_MEMORY and (batch := micro_batch_of(one.parameters)) is not None
    ]
    return min(burst, default=None)


def _seen_at_larger_batch(subject: Subject, worst: _Bound) -> tuple[int, float] | None:
    """The smallest larger micro batch that was measured to have at most half the share, and its share."""
    own = micro_batch_of(worst.run.parameters) or 0
    found: list[tuple[int, float]] = []
    for one in _alike_but_batch(subject, worst.run):
        other, batch = _exchanging(one), micro_batch_of(one.parameters)
        same = one.parameters.get(ACCUMULATION) == worst.run.parameters.get(ACCUMULATION)
        if other is not None and batch is not None and same and batch > own and other.share <= worst.share / 2:
            found.append((batch, other.share))
    return min(found, default=None)


def data_bound(subject: Subject) -> Iterator[Finding]:
    """One finding for all world sizes and batches of otherwise equal parameters: the worst, and the list."""
    for bound in _bounded(subject, _waiting_for_data, DATA_SHARE):
        worst = max(bound, key=lambda one: level(one.share))
        pipeline = worst.run.parameters.get("input_pipeline")
        if pipeline == "device":
            advice = "the data is on the device already: look for what else holds up its copying"
        else:
            gain = worst.share / (1 - min(worst.share, _MOST_SHARE))
            advice = f"more workload.loader_workers, or input_pipeline: device, would train up to {gain:.0%} faster"
        yield Finding(
            code=FindingCode.DATA_BOUND,
            severity="warning",
            message=(
                f"Workers wait for data for {worst.share:.0%} of a step{subject.at(worst.run.parameters)} "
                f"({trial_list([worst.run.trial])}{_others(bound)}); {advice}."
            ),
            evidence={
                "share": worst.share,
                "data_wait_seconds": worst.seconds,
                "step_seconds": worst.step,
                "input_pipeline": pipeline,
                "points": _listed(bound),
                "trials": [one.run.trial for one in bound],
            },
        )


def _bounded(subject: Subject, part_of: Callable[[Observation], _Bound | None], least: float) -> Iterator[list[_Bound]]:
    for group in grouped(subject.succeeded, BATCH_KEYS | {"world_size"}):
        found = [part for run in group if (part := part_of(run)) is not None and part.share >= least]
        if found:
            yield found


def _exchanging(run: Observation) -> _Bound | None:
    """The lower end of the interval decides, where there is one: within the noise of the limit there is no finding."""
    step, exchange = step_seconds(run), exchange_of(run)
    if (
        step is None
        or exchange is None
        or run.world_size == 1
        or exchange.low / step < COMMUNICATION_SHARE <= exchange.seconds / step
    ):
        return None
    return _Bound(run, step, exchange.seconds, exchange.seconds / step, exchange)


def _waiting_for_data(run: Observation) -> _Bound | None:
    step, part = step_seconds(run), run.data_wait_seconds
    known = [rank.data_wait_seconds for rank in run.ranks if rank.data_wait_seconds is not None]
    seconds = part.value if part is not None else sum(known) / len(known) if known else None
    if step is None or seconds is None:
        return None
    if part is not None and part.low is not None and part.low / step < DATA_SHARE:
        return None
    return _Bound(run, step, seconds, seconds / step)


def _others(bound: list[_Bound]) -> str:
    return f" and {len(bound) - 1} more" if len(bound) > 1 else ""


def _listed(bound: list[_Bound]) -> list[dict[str, Any]]:
    return [{"trial": one.run.trial, "world_size": one.run.world_size, "share": one.share} for one in bound]
