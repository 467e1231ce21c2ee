"""What the job driver makes of its trials' messages."""

from pathlib import Path
from typing import Any

import pytest

from service.event_writer import EventWriter
from service.events import ErrorCause, TrialFinished, TrialProgress, parse_event
from service.job_plan import Execution, JobPlan, PlannedTrial
from service.states import Reason
from service.study_record import StudyRecord, WorkerProcess, message
from tests.service.factories import trial_result
from trainers.config import TrialConfig

CONFIG = TrialConfig(
    model="vit_tiny_patch16_224",
    image_size=32,
    patch_size=4,
    num_classes=10,
    dataset="synthetic",
    world_size=1,
    train_micro_batch_size_per_gpu=4,
    train_batch_size=4,
)


class Recorded:
    """A record that writes to a file, and what it has written."""

    def __init__(self, path: Path, max_failed_trials: int | None = None) -> None:
        self.path = path
        self.file = path.open("wb", buffering=0)
        plan = JobPlan(
            study="s",
            attempt=2,
            execution=Execution(max_failed_trials=max_failed_trials),
            trials=[PlannedTrial(number=7, attempt=3, config=CONFIG), PlannedTrial(number=4, config=CONFIG)],
        )
        self.record = StudyRecord(plan, EventWriter("s", 2, descriptor=self.file.fileno()))

    @property
    def events(self) -> list[Any]:
        return [event for line in self.path.read_text().splitlines() if (event := parse_event(line)) is not None]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "log")


def failed(serial: int, **fields: Any) -> str:
    cause = {"type": "ValueError", "message": "no", "rank": None, "node": None, "traceback_tail": []}
    return message("finished", serial, state="failed", reason="INVALID_CONFIG", error=cause, **fields)


def test_attempts_are_counted_from_the_plans_own(recorded: Recorded) -> None:
    recorded.record.take(7, message("started", 1))
    recorded.record.take(7, failed(2, will_retry=True))
    recorded.record.take(7, message("started", 3))
    recorded.record.take(7, failed(4))

    assert [(event.type, event.trial, event.trial_attempt) for event in recorded.events] == [
        ("trial_started", 7, 3),
        ("trial_finished", 7, 3),
        ("trial_started", 7, 4),
        ("trial_finished", 7, 4),
    ]


def test_a_message_shown_twice_counts_once(recorded: Recorded) -> None:
    for _ in range(2):
        recorded.record.take(7, message("started", 1))

    assert [event.type for event in recorded.events] == ["trial_started"]


def test_progress_tells_the_phase_and_remembers_the_processes(recorded: Recorded) -> None:
    recorded.record.take(4, message("started", 1))
    processes = [WorkerProcess("node", 11), WorkerProcess("node", 12)]
    recorded.record.take(4, message("progress", 2, processes=processes, phase="measure", done=3, worker_pids=[11, 12]))
    recorded.record.take(4, message("progress", 3, phase="measure", done=4))

    event = recorded.events[1]
    assert isinstance(event, TrialProgress)
    assert (event.phase, event.done, event.worker_pids) == ("measure", 3, [11, 12])
    attempt = recorded.record.open_attempt(4)
    assert attempt is not None
    assert attempt.processes == processes


def test_an_attempt_is_overdue_when_it_has_been_open_too_long(recorded: Recorded) -> None:
    recorded.record.take(4, message("started", 1, processes=[WorkerProcess("node", 9)]))

    assert recorded.record.overdue(60) == []
    (attempt,) = recorded.record.overdue(-1)
    assert attempt.leader == [WorkerProcess("node", 9)]


class TestLostDriverFunction:
    cause = ErrorCause(type="ActorDiedError", message="gone")

    def test_its_attempt_has_failed(self, recorded: Recorded) -> None:
        recorded.record.take(7, message("started", 1))
        recorded.record.driver_function_lost(7, Reason.WORKER_LOST, self.cause, will_retry=True)
        recorded.record.take(7, message("started", 1))  # the next one counts from the start

        finished = recorded.events[1]
        assert isinstance(finished, TrialFinished)
        assert (finished.reason, finished.will_retry, finished.error) == (Reason.WORKER_LOST, True, self.cause)
        assert recorded.events[2].trial_attempt == 4

    def test_one_that_never_spoke_has_started_and_failed(self, recorded: Recorded) -> None:
        recorded.record.driver_function_lost(4, Reason.ERROR, self.cause, will_retry=False)

        assert [event.type for event in recorded.events] == ["trial_started", "trial_finished"]

    def test_one_whose_trial_is_over_is_nothing(self, recorded: Recorded) -> None:
        recorded.record.take(7, message("started", 1))
        recorded.record.take(7, failed(2))
        recorded.record.driver_function_lost(7, Reason.ERROR, self.cause, will_retry=False)

        assert len(recorded.events) == 2


def test_closing_leaves_the_open_attempts_to_be_cancelled(recorded: Recorded) -> None:
    recorded.record.take(7, message("started", 1))
    (attempt,) = recorded.record.close()
    recorded.record.take(7, failed(2))  # too late
    recorded.record.cancel(attempt)

    assert [(event.type, getattr(event, "state", None)) for event in recorded.events] == [
        ("trial_started", None),
        ("trial_finished", "cancelled"),
    ]


def test_only_final_failures_count_towards_the_limit(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "log", max_failed_trials=1)
    record = recorded.record
    record.take(7, message("started", 1))
    record.take(7, failed(2, will_retry=True))
    record.take(7, message("started", 3))
    record.take(7, failed(4))
    assert not record.too_many_failed
    record.take(4, message("started", 1))
    record.take(4, failed(2))
    assert record.too_many_failed


def test_an_attempt_to_measure_once_more_that_fails_is_no_failed_trial(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "log", max_failed_trials=0)
    recorded.record.take(7, message("started", 1))
    result = trial_result().model_dump(mode="json")
    recorded.record.take(7, message("finished", 2, state="succeeded", result=result, will_retry=True))
    recorded.record.take(7, message("started", 3))
    recorded.record.take(7, failed(4))
    assert not recorded.record.too_many_failed
    ends = [event for event in recorded.events if isinstance(event, TrialFinished)]
    assert [(end.trial_attempt, end.state, end.will_retry) for end in ends] == [
        (3, "succeeded", True),
        (4, "failed", False),
    ]


def test_without_a_limit_any_number_may_fail(recorded: Recorded) -> None:
    recorded.record.take(7, message("started", 1))
    recorded.record.take(7, failed(2))
    assert not recorded.record.too_many_failed
