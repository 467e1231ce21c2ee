"""Specifications for tests: one with nothing but what is required, and one that has every key."""

import copy
from typing import Any

from service.errors import ErrorItem, VitScaleError
from service.spec import StudySpec, parse_spec

MINIMAL: dict[str, Any] = {
    "name": "minimal",
    "parameters": {
        "model": {"value": "vit_tiny_patch16_224"},
        "train_micro_batch_size_per_gpu": {"value": 4},
    },
}

# Every key of the design that can be given beside the others, none at its default where another value is possible.
COMPLETE: dict[str, Any] = {
    "name": "complete",
    "description": "every key",
    "tags": ["a", "b"],
    "scaling": {"mode": "strong", "hold": "micro_batch", "baseline_world_size": 2},
    "workload": {
        "dataset": "cifar10",
        "data_root": "/data/cifar",
        "download": True,
        "dataset_fraction": 0.5,
        "image_size": 32,
        "num_classes": 100,
        "input_pipeline": "loader",
        "loader_workers": 1,
        "epochs": 2,
        "seed": 7,
    },
    "parameters": {
        "model": {"values": ["vit_tiny_patch16_224", "vit_small_patch16_224"]},
        "world_size": {"values": [1, 2]},
        "train_micro_batch_size_per_gpu": {"values": [4, 8]},
        "gradient_accumulation_steps": {"value": 2},
        "train_batch_size": None,
        "zero_stage": {"values": [1, 3]},
        "precision": {"value": "bf16"},
        "optimizer": {"value": "sgd"},
        "learning_rate": {"value": 0.01},
        "weight_decay": {"value": 0},
        "gradient_clipping": {"value": 1.0},
        "patch_size": {"value": 8},
        "activation_checkpointing": {"values": [False, True]},
        "compile": {"value": False},
        "placement": {"value": "mixed"},
    },
    "placements": {
        "mixed": {
            "strategy": "SPREAD",
            "workers": [
                {"label_selector": {"gpu": "rtx3070"}, "count": 3},
                {"label_selector": {"gpu": "in(p4, t4)"}, "count": 2},
            ],
        }
    },
    "exclude": [{"world_size": 1, "zero_stage": 3}],
    "on_indivisible": "skip",
    "resources": {"num_cpus": 2, "num_gpus": 1},
    "measurement": {
        "min_warmup_steps": 1,
        "min_steps": 2,
        "max_steps": 3,
        "max_seconds": 4.5,
        "relative_ci": 0.1,
        "repeats": 2,
        "order": "given",
        "communication": True,
    },
    "execution": {
        "isolation": "shared",
        "max_concurrent_trials": 2,
        "trial_timeout_seconds": 100,
        "queue_timeout_seconds": 200,
        "retries": 0,
        "contended_retries": 0,
        "max_failed_trials": 1,
    },
    "deepspeed": {"zero_optimization": {"overlap_comm": False}},
}


def changed(base: dict[str, Any], pointer: str, value: Any) -> dict[str, Any]:
    """A deep copy of `base` with the value at `pointer` (keys joined by slashes, made where missing) replaced."""
    data = copy.deepcopy(base)
    here: Any = data
    *parents, last = [int(part) if part.isdigit() else part for part in pointer.strip("/").split("/")]
    for part in parents:
        here = here.setdefault(part, {}) if isinstance(here, dict) else here[part]
    here[last] = value
    return data


def without(base: dict[str, Any], pointer: str) -> dict[str, Any]:
    data = copy.deepcopy(base)
    here: Any = data
    *parents, last = pointer.strip("/").split("/")
    for part in parents:
        here = here[part]
    del here[last]
    return data


def minimal(pointer: str | None = None, value: Any = None) -> StudySpec:
    return parse_spec(MINIMAL if pointer is None else changed(MINIMAL, pointer, value))


def refused(data: object) -> tuple[str, list[ErrorItem]]:
    """The code and the items that `data` is refused with."""
    try:
        spec = parse_spec(data)
    except VitScaleError as error:
        return error.code, error.errors
    raise AssertionError(f"accepted: {spec!r}")
