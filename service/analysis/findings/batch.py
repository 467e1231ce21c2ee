"""Which micro batch to take, and where memory ends. The numbers are `service.analysis.batch_size`'s."""

from collections.abc import Iterator
from typing import Any

from service.analysis.answer import BatchSizes
from service.analysis.finding import Finding, FindingCode
from service.analysis.findings.subject import Subject
from service.analysis.scaling import ACCUMULATION, MICRO_BATCH


def sweet_spot(subject: Subject) -> Iterator[Finding]:
    """The sweet spot of each group of batch sizes that has one: at least two batches with a result."""
    for sizes in subject.analysis.batch_size:
        spot = sizes.sweet_spot
        if spot is None:
            continue
        batch = spot.train_micro_batch_size_per_gpu
        others = [str(one) for one in spot.tied if one != batch]
        tied = f"; tied with it: {', '.join(others)}" if others else ""
        yield Finding(
            code=FindingCode.SWEET_SPOT,
            severity="info",
            message=f"Set the micro batch to {batch}{_where(subject, sizes)}: {spot.reason}{tied}.",
            evidence={
                MICRO_BATCH: batch,
                "tied": list(spot.tied),
                "ratio_to_best": spot.ratio_to_best,
                "next_doubling_gain": spot.next_doubling_gain,
                "images_per_second": {
                    str(point.train_micro_batch_size_per_gpu): point.images_per_second
                    for point in sizes.points
                    if point.images_per_second is not None
                },
                "distinguished_by": sizes.distinguished_by,
                "trials": _trials(sizes),
            },
        )


def memory_frontier(subject: Subject) -> Iterator[Finding]:
    """Each group of batch sizes in which one ran out of memory in every run of it."""
    for sizes in subject.analysis.batch_size:
        fits, bursts = sizes.memory.largest_that_ran, sizes.memory.smallest_out_of_memory
        if bursts is None:
            continue
        where, peak = _where(subject, sizes), sizes.memory.peak_memory_bytes
        used = "" if peak is None else f" (peak {peak / 1e9:.3g} GB)"
        if fits is None:
            what = f"Micro batch {bursts}{where} does not fit in memory, and no smaller one was tried"
        elif fits < bursts:
            what = f"Memory ends between micro batch {fits}{used} and {bursts}{where}"
        else:
            what = (
                f"Micro batch {bursts}{where} ran out of memory although {fits} ran{used}: something else held memory"
            )
        yield Finding(
            code=FindingCode.MEMORY_FRONTIER,
            severity="info" if fits is not None and fits < bursts else "warning",
            message=f"{what}; {_ways_out(sizes.fixed, fits, bursts)}.",
            evidence={
                "largest_that_ran": fits,
                "smallest_out_of_memory": bursts,
                "peak_memory_bytes": peak,
                "hardware": sizes.hardware,
                "distinguished_by": sizes.distinguished_by,
                "trials": _trials(sizes),
            },
        )


def _ways_out(fixed: dict[str, Any], fits: int | None, bursts: int) -> str:
    """What makes room, less what is set already."""
    ways = []
    if fits is not None and fits < bursts:
        steps = -(-bursts // fits) * int(fixed.get(ACCUMULATION) or 1)
        ways.append(f"{ACCUMULATION} {steps} at micro batch {fits} for the global batch")
    if not fixed.get("activation_checkpointing"):
        ways.append("activation_checkpointing")
    if int(fixed.get("world_size") or 1) > 1 and int(fixed.get("zero_stage") or 0) < 3:
        ways.append(f"zero_stage {int(fixed.get('zero_stage') or 0) + 1}")
    if fits is None:
        ways.insert(0, "a smaller micro batch")
    return f"to go on: {', or '.join(ways)}" if ways else "a device with more memory is needed to go on"


def _where(subject: Subject, sizes: BatchSizes) -> str:
    return subject.at({key: value for key, value in sizes.distinguished_by.items() if key in subject.varied})


def _trials(sizes: BatchSizes) -> list[int]:
    return sorted({trial for point in sizes.points for trial in point.trials})
