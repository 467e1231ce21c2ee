"""Small real trials on the CPU, run in one set of processes by `tests.trainers.weighing`."""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.trainers.torchrun import run_under_torchrun
from trainers.config import TrialConfig


def small_trial(world_size: int, **changes: Any) -> TrialConfig:
    """ViT-Ti at 32 pixels, two images to a micro batch."""
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


def weigh_trials(trials: Sequence[TrialConfig]) -> list[list[dict[str, Any]]]:
    """What each rank tells of each trial, by rank; all are of one world size."""
    world_size = trials[0].world_size
    with TemporaryDirectory() as folder:
        given = Path(folder) / "trials.json"
        given.write_text(json.dumps([trial.model_dump() for trial in trials]), encoding="utf-8")
        run_under_torchrun(world_size, "tests.trainers.weighing", str(given))
        return [json.loads((Path(folder) / f"held-{rank}.json").read_text("utf-8")) for rank in range(world_size)]
