"""Before any clock runs: have all workers of a trial come, do they agree about the world, and can they add up a number?

Each rank notes in the process group's own store who it is, and how far it has come, so that a rank which is not there
can be named with its node by those that are. Every wait has a bound, also for the store itself: whoever keeps it may be
what has stopped.
"""

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict

from trainers import compiled_ops
from trainers.device import TrainingDevice
from trainers.engine import place_in_deepspeed
from trainers.versions import installed_versions
from trainers.world import World

MEETING_SECONDS: Final = 60.0  # first to last rank's facts: all have joined a process group just before
EXCHANGE_SECONDS: Final = 60.0  # one all-reduce of one number
LOOK_SECONDS: Final = 5.0  # how long the others may take to say that they wait, too
_COMPARED = ("python", "torch", "deepspeed", "timm", "ray")

_Answer = TypeVar("_Answer")


class WorkersDidNotMeet(Exception):
    """A worker did not come, or could not be reached, within its time. Names ranks and nodes."""


class WorkersDisagree(Exception):
    """The workers are not what one trial needs them to be. Names ranks and nodes, and what each of them has."""


class Place(BaseModel):
    """Where a process is in the world, as one part of the software takes it to be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int
    world_size: int
    local_rank: int | None  # None: it has no idea of it

    def __str__(self) -> str:
        local = "" if self.local_rank is None else f", local rank {self.local_rank}"
        return f"rank {self.rank} of {self.world_size}{local}"

    def contradicts(self, other: "Place") -> bool:
        locals_differ = None not in (self.local_rank, other.local_rank) and self.local_rank != other.local_rank
        return locals_differ or (self.rank, self.world_size) != (other.rank, other.world_size)


class Facts(BaseModel):
    """What a worker tells the others of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int  # in the process group
    node: str
    node_ip: str
    node_rank: int | None  # the launcher's number of the node: two Ray nodes may share a machine
    local_world_size: int
    launcher: Place
    torch: Place
    deepspeed: Place
    device: str
    device_uuid: str | None
    versions: dict[str, str]
    missing_op: str | None  # what to do about a compiled op that this worker needs and does not have

    @property
    def local_rank(self) -> int:
        assert self.launcher.local_rank is not None
        return self.launcher.local_rank


def preflight(world: World, device: TrainingDevice) -> None:
    """Find out before the data and the model are built whether this trial's workers can work together.

    A collective of all ranks, which have joined the process group.

    Raises:
        WorkersDidNotMeet: a rank did not come or cannot be reached.
        WorkersDisagree: ranks, versions or compiled ops are not what they should be.
    """
    meeting = Meeting(world)
    everyone = meeting.tell(facts_of(world, device), MEETING_SECONDS)
    meeting.agree(everyone)
    meeting.add_up(everyone, EXCHANGE_SECONDS)


def facts_of(world: World, device: TrainingDevice) -> Facts:
    """This worker's facts. DeepSpeed is told of the process group."""
    launch, is_cuda = world.launch, world.device.type == "cuda"
    number = os.environ.get("NODE_RANK") or os.environ.get("GROUP_RANK") or ""  # Ray's worker; torchrun
    rank, world_size, local_rank = place_in_deepspeed(world)
    return Facts(
        rank=dist.get_rank(),
        node=world.node,
        node_ip=world.node_ip,
        node_rank=int(number) if number.isdecimal() else None,
        local_world_size=launch.local_world_size,
        launcher=Place(rank=launch.rank, world_size=launch.world_size, local_rank=launch.local_rank),
        torch=Place(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            local_rank=torch.cuda.current_device() if is_cuda else None,
        ),
        deepspeed=Place(rank=rank, world_size=world_size, local_rank=local_rank),
        device=device.name,
        device_uuid=device.uuid,
        versions=dict(installed_versions()),
        missing_op=None if is_cuda else compiled_ops.missing_compiled_op(),
    )


# ---- do they agree? Pure ----


def why_workers_disagree(everyone: Sequence[Facts]) -> str | None:
    """All that is wrong with these workers in one line, or None where nothing is."""
    complaints = [*_places(everyone), *_local_ranks(everyone), *_versions(everyone), *_compiled_ops(everyone)]
    return "; ".join(complaints) or None


