"""Events reach standard output as whole lines, numbered without a gap."""

import os
import threading
from pathlib import Path

import pytest

from service.event_writer import EventWriter
from service.events import Event, StudyFinished, TrialProgress, parse_event


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def events(log: Path) -> list[Event]:
    return [event for line in log.read_text().splitlines() if (event := parse_event(line)) is not None]


def test_an_event_starts_a_line_whatever_was_printed_before(log: Path) -> None:
    with log.open("wb", buffering=0) as file:
        file.write(b"half a line")
        EventWriter("s", 3, descriptor=file.fileno()).study_finished(cancelled=True)
        file.write(b"more\n")

    (event,) = events(log)
    assert isinstance(event, StudyFinished)
    assert (event.seq, event.study, event.attempt, event.cancelled) == (1, "s", 3, True)


def test_threads_share_a_writer(log: Path) -> None:
    with log.open("wb", buffering=0) as file:
        writer = EventWriter("s", 1, descriptor=file.fileno())

        def write(trial: int) -> None:
            for step in range(25):
                writer.trial_progress(trial=trial, trial_attempt=1, phase="measure", done=step)

        threads = [threading.Thread(target=write, args=(trial,)) for trial in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    written = events(log)
    assert [event.seq for event in written] == list(range(1, 101))
    assert {event.trial for event in written if isinstance(event, TrialProgress)} == {1, 2, 3, 4}


def test_an_event_larger_than_a_pipe_arrives_whole() -> None:
    reader, sender = os.pipe()
    pids = list(range(100_000))

    def write() -> None:
        EventWriter("s", 1, descriptor=sender).trial_progress(
            trial=1, trial_attempt=1, phase="starting", worker_pids=pids
        )
        os.close(sender)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reader, "rb") as file:
        received = file.read().decode()
    thread.join()

    event = parse_event(received.strip())
    assert isinstance(event, TrialProgress)
    assert event.worker_pids == pids
