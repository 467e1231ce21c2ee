"""The job driver on a real Ray, by hand: trials as planned, events as they happen, nothing left behind."""

from pathlib import Path

import psutil
import pytest

from service.events import StudyFinished, StudyStarted, TrialFinished, TrialProgress, TrialStarted
from service.job_plan import Placement, WorkerGroup
from service.ray_head import LocalHead
from service.states import Reason
from tests.integration.conftest import NUM_CPUS
from tests.integration.driver_run import DriverRun, driver_run, leftovers, plan, trial


@pytest.fixture(scope="module")
def study(local_head: LocalHead, tmp_path_factory: pytest.TempPathFactory) -> DriverRun:
    """One study of good trials, failing ones and such that no node can hold, in an order that is not the numbers'."""
    job = plan(
        trial(4, world_size=2, zero_stage=3, precision="bf16"),
        trial(1, world_size=NUM_CPUS + 1),
        trial(3, num_classes=3),  # digits has ten
        trial(2, world_size=2, zero_stage=1, gradient_accumulation_steps=2),
        trial(6, world_size=2, placement=Placement(strategy="STRICT_SPREAD")),
        trial(7, placement=Placement(workers=[WorkerGroup(label_selector={"gpu": "nowhere"}, count=1)])),
        trial(5, world_size=2, zero_stage=2),
    )
    with driver_run(local_head, tmp_path_factory.mktemp("study"), job) as run:
        assert run.exit_code() == 0, run.lines
    return run


def test_events_are_numbered_without_a_gap_and_belong_to_the_attempt(study: DriverRun) -> None:
    assert [event.seq for event in study.events] == list(range(1, len(study.events) + 1))
    assert {(event.study, event.attempt) for event in study.events} == {("teststudy234", 1)}


def test_the_study_starts_with_what_auto_came_to_and_the_nodes(study: DriverRun) -> None:
    first = study.events[0]
    assert isinstance(first, StudyStarted)
    assert (first.num_trials, first.num_gpus_per_worker) == (7, 0)
    (node,) = first.nodes
    assert node["resources"]["CPU"] == NUM_CPUS
    assert node["ip"] == "127.0.0.1"


def test_the_study_ends_in_order_though_trials_failed(study: DriverRun) -> None:
    last = study.events[-1]
    assert isinstance(last, StudyFinished)
    assert (last.cancelled, last.error) == (False, None)


def test_trials_start_in_the_plans_order_one_after_the_other(study: DriverRun) -> None:
    bounds = [event for event in study.events if isinstance(event, TrialStarted | TrialFinished)]
    assert [event.trial for event in bounds] == [n for number in (4, 1, 3, 2, 6, 7, 5) for n in (number, number)]


@pytest.mark.parametrize(("number", "stage", "accumulation"), [(4, 3, 1), (2, 1, 2), (5, 2, 1)])
def test_a_trial_trains_with_what_was_asked_for(study: DriverRun, number: int, stage: int, accumulation: int) -> None:
    (finished,) = study.finished(number)
    assert (finished.state, finished.reason, finished.trial_attempt) == ("succeeded", None, 1)
    result = finished.result
    assert result is not None
    assert [row.rank for row in result.ranks] == [0, 1]
    assert result.deepspeed_config["zero_optimization"]["stage"] == stage
    assert result.deepspeed_config["gradient_accumulation_steps"] == accumulation
    assert result.metrics.measured_steps == 10
    assert result.metrics.images_per_second * result.metrics.step_seconds_mean == pytest.approx(8 * accumulation)
    assert result.hardware.backend == "gloo"


def test_the_time_around_the_measurement_is_told(study: DriverRun) -> None:
    (finished,) = study.finished(4)
    assert finished.result is not None
    assert finished.queue_seconds is not None
    assert finished.total_seconds is not None
    overhead = finished.result.overhead
    inside = overhead.startup_seconds + overhead.warmup_seconds + overhead.measure_seconds
    assert 0 <= finished.queue_seconds < finished.total_seconds
    assert inside < finished.total_seconds