def _places(everyone: Sequence[Facts]) -> Iterable[str]:
    for facts in everyone:
        ideas = {"the launcher": facts.launcher, "torch": facts.torch, "DeepSpeed": facts.deepspeed}
        if any(place.contradicts(facts.launcher) for place in ideas.values()):
            told = ", ".join(f"{who} says {place}" for who, place in ideas.items())
            yield f"on {_node(facts)} {told}"


def _local_ranks(everyone: Sequence[Facts]) -> Iterable[str]:
    nodes = defaultdict[tuple[str, str, int | None], list[Facts]](list)
    for facts in everyone:
        nodes[facts.node, facts.node_ip, facts.node_rank].append(facts)
    for there in nodes.values():
        as_counted = sorted(facts.local_rank for facts in there) == list(range(len(there)))
        if not as_counted or any(facts.local_world_size != len(there) for facts in there):
            told = ", ".join(
                f"rank {facts.rank} has {facts.local_rank} of {facts.local_world_size}"
                for facts in sorted(there, key=lambda facts: facts.rank)
            )
            yield (
                f"the local ranks on {_node(there[0])} must count from 0 to {len(there) - 1}, one for each of its "
                f"workers (LOCAL_RANK, LOCAL_WORLD_SIZE): {told}"
            )


def _versions(everyone: Sequence[Facts]) -> Iterable[str]:
    for package in _COMPARED:
        having = defaultdict[str, list[Facts]](list)
        for facts in everyone:
            having[facts.versions.get(package, "not installed")].append(facts)
        if len(having) > 1:
            told = ", ".join(f"{version} on {_nodes(those)}" for version, those in having.items())
            yield f"{package} must be the same on all nodes: {told}"


def _compiled_ops(everyone: Sequence[Facts]) -> Iterable[str]:
    lacking = defaultdict[str, list[Facts]](list)
    for facts in everyone:
        if facts.missing_op is not None:
            lacking[facts.missing_op].append(facts)
    for missing, those in lacking.items():
        yield f"on {_nodes(those)}: {missing}"


def _node(facts: Facts) -> str:
    return f"node {facts.node} ({facts.node_ip})"


def _nodes(those: Sequence[Facts]) -> str:
    """As "node a (10.0.0.1; ranks 0, 1) and node b (10.0.0.2; rank 2)"."""
    ranks = defaultdict[tuple[str, str], list[int]](list)
    for facts in those:
        ranks[facts.node, facts.node_ip].append(facts.rank)
    return " and ".join(f"node {node} ({ip}; {_ranks(there)})" for (node, ip), there in ranks.items())


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


# ---- have they come, and do they reach each other? ----


