"""The formula of model states, worked by hand for ViT-B/16 (86,567,656 parameters) and held against its invariants."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.models import model_table
from trainers.config import TrialConfig
from trainers.memory import ModelStates, model_states

P = 86_567_656
VIT_BASE = model_table()["vit_base_patch16_224"].tensor_sizes_at(224, 16, 1000)
# Tensors of at most 100,000 elements: two of 768 (class token, patches' bias); 9,984 in each of 12 blocks (two norms of
# 2 x 768, biases of 2304, 768, 3072 and 768); the last norm of 2 x 768; the head's bias of 1000.
SMALL = 2 * 768 + 12 * 9_984 + 2 * 768 + 1_000


def trial(**changes: object) -> TrialConfig:
    values: dict[str, object] = {
        "model": "vit_base_patch16_224",
        "image_size": 224,
        "patch_size": 16,
        "num_classes": 1000,
        "dataset": "synthetic",
        "world_size": 1,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
    } | changes
    values["train_batch_size"] = values["world_size"] * values["gradient_accumulation_steps"]  # type: ignore[operator]
    return TrialConfig.model_validate(values)


def of_vit_base(**changes: object) -> ModelStates:
    return model_states(trial(**changes), VIT_BASE)


def test_the_tensors_of_vit_base_add_up() -> None:
    assert sum(size * count for size, count in VIT_BASE) == P
    assert sum(size * count for size, count in VIT_BASE if size <= 100_000) == SMALL


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
class TestByHand:
    """ViT-B's parameters divide by 8 and by 2 x 4, and every tensor by 8: only W = 8 at stages 1, 2 pads (to 16)."""

    def test_stage_0_holds_everything_at_any_world_size(self, world_size: int) -> None:
        fp32 = of_vit_base(world_size=world_size)
        assert fp32.total_bytes == (4 + 4 + 8) * P == 1_385_082_496
        assert fp32.master_parameter_bytes == fp32.communication_buffer_bytes == 0
        assert of_vit_base(world_size=world_size, precision="tf32") == fp32
        for precision in ("bf16", "fp16"):
            mixed = of_vit_base(world_size=world_size, precision=precision)
            assert mixed.total_bytes == (2 + 2 + 4 + 8) * P  # Rajbhandari et al., section 3.1: 16 bytes
            assert mixed.master_parameter_bytes == 4 * P

    @pytest.mark.parametrize("stage", [1, 2])
    def test_stages_1_and_2_share_out_gradients_master_copy_and_moments(self, world_size: int, stage: int) -> None:
        padded = {1: P, 2: P, 4: P, 8: P + 8}[world_size]
        part = padded // world_size
        fp32 = of_vit_base(world_size=world_size, zero_stage=stage)
        assert (fp32.parameter_bytes, fp32.gradient_bytes) == (4 * padded, 4 * part)
        assert (fp32.master_parameter_bytes, fp32.optimizer_state_bytes) == (4 * part, 8 * part)
        bf16 = of_vit_base(world_size=world_size, zero_stage=stage, precision="bf16")
        assert bf16.total_bytes == 2 * padded + (2 + 4 + 8) * part
        assert (fp32.communication_buffer_bytes, bf16.communication_buffer_bytes) == (2_000_000_000, 1_000_000_000)

    def test_stage_1_keeps_whole_gradients_while_it_accumulates_and_stage_2_does_not(self, world_size: int) -> None:
        of_stage = {
            stage: of_vit_base(world_size=world_size, zero_stage=stage, gradient_accumulation_steps=4)
            for stage in (0, 1, 2)
        }
        assert of_stage[1].gradient_bytes == of_stage[0].gradient_bytes == 4 * P
        assert of_stage[2] == of_vit_base(world_size=world_size, zero_stage=2)

    def test_stage_3_shares_out_all_and_keeps_small_tensors_whole_beside(self, world_size: int) -> None:
        part, small = P // world_size, SMALL if world_size > 1 else 0
        fp32 = of_vit_base(world_size=world_size, zero_stage=3)
        assert (fp32.parameter_bytes, fp32.gradient_bytes) == (4 * (part + small), 4 * part)
        assert (fp32.master_parameter_bytes, fp32.optimizer_state_bytes) == (4 * part, 8 * part)
        bf16 = of_vit_base(world_size=world_size, zero_stage=3, precision="bf16")
        assert bf16.total_bytes == 16 * part + 2 * small
        no_threshold = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
        assert (
            of_vit_base(world_size=world_size, zero_stage=3, deepspeed_overrides=no_threshold).total_bytes == 20 * part
        )

    def test_sgd_has_one_moment(self, world_size: int) -> None:
        for stage in (0, 1, 2, 3):
            adamw, sgd = (of_vit_base(world_size=world_size, zero_stage=stage, optimizer=o) for o in ("adamw", "sgd"))
            assert sgd.optimizer_state_bytes * 2 == adamw.optimizer_state_bytes
            assert sgd.total_bytes == adamw.total_bytes - sgd.optimizer_state_bytes


