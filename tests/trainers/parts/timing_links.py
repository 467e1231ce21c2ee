"""Times the links between the processes of torchrun, with node names as given, and writes down rank 0's rows.

`python -m tests.trainers.parts.timing_links rows.json BUDGET_SECONDS GRADIENT_BYTES NODE_OF_RANK_0 NODE_OF_RANK_1 ...`
"""

import json
import sys
import time
from pathlib import Path

import torch

from trainers.parts.links import measure_links
from trainers.world import World, launch_environment


def main() -> None:
    torch.set_num_threads(1)
    path, budget_seconds, gradient_bytes, *nodes = sys.argv[1:]
    launch = launch_environment()
    world = World.join(launch, torch.device("cpu"), len(nodes))
    world.node, world.node_ip = nodes[world.rank].split("/")
    groups_before = len(torch.distributed.distributed_c10d._world.pg_map)
    start = time.perf_counter()
    rows = measure_links(world, int(gradient_bytes), float(budget_seconds))
    told = {
        "rows": [row.model_dump() for row in rows],
        "seconds": time.perf_counter() - start,
        "groups_left": len(torch.distributed.distributed_c10d._world.pg_map) - groups_before,
    }
    everything = world.gather(told)
    if everything is not None:
        Path(path).write_text(json.dumps(everything), encoding="utf-8")
    world.leave()


if __name__ == "__main__":
    main()
