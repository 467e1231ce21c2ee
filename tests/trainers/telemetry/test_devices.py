from typing import Any

import pytest

from tests.trainers.telemetry.samples import rank, window
from trainers.telemetry.devices import DeviceVerdict, judge_devices, reason_names
from trainers.telemetry.readings import DeviceCounters, DeviceProcess, DeviceState, RankReadings
from trainers.telemetry.verdict import judge


def gpu(number: int = 0, *, state: dict[str, Any] | None = None, **changes: Any) -> RankReadings:
    """A rank on a GPU of its own, measured for ten seconds; `counters` say what had counted up by then."""
    counters = (
        DeviceCounters(**dict.fromkeys(changes.get("counters", {}), 0)),
        DeviceCounters(**changes.pop("counters", {})),
    )
    values = {"sm_clock_mhz": 1590, "temperature_celsius": 60, "utilisation_percent": 97, "clock_event_reasons": 0}
    shown = window(own=9.0, busy=9.1, seconds=10.0, counters=counters, state=DeviceState(**(values | (state or {}))))
    defaults = {"device_name": "Tesla T4", "device_uuid": f"GPU-{number}", "windows": (shown,)}
    return rank(number, **(defaults | changes))


def verdict(*ranks: RankReadings) -> DeviceVerdict:
    return judge_devices(ranks)


def test_a_quiet_gpu_is_told_with_its_power_clock_heat_and_use() -> None:
    found = verdict(gpu(counters={"energy_millijoules": 650_000}))
    (row,) = found.rows
    assert row.power_watts_mean == pytest.approx(65.0)
    assert (row.sm_clock_mhz_mean, row.temperature_celsius_max, row.utilisation_percent_mean) == (1590, 60, 97)
    assert (found.contended, found.throttled, found.shared, found.mismatched, found.notes) == ([], [], [], [], [])


def test_what_a_device_does_not_tell_is_null() -> None:
    found = verdict(gpu(state={"sm_clock_mhz": None, "temperature_celsius": None, "clock_event_reasons": None}))
    (row,) = found.rows
    assert (row.power_watts_mean, row.sm_clock_mhz_mean, row.slowed_share, row.power_capped_share) == (None,) * 4
    assert found.throttled == []


@pytest.mark.parametrize(
    ("counters", "share"),
    [
        ({"hardware_thermal_ns": 3 * 10**9}, "30%"),
        ({"software_thermal_ns": 10**9, "power_brake_ns": 10**9}, "20%"),
        ({"hardware_thermal_ns": 10**9, "thermal_violation_ns": 2 * 10**9}, "20%"),  # the same heat, counted twice
    ],
)
def test_time_in_a_slowdown_throttles(counters: dict[str, int], share: str) -> None:
    (reason,) = verdict(gpu(counters=counters, state={"temperature_celsius": 93})).throttled
    assert reason == (
        f"the GPU of rank 0 was slowed down for {share} of the measured time, at up to 93 degrees Celsius"
    )


def test_a_slowdown_of_half_a_percent_of_the_time_does_not() -> None:
    assert verdict(gpu(counters={"hardware_thermal_ns": 50_000_000})).throttled == []


def test_a_reason_seen_after_a_window_throttles_where_nothing_is_counted() -> None:
    (reason,) = verdict(gpu(state={"clock_event_reasons": 0x48})).throttled
    assert "(hardware thermal slowdown)" in reason


def test_the_general_slowdown_counts_only_where_it_is_the_rule() -> None:
    # It is also said during a change of clocks, as at the end of a window.
    states = [DeviceState(clock_event_reasons=0x8)] + [DeviceState(clock_event_reasons=0x1)] * 3
    once = gpu(windows=tuple(window(own=1, busy=1, state=state) for state in states))
    always = gpu(windows=tuple(window(own=1, busy=1, state=states[0]) for _ in range(3)))
    assert verdict(once).throttled == []
    assert len(verdict(always).throttled) == 1


def test_idleness_and_chosen_clocks_are_no_reasons() -> None:
    assert reason_names(0x1 | 0x2 | 0x100) == []
    assert reason_names(0x4 | 0x40 | 0x1000) == ["software power cap", "hardware thermal slowdown", "reason 0x1000"]


