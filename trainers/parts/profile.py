"""Profiles an optimizer step of one rank with torch's own profiler."""

import os
from collections.abc import Callable

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from trainers.parts.exposure import RankProfile, Span

_MICROSECOND = 1e-6


def profile_step(run_step: Callable[[], None], device: torch.device) -> RankProfile:
    """Run a step under the profiler; what it takes for itself between operators lies outside of all spans.

    On CUDA collectives are NCCL's kernels and operators all other kernels. On the CPU collectives are gloo's own spans,
    in its threads, and operators torch's in all other threads.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its news of itself are no part of a trial's log
    is_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    with profile(activities=activities) as profiler:
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
