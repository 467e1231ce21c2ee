"""A step's parts, from blocks of steps with and without the exchange between workers. Pure.

L_rk is the time of step k on rank r with the exchange left out: that rank's compute and waiting for data, and nothing
of others. Then, with means over steps k and ranks r,

    compute        = mean (L_rk - its data wait)            data_wait = mean of the data waits
    straggler_wait = mean_k max_r L_rk - mean L
                   = persistent (max_r mean_k L_rk - mean L) + jitter (the rest)
    communication  = step - mean_k max_r L_rk

where `step` is a step of the blocks with the exchange, from barrier to barrier. Communication is what is exposed; what
overlaps with compute is hidden in it. It may come out below zero, by its error, and is not clipped. The four add up to
`step` by definition, which proves nothing.

A block with and one without follow each other closely and make a pair; pairs are taken for independent, so that 95 %
intervals are Student's t over pairs (Welch and Student; any statistics text).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from trainers.measure.statistics import sample_variance, student_t
from trainers.parts.rows import Measured, RankParts

CONFIDENCE = 0.95
MIN_PAIRS = 4


@dataclass(frozen=True)
class AloneStep:
    """One step of one rank with the exchange left out: all of it, and the part spent waiting for its next batches."""

    seconds: float
    data_wait_seconds: float


@dataclass(frozen=True)
class Pair:
    """A block with the exchange, in seconds per step, and its neighbour without: the steps of each rank.

    Every rank has equally many steps. With one worker the two are one and the same block.
    """

    step_seconds: float
    alone: Sequence[Sequence[AloneStep]]


@dataclass(frozen=True)
class Estimates:
    """Means in seconds per optimizer step with their intervals. Communication is None with one worker."""

    step: Measured
    compute: Measured
    data_wait: Measured
    straggler_wait: Measured
    straggler_persistent: Measured
    straggler_jitter: Measured
    communication: Measured | None
    communication_share: Measured | None
    slowest_rank: int | None  # where it is surely slower than every other
    ranks: Sequence[RankParts]


def estimate(pairs: Sequence[Pair]) -> Estimates:
    """The parts, from one pair or more; intervals from two on.

    Raises:
        ValueError: no pair, or pairs of unlike shape.
    """
    seen = [_PairMeans.of(pair) for pair in pairs]
    if not seen or len({len(each.rank_seconds) for each in seen}) != 1:
        raise ValueError("parts need pairs of blocks, each of the same ranks")
    world_size = len(seen[0].rank_seconds)
    slowest = max(range(world_size), key=lambda rank: fmean(each.rank_seconds[rank] for each in seen))
    persistent = [each.rank_seconds[slowest] - each.mean for each in seen]
    jitter = [each.slowest - each.rank_seconds[slowest] for each in seen]
    communication = share = None
    if world_size > 1:
        communication = mean_with_interval([each.communication for each in seen])
        share = _ratio_with_interval([each.communication for each in seen], [each.step for each in seen])
    return Estimates(
        step=mean_with_interval([each.step for each in seen]),
        compute=mean_with_interval([each.compute for each in seen]),
        data_wait=mean_with_interval([each.data_wait for each in seen]),
        straggler_wait=mean_with_interval([each.slowest - each.mean for each in seen]),
        straggler_persistent=mean_with_interval(persistent),
        straggler_jitter=mean_with_interval(jitter),
        communication=communication,
        communication_share=share,
        slowest_rank=slowest if _is_surely_slowest(slowest, seen) else None,
        ranks=[
            RankParts(
                compute=mean_with_interval([each.rank_seconds[rank] - each.rank_waits[rank] for each in seen]),
                data_wait=mean_with_interval([each.rank_waits[rank] for each in seen]),
                straggler_wait=mean_with_interval([each.slowest - each.rank_seconds[rank] for each in seen]),
                communication=communication,
            )
            for rank in range(world_size)
        ],
    )


@dataclass(frozen=True)
class _PairMeans:
    """One pair, in seconds per step: `slowest` is mean_k max_r L_rk, `mean` the mean over ranks and steps."""

    step: float
    slowest: float
    rank_seconds: Sequence[float]
    rank_waits: Sequence[float]

    @classmethod
    def of(cls, pair: Pair) -> "_PairMeans":
        return cls(
            step=pair.step_seconds,
            slowest=fmean(max(step.seconds for step in of_ranks) for of_ranks in zip(*pair.alone, strict=True)),
            rank_seconds=[fmean(step.seconds for step in steps) for steps in pair.alone],
            rank_waits=[fmean(step.data_wait_seconds for step in steps) for steps in pair.alone],
        )

    @property
    def mean(self) -> float:
        return fmean(self.rank_seconds)

    @property
    def data_wait(self) -> float:
        return fmean(self.rank_waits)

    @property
    def compute(self) -> float:
        return self.mean - self.data_wait

    @property
    def communication(self) -> float:
        return self.step - self.slowest


def mean_with_interval(values: Sequence[float]) -> Measured:
    """The mean of independent values and Student's t interval around it; without ends below two values."""
    mean = fmean(values)
    if len(values) < 2:
        return Measured(value=mean)
    half = student_t(CONFIDENCE, len(values) - 1) * math.sqrt(sample_variance(values) / len(values))
    return Measured(value=mean, ci95_low=mean - half, ci95_high=mean + half)


def _ratio_with_interval(parts: Sequence[float], wholes: Sequence[float]) -> Measured:
    """The ratio of two means of paired values, with the linearised ratio's interval (Cochran 1977, section 6.3)."""
    ratio, whole = fmean(parts) / fmean(wholes), fmean(wholes)
    errors = [(part - ratio * of) / whole for part, of in zip(parts, wholes, strict=True)]
    around = mean_with_interval(errors)
    if around.ci95_low is None or around.ci95_high is None:
        return Measured(value=ratio)
    return Measured(value=ratio, ci95_low=ratio + around.ci95_low, ci95_high=ratio + around.ci95_high)


def _is_surely_slowest(slowest: int, seen: Sequence[_PairMeans]) -> bool:
    """Slower than every other rank, with 95 % confidence for all comparisons together (Bonferroni).

    That it was picked for being the slowest is one comparison more with each of the others.
    """
    world_size = len(seen[0].rank_seconds)
    if world_size < 2 or len(seen) < MIN_PAIRS:
        return False
    comparisons = world_size * (world_size - 1)
    quantile = student_t(1 - (1 - CONFIDENCE) / comparisons, len(seen) - 1)
    for other in range(world_size):
        if other == slowest:
            continue
        leads = [each.rank_seconds[slowest] - each.rank_seconds[other] for each in seen]
        if fmean(leads) <= quantile * math.sqrt(sample_variance(leads) / len(leads)):
            return False
    return True