def test_the_power_limit_is_told_and_not_flagged() -> None:
    found = verdict(gpu(counters={"power_cap_ns": 8 * 10**9}, state={"clock_event_reasons": 0x4}))
    assert found.throttled == []
    assert found.rows[0].power_capped_share == pytest.approx(0.8)
    assert found.notes[0].startswith("the power limit held back the clock of rank 0's GPU for 80%")


class TestOtherProcesses:
    OWN = DeviceProcess(1000, "python", 90)

    def test_its_own_processes_are_no_others(self) -> None:
        found = verdict(gpu(device_processes=(self.OWN,)))
        assert (found.shared, found.contended) == ([], [])

    def test_one_that_computes_shares_and_contends(self) -> None:
        found = verdict(gpu(device_processes=(self.OWN, DeviceProcess(77, "train", 40))))
        assert found.shared == ["the GPU of rank 0 (GPU-0) is also held by train (pid 77)"]
        assert found.contended == ["others used the GPU of rank 0: train (pid 77) up to 40 %"]

    def test_one_that_only_holds_memory_shares(self) -> None:
        found = verdict(gpu(device_processes=(self.OWN, DeviceProcess(77, "jupyter", 0))))
        assert len(found.shared) == 1
        assert found.contended == []

    def test_one_whose_use_is_not_told_contends(self) -> None:
        found = verdict(gpu(device_processes=(DeviceProcess(1000, "python"), DeviceProcess(77, "train"))))
        assert found.contended == ["others were on the GPU of rank 0, and whether they used it is not told"]

    def test_in_another_pid_namespace_one_of_them_is_the_trial(self) -> None:
        assert verdict(gpu(device_processes=(DeviceProcess(523_001, None),))).shared == []
        found = verdict(gpu(device_processes=(DeviceProcess(523_001, None), DeviceProcess(523_002, None))))
        assert found.shared == [
            "the GPU of rank 0 (GPU-0) is also held by a process of another PID namespace (pid 523002)"
        ]

    def test_the_same_pid_on_another_machine_is_somebody_else(self) -> None:
        there = rank(1, window(own=1, busy=1), machine="b", pids=(77,))
        found = verdict(gpu(device_processes=(self.OWN, DeviceProcess(77, "train", 40))), there)
        assert len(found.contended) == 1


class TestLikeness:
    def test_like_devices_at_unlike_clocks_are_a_mismatch(self) -> None:
        found = verdict(gpu(0), gpu(1, state={"sm_clock_mhz": 1350}))
        assert found.mismatched == ["2 x Tesla T4 ran at 1350 MHz (rank 1) to 1590 MHz (rank 0), 15% apart"]

    def test_four_percent_and_unlike_devices_are_none(self) -> None:
        assert verdict(gpu(0), gpu(1, state={"sm_clock_mhz": 1530})).mismatched == []
        assert verdict(gpu(0), gpu(1, device_name="Tesla P4", state={"sm_clock_mhz": 1100})).mismatched == []


class TestJudge:
    def test_each_flag_comes_with_a_note_for_each_cause(self) -> None:
        hot = gpu(0, counters={"hardware_thermal_ns": 10**9}, device_processes=(DeviceProcess(1000, "python", 9),))
        shared = (DeviceProcess(1001, "python", 9), DeviceProcess(77, "train", 40))
        slow = gpu(1, state={"sm_clock_mhz": 800}, device_processes=shared, notes=("no energy",))
        found = judge([hot, slow], measured_steps=100)
        assert found.flags == ["contended", "throttled", "shared_gpu", "clock_mismatch"]
        assert [note.partition(":")[0] for note in found.notes] == [*found.flags, "no energy"]
        assert found.telemetry is not None
        assert [row.rank for row in found.telemetry.devices] == [0, 1]
        assert found.telemetry.reading_seconds_per_step == pytest.approx(0.0004 / 100)

    def test_a_machine_that_counts_nothing_is_not_called_quiet(self) -> None:
        found = judge([rank(0, window(own=1.0))], measured_steps=10)
        assert found.flags == []
        assert found.notes == [
            "whether others used the cores is not known: the machine does not tell its processor time"
        ]

    def test_nothing_read_is_nothing_judged(self) -> None:
        assert judge([], measured_steps=10).telemetry is None
