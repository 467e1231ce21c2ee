"""Takes the place of trainers/trial.py in a copy of the code: fails in the way that the model's name says.

Only for what no signal and no configuration brings about. The copy is the test's; the product knows nothing of it.
"""

import os
import time
from typing import Any

import torch
import torch.distributed as dist


def run_trial(config: Any, progress: Any = None) -> Any:
    """As the real one, but for the training."""
    if config.model == "never-joins":
        time.sleep(3600)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        progress("measure", 1, 2, 3.0)
    match config.model:
        case "no-result":
            return None
        case "one-rank-raises":
            if rank == 1:
                raise KeyError("blocks.0.attn")
            dist.barrier()
        case "out-of-memory":
            torch.empty(1 << 50)
        case "leaves":
            raise SystemExit(0)
        case "vanishes":
            if rank == 1:
                os._exit(0)
            dist.barrier()
    return _Garbage()


class _Garbage:
    def model_dump_json(self) -> str:
        return '{"metrics": {"images_per_second": 1.0}}'
