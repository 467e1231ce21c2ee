"""What a real DeepSpeed engine holds and exchanges on the CPU, against the formulas. ViT-Ti, world sizes 1 and 2."""

from functools import cache
from itertools import pairwise, product
from typing import Any

import pytest

from tests.trainers.small_trials import small_trial, weigh_trials
from trainers.config import TrialConfig
from trainers.memory import ModelStates, model_states
from trainers.parts.rows import Collective
from trainers.parts.traffic import step_traffic

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


@cache
def weighed(world_size: int) -> dict[tuple[int, int], dict[str, Any]]:
    """What each rank holds at each point, by (point, rank)."""
    by_rank = weigh_trials([small_trial(world_size, **point) for point in POINTS])
    return {(number, rank): one for rank, held in enumerate(by_rank) for number, one in enumerate(held)}


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("number", range(len(POINTS)), ids=[str(sorted(point.items())) for point in POINTS])
def test_the_engine_holds_what_the_formula_says(world_size: int, number: int) -> None:
    config = small_trial(world_size, **POINTS[number])
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


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(POINTS)), ids=[str(sorted(point.items())) for point in POINTS])
def test_the_engine_exchanges_what_the_formula_says(number: int) -> None:
    config = small_trial(2, **POINTS[number])
    for rank in range(2):
        told = weighed(2)[number, rank]
        expected = step_traffic(config, [(size, 1) for size in told["sizes"]])
        assert [Collective.model_validate(counted) for counted in told["traffic"]] == expected
        assert told["uncounted"] == []


@pytest.mark.slow
def test_nothing_is_exchanged_at_world_size_1() -> None:
    assert all(weighed(1)[number, 0]["traffic"] == [] for number in range(len(POINTS)))
