"""(a) and (b): one small trial under VitScale and the very same under torchrun, interleaved.

Once with one worker, which leaves a core for all else on a machine of two or more, as any node with GPUs has one, and
once with two workers, which on a machine of two cores share them with Ray's own processes.

Each round runs a study of two trials (the same point twice) through the whole product - store, dispatcher, Ray job,
Tune, Train - and the same trial twice under torchrun. The order within a round alternates.

Wall seconds are what somebody waits, seen from outside: of the first trial from the study's turn in the queue, with the
job's submission and start and the loading of torch, to its end; of the second from the first one's end to its own.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.plan import plan
from service.spec import parse_spec
from tests.benchmarks.outcome import Outcome, mean_ratio_lower_bound
from tests.benchmarks.product import Product
from trainers.config import TrialConfig

WORLD_SIZES = (1, 2)
SPEC: dict[str, Any] = {
    "name": "overhead",
    "workload": {"dataset": "digits", "image_size": 32},
    "parameters": {
        "model": {"value": "vit_tiny_patch16_224"},
        "patch_size": {"value": 8},
        "train_micro_batch_size_per_gpu": {"value": 16},
    },
    # The same number of steps on both sides: min = max.
    "measurement": {"min_warmup_steps": 5, "min_steps": 40, "max_steps": 40, "repeats": 2, "order": "given"},
    # One run on both sides, however busy the machine is.
    "execution": {"trial_timeout_seconds": 300, "contended_retries": 0},
}


@dataclass(frozen=True)
class Run:
    """One trial: its own throughput, and the wall seconds that somebody waited for it, part of them for its start."""

    images_per_second: float
    wall_seconds: float
    start_seconds: float = 0.0


def run_torchrun(config_file: Path, trial: TrialConfig) -> Run:
    """The trial under torchrun: wall from the command's start to its end."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={trial.world_size}",
        "-m", "trainers.standalone", "--config", str(config_file),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": str(trial.num_threads)}
    start = time.perf_counter()
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=300).stdout
    wall_seconds = time.perf_counter() - start
    result = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    return Run(result["metrics"]["images_per_second"], wall_seconds)


def measure_trials(*, rounds: int, say: Callable[[str], None]) -> list[Outcome]:
    """Runs the rounds of each world size after one unmeasured run on each side."""
    with tempfile.TemporaryDirectory() as folder, Product(Path(folder)) as product:
        return [
            outcome
            for world_size in WORLD_SIZES
            for outcome in _measure_world_size(world_size, product, Path(folder) / "trial.json", rounds, say)
        ]


def _measure_world_size(
    world_size: int, product: Product, config_file: Path, rounds: int, say: Callable[[str], None]
) -> list[Outcome]:
    spec = {**SPEC, "parameters": {**SPEC["parameters"], "world_size": {"value": world_size}}}
    trial = plan(parse_spec(spec)).trials[0].config
    assert trial is not None  # only a skipped point has none
    config_file.write_text(trial.model_dump_json())
    ours: list[tuple[Run, Run]] = []
    theirs: list[tuple[Run, Run]] = []
    run_torchrun(config_file, trial)  # files into the page cache, on both sides
    _run_study(product, spec)
    for number in range(rounds):
        sides: list[Callable[[], None]] = [
            lambda: ours.append(_run_study(product, spec)),
            lambda: theirs.append((run_torchrun(config_file, trial), run_torchrun(config_file, trial))),
        ]
        for side in sides if number % 2 == 0 else reversed(sides):
            side()
        say(
            f"{_workers(world_size)}, round {number + 1}/{rounds}: "
            f"images/s {_pair(ours[-1], 'images_per_second')} VitScale, "
            f"{_pair(theirs[-1], 'images_per_second')} torchrun; wall s {_pair(ours[-1], 'wall_seconds')}, "
            f"{_pair(theirs[-1], 'wall_seconds')}"
        )
    return summarise(world_size, ours, theirs)


def _workers(world_size: int) -> str:
    return "one worker" if world_size == 1 else f"{world_size} workers"


def summarise(world_size: int, ours: list[tuple[Run, Run]], theirs: list[tuple[Run, Run]]) -> list[Outcome]:
    """Pairs first with first and second with second run of each round."""
    pairs = [(mine, yours) for a, b in zip(ours, theirs, strict=True) for mine, yours in zip(a, b, strict=True)]
    mean, lower = mean_ratio_lower_bound([(mine.images_per_second, yours.images_per_second) for mine, yours in pairs])
    outcomes = [
        Outcome(
            f"images/s, VitScale over torchrun, {_workers(world_size)}",
            lower,
            "ratio, 95 % lower bound",
            0.97,
            "at_least",
            [mine.images_per_second / yours.images_per_second for mine, yours in pairs],
            f"{len(pairs)} interleaved pairs, geometric mean {mean:.3f}",
        )
    ]
    for position, word in enumerate(("first", "second")):
        extra = [a[position].wall_seconds - b[position].wall_seconds for a, b in zip(ours, theirs, strict=True)]
        outcomes.append(
            Outcome(
                f"wall of a study's {word} trial less torchrun's, {_workers(world_size)}",
                statistics.median(extra),
                "s, median",
                4.0,
                "at_most",
                extra,
                f"{statistics.median(a[position].start_seconds for a in ours):.1f} s until it starts",
            )
        )
    return outcomes


def _pair(runs: tuple[Run, Run], figure: str) -> str:
    return " ".join(f"{getattr(run, figure):.1f}" for run in runs)


def _run_study(product: Product, spec: dict[str, Any]) -> tuple[Run, Run]:
    study = product.run(spec)
    previous_end = study.started_at
    runs = []
    for row in product.studies.results(study.id).results:  # order: given, so the rows are in the order of running
        if row.state != "succeeded":
            raise RuntimeError(f"trial {row.trial} of the benchmark ended {row.state}: {row.reason}")
        (attempt,) = product.studies.trial(study.id, row.trial).attempts
        assert previous_end is not None
        assert attempt.finished_at is not None
        assert row.metrics.images_per_second is not None
        wall_seconds = (attempt.finished_at - previous_end).total_seconds()
        start_seconds = (attempt.started_at - previous_end).total_seconds()
        runs.append(Run(row.metrics.images_per_second, wall_seconds, start_seconds))
        previous_end = attempt.finished_at
    first, second = runs
    return first, second
