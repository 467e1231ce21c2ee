"""The same with the real driver and real trainings: they are where a killed driver may leave something behind."""

from pathlib import Path

import psutil

from service.ray_head import LocalHead
from service.ray_head_keeper import marked_processes
from service.states import StudyState, TrialState
from tests.integration.running_server import running_server
from tests.service.factories import spec

SHORT = {"order": "given", "min_warmup_steps": 1, "min_steps": 5, "max_steps": 10, "max_seconds": 5}


def driver(head: LocalHead) -> psutil.Process:
    """The process of the job that runs."""
    return next(
        process
        for process in marked_processes(str(head._temp_dir))
        if process.cmdline()[1:] == ["-m", "service.run_study", "plan.json"]
    )


def test_a_driver_killed_in_the_third_of_four_trials_is_followed_by_one_for_the_last_two(
    tmp_path: Path, local_head: LocalHead
) -> None:
    with running_server(tmp_path, local_head) as server:
        study, _ = server.studies.create(
            spec(micro_batches=(1, 2, 4, 8), measurement=SHORT, execution={"contended_retries": 0})
        )
        server.running_trial(study.id, 3, seconds=200)
        driver(local_head).kill()
        done = server.finished(study.id, seconds=200)
        assert done.status == StudyState.SUCCEEDED
        succeeded, lost = TrialState.SUCCEEDED, (1, TrialState.FAILED, "WORKER_LOST")
        assert server.attempts_of(study.id) == {
            1: [(1, succeeded, None)],
            2: [(1, succeeded, None)],
            3: [lost, (2, succeeded, None)],
            4: [(2, succeeded, None)],
        }
        rows = server.studies.results(study.id).results
        assert all((row.metrics.images_per_second or 0) > 0 for row in rows)