def test_progress_names_the_phases_in_order_and_the_workers(study: DriverRun) -> None:
    told = [event for event in study.events if isinstance(event, TrialProgress) and event.trial == 5]
    assert told[0].phase == "queued"
    assert told[1].phase == "starting"
    order = ["queued", "starting", "warmup", "measure"]
    assert [order.index(event.phase) for event in told] == sorted(order.index(event.phase) for event in told)
    (finished,) = study.finished(5)
    assert finished.result is not None
    assert sorted(told[1].worker_pids) == sorted(row.pid for row in finished.result.ranks)


def test_a_configuration_that_does_not_fit_the_data_fails_with_its_cause_and_is_not_retried(study: DriverRun) -> None:
    (finished,) = study.finished(3)
    assert (finished.state, finished.reason, finished.will_retry) == ("failed", Reason.INVALID_CONFIG, False)
    assert finished.error is not None
    assert finished.error.type == "DataError"
    assert "num_classes must be at least 10" in finished.error.message
    assert finished.error.rank == 0
    assert finished.error.node
    assert any("open_data" in line for line in finished.error.traceback_tail)


@pytest.mark.parametrize(
    ("number", "why"),
    [(1, "can hold 2 of 3 workers"), (6, "STRICT_SPREAD"), (7, "{'gpu': 'nowhere'}")],
)
def test_what_no_node_can_hold_is_infeasible_at_once(study: DriverRun, number: int, why: str) -> None:
    (finished,) = study.finished(number)
    assert (finished.state, finished.reason, finished.will_retry) == ("failed", Reason.INFEASIBLE, False)
    assert finished.error is not None
    assert why in finished.error.message
    assert finished.total_seconds is not None
    assert finished.total_seconds < 2


def test_no_worker_process_is_left(study: DriverRun) -> None:
    assert study.worker_pids()
    assert not [pid for pid in study.worker_pids() if psutil.pid_exists(pid)]


def test_no_placement_group_and_no_actor_is_left(study: DriverRun, local_head: LocalHead) -> None:
    assert study.process.returncode == 0
    assert leftovers(local_head) == []


def test_what_workers_print_is_on_the_drivers_output_with_their_process_id(study: DriverRun) -> None:
    (pid,) = {
        pid
        for event in study.events
        if isinstance(event, TrialProgress) and event.trial == 3
        for pid in event.worker_pids
    }
    assert any(f"pid={pid}" in line and "num_classes" in line for line in study.lines)
    assert not any("Reporting training result" in line for line in study.lines)  # Train would print the whole report


def test_shared_trials_run_side_by_side(local_head: LocalHead, tmp_path: Path) -> None:
    job = plan(trial(1), trial(2), trial(3), isolation="shared", study="sharedstudy2")
    with driver_run(local_head, tmp_path, job) as run:
        assert run.exit_code() == 0
    bounds = [(event.type, event.trial) for event in run.events if isinstance(event, TrialStarted | TrialFinished)]
    assert sorted(bounds[:2]) == [("trial_started", 1), ("trial_started", 2)]
    assert bounds[2][0] == "trial_finished"  # two CPUs: the third waits
    assert [run.finished(number)[0].state for number in (1, 2, 3)] == ["succeeded"] * 3


def test_a_study_stops_when_more_trials_have_failed_than_allowed(local_head: LocalHead, tmp_path: Path) -> None:
    job = plan(trial(1, world_size=NUM_CPUS + 1), trial(2), study="failedstudy2", max_failed_trials=0)
    with driver_run(local_head, tmp_path, job) as run:
        assert run.exit_code() == 0
    assert run.started() == [(1, 1)]
    last = run.events[-1]
    assert isinstance(last, StudyFinished)
    assert (last.cancelled, last.error) == (False, "stopped: more than max_failed_trials = 0 trials failed")


def test_without_a_cluster_it_says_so_and_starts_none(local_head: LocalHead, tmp_path: Path) -> None:
    with driver_run(local_head, tmp_path, plan(trial(1)), RAY_ADDRESS="") as run:
        assert run.exit_code() == 1
    assert run.events == []
    assert any("RAY_ADDRESS is not set" in line for line in run.lines)
