"""The bytes of a step by formula: against the paper's volumes, and against engines with unusual settings.

The usual settings are held against engines in `tests.trainers.test_held_states`.
"""

from functools import cache
from typing import Any

import pytest

from tests.trainers.small_trials import small_trial, weigh_trials
from trainers.parts.rows import Collective
from trainers.parts.traffic import Operation, step_traffic, total_wire_bytes, wire_bytes

MODEL = [(1_000_000, 4), (500_000, 2), (1_000, 8)]  # (elements, tensors)
ELEMENTS = 5_008_000
SCALARS = 64  # bytes: what the norm and the overflow flag may cost


def zero(**settings: Any) -> dict[str, Any]:
    return {"deepspeed_overrides": {"zero_optimization": settings}}


@pytest.mark.parametrize(("operation", "per_worker"), [("all_reduce", 150), ("all_gather", 75), ("reduce", 75)])
def test_what_a_worker_of_four_sends_of_a_hundred_bytes(operation: Operation, per_worker: float) -> None:
    assert wire_bytes(operation, 100, 4) == per_worker
    assert wire_bytes(operation, 100, 1) == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("stage", "passes"),
    # Passes of the parameters' size over the wire. The paper (section 7) has 2 up to stage 2 and 3 at stage 3, of which
    # DeepSpeed all-reduces where the paper scatters, and gathers once where the paper gathers twice.
    [(0, 2), (1, 3), (2, 3), (3, 2)],
)
def test_passes_of_each_stage(stage: int, passes: int, precision: str) -> None:
    trial = small_trial(4, zero_stage=stage, precision=precision)
    size = ELEMENTS * (2 if precision == "bf16" else 4)
    sent = total_wire_bytes(step_traffic(trial, MODEL))
    assert sent == pytest.approx(passes * 3 / 4 * size, abs=SCALARS + 8 * 4 * 4)


@pytest.mark.parametrize(("stage", "gradient_passes", "update_passes"), [(0, 0, 2), (1, 0, 3), (2, 2, 1), (3, 2, 0)])
def test_what_accumulation_repeats(stage: int, gradient_passes: int, update_passes: int) -> None:
    sent = {
        accumulation: total_wire_bytes(
            step_traffic(small_trial(2, zero_stage=stage, gradient_accumulation_steps=accumulation), MODEL)
        )
        for accumulation in (1, 5)
    }
    one_pass = ELEMENTS * 4 / 2
    # At stage 3 tensors of 1000 elements are gathered with the update.
    small = 8 * 1_000 * 4 / 2 if stage == 3 else 0
    assert sent[1] == pytest.approx((gradient_passes + update_passes) * one_pass, abs=SCALARS)
    assert sent[5] - sent[1] == pytest.approx(4 * (gradient_passes * one_pass - small), abs=SCALARS)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_worker_alone_exchanges_nothing(stage: int) -> None:
    assert step_traffic(small_trial(1, zero_stage=stage), MODEL) == []


def test_tensors_are_padded_each_at_stage_3_and_together_below() -> None:
    tensors = [(7, 3)]
    sent = {
        stage: {one.operation: one for one in step_traffic(small_trial(4, zero_stage=stage), tensors)}
        for stage in (1, 3)
    }
    assert sent[1]["all_gather"].payload_bytes == 24 * 4
    assert sent[3]["all_gather"].payload_bytes == 3 * 8 * 4
    assert sent[3]["reduce_scatter"].payload_bytes == 3 * 8 * 4


UNUSUAL: list[dict[str, Any]] = [
    {"zero_stage": 0, "gradient_clipping": 1.0},
    {"zero_stage": 0, "precision": "bf16", "gradient_clipping": 1.0},
    {"zero_stage": 2, "precision": "bf16", "deepspeed_overrides": {"communication_data_type": "fp32"}},
    {"zero_stage": 3, "precision": "bf16", "deepspeed_overrides": {"communication_data_type": "fp32"}},
    {"zero_stage": 2, "precision": "bf16", "deepspeed_overrides": {"bf16": {"check_grad_overflow": False}}},
    {"zero_stage": 2, "gradient_accumulation_steps": 2} | zero(use_multi_rank_bucket_allreduce=False),
    {"zero_stage": 2} | zero(contiguous_gradients=False),
    {"zero_stage": 3} | zero(reduce_scatter=False),
    {"zero_stage": 3} | zero(sub_group_size=1_000_000),
    {"zero_stage": 3, "activation_checkpointing": True},
    {"zero_stage": 3} | zero(offload_optimizer={"device": "cpu"}),
]
IN_MORE_CALLS: list[dict[str, Any]] = [
    {"zero_stage": 2} | zero(reduce_bucket_size=1_000_000),
    {"zero_stage": 3} | zero(stage3_param_persistence_threshold=0),
    {"zero_stage": 3} | zero(stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=0),
]
ABOUT: list[dict[str, Any]] = [
    {"zero_stage": 3} | zero(stage3_max_reuse_distance=5_000_000, stage3_prefetch_bucket_size=0),
    {"zero_stage": 3} | zero(stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=1_000_000),
]
ALL = UNUSUAL + IN_MORE_CALLS + ABOUT


@cache
def counted() -> list[list[dict[str, Any]]]:
    return weigh_trials([small_trial(2, **point) for point in ALL])


def expected_and_counted(point: dict[str, Any]) -> tuple[list[Collective], list[Collective]]:
    told = [by_rank[ALL.index(point)] for by_rank in counted()]
    assert told[0]["traffic"] == told[1]["traffic"]
    expected = step_traffic(small_trial(2, **point), [(size, 1) for size in told[0]["sizes"]])
    return expected, [Collective.model_validate(one) for one in told[0]["traffic"]]


@pytest.mark.slow
@pytest.mark.parametrize("point", UNUSUAL, ids=str)
def test_bytes_and_calls_are_those_of_the_engine(point: dict[str, Any]) -> None:
    expected, seen = expected_and_counted(point)
    assert seen == expected


@pytest.mark.slow
@pytest.mark.parametrize("point", IN_MORE_CALLS, ids=str)
def test_bytes_are_those_of_the_engine_in_no_more_calls(point: dict[str, Any]) -> None:
    expected, seen = expected_and_counted(point)
    assert [one.model_copy(update={"calls": 0}) for one in seen] == [
        one.model_copy(update={"calls": 0}) for one in expected
    ]
    assert all(one.calls >= least.calls for one, least in zip(seen, expected, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("point", ABOUT, ids=str)
def test_bytes_are_about_those_of_the_engine_where_parameters_do_not_all_stay(point: dict[str, Any]) -> None:
    expected, seen = expected_and_counted(point)
    assert total_wire_bytes(seen) == pytest.approx(total_wire_bytes(expected), rel=0.03)
