"""Reads the machine's processor time, this rank's own, and that of all processes: psutil, and Linux's cgroups.

Read between windows only. Nothing here waits, takes a lock or starts a thread.
"""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from trainers.telemetry.quota import CgroupQuota
from trainers.telemetry.readings import CoreCounters, CorePool, ProcessUse

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_KEPT_PROCESSES: Final = 50
_KEPT_FROM_CORES: Final = 0.01

ProcessTimes = Mapping[psutil.Process, float]  # processor seconds of each process there is


def machine() -> str:
    """The same for all processes under one kernel, whatever containers or network namespaces they are in."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


class HostReader:
    """One rank's view of its machine.

    Args:
        reads_pools: whether this rank reads what all ranks of its node would read alike.
    """

    def __init__(self, *, reads_pools: bool) -> None:
        self._reads_pools = reads_pools
        self._process = psutil.Process()
        self._children: dict[psutil.Process, float] = {}
        self._processors = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
        self._is_narrowed = bool(self._processors) and len(self._processors) != psutil.cpu_count()
        self._quota = CgroupQuota.find()
        self.pools = self._find_pools()

    def _find_pools(self) -> tuple[CorePool, ...]:
        cores = len(self._processors) or os.cpu_count() or 1
        pools = [CorePool(f"{machine()} {self._processors}", "processors", cores)]
        if self._quota is not None and self._quota.cores < cores:
            pools.append(CorePool(f"{machine()} {self._quota.identity}", "quota", self._quota.cores))
        return tuple(pools)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of this rank's process and its children, loader workers and whoever starts them included."""
        return (self._process.pid, *(child.pid for child in self._children))

    def find_children(self) -> None:
        """Look for children that have come since; a look through all processes, so not with each reading."""
        for child in self._process.children(recursive=True):
            self._children.setdefault(child, 0.0)

    def own_cpu_seconds(self) -> tuple[float, float]:
        """(of this rank so far, of its children alone). What a child that has ended used last is kept."""
        for child in self._children:
            try:
                times = child.cpu_times()
            except psutil.Error:
                continue
            self._children[child] = times.user + times.system
        children = sum(self._children.values())
        return time.process_time() + children, children

    def pool_counters(self) -> tuple[CoreCounters | None, ...]:
        """In the order of `pools`; nothing where another rank of the node reads them."""
        if not self._reads_pools:
            return ()
        counters = [self._processor_counters()]
        if len(self.pools) > 1 and self._quota is not None:
            counters.append(self._quota.counters())
        return tuple(counters)

    def _processor_counters(self) -> CoreCounters | None:
        """Time spent on processes: user, nice and system, guests being part of user (proc(5), /proc/stat).

        Interrupts are left out: they are counted apart, and a trial's own network traffic causes many.
        """
        each = [psutil.cpu_times()]
        if self._is_narrowed:
            listed = psutil.cpu_times(percpu=True)
            if len(listed) > self._processors[-1]:  # else some are offline, and places are not numbers
                each = [listed[number] for number in self._processors]
        busy = sum(times.user + times.system + getattr(times, "nice", 0.0) for times in each)
        if busy == 0:  # some sandboxes count nothing
            return None
        steals = [times.steal for times in each if hasattr(times, "steal")]
        return CoreCounters(busy, sum(steals) if steals else None)

    def process_times(self) -> ProcessTimes:
        """Of all processes that can be seen from here, if this rank is the one to look."""
        found: dict[psutil.Process, float] = {}
        for process in psutil.process_iter() if self._reads_pools else ():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            found[process] = times.user + times.system
        return found

    def uses(self, before: ProcessTimes, after: ProcessTimes, seconds: float) -> tuple[ProcessUse, ...]:
        """What processes used within `seconds`, the busiest first; one that has come since, all it has used."""
        used = {process: (end - before.get(process, 0.0)) / seconds for process, end in after.items()}
        busiest = sorted(used, key=lambda process: -used[process])[:_KEPT_PROCESSES]
        uses = []
        for process in busiest:
            if used[process] < _KEPT_FROM_CORES:
                break
            try:
                uses.append(ProcessUse(process.name(), process.pid, used[process]))
            except psutil.Error:
                uses.append(ProcessUse("ended", process.pid, used[process]))
        return tuple(uses)
