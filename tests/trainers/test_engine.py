import pytest
import torch
from torch import nn

from trainers import compiled_ops
from trainers.config import TrialConfig
from trainers.engine import UnsupportedPrecision, _check_precision, build_optimizer, import_deepspeed

CPU = torch.device("cpu")


def trial(**changes: object) -> TrialConfig:
    values: dict[str, object] = {
        "model": "vit_tiny_patch16_224",
        "image_size": 32,
        "patch_size": 16,
        "num_classes": 10,
        "dataset": "digits",
        "world_size": 1,
        "train_micro_batch_size_per_gpu": 4,
        "train_batch_size": 4,
    }
    return TrialConfig.model_validate(values | changes)


def test_deepspeed_is_offered_the_op_that_was_compiled_ahead_and_probes_for_nothing() -> None:
    deepspeed = import_deepspeed(CPU)
    compiled = compiled_ops.is_needed() and compiled_ops.library_path().is_file()
    assert deepspeed.ops.__compatible_ops__ == {compiled_ops.OP_NAME: compiled}


@pytest.mark.slow
def test_a_precision_that_the_device_lacks_is_refused_with_what_to_take() -> None:
    import_deepspeed(CPU)
    from deepspeed.accelerator import get_accelerator

    _check_precision(trial(precision="fp32"), CPU)
    if get_accelerator().is_fp16_supported():
        pytest.skip("this processor trains in fp16")
    with pytest.raises(UnsupportedPrecision, match="does not train in fp16 on this CPU: take bf16 or fp32"):
        _check_precision(trial(precision="fp16"), CPU)


@pytest.mark.slow
def test_the_optimizers_are_torchs_own_with_the_trials_settings() -> None:
    parameters = list(nn.Linear(2, 2).parameters())
    adamw = build_optimizer(trial(learning_rate=0.5, weight_decay=0.25), parameters, CPU)
    assert type(adamw) is torch.optim.AdamW
    assert (adamw.defaults["lr"], adamw.defaults["weight_decay"], adamw.defaults["fused"]) == (0.5, 0.25, False)
    sgd = build_optimizer(trial(optimizer="sgd"), parameters, CPU)
    assert type(sgd) is torch.optim.SGD
    assert sgd.defaults["momentum"] == 0.9


@pytest.mark.slow
def test_on_cuda_the_update_is_fused_unless_the_optimizer_lives_in_host_memory() -> None:
    parameters = list(nn.Linear(2, 2).parameters())
    cuda = torch.device("cuda", 0)
    offload = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
    assert build_optimizer(trial(), parameters, cuda).defaults["fused"] is True
    assert build_optimizer(trial(deepspeed_overrides=offload), parameters, cuda).defaults["fused"] is False
