"""The workers of a trial as one of them sees them: who it is, how it joins the others, what they say to each other."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainers.network import choose_interfaces

REQUIRED_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Bounds every collective and the rendezvous: longer than one rank's download of a data set, which others wait for.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)


class LaunchError(RuntimeError):
    """The process was not started the way a trial needs it."""


@dataclass(frozen=True)
class LaunchEnvironment:
    """What the launcher (torchrun, Ray's worker, a person) says of this process."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    master_address: str
    master_port: int

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> "LaunchEnvironment":
        """Read and check the launcher's variables.

        Without them DeepSpeed would go looking for MPI and fail for want of mpi4py.

        Raises:
            LaunchError: names each variable that is missing or wrong.
        """
        missing = [name for name in REQUIRED_VARIABLES if not variables.get(name)]
        if missing:
            raise LaunchError(
                f"{', '.join(missing)} not set: start the trial under torchrun or Ray, or set "
                f"{', '.join(REQUIRED_VARIABLES)} by hand"
            )
        numbers = {}
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
            if not variables[name].isdecimal():
                raise LaunchError(f"{name} is {variables[name]!r}: it must be a whole number")
            numbers[name] = int(variables[name])
        if numbers["RANK"] >= numbers["WORLD_SIZE"]:
            raise LaunchError(f"RANK {numbers['RANK']} must be below WORLD_SIZE {numbers['WORLD_SIZE']}")
        return cls(
            rank=numbers["RANK"],
            local_rank=numbers["LOCAL_RANK"],
            world_size=numbers["WORLD_SIZE"],
            local_world_size=numbers["LOCAL_WORLD_SIZE"],
            master_address=variables["MASTER_ADDR"],
            master_port=numbers["MASTER_PORT"],
        )


class World:
    """The joined process group. Tensors for its collectives live on `device` (gloo: CPU, NCCL: this rank's GPU)."""

    def __init__(self, launch: LaunchEnvironment, device: torch.device, node_ip: str, *, owns_group: bool) -> None:
        self.launch = launch
        self.rank = launch.rank
        self.size = launch.world_size
        self.device = device
        self.node = socket.gethostname()
        self.node_ip = node_ip
        self.backend = str(dist.get_backend())
        self._owns_group = owns_group

    @classmethod
    def join(cls, launch: LaunchEnvironment, device: torch.device, expected_size: int) -> "World":
        """Join the process group, or take over one that the launcher has joined already.

        The device must be set before (NCCL would build its communicators on device 0 else).

        Raises:
            LaunchError: launcher and configuration disagree about the world size, or the group is of another backend.
                What else the workers may disagree about, `trainers.preflight` finds.
        """
        if launch.world_size != expected_size:
            raise LaunchError(
                f"the trial is for {expected_size} workers, the launcher started {launch.world_size} (WORLD_SIZE)"
            )
        node_ip = choose_interfaces(launch.master_address, launch.master_port)
        backend = "nccl" if device.type == "cuda" else "gloo"
        owns_group = not dist.is_initialized()
        if owns_group:
            dist.init_process_group(
                backend,
                rank=launch.rank,
                world_size=launch.world_size,
                timeout=COLLECTIVE_TIMEOUT,
                device_id=device if device.type == "cuda" else None,
            )
        if backend not in str(dist.get_backend()):
            raise LaunchError(f"the process group uses {dist.get_backend()}, training on {device.type} needs {backend}")
        return cls(launch, device, node_ip, owns_group=owns_group)

    def barrier(self) -> None:
        """Wait for all workers, and for this one's device: on CUDA the barrier alone would only be queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            dist.barrier(device_ids=[self.device.index])
            torch.cuda.synchronize(self.device)
        else:
            dist.barrier()

    def from_rank_0(self, value: float) -> float:
        """Rank 0's number on every rank; the others' `value` is not looked at."""
        number = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(number, src=0)
        return float(number.item())

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """The element-wise sum over ranks, float64, on the CPU."""
        total = values.detach().to(self.device, torch.float64)
        dist.all_reduce(total)
        return total.cpu()

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's (picklable) value in rank order on rank 0, None on the others."""
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, dst=0)
        return values

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's (picklable) value in rank order, on every rank."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def all_agree(self, holds: bool) -> bool:
        """Whether it holds on every rank; the same answer on all."""
        return int(self.sums(torch.tensor([int(holds)])).item()) == self.size

    def leave(self) -> None:
        """Leave the process group if this trial made it; a launcher's own group is the launcher's to end."""
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()


def launch_environment() -> LaunchEnvironment:
    """This process's launch environment."""
    return LaunchEnvironment.read(os.environ)
