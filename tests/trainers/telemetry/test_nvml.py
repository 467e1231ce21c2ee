"""The NVML reader against a stand-in for the module pynvml: no machine here has what it would read."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from trainers.telemetry.nvml import NvmlDevice, NvmlUnavailable
from trainers.telemetry.readings import DeviceCounters, DeviceProcess, DeviceState

UUID = "4b4c9d6e-0000-1111-2222-333344445555"


class FakeNvml:
    """As much of pynvml as the reader uses, with its constants' values. `refused`: functions this device lacks."""

    NVML_SUCCESS = 0
    NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION = 83
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP = 74
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN = 269
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN = 270
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN = 271
    NVML_PERF_POLICY_THERMAL = 1
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, *, name: str = f"GPU-{UUID}", refused: tuple[str, ...] = ()) -> None:
        self.name, self.refused, self.fields = name, refused, {83: 1_000, 74: 20, 269: 30, 270: 40, 271: 50}
        self.listed, self.samples = [os.getpid()], [(os.getpid(), 80)]
        self.open_count = 0

    def _check(self, function: str) -> None:
        if function in self.refused:
            raise self.NVMLError("Not Supported")

    def nvmlInit(self) -> None:  # noqa: N802
        self._check("nvmlInit")
        self.open_count += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open_count -= 1

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        if name != self.name:
            raise self.NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[Any]:  # noqa: N802
        assert handle == "handle"
        self._check("nvmlDeviceGetFieldValues")
        return [
            SimpleNamespace(
                nvmlReturn=0 if field in self.fields else 3,
                valueType=3,
                value=SimpleNamespace(ullVal=self.fields.get(field), uiVal=-1),
            )
            for field in fields
        ]

    def nvmlDeviceGetViolationStatus(self, handle: str, policy: int) -> Any:  # noqa: N802
        self._check("nvmlDeviceGetViolationStatus")
        return SimpleNamespace(referenceTime=1, violationTime=60 + policy + len(handle) * 0)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802, ARG002
        self._check("nvmlDeviceGetCurrentClocksEventReasons")
        return 0x4

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802, ARG002
        self._check("nvmlDeviceGetClockInfo")
        return 1590 * kind

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802, ARG002
        self._check("nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802, ARG002
        self._check("nvmlDeviceGetTemperature")
        return 71 + sensor

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802, ARG002
        self._check("nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=1 << 30) for pid in self.listed]

    def nvmlDeviceGetProcessUtilization(self, handle: str, since: int) -> list[Any]:  # noqa: N802, ARG002
        self._check("nvmlDeviceGetProcessUtilization")
        return [SimpleNamespace(pid=pid, timeStamp=since + 1, smUtil=share) for pid, share in self.samples]


EVERYTHING = tuple(name for name in dir(FakeNvml) if name.startswith("nvmlDeviceGet") and "Handle" not in name)


@pytest.mark.parametrize("uuid", [UUID, f"GPU-{UUID}"])
@pytest.mark.parametrize("name", [f"GPU-{UUID}", f"MIG-{UUID}"])
def test_the_device_is_found_by_torchs_uuid_with_either_prefix(uuid: str, name: str) -> None:
    nvml = FakeNvml(name=name)
    device = NvmlDevice.open(uuid, nvml)
    assert nvml.open_count == 1
    device.close()
    assert nvml.open_count == 0


def test_what_it_reads_has_the_units_that_nvml_documents() -> None:
    device = NvmlDevice.open(UUID, FakeNvml())
    assert device.counters() == DeviceCounters(
        energy_millijoules=1_000,
        software_thermal_ns=30,
        hardware_thermal_ns=40,
        power_brake_ns=50,
        thermal_violation_ns=61,
        power_cap_ns=20,
    )
    assert device.state() == DeviceState(
        sm_clock_mhz=1590, temperature_celsius=71, utilisation_percent=97, clock_event_reasons=4
    )
    assert device.untold == {}


def test_a_device_that_tells_nothing_reads_as_none_with_nvmls_word_for_it() -> None:
    device = NvmlDevice.open(UUID, FakeNvml(refused=EVERYTHING))
    assert device.counters() == DeviceCounters()
    assert device.state() == DeviceState()
    assert device.processes(device.pids(), (os.getpid(),), 0) == ()
    assert set(device.untold.values()) == {"Not Supported"}
    assert "sm_clock_mhz" in device.untold


def test_a_single_counter_that_a_device_lacks_is_none() -> None:
    nvml = FakeNvml()
    del nvml.fields[83]
    device = NvmlDevice.open(UUID, nvml)
    assert device.counters().energy_millijoules is None
    assert device.counters().power_cap_ns == 20
    assert list(device.untold) == ["energy_millijoules"]


def test_without_nvml_or_the_device_it_says_why_and_leaves_nothing_open() -> None:
    with pytest.raises(NvmlUnavailable, match="Not Supported"):
        NvmlDevice.open(UUID, FakeNvml(refused=("nvmlInit",)))
    nvml = FakeNvml(name="GPU-another")
    with pytest.raises(NvmlUnavailable, match=UUID):
        NvmlDevice.open(UUID, nvml)
    assert nvml.open_count == 0


def test_this_machines_own_library_is_asked_the_same_way() -> None:
    import pynvml

    with pytest.raises(NvmlUnavailable, match=r"."):
        NvmlDevice.open(UUID, pynvml)


class TestProcesses:
    OWN = (os.getpid(),)

    def read(self, listed: list[int], samples: list[tuple[int, int]]) -> dict[int, DeviceProcess]:
        nvml = FakeNvml()
        nvml.listed, nvml.samples = listed, samples
        device = NvmlDevice.open(UUID, nvml)
        return {process.pid: process for process in device.processes(device.pids(), self.OWN, 5)}

    def test_each_has_its_highest_share(self) -> None:
        me, other = os.getpid(), os.getppid()
        found = self.read([me, other], [(me, 80), (other, 20), (other, 40)])
        assert found[other].gpu_percent == 40
        assert found[other].name is not None
        assert found[me].gpu_percent == 80

    def test_one_that_was_there_and_is_gone_counts_if_it_computed(self) -> None:
        me, gone, idle = os.getpid(), 2**22 + 1, 2**22 + 2
        found = self.read([me], [(me, 80), (gone, 30), (idle, 0)])
        assert found[gone] == DeviceProcess(gone, None, 30)
        assert idle not in found

    def test_shares_of_another_pid_namespace_are_not_used(self) -> None:
        me = os.getpid()
        assert self.read([me, 7], [(523_001, 80), (7, 5)])[7].gpu_percent is None

    def test_names_of_another_pid_namespace_are_not_used(self) -> None:
        assert self.read([1, 2], []) == {1: DeviceProcess(1, None), 2: DeviceProcess(2, None)}
