"""The generated configuration, held against DeepSpeed's own reading of it."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from trainers.config import TrialConfig
from trainers.deepspeed_config import (
    ALLOWED_OVERRIDES,
    Allowance,
    Allowed,
    OverridesInvalid,
    deepspeed_config,
    override_problems,
)


def trial(**changes: object) -> TrialConfig:
    values: dict[str, object] = {
        "model": "vit_tiny_patch16_224",
        "image_size": 32,
        "patch_size": 4,
        "num_classes": 10,
        "dataset": "digits",
        "world_size": 1,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "train_batch_size": 8,
    }
    return TrialConfig.model_validate(values | changes)


class Recorded(dict[str, Any]):
    """A dictionary that knows which of its keys somebody has asked for by name."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __copy__(self) -> "Recorded":
        return self


def example(allowed: Allowed) -> object:
    return {"bool": True, "int": max(int(allowed.minimum or 0), 1), "float": 1.0}.get(allowed.kind) or allowed.choices[
        -1
    ]


def leaves(
    allowances: Mapping[str, Allowance], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Allowed]]:
    for key, allowance in allowances.items():
        if isinstance(allowance, Allowed):
            yield (*path, key), allowance
        else:
            yield from leaves(allowance, (*path, key))


def nested(path: tuple[str, ...], value: object) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def _zero(**keys: object) -> dict[str, Any]:
    return {"zero_optimization": keys}


LEAVES = list(leaves(ALLOWED_OVERRIDES))


def read_by_deepspeed(config: dict[str, Any]) -> Any:
    """DeepSpeed's own configuration object; fails where DeepSpeed never looks at a key or refuses one."""
    from deepspeed.runtime.config import DeepSpeedConfig

    recorded = Recorded({key: Recorded(value) if isinstance(value, dict) else value for key, value in config.items()})
    result = DeepSpeedConfig(recorded)
    assert set(config) - recorded.read == set(), "keys that DeepSpeed drops"
    # Sub-objects that DeepSpeed reads by name; the others are pydantic models that refuse what they do not know.
    for key in ("timers", "data_types"):
        if key in config:
            assert set(config[key]) <= recorded[key].read, f"keys of {key} that DeepSpeed drops"
    return result


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_reads_every_key_and_measures_nothing_itself(precision: str, stage: int) -> None:
    read = read_by_deepspeed(deepspeed_config(trial(precision=precision, zero_stage=stage)))
    assert read.timers_config.enabled is False
    assert read.timers_config.synchronized is False
    assert read.comms_config.comms_logger.enabled is False
    assert read.wall_clock_breakdown is False
    assert read.flops_profiler_config.enabled is False
    assert read.steps_per_print is None
    assert read.gradient_clipping == 0
    assert (read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps) == (8, 4, 2)
    assert int(read.zero_config.stage) == stage
    assert read.float16_config.enabled is (precision == "fp16")
    assert read.bfloat16_config.enabled is (precision == "bf16")


@pytest.mark.parametrize(("path", "allowed"), LEAVES, ids=["/".join(path) for path, _ in LEAVES])
def test_every_allowed_override_is_one_that_deepspeed_reads(path: tuple[str, ...], allowed: Allowed) -> None:
    overrides = nested(path, example(allowed))
    stage = max(allowed.min_stage, 2)
    config = trial(zero_stage=stage, precision=allowed.precision or "fp32", deepspeed_overrides=overrides)
    merged: Any = deepspeed_config(config)
    read_by_deepspeed(merged)
    for key in path:
        merged = merged[key]
    assert merged == example(allowed)


def test_deepspeed_itself_would_drop_an_unknown_key_and_the_test_would_see_it() -> None:
    with pytest.raises(AssertionError, match="micro_batch_per_gpu"):
        read_by_deepspeed(deepspeed_config(trial()) | {"micro_batch_per_gpu": 4})


def test_fp16_scales_the_loss_dynamically_unless_told_otherwise() -> None:
    assert deepspeed_config(trial(precision="fp16"))["fp16"] == {
        "enabled": True,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "min_loss_scale": 1,
    }
    override = {"fp16": {"loss_scale": 128.0}}
    assert deepspeed_config(trial(precision="fp16", deepspeed_overrides=override))["fp16"]["loss_scale"] == 128.0


@pytest.mark.parametrize(
    ("overrides", "pointer", "reason"),
    [
        ({"train_batch_size": 8}, "/train_batch_size", "may not be set"),
        ({"timers": {}}, "/timers", "may not be set"),
        ({"wall_clock_breakdown": True}, "/wall_clock_breakdown", "may not be set"),
        (_zero(stage=1), "/zero_optimization/stage", "may not be set"),
        (_zero(reduce_bucket_size="auto"), "/zero_optimization/reduce_bucket_size", "whole number"),
        (_zero(overlap_comm=1), "/zero_optimization/overlap_comm", "true or false"),
        ({"zero_optimization": "auto"}, "/zero_optimization", "must be an object"),
        (_zero(offload_param={"nvme_path": "/x"}), "/zero_optimization/offload_param/nvme_path", "may not be set"),
        ({"communication_data_type": "fp8"}, "/communication_data_type", "one of fp32, bf16, fp16"),
        ({"prescale/gradients": True}, "/prescale~1gradients", "may not be set"),
        ({"gradient_predivide_factor": float("nan")}, "/gradient_predivide_factor", "a number"),
    ],
)
def test_what_is_not_allowed_is_named_with_its_place(overrides: dict[str, Any], pointer: str, reason: str) -> None:
    (problem,) = override_problems(overrides)
    assert problem.pointer == pointer
    assert reason in problem.reason
    with pytest.raises(OverridesInvalid, match=reason):
        deepspeed_config(trial(zero_stage=3, deepspeed_overrides=overrides))


def test_a_key_that_deepspeed_would_not_read_at_this_point_is_refused() -> None:
    overrides = {"zero_optimization": {"stage3_prefetch_bucket_size": 1000}, "fp16": {"hysteresis": 3}}
    assert override_problems(overrides) == []
    assert override_problems(overrides, zero_stage=3, precision="fp16") == []
    reasons = [problem.reason for problem in override_problems(overrides, zero_stage=2, precision="bf16")]
    assert reasons == [
        "DeepSpeed reads this from ZeRO stage 3 on only, and the stage is 2",
        "DeepSpeed reads this with precision fp16 only, and the precision is bf16",
    ]


def test_batch_keys_that_do_not_multiply_are_refused_with_all_numbers() -> None:
    with pytest.raises(ValueError, match="train_batch_size 9 is not micro batch 4 x accumulation 2 x world size 1 = 8"):
        deepspeed_config(trial(train_batch_size=9))