class Meeting:
    """Of all ranks of a process group, held over its store: `tell`, `agree`, `add_up`, in this order, once.

    A rank's notes: "node" once it is here, "facts", and "stage", how far it has come with the all-reduce.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d.PrefixStore("preflight", dist.distributed_c10d._get_default_store())
        # A process group may serve one trial after the other.
        number = self._answer(lambda: store.add(f"{self._rank}/meetings", 1), LOOK_SECONDS)
        self._store = dist.distributed_c10d.PrefixStore(str(number), store)
        self._note("node", f"node {world.node} ({world.node_ip})")

    def tell(self, facts: Facts, seconds: float) -> list[Facts]:
        """Every rank's facts, in the order of ranks.

        Raises:
            WorkersDidNotMeet: not all have told theirs within `seconds`.
        """
        self._note("facts", facts.model_dump_json())
        told = self._read("facts", seconds)
        if len(told) < self._size:
            raise WorkersDidNotMeet(self._who_did_not_come(told, self._read("node"), seconds))
        self._note("stage", "read")
        return [Facts.model_validate_json(told[rank]) for rank in range(self._size)]

    def agree(self, everyone: Sequence[Facts]) -> None:
        """Compare the facts of all; every rank comes to the same end.

        Raises:
            WorkersDisagree: something is wrong.
        """
        complaint = why_workers_disagree(everyone)
        if complaint is not None:
            # The one that keeps the store must not leave before the others have read the facts; it may have by now.
            with contextlib.suppress(WorkersDidNotMeet, RuntimeError):
                self._read("stage", LOOK_SECONDS)
            raise WorkersDisagree(complaint)

    def add_up(self, everyone: Sequence[Facts], seconds: float) -> None:
        """One all-reduce of one number.

        Raises:
            WorkersDidNotMeet: it did not end within `seconds`.
            WorkersDisagree: its sum is wrong.
            RuntimeError: as torch raised it, where a connection broke.
        """
        number = torch.tensor([self._rank + 1], dtype=torch.int64, device=self._world.device)
        options = dist.AllreduceOptions()
        # Gloo's own bound, for what stays behind: leaving the group waits for it.
        options.timeout = timedelta(seconds=seconds + 2 * LOOK_SECONDS)
        self._note("stage", "begun")
        work = dist.distributed_c10d._get_default_group().allreduce([number], options)
        if not _completes(work, seconds) and (cause := self._why_it_hangs(work, everyone)):
            raise WorkersDidNotMeet(f"an all-reduce of one number did not end within {seconds:g} s: {cause}")
        work.wait()
        total, right = int(number.item()), self._size * (self._size + 1) // 2
        if total != right:
            where = f"rank {self._rank} on {_node(everyone[self._rank])}"
            raise WorkersDisagree(
                f"an all-reduce over {self._world.backend} gave {total} instead of {right} on {where}"
            )
        self._note("stage", "done")

    def _why_it_hangs(self, work: dist.Work, everyone: Sequence[Facts]) -> str | None:
        """Who is silent; None if the all-reduce ends after all: all of us may have been stopped for a while."""
        self._note("stage", "waited")
        deadline = time.monotonic() + LOOK_SECONDS
        while not _completes(work, LOOK_SECONDS / 20):
            stages = self._read("stage")
            silent = [facts for facts in everyone if stages.get(facts.rank) not in ("waited", "done")]
            if not silent:
                return self._no_way(everyone)
            if time.monotonic() > deadline:
                return ", ".join(
                    f"rank {facts.rank} on {_node(facts)} "
                    f"{'began it and is silent since' if stages.get(facts.rank) == 'begun' else 'did not begin it'}"
                    for facts in silent
                )
        return None

    def _no_way(self, everyone: Sequence[Facts]) -> str:
        backend, variable = self._world.backend, f"{self._world.backend.upper()}_SOCKET_IFNAME"
        return (
            f"every rank waits and none is silent, so {backend} does not carry data between {_nodes(everyone)}; "
            f"{variable} here: {os.environ.get(variable, 'not set')}"
        )

    def _who_did_not_come(self, told: Mapping[int, str], nodes: Mapping[int, str], seconds: float) -> str:
        missing = [
            f"rank {rank} on {nodes[rank]} told nothing of itself" if rank in nodes else f"rank {rank} did not come"
            for rank in range(self._size)
            if rank not in told
        ]
        here = ", ".join(f"rank {rank} on {nodes[rank]}" for rank in sorted(told))
        return f"within {seconds:g} s after the process group was joined {', '.join(missing)}; here: {here}"

    def _note(self, kind: str, text: str) -> None:
        self._store.set(f"{self._rank}/{kind}", text)  # sent, not answered

    def _read(self, kind: str, seconds: float = 0.0) -> dict[int, str]:
        """The notes of this kind by rank: of all, or of those who have made it after `seconds`."""

        def read() -> dict[int, str]:
            keys = [f"{rank}/{kind}" for rank in range(self._size)]
            if seconds:
                with contextlib.suppress(dist.DistStoreError):  # the time is up
                    self._store.wait(keys, timedelta(seconds=seconds))
            noted = [rank for rank, key in enumerate(keys) if self._store.check([key])]
            texts = self._store.multi_get([keys[rank] for rank in noted])
            return {rank: text.decode() for rank, text in zip(noted, texts, strict=True)}

        return self._answer(read, seconds + LOOK_SECONDS)

    def _answer(self, ask: Callable[[], _Answer], seconds: float) -> _Answer:
        """The store's answer, asked for in a thread that is left alone if none comes: on a stopped store it never ends.

        Raises:
            WorkersDidNotMeet: there was none.
        """
        future = Future[_Answer]()

        def answer() -> None:
            try:
                future.set_result(ask())
            except Exception as error:  # noqa: BLE001 - it is raised below
                future.set_exception(error)

        threading.Thread(target=answer, name="preflight", daemon=True).start()
        if not wait([future], seconds).done:
            launch = self._world.launch
            raise WorkersDidNotMeet(
                f"the process group's store at {launch.master_address}:{launch.master_port} does not answer: "
                "rank 0, which keeps it, or its node has stopped, or cannot be reached any more"
            )
        return future.result()


def _completes(work: dist.Work, seconds: float) -> bool:
    """Whether it is over after at most `seconds`, well or not."""
    end, pause = time.monotonic() + seconds, 0.0002
    while not work.is_completed():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return True
