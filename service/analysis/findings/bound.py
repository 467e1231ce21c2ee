"""A part of the step that is too large: what the rules about parts have in common."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from service.analysis.findings.subject import BATCH_KEYS, Exchange, Subject, grouped
from service.analysis.observation import Estimate, Observation

MOST_SHARE: Final = 0.95  # above, the rest of the step is not known well enough to divide by


@dataclass(frozen=True)
class Bound:
    """A run with a part of the step that is too large."""

    run: Observation
    step: float
    seconds: float
    share: float
    exchange: Exchange | None = None
    low: float | None = None  # of the share, with its 95 % interval
    high: float | None = None


def bounded(subject: Subject, part_of: Callable[[Observation], Bound | None], least: float) -> Iterator[list[Bound]]:
    """The runs whose part is `least` of the step or more, by parameters but world size and batch."""
    for group in grouped(subject.succeeded, BATCH_KEYS | {"world_size"}):
        found = [part for run in group if (part := part_of(run)) is not None and part.share >= least]
        if found:
            yield found


def alike_but_batch(subject: Subject, run: Observation) -> list[Observation]:
    """The trials that have all parameters in common with the run but those of the batch; it is among them."""
    return next(group for group in grouped(subject.observations, BATCH_KEYS) if any(one is run for one in group))


def share_of(part: Estimate | None, step: float) -> Estimate | None:
    """Of `step` seconds, with its interval."""
    if part is None:
        return None
    return Estimate(part.value / step, *(None if end is None else end / step for end in (part.low, part.high)))


def within(bound: Bound) -> str:
    """The share's interval, to follow it; nothing where there is none."""
    if bound.low is None or bound.high is None:
        return ""
    return f" (95 % between {bound.low:.0%} and {bound.high:.0%})"


def others(bound: list[Bound]) -> str:
    return f" and {len(bound) - 1} more" if len(bound) > 1 else ""


def listed(bound: list[Bound]) -> list[dict[str, Any]]:
    return [{"trial": one.run.trial, "world_size": one.run.world_size, "share": one.share} for one in bound]
