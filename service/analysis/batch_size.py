"""Which micro batch to take, and where memory ends.

The sweet spot is the smallest micro batch whose throughput, as a ratio to the best one's, has its 95 % lower bound at
0.90 or more (a setting); where the data has no intervals, the ratio itself. Every batch that passes is tied with it.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from service.analysis.answer import BatchPoint, BatchSizes, MemoryFrontier, SweetSpot
from service.analysis.noise import Pooled, compare, ratio
from service.analysis.points import Key, StudyPoint, micro_batch_of, parameters_key
from service.analysis.scaling import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH
from service.analysis.series import ScalingAsked, difference, differing, why_unmeasured
from service.states import Reason


def batch_sizes(points: Sequence[StudyPoint], asked: ScalingAsked, sweet_spot_ratio: float) -> list[BatchSizes]:
    """Each group of points that differ in their batch only, if it has two batches or one that ran out of memory."""
    # With the global batch held, a smaller micro batch means more accumulation; else it means a smaller global batch.
    left_out = frozenset({MICRO_BATCH, GLOBAL_BATCH if asked.hold == "micro_batch" else ACCUMULATION})
    groups: dict[tuple[Key, frozenset[str], int | None], dict[int, StudyPoint]] = defaultdict(dict)
    unmeasured: dict[Key, list[StudyPoint]] = defaultdict(list)
    for point in points:
        key = parameters_key(point.parameters, left_out)
        batch = micro_batch_of(point.parameters)
        if batch is None:
            continue
        if point.is_measured:
            groups[key, point.devices, point.nodes].setdefault(batch, point)
        else:
            unmeasured[key].append(point)
    for key, without in unmeasured.items():  # they ran nowhere: with the first group of their key, or alone
        place = next((found for found in groups if found[0] == key), (key, frozenset[str](), None))
        for point in without:
            groups[place].setdefault(micro_batch_of(point.parameters) or 0, point)
    wanted = [group for group in groups.values() if len(group) > 1 or any(map(_is_out_of_memory, group.values()))]
    fixed = [_fixed(group, left_out) for group in wanted]
    distinguishing = differing(fixed)
    return [_judged(group, shown, distinguishing, sweet_spot_ratio) for group, shown in zip(wanted, fixed, strict=True)]


def _fixed(group: dict[int, StudyPoint], left_out: frozenset[str]) -> dict[str, Any]:
    parameters = next(iter(group.values())).parameters
    return {key: value for key, value in parameters.items() if key not in left_out}


def _judged(
    group: dict[int, StudyPoint], fixed: dict[str, Any], distinguishing: frozenset[str], wanted_ratio: float
) -> BatchSizes:
    batches = sorted(group)
    rates = {batch: rate for batch in batches if (rate := group[batch].throughput) is not None}
    best = max(rates, key=lambda batch: rates[batch].value, default=None)
    hardware = next((group[batch].hardware for batch in batches if group[batch].is_measured), "unknown")
    spot = None if best is None else _sweet_spot(rates, best, wanted_ratio)
    return BatchSizes(
        fixed=fixed,
        distinguished_by={key: fixed[key] for key in fixed if key in distinguishing},
        hardware=hardware,
        points=[_batch_point(batch, group[batch], rates.get(best) if best else None) for batch in batches],
        sweet_spot=spot,
        sweet_spot_refused=None if spot is not None else _why_refused(best),
        memory=memory_frontier(group),
    )


def _batch_point(batch: int, point: StudyPoint, best: Pooled | None) -> BatchPoint:
    rate, epoch = point.throughput, point.epoch_seconds
    return BatchPoint(
        train_micro_batch_size_per_gpu=batch,
        trials=list(point.trials),
        images_per_second=rate.value if rate is not None and point.has_images_per_second else None,
        epoch_seconds=None if epoch is None else epoch.value,
        against_best=difference(compare(rate, best)) if rate is not None and best is not None else None,
        device_seconds_per_epoch=None if epoch is None else epoch.value * point.world_size,
        peak_memory_bytes=point.peak_memory_bytes,
        reason=None if point.is_measured else why_unmeasured(point),
    )


def _sweet_spot(rates: dict[int, Pooled], best: int, wanted_ratio: float) -> SweetSpot | None:
    if len(rates) < 2:
        return None
    tied = [batch for batch in rates if _sure_ratio(rates[batch], rates[best]) >= wanted_ratio]
    spot = tied[0]  # the best one's ratio to itself is 1: there is always one
    found = ratio(rates[spot], rates[best])
    gain = _doubling_gain(rates, spot)
    return SweetSpot(
        train_micro_batch_size_per_gpu=spot,
        tied=tied,
        ratio_to_best=found.value,
        next_doubling_gain=gain,
        reason=_reason(spot, best, found.value, found.low, gain, wanted_ratio),
    )


def _sure_ratio(rate: Pooled, best: Pooled) -> float:
    found = ratio(rate, best)
    return found.value if found.low is None else found.low


def _doubling_gain(rates: dict[int, Pooled], batch: int) -> float | None:
    """The share gained by doubling the batch, from the next larger one measured (over as many doublings as it is)."""
    larger = [one for one in rates if one > batch]
    if not larger:
        return None
    doublings = math.log2(larger[0] / batch)
    return float((rates[larger[0]].value / rates[batch].value) ** (1 / doublings)) - 1


def _reason(spot: int, best: int, value: float, low: float | None, gain: float | None, wanted: float) -> str:
    if spot == best:
        why = f"micro batch {spot} is the fastest, and no smaller one surely reaches {wanted:.0%} of it"
    elif low is None:
        why = (
            f"micro batch {spot} reaches {value:.1%} of the throughput of {best}, the fastest; no smaller {wanted:.0%}"
        )
    else:
        why = (
            f"micro batch {spot} reaches {value:.1%} of the throughput of {best}, the fastest (surely {low:.1%}); "
            f"no smaller one surely {wanted:.0%}"
        )
    return why + ("; no larger one was measured" if gain is None else f"; the next doubling brings {gain:+.1%}")


def _why_refused(best: int | None) -> str:
    return "no batch has a result" if best is None else f"only micro batch {best} has a result: nothing to compare with"


def memory_frontier(group: dict[int, StudyPoint]) -> MemoryFrontier:
    """Of points by micro batch."""
    ran = [batch for batch, point in group.items() if point.is_measured]
    out = [batch for batch, point in group.items() if not point.is_measured and _is_out_of_memory(point)]
    largest = max(ran, default=None)
    return MemoryFrontier(
        largest_that_ran=largest,
        smallest_out_of_memory=min(out, default=None),
        peak_memory_bytes=None if largest is None else group[largest].peak_memory_bytes,
    )


def _is_out_of_memory(point: StudyPoint) -> bool:
    return Reason.OUT_OF_MEMORY in point.reasons