class TestOverrides:
    def test_fp32_accumulation_of_bf16_takes_whole_fp32_gradients_at_stage_1(self) -> None:
        overrides = {"data_types": {"grad_accum_dtype": "fp32"}}
        states = of_vit_base(world_size=2, zero_stage=1, precision="bf16", deepspeed_overrides=overrides)
        assert states.gradient_bytes == (4 + 2) * P
        assert states.communication_buffer_bytes == 0
        at_once = overrides | {"bf16": {"immediate_grad_update": True}}
        assert (
            of_vit_base(world_size=2, zero_stage=1, precision="bf16", deepspeed_overrides=at_once).gradient_bytes
            == 4 * P
        )
        stage_2 = of_vit_base(world_size=2, zero_stage=2, precision="bf16", deepspeed_overrides=overrides)
        assert stage_2.gradient_bytes == 4 * P // 2

    def test_offload_moves_master_copy_moments_and_waiting_gradients_to_the_host(self) -> None:
        overrides = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
        states = of_vit_base(world_size=2, zero_stage=2, precision="bf16", deepspeed_overrides=overrides)
        assert states.host_bytes == (4 + 8 + 4) * P // 2
        assert states.total_bytes - states.host_bytes == 2 * P

    def test_buckets_follow_their_size_and_overlap(self) -> None:
        overrides = {"zero_optimization": {"reduce_bucket_size": 1_000_000, "overlap_comm": True}}
        states = of_vit_base(world_size=2, zero_stage=2, precision="bf16", deepspeed_overrides=overrides)
        assert states.communication_buffer_bytes == 2 * 2 * 1_000_000


TENSORS = st.lists(st.tuples(st.integers(1, 3_000_000), st.integers(1, 12)), min_size=1, max_size=12)
PRECISIONS = st.sampled_from(["fp32", "tf32", "bf16", "fp16"])


@settings(max_examples=60, deadline=None)
@given(TENSORS, PRECISIONS, st.sampled_from(["adamw", "sgd"]), st.integers(1, 64), st.integers(1, 3))
def test_no_worker_holds_less_than_its_share_and_more_workers_never_hold_more(
    tensors: list[tuple[int, int]], precision: str, optimizer: str, world_size: int, accumulation: int
) -> None:
    def at(stage: int, workers: int) -> int:
        config = trial(
            world_size=workers,
            zero_stage=stage,
            precision=precision,
            optimizer=optimizer,
            gradient_accumulation_steps=accumulation,
            # Else a small model is kept whole beside its part.
            deepspeed_overrides={"zero_optimization": {"stage3_param_persistence_threshold": 0}} if stage == 3 else {},
        )
        return model_states(config, tensors).total_bytes

    num_tensors = sum(count for _, count in tensors)
    padding = 24 * 2 * world_size * (1 + num_tensors)  # at most: bytes of an element x elements padded
    everything = at(0, 1)
    for stage in (0, 1, 2, 3):
        assert at(stage, world_size) >= everything / world_size
        assert at(stage, world_size + 1) <= at(stage, world_size) + padding
    assert at(0, world_size) == everything
    # A stage never holds more than the one below; only stage 1 of fp32 at world size 1 does: its master copy is new.
    assert at(2, world_size) <= at(1, world_size) + padding  # stage 1 keeps whole gradients, which are not padded
    assert at(3, world_size) <= at(2, world_size) + padding
    if world_size > 1 or precision in ("bf16", "fp16"):
        assert at(1, world_size) <= everything + padding
