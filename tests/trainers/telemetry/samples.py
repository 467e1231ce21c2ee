"""Readings for tests: one machine of two cores, one rank with one thread, windows of a second."""

from typing import Any

from trainers.telemetry.readings import (
    CoreCounters,
    CorePool,
    DeviceCounters,
    DeviceState,
    RankReadings,
    Reading,
    WindowReadings,
)

PROCESSORS = CorePool("boot (0, 1)", "processors", 2)


def window(
    *,
    own: float,
    children: float = 0.0,
    busy: float | None = None,
    steal: float = 0.0,
    seconds: float = 1.0,
    counters: tuple[DeviceCounters, DeviceCounters] = (DeviceCounters(), DeviceCounters()),
    state: DeviceState | None = None,
) -> WindowReadings:
    """Processor seconds: the rank's (`own`), its children's, all processes' (`busy`; None: not read), stolen ones."""
    pools = ((CoreCounters(100.0, 5.0),), (CoreCounters(100.0 + busy, 5.0 + steal),)) if busy is not None else ((), ())
    return WindowReadings(
        before=Reading(50.0, 30.0, 10.0, pools[0], counters[0]),
        after=Reading(50.0 + seconds, 30.0 + own, 10.0 + children, pools[1], counters[1]),
        state=state,
        reading_seconds=0.0004,
    )


def rank(number: int = 0, *windows: WindowReadings, **changes: Any) -> RankReadings:
    values: dict[str, Any] = {
        "rank": number,
        "node": "a",
        "machine": "boot",
        "num_threads": 1,
        "pids": (1000 + number,),
        "device_name": "Some CPU",
        "pools": (PROCESSORS,),
        "windows": windows,
    }
    return RankReadings(**(values | changes))
