"""What a real DeepSpeed engine holds on the CPU, against the formula. ViT-Ti at 32 pixels, world sizes 1 and 2."""

import json
import os
import subprocess
import sys
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from trainers.config import TrialConfig
from trainers.memory import ModelStates, model_states

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_SECONDS = 500
POINTS = [
    {"zero_stage": stage, "precision": precision, "gradient_accumulation_steps": accumulation}
    for stage, precision, accumulation in product((0, 1, 2, 3), ("fp32", "bf16"), (1, 2))
] + [
    {"zero_stage": 1, "precision": "fp32", "optimizer": "sgd"},
    {
        "zero_stage": 1,
        "precision": "bf16",
        "deepspeed_overrides": {"data_types": {"grad_accum_dtype": "fp32"}},
    },
    {
        "zero_stage": 2,
        "precision": "bf16",
        "deepspeed_overrides": {"data_types": {"grad_accum_dtype": "fp32"}},
    },
]
_OPTIMIZERS = {
    (0, "fp32"): "AdamW",
    (0, "bf16"): "FP16_UnfusedOptimizer",
    1: "DeepSpeedZeroOptimizer",
    2: "DeepSpeedZeroOptimizer",
    3: "DeepSpeedZeroOptimizer_Stage3",
}


def trial(world_size: int, **changes: Any) -> TrialConfig:
    values: dict[str, Any] = {
        "model": "vit_tiny_patch16_224",
        "image_size": 32,
        "patch_size": 16,
        "num_classes": 10,
        "dataset": "synthetic",
        "world_size": world_size,
        # With one image the class token's gradient is a view of that of all tokens, which is then held too.
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
    } | changes
    batch = 2 * world_size * values["gradient_accumulation_steps"]
    return TrialConfig.model_validate(values | {"train_batch_size": batch})


@cache
def weighed(world_size: int) -> dict[tuple[int, int], dict[str, Any]]:
    """What each rank holds at each point, by (point, rank); all in one set of processes."""
    with TemporaryDirectory() as folder:
        trials = Path(folder) / "trials.json"
        trials.write_text(json.dumps([trial(world_size, **point).model_dump() for point in POINTS]), encoding="utf-8")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
        done = subprocess.run(
            [*torchrun, "-m", "tests.trainers.weighing", str(trials)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            cwd=REPOSITORY,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        by_rank = [json.loads((Path(folder) / f"held-{rank}.json").read_text("utf-8")) for rank in range(world_size)]
    return {(number, rank): one for rank, held in enumerate(by_rank) for number, one in enumerate(held)}


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("number", range(len(POINTS)), ids=[str(sorted(point.items())) for point in POINTS])
def test_the_engine_holds_what_the_formula_says(world_size: int, number: int) -> None:
    config = trial(world_size, **POINTS[number])
    for rank in range(world_size):
        told = weighed(world_size)[number, rank]
        sizes, held = told["sizes"], ModelStates.model_validate(told["held"])
        expected = model_states(config, [(size, 1) for size in sizes])
        assert held.parameter_bytes == expected.parameter_bytes
        assert held.master_parameter_bytes == expected.master_parameter_bytes
        assert held.host_bytes == 0
        # AdamW counts its steps in one 4-byte number for each tensor it updates, SGD does not.
        counters = held.optimizer_state_bytes - expected.optimizer_state_bytes
        updated = len(sizes) if config.zero_stage == 0 else 1
        assert counters == (4 * updated if config.optimizer == "adamw" else 0)
        assert held.gradient_bytes == expected.gradient_bytes + _beyond_the_part(config, told, rank)


def _beyond_the_part(config: TrialConfig, told: dict[str, Any], rank: int) -> int:
    """Bytes of the gradients that a rank keeps whole though they are in its part in part only: stages 1 and 2."""
    accumulates_apart = bool(config.deepspeed_overrides)
    whole = config.zero_stage == 1 and config.gradient_accumulation_steps > 1
    if config.zero_stage not in (1, 2) or accumulates_apart or whole or config.world_size == 1:
        return 0
    ends = [0]
    for size in told["sizes"]:
        ends.append(ends[-1] + size)
    unit = 2 * config.world_size
    part = -(-ends[-1] // unit) * unit // config.world_size
    first, last = rank * part, (rank + 1) * part
    kept = sum(end - start for start, end in pairwise(ends) if end > first and start < last)
    padding = max(0, last - ends[-1])
    return (2 if config.precision == "bf16" else 4) * (kept + padding - part)


@pytest.mark.slow
def test_the_optimizers_are_those_whose_source_the_formula_follows() -> None:
    for number, point in enumerate(POINTS):
        if "deepspeed_overrides" in point:
            continue
        stage, precision = point["zero_stage"], point["precision"]
        wanted = _OPTIMIZERS.get((stage, precision)) or _OPTIMIZERS[stage]
        if point.get("optimizer") != "sgd" or stage:
            assert weighed(1)[number, 0]["optimizer"] == wanted
    assert weighed(1)[len(POINTS) - 2, 0]["optimizer"] == "BF16_Optimizer"
