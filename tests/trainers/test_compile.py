"""torch.compile in a trial: real trainings on the CPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainers.config import TrialConfig
from trainers.deepspeed_config import deepspeed_config
from trainers.engine import CompilerMissing, TrialEngine

REPOSITORY = Path(__file__).parents[2]


def trained(**changes: Any) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainers.compiling", json.dumps(changes)],
        capture_output=True,
        text=True,
        timeout=570,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        # The same arithmetic in another order: last bits of fp32, over a few steps.
        ({"zero_stage": 0}, 1e-4),
        ({"zero_stage": 2, "optimizer": "sgd", "activation_checkpointing": True}, 1e-4),
        # Inductor keeps in fp32 what eager code rounds to bf16 (8 bits) between two operations: not the same sums.
        ({"zero_stage": 1, "precision": "bf16"}, 0.1),
    ],
    ids=["ZeRO 0", "ZeRO 2, SGD, checkpointing", "ZeRO 1, bf16"],
)
def test_it_learns_the_same_and_compiles_nothing_once_training_has_begun(
    changes: dict[str, Any], tolerance: float
) -> None:
    told = trained(**changes)
    plain, compiled = told["plain"], told["compiled"]
    assert compiled["weights_kept"] is True
    assert compiled["losses"] == pytest.approx(plain["losses"], abs=tolerance)
    assert (plain["graphs_ahead"], plain["graphs_after"]) == (0, 0)
    assert compiled["graphs_ahead"] == 1  # the whole model in one graph
    assert compiled["graphs_after"] == 1


def trial(**changes: Any) -> TrialConfig:
    values: dict[str, Any] = {
        "model": "vit_tiny_patch16_224",
        "image_size": 32,
        "patch_size": 16,
        "num_classes": 10,
        "dataset": "digits",
        "world_size": 1,
        "train_micro_batch_size_per_gpu": 4,
        "train_batch_size": 4,
        "compile": True,
    }
    return TrialConfig.model_validate(values | changes)


def test_a_worker_without_a_compiler_is_told_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompilerMissing, match=r"no C\+\+ compiler \(no-such-compiler\) found: torch.compile makes"):
        TrialEngine(trial(), torch.nn.Linear(1, 1), None)  # type: ignore[arg-type]


def test_the_third_zero_stage_is_not_compiled() -> None:
    with pytest.raises(ValueError, match="not offered at ZeRO stage 3"):
        deepspeed_config(trial(zero_stage=3))
