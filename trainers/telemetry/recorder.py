"""Reads a rank's counters right before and right after each window: never inside one, and by no thread."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from trainers.telemetry.host import HostReader, machine
from trainers.telemetry.nvml import NvmlDevice, NvmlUnavailable
from trainers.telemetry.readings import DeviceProcess, RankReadings, Reading, WindowReadings


class Recorder:
    """The readings of one rank over one measurement: `begin`, `around_window` for each, `readings`, `close`."""

    def __init__(
        self,
        identity: RankReadings,
        host: HostReader,
        device: NvmlDevice | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._identity, self._host, self._device, self._clock = identity, host, device, clock
        self._windows: list[WindowReadings] = []
        self._scan_seconds = 0.0

    @classmethod
    def of_rank(
        cls, *, rank: int, local_rank: int, node: str, num_threads: int, device_name: str, device_uuid: str | None
    ) -> "Recorder":
        """With what this machine has. Of a node's ranks, the first reads what all of them would read alike."""
        host = HostReader(reads_pools=local_rank == 0)
        device: NvmlDevice | None = None
        notes: tuple[str, ...] = ()
        if device_uuid is not None:
            import pynvml

            try:
                device = NvmlDevice.open(device_uuid, pynvml)
            except NvmlUnavailable as error:
                notes = (f"GPU telemetry could not be read on {node}: {error}",)
        identity = RankReadings(
            rank=rank,
            node=node,
            machine=machine(),
            num_threads=num_threads,
            pids=(),
            device_name=device_name,
            device_uuid=device_uuid,
            pools=host.pools,
            notes=notes,
        )
        return cls(identity, host, device)

    def begin(self) -> None:
        """Look through all processes once, before the first window."""
        start = self._clock()
        self._host.find_children()
        self._began_at = start
        self._began_microseconds = time.time_ns() // 1000
        self._process_times = self._host.process_times()
        self._device_pids = set() if self._device is None else self._device.pids()
        self._scan_seconds = self._clock() - start

    @contextmanager
    def around_window(self) -> Iterator[None]:
        """Reads before and after what is within; adds nothing to it."""
        start = self._clock()
        before = self._read()
        took = self._clock() - start
        yield
        start = self._clock()
        state = None if self._device is None else self._device.state()
        if not self._windows:
            self._host.find_children()  # those that the first steps have started
        after = self._read()
        took += self._clock() - start
        self._windows.append(WindowReadings(before, after, state, took))

    def _read(self) -> Reading:
        at_seconds = self._clock()
        own, children = self._host.own_cpu_seconds()
        return Reading(
            at_seconds=at_seconds,
            own_cpu_seconds=own,
            children_cpu_seconds=children,
            pools=self._host.pool_counters(),
            device=None if self._device is None else self._device.counters(),
        )

    def readings(self, num_kept: int) -> RankReadings:
        """All that was read, of the last `num_kept` windows: those that the measurement keeps."""
        start = self._clock()
        uses = self._host.uses(self._process_times, self._host.process_times(), start - self._began_at)
        processes: tuple[DeviceProcess, ...] = ()
        notes = self._identity.notes
        if self._device is not None:
            processes = self._device.processes(self._device_pids, self._host.pids, self._began_microseconds)
            if self._device.untold:
                untold = ", ".join(f"{what} ({why})" for what, why in sorted(self._device.untold.items()))
                notes = (*notes, f"telemetry that {self._identity.device_name} does not tell: {untold}")
        self._scan_seconds += self._clock() - start
        return replace(
            self._identity,
            pids=self._host.pids,
            windows=tuple(self._windows[len(self._windows) - num_kept :]),
            processes=uses,
            device_processes=processes,
            scan_seconds=self._scan_seconds,
            notes=notes,
        )

    def close(self) -> None:
        """Let go of NVML."""
        if self._device is not None:
            self._device.close()
