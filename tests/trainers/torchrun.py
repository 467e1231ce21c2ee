"""Several processes for a test that needs a process group."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_SECONDS = 500


def run_under_torchrun(world_size: int, module: str, *arguments: str) -> None:
    """Run the module in `world_size` processes with one thread each; fails the test with what they wrote."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    done = subprocess.run(
        [*torchrun, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
