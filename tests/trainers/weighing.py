"""Builds real DeepSpeed engines one after the other and writes down what each holds. For torchrun.

`python -m tests.trainers.weighing trials.json`: a list of TrialConfig of one world size. Each rank writes what it holds
of each to a file beside it, held-0.json and so on: standard output is shared with the others, and with DeepSpeed.
"""

import json
import logging
import sys
from pathlib import Path

import torch
from torch import distributed

from trainers.config import TrialConfig
from trainers.engine import TRAINING_TYPE, TrialEngine, forget_process_groups, import_deepspeed
from trainers.model import build_model
from trainers.parts.traffic_count import counted_traffic
from trainers.world import World, launch_environment


def weigh(config: TrialConfig) -> dict[str, object]:
    """One optimizer step (which makes the optimizer's state), one that is weighed, one whose exchange is counted."""
    cpu, launch = torch.device("cpu"), launch_environment()
    world = World.join(launch, cpu, config.world_size)
    model = build_model(config, cpu)
    sizes = [parameter.numel() for parameter in model.parameters()]
    engine = TrialEngine(config, model, world)
    shape = (config.train_micro_batch_size_per_gpu, 3, config.image_size, config.image_size)
    batch = torch.zeros(shape, dtype=TRAINING_TYPE[config.precision]), torch.zeros(shape[0], dtype=torch.int64)
    engine.train_step(lambda: batch)
    held = engine.weighing_step(lambda: batch)
    engine.train_step(lambda: batch)  # at stage 3 the third micro step is the first of the usual kind
    with counted_traffic() as traffic:
        engine.train_step(lambda: batch)
    optimizer = type(engine.engine.optimizer).__name__
    engine.close()
    forget_process_groups()
    world.leave()
    return {"sizes": sizes, "held": held.model_dump(), "optimizer": optimizer} | {
        "traffic": [collective.model_dump() for collective in traffic.collectives()],
        "uncounted": sorted(traffic.uncounted),
    }


def main() -> None:
    torch.set_num_threads(1)
    import_deepspeed(torch.device("cpu"))
    logging.disable(logging.WARNING)
    distributed.init_process_group("gloo")  # one for all: a trial leaves standing what it finds
    trials = Path(sys.argv[1])
    held = [weigh(TrialConfig.model_validate(given)) for given in json.loads(trials.read_text(encoding="utf-8"))]
    trials.with_name(f"held-{distributed.get_rank()}.json").write_text(json.dumps(held), encoding="utf-8")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
