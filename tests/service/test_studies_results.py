"""Results rows and trials, as the studies facade shows them."""

import json
import re
from typing import Any

import pytest

from service.errors import (
    BadRequest,
)
from service.states import Reason, StudyState, TrialState
from service.store import Database
from service.studies import Studies
from service.views import Overhead, ResultsPage, RowMetrics
from tests.service.factories import Job, begin, create, feed, run, trial_result
from trainers.result import Metrics, TrialOverhead


class TestResults:
    def test_every_trial_has_a_row_whatever_its_state(self, database: Database, studies: Studies) -> None:
        view = create(studies, micro_batches=(1, 2, 4, 8))
        plan = begin(database, view.id)
        job = Job(plan)
        feed(database, plan, [job.succeeded(1), job.failed(2, Reason.TIMEOUT), job.started(3)])
        page = studies.results(view.id)
        assert (page.study_id, page.status, page.count, page.next_cursor) == (view.id, StudyState.RUNNING, 4, None)
        assert [(row.trial, row.state, row.reason, row.attempt) for row in page.results] == [
            (1, "succeeded", None, 1),
            (2, "failed", Reason.TIMEOUT, 1),
            (3, "running", None, 1),
            (4, "pending", None, 0),
        ]
        assert page.results[0].metrics.images_per_second == 80.0
        assert page.results[0].hardware.devices == ["Some CPU", "Some CPU"]
        for row in page.results[1:]:
            assert row.metrics == RowMetrics()
            assert row.quality.notes
        assert page.results[3].quality.notes == ["Nothing is measured: the trial is pending."]

    def test_a_row_has_every_documented_key(self, database: Database, studies: Studies) -> None:
        view = create(studies)
        plan = begin(database, view.id)
        feed(database, plan, Job(plan).run(1))
        page = json.loads(studies.results_json(view.id))
        assert list(page) == ["study_id", "status", "count", "results", "next_cursor"]
        for row in page["results"]:
            assert list(row) == [
                "trial",
                "repeat",
                "attempt",
                "state",
                "reason",
                "parameters",
                "metrics",
                "quality",
                "overhead",
                "hardware",
                "between_runs",
            ]
            assert set(row["metrics"]) == set(Metrics.model_fields)
            assert set(row["quality"]) == {"state", "flags", "notes"}
            assert set(row["overhead"]) == {
                "queue_seconds",
                "startup_seconds",
                "compile_seconds",
                "warmup_seconds",
                "measure_seconds",
                "parts_seconds",
                "total_seconds",
            }
            assert set(row["hardware"]) == {"devices", "nodes", "backend", "fingerprint", "num_threads"}

    def test_each_null_metric_has_a_reason(self, database: Database, studies: Studies) -> None:
        view = create(studies)
        plan = begin(database, view.id)
        told = trial_result().quality.model_copy(update={"notes": ["mfu: said by the trial"]})
        feed(database, plan, [Job(plan).succeeded(1, result=trial_result(quality=told))])
        row = studies.results(view.id).results[0]
        nulls = [key for key, value in row.metrics.model_dump().items() if value is None]
        assert "communication_seconds" in nulls
        for key in nulls:
            assert sum(bool(re.search(rf"\b{key}\b", note)) for note in row.quality.notes) == 1

    def test_pages_and_states_cover_the_rows_exactly(self, database: Database, studies: Studies) -> None:
        view = create(studies, micro_batches=range(1, 8))
        plan = begin(database, view.id)
        job = Job(plan)
        feed(database, plan, [job.succeeded(n) if n % 2 else job.failed(n) for n in range(1, 8)])

        def pages(**options: Any) -> list[ResultsPage]:
            found = [studies.results(view.id, **options)]
            while found[-1].next_cursor is not None:
                found.append(studies.results(view.id, cursor=found[-1].next_cursor, **options))
            return found

        assert [[row.trial for row in page.results] for page in pages(limit=3)] == [[1, 2, 3], [4, 5, 6], [7]]
        succeeded = pages(limit=2, state=TrialState.SUCCEEDED)
        assert [[row.trial for row in page.results] for page in succeeded] == [[1, 3], [5, 7]]
        assert [page.count for page in succeeded] == [4, 4]

    def test_a_cursor_that_is_not_ours_is_refused(self, studies: Studies) -> None:
        view = create(studies)
        for cursor in ("nope", "WyJzdHVkeSIsMV0", "WyJ0cmlhbCIsLTFd", "WyJ0cmlhbCIsIjEiXQ"):
            with pytest.raises(BadRequest):
                studies.results(view.id, cursor=cursor)

    def test_trials_are_listed_with_their_cause(self, database: Database, studies: Studies) -> None:
        view = create(studies)
        run(database, view.id, failing=(2,))
        page = studies.trials(view.id, limit=1)
        assert (page.count, [trial.trial for trial in page.trials]) == (2, [1])
        page = studies.trials(view.id, limit=1, cursor=page.next_cursor)
        assert page.next_cursor is None
        assert page.trials[0].error is not None
        assert page.trials[0].error.type == "ValueError"


def test_a_row_has_room_for_all_that_a_trial_tells_of_its_overhead() -> None:
    assert set(TrialOverhead.model_fields) < set(Overhead.model_fields)
