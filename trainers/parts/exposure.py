"""Exposed communication from a profile of each rank: collective time that no compute covers. Pure.

The second way to it, independent of leaving the exchange out: a collective's span less the spans of the rank's own
operators. A worker that comes early waits inside the collective for the others; the one that comes last does not, so
that over ranks the shortest exposed time of the same collective is the exchange itself.
"""

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """From `start` to `end`, in seconds of any origin."""

    start: float
    end: float


@dataclass(frozen=True)
class RankProfile:
    """One rank's profiled steps: its collectives in order of their start, and its own operators, overlapping or not."""

    collectives: Sequence[Span]
    operators: Sequence[Span]


def exposed_seconds(profile: RankProfile) -> list[float]:
    """How long each collective runs without an operator, or a collective that began before it, beside it."""
    covered = union(profile.operators)
    exposed, reached = [], float("-inf")
    for span in profile.collectives:
        start = min(max(span.start, reached), span.end)
        reached = max(reached, span.end)
        exposed.append(span.end - start - _overlap(start, span.end, covered))
    return exposed


def union(spans: Iterable[Span]) -> list[Span]:
    """The same stretches of time as spans in order that do not touch."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda one: one.start):
        if merged and span.start <= merged[-1].end:
            if span.end > merged[-1].end:
                merged[-1] = Span(merged[-1].start, span.end)
        else:
            merged.append(span)
    return merged


def _overlap(start: float, end: float, spans: Sequence[Span]) -> float:
    """Of the stretch with spans in order that do not touch."""
    total = 0.0
    for index in range(bisect(spans, start, key=lambda one: one.end), len(spans)):
        if spans[index].start >= end:
            break
        total += min(end, spans[index].end) - max(start, spans[index].start)
    return total


def without_waiting(seconds_of_ranks: Sequence[Sequence[float]]) -> float | None:
    """The seconds of all collectives, each at the rank that waits least; None where ranks do not have equally many."""
    if len({len(seconds) for seconds in seconds_of_ranks}) != 1:
        return None
    total: float = sum(min(of_ranks) for of_ranks in zip(*seconds_of_ranks, strict=True))
    return total
