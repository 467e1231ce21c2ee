"""The same trial without Ray, under torchrun or by hand: `python -m trainers.standalone --config trial.json`.

Prints one line on rank 0's standard output, the result as JSON; everything else goes to standard error. Without a
launcher and at world size 1 the launcher's variables are filled in.
"""

import argparse
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pydantic import ValidationError

from trainers.config import TrialConfig


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainers.standalone", description=__doc__)
    parser.add_argument("--config", required=True, help="a TrialConfig as JSON: a file, or - for standard input")
    options = parser.parse_args(arguments)
    try:
        text = sys.stdin.read() if options.config == "-" else Path(options.config).read_text(encoding="utf-8")
        config = TrialConfig.model_validate_json(text)
    except (OSError, ValidationError) as error:
        print(f"vitscale: {options.config}: {error}", file=sys.stderr)
        return 2
    if config.world_size == 1 and "RANK" not in os.environ:
        os.environ.update(alone())
    with clean_output() as output:
        from trainers.data.image_set import DataError
        from trainers.data.sharing import SharingError
        from trainers.deepspeed_config import OverridesInvalid
        from trainers.engine import CompilerMissing, UnsupportedPrecision
        from trainers.model import UnknownModel
        from trainers.preflight import WorkersDidNotMeet, WorkersDisagree
        from trainers.trial import run_trial
        from trainers.world import LaunchError

        unfit = (DataError, SharingError, OverridesInvalid, UnknownModel, UnsupportedPrecision, CompilerMissing)
        try:
            result = run_trial(config)
        except (*unfit, LaunchError, WorkersDidNotMeet, WorkersDisagree) as error:
            print(f"vitscale: {type(error).__name__}: {error}", file=sys.stderr)
            return 2
        if result is not None:
            print(result.model_dump_json(), file=output, flush=True)
    return 0


def alone() -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return names | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@contextmanager
def clean_output() -> Iterator[TextIO]:
    """Standard output for the result alone: DeepSpeed and its compiled parts print there too."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(saved, "w", encoding="utf-8", closefd=False) as output:
            yield output
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


if __name__ == "__main__":
    sys.exit(main())
