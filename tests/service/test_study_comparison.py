"""Two stored studies side by side."""

from typing import Any

import pytest

from service.errors import NotFound
from service.states import Reason, StudyState
from service.store import Database
from service.store.attempts import finish_study
from service.studies import Studies
from tests.service.factories import Job, begin, create, feed, trial_result


def measured(database: Database, studies: Studies, seconds: dict[int, list[float]], **fields: Any) -> str:
    """A study with these step seconds, by micro batch, for each of its repeats; None of them: it runs out of memory."""
    repeats = max(len(runs) for runs in seconds.values())
    measurement = {"order": "given", "repeats": max(repeats, 1)}
    study = create(studies, micro_batches=list(seconds), measurement=measurement).id
    plan = begin(database, study)
    job, left = Job(plan), {batch: list(runs) for batch, runs in seconds.items()}
    lines = []
    for trial in plan.trials:
        runs = left[trial.config.train_micro_batch_size_per_gpu]
        if not runs:
            lines.append(job.failed(trial.number, Reason.OUT_OF_MEMORY))
            continue
        value = runs.pop(0)
        metrics = {
            "step_seconds_mean": value,
            "step_seconds_ci95_low": value * 0.99,
            "step_seconds_ci95_high": value * 1.01,
        }
        lines.append(job.succeeded(trial.number, result=trial_result(world_size=1, metrics=metrics, **fields)))
    feed(database, plan, lines)
    with database.session() as session:
        finish_study(session, study, cancelled=False, error=None)
    return study


def test_repeated_points_are_pooled_and_a_slow_down_is_found(database: Database, studies: Studies) -> None:
    a = measured(database, studies, {4: [1.0, 1.01, 0.99], 8: [2.0, 2.01, 1.99]})
    b = measured(database, studies, {4: [1.2, 1.21, 1.19], 8: [2.0, 2.01, 1.99]})
    found = studies.compare(a, b, tolerance=0.05)
    assert [(point.verdict, point.interval_kind) for point in found.points] == [
        ("slower", "between_runs"),
        ("equal", "between_runs"),
    ]
    assert [len(point.a_trials) for point in found.points] == [3, 3]
    assert (found.is_regression, found.is_complete, found.missing, found.differences) == (True, True, [], [])
    assert (found.a.id, found.b.id, found.b.status) == (a, b, StudyState.SUCCEEDED)


def test_versions_and_hardware_that_differ_are_named(database: Database, studies: Studies) -> None:
    a = measured(database, studies, {4: [1.0]}, versions={"torch": "2.14.0", "timm": "1.0"})
    hardware = trial_result().hardware.model_copy(update={"devices": ["Tesla T4"], "num_threads": 2})
    versions = {"torch": "2.14.1", "timm": "1.0", "new": "1"}
    b = measured(database, studies, {4: [1.0]}, versions=versions, hardware=hardware)
    found = studies.compare(a, b, tolerance=0.05)
    assert {one.what: (one.a, one.b) for one in found.differences} == {
        "devices": (["Some CPU"], ["Tesla T4"]),
        "threads per worker": (["1"], ["2"]),
        "torch": (["2.14.0"], ["2.14.1"]),
    }


def test_what_fails_in_b_only_is_a_regression(database: Database, studies: Studies) -> None:
    a = measured(database, studies, {4: [1.0], 8: [2.0]})
    b = measured(database, studies, {4: [1.0], 8: []})
    found = studies.compare(a, b, tolerance=0.05)
    assert [(one.without_result_in, one.reasons) for one in found.failed] == [("b", [Reason.OUT_OF_MEMORY])]
    assert found.is_regression
    assert not studies.compare(b, a, tolerance=0.05).is_regression


def test_a_study_that_is_not_over_is_compared_as_far_as_it_is(database: Database, studies: Studies) -> None:
    a, b = measured(database, studies, {4: [1.0]}), create(studies, micro_batches=(4,)).id
    found = studies.compare(a, b, tolerance=0.05)
    assert (found.is_complete, found.is_regression, found.points) == (False, False, [])
    assert found.missing == [f"study {b} is queued: 1 of 1 trials are not over"]


def test_a_study_that_is_not_there_is_not_found(database: Database, studies: Studies) -> None:
    a = measured(database, studies, {4: [1.0]})
    with pytest.raises(NotFound):
        studies.compare(a, "aaaaaaaaaaaa", tolerance=0.05)
