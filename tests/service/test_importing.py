"""Measured rows in the store: they are shown like any other, and cannot be run."""

import csv
import json
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import pytest

from service.analysis.repeats import BetweenRuns, between_runs
from service.errors import BadRequest, IdempotencyKeyReused, SpecInvalid, WrongState
from service.importing import RowsToImport
from service.measured_rows import RowsInvalid
from service.states import StudyState
from service.store import Database, result_text
from service.store.attempts import oldest_queued
from service.studies import Studies
from service.views import StudyView
from tests.service.factories import spec

ROWS = """\
run,world_size,train_micro_batch_size_per_gpu,steps_per_epoch,device,nodes,epoch,rank,epoch_seconds,compute_seconds,loss
a,2,8,10,T4; P4,1,1,,11,,2.5
a,2,8,10,,1,1,0,,0.5,
a,2,8,10,T4; P4,1,2,,9,,1.5
b,1,8,10,T4,1,1,,20,,2.0
c,2,8,10,T4; P4,1,1,,12,,2.0
"""


def rows(text: str = ROWS, **fields: Any) -> RowsToImport:
    return RowsToImport(**{"text": text, "name": "old cluster", "mode": "strong", **fields})


@pytest.fixture
def view(studies: Studies) -> StudyView:
    return studies.import_rows(rows())[0]


