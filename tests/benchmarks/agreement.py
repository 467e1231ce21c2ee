"""Two runs of one study: does each point of the second agree with the first within what their repeats tell?

Two means m1, m2 of k runs each agree where |m1 - m2| is at most the root of the sum of the squares of their 95 % half
widths (between runs). Were the runs of a point alike and independent, one point in twenty or fewer would not.
"""

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.analysis.repeats import BetweenRuns
from tests.benchmarks.outcome import Outcome
from tests.benchmarks.product import Product

SPEC: dict[str, Any] = {
    "name": "agreement",
    "workload": {"dataset": "digits", "image_size": 32},
    "parameters": {
        "model": {"value": "vit_tiny_patch16_224"},
        "patch_size": {"value": 8},
        "world_size": {"values": [1, 2]},
        "train_micro_batch_size_per_gpu": {"values": [4, 16]},
    },
    "measurement": {"min_warmup_steps": 5, "min_steps": 60, "max_steps": 400, "max_seconds": 10, "repeats": 3},
    "execution": {"trial_timeout_seconds": 300},
}


def measure_agreement(say: Callable[[str], None]) -> list[Outcome]:
    """Runs the study twice on one Ray head."""
    with tempfile.TemporaryDirectory() as folder, Product(Path(folder)) as product:
        first, second = (_points(product) for _ in range(2))
    distances = []
    for key, one in first.items():
        other = second[key]
        allowed = math.hypot(_half_width(one), _half_width(other))
        distances.append(abs(one.step_seconds_mean - other.step_seconds_mean) / allowed)
        change = other.step_seconds_mean / one.step_seconds_mean - 1
        say(
            f"world size {key[0]}, micro batch {key[1]}: {one.step_seconds_mean * 1e3:.2f} and "
            f"{other.step_seconds_mean * 1e3:.2f} ms a step ({change:+.1%}), "
            f"allowed {allowed / one.step_seconds_mean:.1%}"
        )
    agree = sum(distance <= 1 for distance in distances)
    return [
        Outcome(
            "two runs of a study: points that agree",
            agree / len(distances),
            "share",
            1.0,
            "at_least",
            distances,
            "samples: distance over the distance allowed",
        )
    ]


def _points(product: Product) -> dict[tuple[int, int], BetweenRuns]:
    study = product.run(SPEC)
    points = {}
    for row in product.studies.results(study.id).results:
        if row.between_runs is None:
            raise RuntimeError(f"trial {row.trial} of the benchmark ended {row.state}: {row.reason}")
        key = (row.parameters["world_size"], row.parameters["train_micro_batch_size_per_gpu"])
        points[key] = row.between_runs
    return points


def _half_width(runs: BetweenRuns) -> float:
    return (runs.step_seconds_ci95_high - runs.step_seconds_ci95_low) / 2
