"""Trains with and without taking a step apart in between, and writes down the losses and the parts. For torchrun.

`python -m tests.trainers.parts.taking_apart trials.json`: a list of TrialConfig of one world size. Rank 0 writes
[{"losses": [..], "undisturbed": [..], "parts": StepParts, "ranks": [RankParts]}] to apart.json beside it.
"""

import json
import logging
import sys
from collections import Counter
from pathlib import Path

import torch
from torch import distributed

from trainers.config import TrialConfig
from trainers.data.feed import TrainingFeed
from trainers.data.sampler import Sampler
from trainers.data.source import open_data
from trainers.device import TrainingDevice
from trainers.engine import TRAINING_TYPE, TrialEngine, forget_process_groups, import_deepspeed
from trainers.model import build_model
from trainers.parts.blocks import TakenApart, take_apart
from trainers.world import World, launch_environment

STEPS = 3  # before the pass, and after it


def train(config: TrialConfig, *, apart: bool) -> tuple[list[float], TakenApart | None]:
    """This rank's loss of each of 2 x STEPS steps, and what the pass in their middle found on rank 0."""
    cpu = torch.device("cpu")
    world = World.join(launch_environment(), cpu, config.world_size)
    data = open_data(config)
    model = build_model(config, cpu)
    sizes = tuple(Counter(parameter.numel() for parameter in model.parameters()).items())
    engine = TrialEngine(config, model, world)
    sampler = Sampler(
        sharing=data.sharing,
        num_images=len(data.training),
        rank=world.rank,
        world_size=world.size,
        micro_batch_size=config.train_micro_batch_size_per_gpu,
        accumulation=config.gradient_accumulation_steps,
        seed=config.seed,
    )
    feed = TrainingFeed(config, data.training, sampler, cpu, TRAINING_TYPE[config.precision])
    losses = [float(engine.train_step(feed.next)[0]) for _ in range(STEPS)]
    found = None
    if apart:
        device = TrainingDevice(cpu)
        found = take_apart(
            config,
            world,
            engine,
            feed,
            device,
            tensor_sizes=sizes,
            step_seconds=1.0,
            tell=lambda _done, _total: None,
        )
    losses += [float(engine.train_step(feed.next)[0]) for _ in range(STEPS)]
    feed.close()
    engine.close()
    forget_process_groups()
    world.leave()
    return losses, found


def main() -> None:
    torch.set_num_threads(1)
    import_deepspeed(torch.device("cpu"))
    logging.disable(logging.WARNING)
    distributed.init_process_group("gloo")
    trials, rows = Path(sys.argv[1]), []
    for given in json.loads(trials.read_text(encoding="utf-8")):
        config = TrialConfig.model_validate(given)
        undisturbed, _ = train(config, apart=False)
        losses, found = train(config, apart=True)
        if found is not None:
            rows.append(
                {
                    "losses": losses,
                    "undisturbed": undisturbed,
                    "parts": found.parts.model_dump(),
                    "ranks": [rank.model_dump() for rank in found.estimates.ranks],
                }
            )
    if distributed.get_rank() == 0:
        trials.with_name("apart.json").write_text(json.dumps(rows), encoding="utf-8")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
