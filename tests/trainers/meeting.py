"""One worker of a trial that goes as far as the preflight checks, in the way that it is told. Tests start it."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Literal

import torch

from trainers.device import TrainingDevice
from trainers.engine import import_deepspeed
from trainers.preflight import Facts, Meeting, WorkersDidNotMeet, WorkersDisagree, facts_of
from trainers.world import World, launch_environment

Way = Literal["comes", "other-torch", "never-comes", "tells-nothing", "stops", "dies"]


def take_part(way: Way, seconds: float, variables: dict[str, str], answer: Path) -> None:
    """As `trainers.preflight.preflight`, with bounds of `seconds`; its node is named after its rank.

    What came of it is written to `answer`: the error's type and message, and the seconds it took.
    """
    os.environ.update(variables)
    torch.set_num_threads(1)
    cpu, launch = torch.device("cpu"), launch_environment()
    import_deepspeed(cpu)
    world = World.join(launch, cpu, launch.world_size)
    world.node = f"host-{launch.rank}"
    facts = facts_of(world, TrainingDevice(cpu))
    told: dict[str, object] = {"type": None, "message": ""}
    start = time.perf_counter()
    try:
        _meet(way, seconds, world, facts)
    except (WorkersDidNotMeet, WorkersDisagree, RuntimeError) as error:
        told = {"type": type(error).__name__, "message": str(error)}
    told["seconds"] = time.perf_counter() - start
    world.leave()
    answer.write_text(json.dumps(told), encoding="utf-8")


def _meet(way: Way, seconds: float, world: World, facts: Facts) -> None:
    if way == "never-comes":
        time.sleep(3600)
    if way == "other-torch":
        facts = facts.model_copy(update={"versions": {**facts.versions, "torch": "2.9.0"}})
    meeting = Meeting(world)
    if way == "tells-nothing":
        time.sleep(3600)
    everyone = meeting.tell(facts, seconds)
    meeting.agree(everyone)
    if way == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    if way == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    meeting.add_up(everyone, seconds)
