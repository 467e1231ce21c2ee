"""One line of the bench's table: a figure, its bound and whether it holds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from scipy import stats


@dataclass(frozen=True)
class Outcome:
    """`value` is compared with `bound`; `samples` are what it was made from, in the order measured."""

    name: str
    value: float
    unit: str
    bound: float
    sense: Literal["at_most", "at_least"]
    samples: list[float]
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.value <= self.bound if self.sense == "at_most" else self.value >= self.bound

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def mean_ratio_lower_bound(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Geometric mean of a/b over interleaved pairs and its one-sided 95 % lower bound.

    A t interval on the logarithms of the ratios (Fieller-free because each pair is measured back to back).
    """
    logs = [math.log(a / b) for a, b in pairs]
    mean = statistics.fmean(logs)
    half = float(stats.t.ppf(0.95, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half)


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of the samples do not exceed (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
