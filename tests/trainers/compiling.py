"""Trains a few steps on digits, compiled and not, and prints what happened as JSON.

`python -m tests.trainers.compiling '{"zero_stage": 1}'`: what the trial's configuration has beside the defaults here.
In a process of its own: it needs a process group, and torch.compile's counters from zero.
"""

import json
import logging
import os
import sys

import torch

from trainers.config import TrialConfig
from trainers.data.feed import TrainingFeed
from trainers.data.sampler import Sampler
from trainers.data.source import open_data
from trainers.engine import TRAINING_TYPE, TrialEngine, forget_process_groups, import_deepspeed
from trainers.model import build_model
from trainers.standalone import alone
from trainers.world import World, launch_environment

STEPS = 6


def train(config: TrialConfig) -> dict[str, object]:
    cpu = torch.device("cpu")
    world = World.join(launch_environment(), cpu, 1)
    data, model = open_data(config), build_model(config, cpu)
    engine = TrialEngine(config, model, world)
    micro_batch, accumulation = config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps
    sampler = Sampler(data.sharing, len(data.training), 0, 1, micro_batch, accumulation, config.seed)
    feed = TrainingFeed(config, data.training, sampler, cpu, TRAINING_TYPE[config.precision])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    if config.compile:
        engine.compile_ahead(feed.blank())
    told: dict[str, object] = {
        "weights_kept": all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)),
        "graphs_ahead": engine.compiled_graphs,
        "losses": [float(engine.train_step(feed.next)[0]) for _ in range(STEPS)],
        "graphs_after": engine.compiled_graphs,
    }
    engine.close()
    forget_process_groups()
    world.leave()
    return told


def main() -> None:
    os.environ.update(alone())
    torch.set_num_threads(1)
    import_deepspeed(torch.device("cpu"))
    logging.disable(logging.WARNING)
    changes = json.loads(sys.argv[1])
    config = TrialConfig.model_validate(
        {
            "model": "vit_tiny_patch16_224",
            "image_size": 32,
            "patch_size": 16,
            "num_classes": 10,
            "dataset": "digits",
            "world_size": 1,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "train_batch_size": 8,
            "learning_rate": 1e-3,
        }
        | changes
    )
    plain, compiled = (train(config.model_copy(update={"compile": compile})) for compile in (False, True))
    print(json.dumps({"plain": plain, "compiled": compiled}))


if __name__ == "__main__":
    main()
