"""Which outcome of an attempt is followed by another one."""

import pytest

from service.failure import plain_failure
from service.job_plan import Execution, PlannedTrial
from service.reruns import Reruns
from service.states import Reason
from service.trial_attempt import Outcome
from tests.service.factories import trial_result
from tests.service.test_study_record import CONFIG
from trainers.result import Quality

LOST = Outcome(None, plain_failure(Reason.WORKER_LOST, "gone"), None, 1.0)
OUT_OF_MEMORY = Outcome(None, plain_failure(Reason.OUT_OF_MEMORY, "full"), None, 1.0)
QUIET = Outcome(trial_result(), None, 0.1, 1.0)
CONTENDED = Outcome(trial_result(quality=Quality(state="steady", flags=["contended"])), None, 0.1, 1.0)
THROTTLED = Outcome(trial_result(quality=Quality(state="steady", flags=["throttled", "shared_gpu"])), None, 0.1, 1.0)


def reruns(*, contended_attempts: int = 0, **execution: int) -> Reruns:
    planned = PlannedTrial(number=1, contended_attempts=contended_attempts, config=CONFIG)
    return Reruns.of(planned, Execution(**execution))  # type: ignore[arg-type]


def test_a_contended_trial_is_measured_once_more_and_no_oftener() -> None:
    left = reruns()
    assert [left.take_one(CONTENDED) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("outcome", [QUIET, THROTTLED, OUT_OF_MEMORY])
def test_what_would_be_the_same_again_is_not_run_again(outcome: Outcome) -> None:
    assert not reruns(retries=5, contended_retries=5).take_one(outcome)


def test_failures_and_contention_are_counted_apart() -> None:
    left = reruns(retries=1)
    assert [left.take_one(outcome) for outcome in (LOST, CONTENDED, LOST, CONTENDED)] == [True, True, False, False]


def test_measurements_of_a_job_before_count() -> None:
    assert not reruns(contended_attempts=1).take_one(CONTENDED)
    assert reruns(contended_attempts=1, retries=1).take_one(LOST)


def test_it_can_be_turned_off() -> None:
    assert not reruns(contended_retries=0).take_one(CONTENDED)