class TestShown:
    def test_the_study_is_over_and_says_what_it_is(self, studies: Studies, view: StudyView) -> None:
        assert studies.get(view.id) == view
        assert (view.name, view.status, view.progress.done) == ("old cluster", StudyState.SUCCEEDED, 3)
        assert view.finished_at == view.created_at
        assert (view.started_at, view.ray.job_id, view.error) == (None, None, None)
        assert {key: view.spec[key] for key in ("name", "imported", "scaling", "measurement")} == {
            "name": "old cluster",
            "imported": True,
            "scaling": {"mode": "strong", "hold": "micro_batch", "baseline_world_size": None},
            "measurement": {"repeats": 2},
        }

    def test_results_rows_are_as_of_any_study(self, studies: Studies, view: StudyView) -> None:
        first, second, third = studies.results(view.id).results
        assert (first.trial, first.repeat, first.attempt, first.state) == (1, 0, 1, "succeeded")
        assert first.parameters == {
            "world_size": 2,
            "train_micro_batch_size_per_gpu": 8,
            "gradient_accumulation_steps": 1,
            "train_batch_size": 16,
        }
        assert first.metrics.epoch_seconds == 10.0
        assert first.metrics.images_per_second == pytest.approx(16.0)
        assert first.metrics.images_per_second_per_worker == pytest.approx(8.0)
        assert (first.metrics.train_loss, first.metrics.images_seen, first.metrics.mfu) == (1.5, 320, None)
        assert (first.hardware.devices, first.hardware.nodes) == (["T4", "P4"], 1)
        assert second.between_runs is None
        assert third.repeat == 1
        assert third.between_runs is not None
        assert third.between_runs.step_seconds_mean == pytest.approx(1.1)

    def test_what_is_not_known_is_null_with_a_reason(self, studies: Studies, view: StudyView) -> None:
        row = studies.results(view.id).results[0]
        assert row.quality.state == "unassessed"
        assert row.quality.notes[0] == "Measured elsewhere; imported from run a."
        told = " ".join(row.quality.notes)
        nulls = [key for key, value in row.metrics.model_dump().items() if value is None]
        assert nulls
        assert all(key in told for key in nulls)

    def test_csv_has_them_too(self, studies: Studies, view: StudyView) -> None:
        first = next(csv.DictReader(StringIO(studies.results_csv(view.id), newline="")))
        assert (first["epoch_seconds"], first["devices"], first["model"]) == ("10.0", "T4; P4", "")

    def test_a_trial_has_its_ranks_and_epochs(self, studies: Studies, view: StudyView) -> None:
        trial = studies.trial(view.id, 1)
        assert [(rank.rank, rank.device, rank.compute_seconds, rank.node) for rank in trial.ranks] == [
            (0, "T4", 0.5, None),
            (1, "P4", None, None),
        ]
        assert [(epoch.epoch, epoch.epoch_seconds, epoch.train_loss, epoch.steps) for epoch in trial.epochs] == [
            (1, 11.0, 2.5, 10),
            (2, 9.0, 1.5, 10),
        ]
        assert trial.epochs[0].train_accuracy is None
        (attempt,) = trial.attempts
        assert (attempt.attempt, attempt.study_attempt, attempt.state) == (1, 0, "succeeded")
        assert attempt.metrics == studies.results(view.id).results[0].metrics
        assert (trial.config, trial.placement) == (None, {})
        assert studies.trial_logs(view.id, 1) == []

    def test_it_is_listed_and_deleted_with_all_its_rows(self, studies: Studies, view: StudyView) -> None:
        assert [each.id for each in studies.list()[0]] == [view.id]
        studies.delete(view.id)
        assert studies.list()[0] == []

    def test_repeats_are_put_together_once_for_all_rows_of_their_point(
        self, studies: Studies, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        head = "run,world_size,train_batch_size,step_seconds"
        made = studies.import_rows(
            rows("\n".join([head, *(f"{run},1,4,0.5" for run in range(20)), "x,2,8,1", "y,2,8,1"]))
        )
        counted: list[int] = []

        def counting(seconds: Sequence[float], train_batch_size: int) -> BetweenRuns | None:
            counted.append(len(seconds))
            return between_runs(seconds, train_batch_size)

        monkeypatch.setattr(result_text, "between_runs", counting)
        shown = [row.between_runs for row in studies.results(made[0].id).results]
        assert [together.runs for together in shown if together is not None] == [20] * 20 + [2] * 2
        assert sorted(counted) == [2, 20]

    def test_the_largest_numbers_that_are_taken_can_be_shown_in_every_form(self, studies: Studies) -> None:
        head = "run,world_size,train_batch_size,steps_per_epoch,epoch,rank,epoch_seconds,compute_seconds,loss"
        large = [
            f"{run},2,2147483647,4656,{epoch},{rank},1e9,0,1e30" for run in "ab" for epoch in (1, 2) for rank in (0, 1)
        ]
        small = [f"{run},1,2147483647,4656,{epoch},,1e-9,,-1e30" for run in "cd" for epoch in (1, 2)]
        made = studies.import_rows(rows("\n".join([head, *large, *small])))[0]
        assert studies.results_parquet(made.id)
        assert len(studies.results_csv(made.id).splitlines()) == 1 + 4
        assert not studies.compare(made.id, made.id, tolerance=0.05).is_regression


class TestNotRun:
    @pytest.mark.parametrize(
        "act",
        [Studies.resume, Studies.retry, lambda studies, study_id: studies.extend(study_id, spec())],
        ids=["resume", "retry", "extend"],
    )
    def test_nothing_of_it_can_be_run(
        self, studies: Studies, view: StudyView, act: Callable[[Studies, str], object]
    ) -> None:
        with pytest.raises(WrongState, match=f"Study {view.id} was imported: .* nothing of it can be run"):
            act(studies, view.id)

    def test_it_cannot_be_cancelled_and_is_not_in_the_queue(
        self, studies: Studies, database: Database, view: StudyView
    ) -> None:
        with pytest.raises(WrongState, match="nothing to cancel"):
            studies.cancel(view.id)
        with database.reading() as session:
            assert oldest_queued(session) is None


class TestRefused:
    def test_nothing_is_stored_where_a_row_is_wrong(self, studies: Studies) -> None:
        with pytest.raises(RowsInvalid, match="nothing was stored"):
            studies.import_rows(rows(ROWS + "d,1,8,10,T4,1,1,,soon,,\n"))
        assert studies.list()[0] == []

    @pytest.mark.parametrize(
        ("field", "value", "pointer"),
        [
            ("name", "", "/query/name"),
            ("name", " a", "/query/name"),
            ("tags", ["a", "a"], "/query/tag"),
            ("tags", ["a", ""], "/query/tag/1"),
        ],
    )
    def test_a_name_or_a_tag_that_is_none_is_refused(
        self, studies: Studies, field: str, value: Any, pointer: str
    ) -> None:
        with pytest.raises(SpecInvalid) as caught:
            studies.import_rows(rows(**{field: value}))
        assert caught.value.errors[0].pointer == pointer

    def test_a_key_stands_for_one_import(self, studies: Studies) -> None:
        first, is_new = studies.import_rows(rows(), "k")
        assert is_new
        assert studies.import_rows(rows(), "k") == (first, False)
        for other in (rows(mode="weak"), rows(ROWS + "\n"), rows(name="new"), rows(tags=["t"])):
            with pytest.raises(IdempotencyKeyReused):
                studies.import_rows(other, "k")
        with pytest.raises(BadRequest):
            studies.import_rows(rows(), "")
        assert len(studies.list()[0]) == 1


def test_the_stored_text_of_a_row_is_json_without_nan(studies: Studies) -> None:
    view, _ = studies.import_rows(rows())
    page = json.loads(studies.results_json(view.id), parse_constant=pytest.fail)
    assert page["count"] == 3
