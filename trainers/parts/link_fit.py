"""What a link carries, from the times of all-reduces, and which link is slow. Pure: no torch.

t = alpha + wire bytes / beta (Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994; for
all-reduce Thakur et al., "Optimization of Collective Communication Operations in MPICH", 2005), with wire bytes
2 (p - 1) / p x size, so that beta is the bus bandwidth of nccl-tests' PERFORMANCE.md and does not depend on p.

Of the repeats of a size the median counts: a machine that stalls now and then must not own the line. Deviations count
relative to the time they are of, or the largest size would be all that is fitted. Two kinds of sizes are looked at:
beta is the slope among those that take several times the smallest time, with an intercept of their own, since a shaped
link (token bucket) lets the first bytes of each message pass faster than the rest; alpha is what remains over all
sizes with this beta. That may come out below zero on such a link, where it is shown as 0.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from trainers.measure.statistics import student_t_95
from trainers.parts.rows import LinkPoint, Measured
from trainers.parts.traffic import wire_bytes

MIN_SIZES: Final = 3  # two give a line through any two points
# A size counts for beta from so many times the smallest time on: below, it is latency that is timed.
_BANDWIDTH_REGIME: Final = 3.0
# Medians of less are not told from one stall.
_MIN_REPEATS_FOR_ERROR: Final = 3
# The standard error of the median of n normal values: sqrt(pi / 2) x sigma / sqrt(n), sigma as 1.4826 x the median
# absolute deviation, which outliers leave alone (Huber, "Robust Statistics").
_MEDIAN_ERROR: Final = math.sqrt(math.pi / 2) * 1.4826

_NO_PEERS: Final = "one worker: nothing goes over a link"
_NO_SLOPE: Final = "larger all-reduces took no longer than small ones: the link's bandwidth does not show"
_NO_BOUND: Final = "the times scatter too much to bound the link's bandwidth"
_ALPHA_AT_ZERO: Final = "large all-reduces took less than their share of small ones would say: alpha is held at 0"


@dataclass(frozen=True)
class SizeTimes:
    """Times of all-reduces of one size: each of `seconds` is the mean over `in_a_row` of them."""

    size_bytes: int
    seconds: tuple[float, ...]
    in_a_row: int = 1


@dataclass(frozen=True)
class LinkFit:
    """The line through the times; alpha and beta are None where the sizes do not tell them, and `note` says why."""

    points: list[LinkPoint]
    alpha_seconds: Measured | None
    beta_bytes_per_second: Measured | None
    note: str | None


def fit_link(times: Iterable[SizeTimes], group_size: int) -> LinkFit:
    """alpha and beta with 95 % intervals, from all-reduces among `group_size` workers.

    A point's interval is one of the median, by order statistics; null below 6 repeats.
    """
    ordered = sorted((one for one in times if one.seconds), key=lambda one: one.size_bytes)
    points = [
        LinkPoint(size_bytes=one.size_bytes, repeats=len(one.seconds) * one.in_a_row, seconds=_median(one.seconds))
        for one in ordered
    ]
    if group_size < 2:
        return LinkFit(points, None, None, _NO_PEERS)
    if len(ordered) < MIN_SIZES:
        return LinkFit(points, None, None, f"{len(ordered)} sizes: it takes {MIN_SIZES} to tell alpha from beta")
    timed = [_Timed.of(one, group_size) for one in ordered]
    line = _line_through(_in_bandwidth_regime(timed))
    if line.slope <= 0:
        return LinkFit(points, None, None, _NO_SLOPE)
    beta, note = _inverse(line)
    alpha, is_held = _alpha(timed, line)
    notes = [text for text in (note, _ALPHA_AT_ZERO if is_held else None) if text is not None]
    return LinkFit(points, alpha, beta, "; ".join(notes) or None)


@dataclass(frozen=True)
class _Timed:
    """A size as the fit sees it."""

    wire: float  # bytes that one worker sends
    seconds: float  # median
    repeats: int
    relative_error: float | None  # standard error of the median, by the scatter of the repeats

    @classmethod
    def of(cls, times: SizeTimes, group_size: int) -> "_Timed":
        middle = median(times.seconds)
        error = None
        if len(times.seconds) >= _MIN_REPEATS_FOR_ERROR:
            deviation = median(abs(value - middle) for value in times.seconds)
            error = _MEDIAN_ERROR * deviation / math.sqrt(len(times.seconds)) / middle
        wire = wire_bytes("all_reduce", times.size_bytes, group_size)
        return cls(wire, middle, len(times.seconds), error)


@dataclass(frozen=True)
class _Line:
    slope: float  # seconds per byte
    slope_half_width: float


def _in_bandwidth_regime(timed: Sequence[_Timed]) -> Sequence[_Timed]:
    """The sizes that tell beta: at least the larger half of them, and three."""
    shortest = min(one.seconds for one in timed)
    first = next((i for i, one in enumerate(timed) if one.seconds >= _BANDWIDTH_REGIME * shortest), len(timed))
    return timed[min(first, len(timed) // 2, len(timed) - MIN_SIZES) :]


def _line_through(timed: Sequence[_Timed]) -> _Line:
    """Weighted least squares of seconds over wire bytes, weights 1 / seconds squared."""
    weights = [1 / one.seconds**2 for one in timed]
    total = math.fsum(weights)
    mean_wire = math.fsum(w * one.wire for w, one in zip(weights, timed, strict=True)) / total
    mean_seconds = math.fsum(w * one.seconds for w, one in zip(weights, timed, strict=True)) / total
    spread = math.fsum(w * (one.wire - mean_wire) ** 2 for w, one in zip(weights, timed, strict=True))
    slope = (
        math.fsum(
            w * (one.wire - mean_wire) * (one.seconds - mean_seconds) for w, one in zip(weights, timed, strict=True)
        )
        / spread
    )
    intercept = mean_seconds - slope * mean_wire
    beside = math.fsum(
        w * (one.seconds - intercept - slope * one.wire) ** 2 for w, one in zip(weights, timed, strict=True)
    )
    return _Line(slope, _relative_half_width(beside, len(timed) - 2, timed) / math.sqrt(spread))


def _alpha(timed: Sequence[_Timed], line: _Line) -> tuple[Measured, bool]:
    """(alpha, whether it is held at 0): the weighted mean of seconds less wire bytes / beta over all sizes.

    Its error is of the scatter of these and of beta's error, which moves all of them alike.
    """
    weights = [1 / one.seconds**2 for one in timed]
    total = math.fsum(weights)
    rests = [one.seconds - line.slope * one.wire for one in timed]
    mean = math.fsum(w * rest for w, rest in zip(weights, rests, strict=True)) / total
    beside = math.fsum(w * (rest - mean) ** 2 for w, rest in zip(weights, rests, strict=True))
    mean_wire = math.fsum(w * one.wire for w, one in zip(weights, timed, strict=True)) / total
    own = _relative_half_width(beside, len(timed) - 1, timed) / math.sqrt(total)
    half_width = math.hypot(own, line.slope_half_width * mean_wire)
    # Where it is held at 0 it may still be above it by its error.
    held = Measured(value=max(0.0, mean), ci95_low=max(0.0, mean - half_width), ci95_high=max(0.0, mean) + half_width)
    return held, mean < 0


def _relative_half_width(beside: float, freedom: int, timed: Sequence[_Timed]) -> float:
    """95 % half width of a time relative to itself: by what is left beside the line or by the repeats, the larger.

    Three points that lie on a line by chance are not known better than each of them.
    """
    by_line = student_t_95(freedom) * math.sqrt(beside / freedom)
    errors = [(one.relative_error, one.repeats - 1) for one in timed if one.relative_error is not None]
    if not errors:
        return by_line
    by_repeats = student_t_95(sum(n for _, n in errors)) * math.sqrt(fmean(error**2 for error, _ in errors))
    return max(by_line, by_repeats)


def _inverse(line: _Line) -> tuple[Measured, str | None]:
    """(beta, note): 1 / slope, its interval that of the slope, turned over; none where the slope may be 0."""
    low, high = line.slope - line.slope_half_width, line.slope + line.slope_half_width
    if low <= 0:
        return Measured(value=1 / line.slope), _NO_BOUND
    return Measured(value=1 / line.slope, ci95_low=1 / high, ci95_high=1 / low), None


def _median(values: Sequence[float]) -> Measured:
    """The median with its distribution-free interval (David and Nagaraja, "Order Statistics", 7.1).

    Between the k-th smallest and the k-th largest, with the largest k for which at least 95 % of samples of this size
    have the median in between (binomial, one half).
    """
    ordered, n = sorted(values), len(values)
    outside, k = 0.0, 0
    while k < n // 2:
        outside += math.comb(n, k) / 2**n
        if 2 * outside > 0.05:
            break
        k += 1
    if k == 0:
        return Measured(value=median(ordered))
    return Measured(value=median(ordered), ci95_low=ordered[k - 1], ci95_high=ordered[n - k])
