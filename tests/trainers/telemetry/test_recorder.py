import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import psutil
import pytest
import torch

from tests.trainers.telemetry.samples import rank
from trainers.device import CudaStopwatch, HostStopwatch
from trainers.measure.windows import time_window
from trainers.telemetry.host import HostReader
from trainers.telemetry.nvml import NvmlDevice
from trainers.telemetry.readings import CoreCounters
from trainers.telemetry.recorder import Recorder


class LoggedHost(HostReader):
    """A real reader that writes down what is asked of it."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(reads_pools=True)
        self.log = log

    def find_children(self) -> None:
        self.log.append("find children")

    def own_cpu_seconds(self) -> tuple[float, float]:
        self.log.append("own")
        return super().own_cpu_seconds()

    def pool_counters(self) -> tuple[CoreCounters | None, ...]:
        self.log.append("pools")
        return super().pool_counters()

    def process_times(self) -> dict[psutil.Process, float]:
        self.log.append("scan")
        return {}


class LoggedMarks(HostStopwatch):
    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def mark(self) -> None:
        self.log.append("mark")
        super().mark()


def measure(log: list[str], num_windows: int, steps: int = 2) -> Recorder:
    """As a trial does it."""
    recorder = Recorder(rank(), LoggedHost(log), None)
    recorder.begin()
    for _ in range(num_windows):
        with recorder.around_window():
            time_window(
                steps,
                lambda: log.append("step"),
                barrier=lambda: log.append("barrier"),
                clock=time.perf_counter,
                marks=LoggedMarks(log),
            )
    return recorder


def test_counters_are_read_before_the_first_barrier_and_after_the_last_and_processes_outside_of_all_windows() -> None:
    log: list[str] = []
    measure(log, 2).readings(2)
    inside = ["barrier", "mark", "step", "mark", "step", "mark", "barrier"]
    first = ["own", "pools", *inside, "find children", "own", "pools"]
    assert log == ["find children", "scan", *first, "own", "pools", *inside, "own", "pools", "scan"]


def test_only_the_windows_that_are_kept_are_reported() -> None:
    recorder = measure([], 3)
    everything, kept = recorder.readings(3), recorder.readings(1)
    assert len(everything.windows) == 3
    assert kept.windows == everything.windows[2:]
    assert kept.pids == (psutil.Process().pid,)


def test_the_counters_only_go_forward_and_what_reading_took_is_known() -> None:
    windows = measure([], 3).readings(3).windows
    instants = [instant for window in windows for instant in (window.before.at_seconds, window.after.at_seconds)]
    assert instants == sorted(instants)
    assert all(0 < window.reading_seconds < 0.1 for window in windows)
    assert all(window.after.own_cpu_seconds >= window.before.own_cpu_seconds for window in windows)


def test_a_window_that_fails_is_not_recorded() -> None:
    recorder = measure([], 1)
    with pytest.raises(ZeroDivisionError), recorder.around_window():
        raise ZeroDivisionError
    assert len(recorder.readings(5).windows) == 1


def test_a_device_adds_its_readings_around_the_window_alone() -> None:
    log: list[str] = []

    class LoggedDevice(NvmlDevice):
        def __init__(self) -> None:
            self.untold = {"energy_millijoules": "Not Supported"}

        def __getattribute__(self, name: str) -> Any:
            if name in ("counters", "state", "pids", "processes", "close"):
                log.append(name)
                return {"pids": set, "processes": lambda *_: ()}.get(name, lambda: None)
            return super().__getattribute__(name)

    recorder = Recorder(
        rank(device_name="Tesla T4", device_uuid="GPU-0"), HostReader(reads_pools=False), LoggedDevice()
    )
    recorder.begin()
    with recorder.around_window():
        log.append("window")
    found = recorder.readings(1)
    recorder.close()
    assert log == ["pids", "counters", "window", "state", "counters", "processes", "close"]
    assert found.notes == ("telemetry that Tesla T4 does not tell: energy_millijoules (Not Supported)",)


class TestInsideAWindow:
    @pytest.fixture
    def calls(self) -> Iterator[list[str]]:
        """The names of all functions called from here on, Python's and C's."""
        found: list[str] = []

        def note(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                found.append(frame.f_code.co_name)
            elif event == "c_call":
                found.append(argument.__name__)

        before = sys.getprofile()
        sys.setprofile(note)
        yield found
        sys.setprofile(before)

    def test_the_only_calls_are_the_steps_and_reading_a_clock(self, calls: list[str]) -> None:
        """No lock, no look at the machine: what is called between the barriers is this and nothing else."""

        def barrier() -> None: ...

        def step() -> None: ...

        time_window(3, step, barrier=barrier, clock=time.perf_counter, marks=HostStopwatch())
        sys.setprofile(None)
        start, end = calls.index("barrier"), len(calls) - 1 - calls[::-1].index("barrier")
        mark = ["mark", "perf_counter_ns", "append"]
        assert calls[start:end] == ["barrier", "perf_counter", *mark, *(["step", *mark] * 3)]

    def test_a_mark_on_cuda_records_an_event_and_waits_for_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log: list[str] = []

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def __getattr__(self, name: str) -> Any:
                log.append(name)
                return lambda *_: 2.0

        def waited(*_: object) -> None:
            raise AssertionError("the device was waited for")

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", waited)
        watch = CudaStopwatch()
        for _ in range(3):
            watch.mark()
        assert log == ["record"] * 3
        assert watch.seconds() == [0.002, 0.002]
        assert log == ["record"] * 3 + ["synchronize", "elapsed_time", "elapsed_time"]


class TestHost:
    def test_own_processor_time_counts_what_this_process_computes(self) -> None:
        reader = HostReader(reads_pools=False)
        (before, _), wall = reader.own_cpu_seconds(), time.process_time()
        while time.process_time() - wall < 0.05:
            pass
        after, children = reader.own_cpu_seconds()
        assert 0.05 <= after - before < 0.1
        assert children == 0.0

    def test_one_rank_of_a_node_reads_for_all(self) -> None:
        reader, other = HostReader(reads_pools=True), HostReader(reads_pools=False)
        assert reader.pools == other.pools
        assert len(reader.pool_counters()) == len(reader.pools)
        assert other.pool_counters() == ()
        assert other.process_times() == {}

    def test_the_processors_it_may_use_are_counted_and_no_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Times:
            user, nice, system, iowait, irq, softirq, steal, idle = 1.0, 2.0, 4.0, 50.0, 60.0, 70.0, 8.0, 90.0

        monkeypatch.setattr("os.sched_getaffinity", lambda _: {1, 2}, raising=False)
        monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
        monkeypatch.setattr(psutil, "cpu_times", lambda percpu=False: [Times()] * 4 if percpu else Times())
        reader = HostReader(reads_pools=True)
        assert reader.pools[0].cores == 2
        assert reader.pool_counters()[0] == CoreCounters(14.0, 16.0)

    def test_processes_are_told_by_what_they_used_since_the_busiest_first(self) -> None:
        reader, me = HostReader(reads_pools=True), psutil.Process()
        others = [psutil.Process(pid) for pid in psutil.pids()[:2] if pid != me.pid]
        after = {me: 13.0, others[0]: 7.0, **dict.fromkeys(others[1:], 0.01)}
        uses = reader.uses({me: 12.0}, after, seconds=10.0)
        assert [(use.pid, use.cores) for use in uses] == [
            (others[0].pid, pytest.approx(0.7)),
            (me.pid, pytest.approx(0.1)),
        ]
        assert all(use.name and " " not in use.name for use in uses)
