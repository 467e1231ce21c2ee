"""The training device of this rank, CPU or CUDA: how it is set up, what it is called, how much memory it took."""

import os
import platform
import resource
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import torch

from trainers.config import Precision
from trainers.world import LaunchError


class Stopwatch(Protocol):
    """Times steps on the device: `mark` after each, then the seconds between marks, read once the window is over."""

    def mark(self) -> None: ...

    def seconds(self) -> list[float]:
        """Differences of consecutive marks; empties the watch."""
        ...


class HostStopwatch:
    """Marks on the host's clock: right where a step has ended when its call returns (CPU)."""

    def __init__(self) -> None:
        self._marks: list[int] = []

    def mark(self) -> None:
        self._marks.append(time.perf_counter_ns())

    def seconds(self) -> list[float]:
        marks, self._marks = self._marks, []
        return [(after - before) / 1e9 for before, after in pairwise(marks)]


class CudaStopwatch:
    """Marks in the device's own stream; reading them waits for the device, marking does not."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)

    def seconds(self) -> list[float]:
        events, self._events = self._events, []
        if events:
            events[-1].synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def stopwatch_of(device: torch.device) -> Stopwatch:
    """A new stopwatch for what happens on `device`."""
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()


class TrainingDevice:
    """This rank's device and what is to be known of it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        if self.is_cuda:
            properties = torch.cuda.get_device_properties(device)
            self.name = str(properties.name)
            self.uuid: str | None = str(properties.uuid)
            torch.cuda.reset_peak_memory_stats(device)
        else:
            self.name = cpu_model()
            self.uuid = None
        self._rss_baseline = resident_bytes()
        self._rss_peak_is_reset = reset_peak_resident_bytes()
        self._rss_sampled = self._rss_baseline

    def stopwatch(self) -> Stopwatch:
        return stopwatch_of(self.device)

    def sample_memory(self) -> None:
        """Note the memory in use now: all there is on a CPU whose peak cannot be reset (some sandboxes)."""
        if not self.is_cuda:
            self._rss_sampled = max(self._rss_sampled, resident_bytes())

    def peak_memory_bytes(self) -> int:
        """CUDA: allocated by torch. CPU: resident set at its largest, above its value after imports."""
        if self.is_cuda:
            return int(torch.cuda.max_memory_allocated(self.device))
        self.sample_memory()
        peak = peak_resident_bytes() if self._rss_peak_is_reset else None
        return max(peak or 0, self._rss_sampled) - self._rss_baseline

    def reserved_memory_bytes(self) -> int | None:
        return int(torch.cuda.max_memory_reserved(self.device)) if self.is_cuda else None


def choose_device(local_rank: int) -> torch.device:
    """This rank's device, set as the current one: the GPU of its local rank where there are GPUs, else the CPU.

    Raises:
        LaunchError: there are GPUs, but none for this local rank.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise LaunchError(
            f"LOCAL_RANK is {local_rank}, but only {count} GPU(s) are visible "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')})"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def set_threads(num_threads: int) -> None:
    """Torch's threads of this worker, the same under every launcher: else scaling is an artefact.

    torchrun sets OMP_NUM_THREADS to 1 and Ray to the worker's CPUs, so it is written over for what starts later.
    """
    os.environ["OMP_NUM_THREADS"] = str(num_threads)
    torch.set_num_threads(num_threads)


def set_matmul_precision(precision: Precision) -> None:
    """TF32 on for precision tf32, off for all others (torch's own default lets convolutions use it)."""
    mode = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = mode
    torch.backends.cudnn.conv.fp32_precision = mode  # type: ignore[attr-defined]


def cpu_model() -> str:
    """The processor's model name as Linux tells it, else as Python does."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model") and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def resident_bytes() -> int:
    """This process's resident set now."""
    status = _status_kilobytes(("VmRSS",))
    return status[0] * 1024 if status else _max_resident_bytes()


def peak_resident_bytes() -> int | None:
    """The resident set's peak since it was last reset, where Linux tells it."""
    status = _status_kilobytes(("VmHWM",))
    return status[0] * 1024 if status else None


def reset_peak_resident_bytes() -> bool:
    """Start the peak anew (proc(5), clear_refs). False where the kernel does not allow it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _status_kilobytes(keys: Sequence[str]) -> list[int]:
    status = Path("/proc/self/status")
    if not status.is_file():
        return []
    found = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines() if ":" in line)
    return [int(found[key].split()[0]) for key in keys if key in found]


def _max_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
