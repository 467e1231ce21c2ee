import pytest
import torch

from trainers.config import TrialConfig
from trainers.flops import (
    ViTShape,
    achieved_flops_per_second,
    forward_flops_per_image,
    model_flops_utilisation,
)
from trainers.model import build_model, count_forward_flops, flops_per_image, plain_shape


def trial(model: str, **changes: object) -> TrialConfig:
    values: dict[str, object] = {
        "model": model,
        "image_size": 32,
        "patch_size": 16,
        "num_classes": 10,
        "dataset": "synthetic",
        "world_size": 1,
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": 1,
    }
    return TrialConfig.model_validate(values | changes)


VIT_B_16 = ViTShape(
    image_size=224, patch_size=16, depth=12, width=768, mlp_width=3072, prefix_tokens=1, num_classes=1000
)


def test_vit_base_patch16_at_224_with_1000_classes_takes_35_1_gflop() -> None:
    # By hand: patches 196 x 2 x 768 x 768; per block 197 x 24 x 768^2 and 4 x 197^2 x 768; head 2 x 768 x 1000.
    by_hand = 231_211_008 + 12 * (2_788_687_872 + 119_221_248) + 1_536_000
    assert forward_flops_per_image(VIT_B_16) == by_hand
    assert forward_flops_per_image(VIT_B_16) / 1e9 == pytest.approx(35.1, abs=0.05)


def test_a_one_token_vit_counts_to_the_digit() -> None:
    # One patch of 1 pixel and no prefix: 2*3*4 | (2*4*16 + 4*1*4 + 4*4*8) | 2*4*5
    shape = ViTShape(image_size=1, patch_size=1, depth=1, width=4, mlp_width=8, prefix_tokens=0, num_classes=5)
    assert forward_flops_per_image(shape) == 24 + (128 + 16 + 128) + 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("vit_tiny_patch16_224", {"image_size": 32, "patch_size": 4}),
        ("vit_base_patch16_224", {"image_size": 224, "patch_size": 16, "num_classes": 1000}),
        ("deit_tiny_distilled_patch16_224", {}),
        ("deit3_small_patch16_224", {}),
    ],
)
def test_the_closed_form_agrees_with_torchs_counter(model: str, changes: dict[str, object]) -> None:
    config = trial(model, **changes)
    shape = plain_shape(build_model(config, "meta"))
    assert shape is not None
    assert forward_flops_per_image(shape) == count_forward_flops(config)


@pytest.mark.slow
def test_a_block_that_the_closed_form_does_not_fit_is_counted() -> None:
    config = trial("vit_pwee_patch16_reg1_gap_256")
    model = build_model(config, "meta")
    assert plain_shape(model) is None
    assert flops_per_image(model, config) == count_forward_flops(config) > 0


def test_training_takes_three_forward_passes_and_utilisation_is_over_all_workers() -> None:
    assert achieved_flops_per_second(35.1e9, 100) == pytest.approx(10.53e12)
    assert model_flops_utilisation(35.1e9, 100, 2, 65e12) == pytest.approx(10.53 / 130)
    assert model_flops_utilisation(35.1e9, 100, 2, None) is None


@pytest.mark.slow
def test_the_same_seed_builds_the_same_model() -> None:
    first, again = (build_model(trial("vit_tiny_patch16_224", seed=3), "cpu") for _ in range(2))
    other = build_model(trial("vit_tiny_patch16_224", seed=4), "cpu")
    weights = [model.state_dict()["patch_embed.proj.weight"] for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.slow
def test_a_distilled_model_trains_on_the_mean_of_its_two_heads() -> None:
    model = build_model(trial("deit_tiny_distilled_patch16_224"), "cpu").train()
    logits = model(torch.zeros(2, 3, 32, 32))
    assert logits.shape == (2, 10)
    logits.sum().backward()
    state = dict(model.named_parameters())
    assert state["head.bias"].grad is not None
    assert state["head_dist.bias"].grad is not None
    assert torch.equal(state["head.bias"].grad, state["head_dist.bias"].grad)
