"""The part of a trial's result that tells of the machine while it was measured. Pure.

Means are over the kept windows. Null: the machine does not tell, or nobody could ask; `quality.notes` says why.
"""

from pydantic import BaseModel, ConfigDict, Field


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ProcessRow(_Strict):
    """A process that is none of the trial's. Never its arguments: they may hold a secret."""

    name: str
    pid: int
    cores: float | None = None  # processor seconds per second
    gpu_percent: int | None = None  # of the GPU's multiprocessors, at its highest


class CoresRow(_Strict):
    """The cores that ranks of one node share: its processors, or what a quota leaves of them."""

    node: str
    ranks: list[int]
    limit: str  # processors | quota
    cores: float
    trial_cores: float  # used by these ranks' processes
    others_cores: float  # used by all else there
    steal_share: float | None  # of the processor time wanted, taken by the hypervisor
    others: list[ProcessRow] = Field(default_factory=list)  # the busiest first


class DeviceRow(_Strict):
    """A rank's GPU, through NVML."""

    rank: int
    device_uuid: str
    power_watts_mean: float | None = None
    sm_clock_mhz_mean: float | None = None  # read at the end of each window
    sm_clock_mhz_min: float | None = None
    temperature_celsius_max: int | None = None
    utilisation_percent_mean: float | None = None
    clock_event_reasons: list[str] = Field(default_factory=list)  # seen at the end of any window
    slowed_share: float | None = None  # of the measured time, by heat or a power brake
    power_capped_share: float | None = None  # of the measured time, held at the power limit
    others: list[ProcessRow] = Field(default_factory=list)


class Telemetry(_Strict):
    """`reading_seconds_per_step`: what reading took between windows, on the slowest rank, none of it measured time."""

    cores: list[CoresRow] = Field(default_factory=list)
    devices: list[DeviceRow] = Field(default_factory=list)
    windows: int
    reading_seconds_per_step: float
    scan_seconds: float  # looking through all processes, once before and once after all windows
