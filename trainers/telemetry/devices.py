"""Whether a trial's GPUs were its own, ran at full speed, and ran alike. Pure: readings in, verdicts out.

Reasons and counters: NVML API reference, nvmlClocksEventReasons and NVML_FI_DEV_CLOCKS_EVENT_REASON_*.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from trainers.telemetry.readings import DeviceCounters, DeviceProcess, RankReadings
from trainers.telemetry.rows import DeviceRow, ProcessRow

# Like devices whose clocks differ by more make one another wait: the slowest sets the pace of every step.
CLOCK_MISMATCH_SHARE: Final = 0.05
# A slowdown halves the clock or worse, so one percent of the time is half a percent of the result. Shorter ones drown.
SLOWED_SHARE: Final = 0.01
# Under load a power limit is a data-centre GPU's normal state and belongs to what the device can do: told, not flagged.
_POWER_CAP_TOLD_SHARE: Final = 0.05

_GPU_IDLE, _APPLICATION_CLOCKS, _DISPLAY_CLOCK = 0x1, 0x2, 0x100
_HARDWARE_SLOWDOWN = 0x8
_SLOWDOWNS: Final = {
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_REASONS: Final = {
    0x4: "software power cap",
    _HARDWARE_SLOWDOWN: "hardware slowdown",
    0x10: "sync boost",
    **_SLOWDOWNS,
    0x200: "board limit",
    0x400: "reliability",
}
# What a device between two windows, or one with clocks set by its owner, always says.
_NO_NEWS: Final = _GPU_IDLE | _APPLICATION_CLOCKS | _DISPLAY_CLOCK


@dataclass
class DeviceVerdict:
    """One sentence per cause; an empty list means that the flag is not set."""

    rows: list[DeviceRow] = field(default_factory=list)
    contended: list[str] = field(default_factory=list)
    throttled: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def judge_devices(ranks: Sequence[RankReadings]) -> DeviceVerdict:
    """Over all ranks that have a GPU."""
    verdict = DeviceVerdict()
    for rank in ranks:
        if rank.device_uuid is None:
            continue
        own_pids = {pid for other in ranks if other.machine == rank.machine for pid in other.pids}
        row = _row(rank, rank.device_uuid, own_pids)
        verdict.rows.append(row)
        _judge_processes(rank, row, own_pids, verdict)
        _judge_clocks(rank, row, verdict)
    _judge_likeness(ranks, verdict)
    return verdict


def reason_names(mask: int) -> list[str]:
    """The reasons in a mask that say something; an unknown bit by its number."""
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1 and not 1 << place & _NO_NEWS]
    return [_REASONS.get(bit, f"reason {bit:#x}") for bit in bits]


def _row(rank: RankReadings, uuid: str, own_pids: set[int]) -> DeviceRow:
    states = [window.state for window in rank.windows if window.state is not None]
    clocks = [state.sm_clock_mhz for state in states if state.sm_clock_mhz is not None]
    temperatures = [state.temperature_celsius for state in states if state.temperature_celsius is not None]
    utilisations = [state.utilisation_percent for state in states if state.utilisation_percent is not None]
    millijoules = _per_second(rank, "energy_millijoules")
    thermal = [_per_second(rank, name) for name in ("software_thermal_ns", "hardware_thermal_ns")]
    # Either all time spent in a thermal state, or the older counter for the same, and the power brake.
    slowed = [max(sum(_known(thermal)), *_known([_per_second(rank, "thermal_violation_ns")]), 0.0)]
    slowed += _known([_per_second(rank, "power_brake_ns")])
    counters = [*thermal, _per_second(rank, "thermal_violation_ns"), _per_second(rank, "power_brake_ns")]
    capped = _per_second(rank, "power_cap_ns")
    mask = 0
    for state in states:
        mask |= state.clock_event_reasons or 0
    return DeviceRow(
        rank=rank.rank,
        device_uuid=uuid,
        power_watts_mean=None if millijoules is None else millijoules / 1e3,
        sm_clock_mhz_mean=fmean(clocks) if clocks else None,
        sm_clock_mhz_min=min(clocks) if clocks else None,
        temperature_celsius_max=max(temperatures) if temperatures else None,
        utilisation_percent_mean=fmean(utilisations) if utilisations else None,
        clock_event_reasons=reason_names(mask),
        slowed_share=min(1.0, sum(slowed) / 1e9) if _known(counters) else None,
        power_capped_share=None if capped is None else min(1.0, capped / 1e9),
        others=_other_processes(rank.device_processes, own_pids),
    )


def _per_second(rank: RankReadings, counter: str) -> float | None:
    """How much the counter went up per second of the windows that have it."""
    total, seconds = 0, 0.0
    for window in rank.windows:
        before, after = window.before.device or DeviceCounters(), window.after.device or DeviceCounters()
        start, end = getattr(before, counter), getattr(after, counter)
        if start is not None and end is not None and end >= start:
            total += end - start
            seconds += window.seconds
    return total / seconds if seconds > 0 else None


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _other_processes(processes: Sequence[DeviceProcess], own_pids: set[int]) -> list[ProcessRow]:
    """Those that are none of the trial's.

    In a container the driver may tell pids of the host, among which the trial cannot find itself: then one of them is
    the trial, and none can be named.
    """
    if processes and not any(process.pid in own_pids for process in processes):
        others = sorted(processes, key=lambda process: process.pid)[1:]
        return [ProcessRow(name="a process of another PID namespace", pid=process.pid) for process in others]
    return [
        ProcessRow(name=process.name or "unknown", pid=process.pid, gpu_percent=process.gpu_percent)
        for process in processes
        if process.pid not in own_pids
    ]


def _judge_processes(rank: RankReadings, row: DeviceRow, own_pids: set[int], verdict: DeviceVerdict) -> None:
    """A process that only holds memory shares the GPU; one that computes, or may have, contends for it."""
    if not row.others:
        return
    who = ", ".join(f"{other.name} (pid {other.pid})" for other in row.others)
    verdict.shared.append(f"the GPU of rank {rank.rank} ({row.device_uuid}) is also held by {who}")
    told = any(process.gpu_percent is not None for process in rank.device_processes if process.pid in own_pids)
    busy = [other for other in row.others if other.gpu_percent]
    if busy:
        used = ", ".join(f"{other.name} (pid {other.pid}) up to {other.gpu_percent} %" for other in busy)
        verdict.contended.append(f"others used the GPU of rank {rank.rank}: {used}")
    elif not told:
        verdict.contended.append(f"others were on the GPU of rank {rank.rank}, and whether they used it is not told")


def _judge_clocks(rank: RankReadings, row: DeviceRow, verdict: DeviceVerdict) -> None:
    masks = [w.state.clock_event_reasons or 0 for w in rank.windows if w.state is not None]
    seen = [name for bit, name in _SLOWDOWNS.items() if any(mask & bit for mask in masks)]
    # Older devices know only this one, and also say it when they change clocks, as at the end of a window.
    if not seen and masks and sum(bool(mask & _HARDWARE_SLOWDOWN) for mask in masks) > len(masks) / 2:
        seen = ["hardware slowdown"]
    slowed = row.slowed_share is not None and row.slowed_share > SLOWED_SHARE
    if seen or slowed:
        share = "" if row.slowed_share is None else f" for {row.slowed_share:.0%} of the measured time"
        heat = (
            "" if row.temperature_celsius_max is None else f", at up to {row.temperature_celsius_max} degrees Celsius"
        )
        why = f" ({', '.join(seen)})" if seen else ""
        verdict.throttled.append(f"the GPU of rank {rank.rank} was slowed down{share}{why}{heat}")
    if row.power_capped_share is not None and row.power_capped_share > _POWER_CAP_TOLD_SHARE:
        verdict.notes.append(
            f"the power limit held back the clock of rank {rank.rank}'s GPU for {row.power_capped_share:.0%} of the "
            "measured time: usual under load, and part of what the device can do"
        )


def _judge_likeness(ranks: Sequence[RankReadings], verdict: DeviceVerdict) -> None:
    names = {rank.rank: rank.device_name for rank in ranks}
    clocks: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for row in verdict.rows:
        if row.sm_clock_mhz_mean is not None:
            clocks[names[row.rank]].append((row.sm_clock_mhz_mean, row.rank))
    for name, alike in clocks.items():
        (low, slow), (high, fast) = min(alike), max(alike)
        if high > 0 and (high - low) / high > CLOCK_MISMATCH_SHARE:
            verdict.mismatched.append(
                f"{len(alike)} x {name} ran at {low:.0f} MHz (rank {slow}) to {high:.0f} MHz (rank {fast}), "
                f"{(high - low) / high:.0%} apart"
            )
