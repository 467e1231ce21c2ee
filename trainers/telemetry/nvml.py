"""Reads one GPU through NVML (nvidia-ml-py). Whatever a device does not tell is None, and noted once with NVML's word.

Read between windows only: no call here waits for the device's work. Units and meanings: NVML API reference.
"""

import contextlib
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

import psutil

from trainers.telemetry.readings import DeviceCounters, DeviceProcess, DeviceState

T = TypeVar("T")
# c_nvmlValue_t's member for each nvmlValueType_t.
_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class NvmlUnavailable(Exception):
    """There is no NVML on this machine, or it does not know the device."""


class NvmlDevice:
    """A GPU or MIG instance."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._fields = {
            "energy_millijoules": nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
            "software_thermal_ns": nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
            "hardware_thermal_ns": nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
            "power_brake_ns": nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
            "power_cap_ns": nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP,
        }
        self.untold: dict[str, str] = {}  # what the device does not tell: why

    @classmethod
    def open(cls, uuid: str, nvml: Any) -> "NvmlDevice":
        """The device that torch knows by this UUID (with or without NVML's prefix). `nvml`: the module pynvml.

        Raises:
            NvmlUnavailable: says why.
        """
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise NvmlUnavailable(str(error)) from error
        for name in (f"GPU-{bare}", f"MIG-{bare}"):
            with contextlib.suppress(nvml.NVMLError):
                return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(name))
        nvml.nvmlShutdown()
        raise NvmlUnavailable(f"it knows no device with the UUID {uuid}")

    def counters(self) -> DeviceCounters:
        """What counts up by itself; one call for all but the older thermal counter."""
        values = self._ask(
            "counters", lambda: self._nvml.nvmlDeviceGetFieldValues(self._handle, [*self._fields.values()])
        )
        told: dict[str, int] = {}
        for name, value in zip(self._fields, values or (), strict=False):
            if value.nvmlReturn == self._nvml.NVML_SUCCESS:
                told[name] = int(getattr(value.value, _MEMBERS[value.valueType]))
            else:
                self.untold.setdefault(name, str(self._nvml.NVMLError(value.nvmlReturn)))
        violation = self._ask(
            "thermal_violation_ns",
            lambda: self._nvml.nvmlDeviceGetViolationStatus(self._handle, self._nvml.NVML_PERF_POLICY_THERMAL),
        )
        return DeviceCounters(**told, thermal_violation_ns=None if violation is None else int(violation.violationTime))

    def state(self) -> DeviceState:
        """As it is now. What changes soonest after the end of a window comes first."""
        nvml, handle = self._nvml, self._handle
        reasons = self._ask("clock_event_reasons", lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        clock = self._ask("sm_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        utilisation = self._ask("utilisation_percent", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        temperature = self._ask(
            "temperature_celsius", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        )
        return DeviceState(
            sm_clock_mhz=clock,
            temperature_celsius=temperature,
            utilisation_percent=utilisation,
            clock_event_reasons=reasons,
        )

    def pids(self) -> set[int]:
        """The processes with a compute context on the device now."""
        listed = self._ask("processes", lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        return {int(process.pid) for process in listed or ()}

    def processes(
        self, seen_before: Collection[int], own_pids: Collection[int], since_microseconds: int
    ) -> tuple[DeviceProcess, ...]:
        """Who was on the device since then (microseconds since the epoch), with its share of the multiprocessors.

        NVML may count pids of the host while this process is in a container, for the list and for the shares apart:
        shares are used only where this process finds itself among them, names only where it is in the list.
        """
        samples = self._ask(
            "process_utilisation", lambda: self._nvml.nvmlDeviceGetProcessUtilization(self._handle, since_microseconds)
        )
        shares: dict[int, int] = {}
        for sample in samples or ():
            shares[int(sample.pid)] = max(shares.get(int(sample.pid), 0), int(sample.smUtil))
        if not shares.keys() & set(own_pids):
            shares = {}
        listed = {*seen_before, *self.pids(), *(pid for pid, share in shares.items() if share)}
        is_ours = bool(listed & set(own_pids))
        return tuple(
            DeviceProcess(pid, _name(pid) if is_ours else None, shares.get(pid, 0) if shares else None)
            for pid in sorted(listed)
        )

    def close(self) -> None:
        self._ask("shutdown", self._nvml.nvmlShutdown)

    def _ask(self, what: str, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except self._nvml.NVMLError as error:
            self.untold.setdefault(what, str(error))
            return None


def _name(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None
