"""Profiles some optimizer steps of one rank with torch's own profiler."""

from collections.abc import Callable

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from trainers.parts.exposure import RankProfile, Span

_MICROSECOND = 1e-6


def profile_steps(run_step: Callable[[], None], steps: int, device: torch.device) -> RankProfile:
    """Run `steps` steps under the profiler; what it takes for itself lies outside of all spans.

    On CUDA collectives are NCCL's kernels and operators all other kernels. On the CPU collectives are gloo's own spans,
    in its threads, and operators torch's in all other threads.
    """
    is_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    with profile(activities=activities) as profiler:
        for _ in range(steps):
            run_step()
        if is_cuda:
            torch.cuda.synchronize(device)
    collectives: list[Span] = []
    operators: list[Span] = []
    for event in profiler.events() or []:
        span = Span(event.time_range.start * _MICROSECOND, event.time_range.end * _MICROSECOND)
        if is_cuda:
            if event.device_type == DeviceType.CUDA:
                (collectives if "nccl" in event.name.lower() else operators).append(span)
        elif event.name.startswith("gloo:"):
            collectives.append(span)
        elif event.name.startswith("aten::"):
            operators.append(span)
    return RankProfile(sorted(collectives, key=lambda one: one.start), operators)
