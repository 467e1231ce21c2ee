"""What is read of the machine, as the readers hand it over. Counters count since boot. Pure: no torch, no psutil."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CorePool:
    """Cores that processes compete for. Ranks with the same key draw on the same ones."""

    key: str
    limit: str  # processors | quota
    cores: float


@dataclass(frozen=True)
class CoreCounters:
    """Of one pool. `busy_seconds`: on processes; `steal_seconds`: wanted, but given to another guest (proc(5))."""

    busy_seconds: float
    steal_seconds: float | None = None


@dataclass(frozen=True)
class DeviceCounters:
    """Of one GPU; None where it does not tell. Nanoseconds are those spent in that state (NVML API reference)."""

    energy_millijoules: int | None = None
    software_thermal_ns: int | None = None
    hardware_thermal_ns: int | None = None
    power_brake_ns: int | None = None
    thermal_violation_ns: int | None = None
    power_cap_ns: int | None = None


@dataclass(frozen=True)
class DeviceState:
    """Of one GPU at the end of a window. `clock_event_reasons`: the bits of NVML's nvmlClocksEventReasons."""

    sm_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    utilisation_percent: int | None = None
    clock_event_reasons: int | None = None


@dataclass(frozen=True)
class Reading:
    """One look at the counters. `pools` is in the order of the rank's pools, None where unreadable."""

    at_seconds: float  # of any clock that only goes forward
    own_cpu_seconds: float  # of the rank's process and its children
    children_cpu_seconds: float = 0.0  # of these alone
    pools: tuple[CoreCounters | None, ...] = ()
    device: DeviceCounters | None = None


@dataclass(frozen=True)
class WindowReadings:
    """Right before and right after one window."""

    before: Reading
    after: Reading
    state: DeviceState | None = None
    reading_seconds: float = 0.0  # what both took

    @property
    def seconds(self) -> float:
        return self.after.at_seconds - self.before.at_seconds


@dataclass(frozen=True)
class ProcessUse:
    """What a process used between the start and the end of the measurement."""

    name: str
    pid: int
    cores: float


@dataclass(frozen=True)
class DeviceProcess:
    """A process with a compute context on a GPU. The driver may give the pid of another PID namespace than ours.

    `gpu_percent`: its highest share of the multiprocessors while measuring, None where that is not told.
    """

    pid: int
    name: str | None  # None: not a process that can be seen from here
    gpu_percent: int | None = None


@dataclass(frozen=True)
class RankReadings:
    """All that one rank has read, for rank 0 to judge."""

    rank: int
    node: str
    machine: str  # the same for all that share a kernel, and with it pids and processors
    num_threads: int
    pids: tuple[int, ...]  # of the rank's process and its children
    device_name: str
    device_uuid: str | None = None
    pools: tuple[CorePool, ...] = ()  # the rank's, whether or not it is the one to read their counters
    windows: tuple[WindowReadings, ...] = ()
    processes: tuple[ProcessUse, ...] = ()  # of the machine, if this rank looks through them
    device_processes: tuple[DeviceProcess, ...] = ()
    scan_seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())  # why something could not be read
