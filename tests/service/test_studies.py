"""The studies facade: what routes call."""

import json
import re
import threading
from typing import Any

import pytest
from sqlalchemy import func, select

from service.errors import (
    BadRequest,
    IdempotencyKeyReused,
    NotAvailable,
    NotFound,
    SpecInvalid,
    VitScaleError,
    WrongState,
)
from service.states import StudyState, TrialState
from service.store import Database
from service.store.attempts import finish_study
from service.store.tables import Base
from service.studies import Studies
from tests.service.factories import (
    Job,
    begin,
    create,
    epoch_row,
    feed,
    open_studies,
    run,
    spec,
    trial_result,
)


class TestCreate:
    def test_a_study_is_queued_with_its_trials_pending(self, studies: Studies) -> None:
        view, created = studies.create(spec(micro_batches=(4, 8), tags=["a", "b"], description="why"))
        assert created
        assert re.fullmatch("[a-z2-7]{12}", view.id)
        assert (view.name, view.description, view.tags) == ("small", "why", ["a", "b"])
        assert view.status is StudyState.QUEUED
        assert view.trial_counts == {
            "pending": 2,
            "running": 0,
            "succeeded": 0,
            "failed": 0,
            "cancelled": 0,
            "skipped": 0,
        }
        assert view.progress.model_dump() == {"done": 0, "total": 2, "running": [], "seconds_left": None}
        assert (view.started_at, view.finished_at, view.error, view.ray.job_id) == (None, None, None, None)
        assert studies.get(view.id) == view

    def test_the_stored_spec_is_complete_and_gives_the_same_plan(self, studies: Studies) -> None:
        data = spec()
        view, _ = studies.create(data)
        assert view.spec["execution"]["trial_timeout_seconds"] == 900
        assert studies.plan(view.spec) == studies.plan(data)

    def test_the_queue_is_woken_after_the_study_is_there(self, database: Database) -> None:
        seen: list[int] = []
        reader = open_studies(database)
        studies = open_studies(database, wake=lambda: seen.append(len(reader.list()[0])))
        create(studies)
        assert seen == [1]

    def test_trials_are_exactly_the_planned_points(self, studies: Studies) -> None:
        data = spec(micro_batches=(1, 2, 4), measurement={"repeats": 2, "order": "random"})
        planned = studies.plan(data).trials
        rows = studies.results(studies.create(data)[0].id).results
        assert [(row.trial, row.repeat, row.parameters) for row in rows] == [
            (point.number, point.repeat, point.parameters) for point in planned
        ]

    def test_skipped_points_stay_listed_with_their_reason(self, database: Database, studies: Studies) -> None:
        data = spec(
            scaling={"hold": "global_batch"},
            parameters={
                "model": {"value": "vit_tiny_patch16_224"},
                "train_batch_size": {"values": [8, 9]},
                "gradient_accumulation_steps": {"value": 2},
            },
            on_indivisible="skip",
        )
        view, _ = studies.create(data)
        assert view.trial_counts["skipped"] == 1
        assert (view.progress.done, view.progress.total) == (0, 1)
        skipped = next(trial for trial in studies.trials(view.id).trials if trial.state is TrialState.SKIPPED)
        assert skipped.parameters["train_batch_size"] == 9
        assert skipped.skip_reason
        row = studies.results(view.id, state=TrialState.SKIPPED).results[0]
        assert skipped.skip_reason in row.quality.notes[0]
        assert studies.trial(view.id, skipped.trial).attempts == []
        run(database, view.id)
        assert studies.get(view.id).status is StudyState.SUCCEEDED

    def test_a_study_of_skipped_points_only_is_refused(self, studies: Studies) -> None:
        data = spec(
            scaling={"hold": "global_batch"},
            parameters={
                "model": {"value": "vit_tiny_patch16_224"},
                "train_batch_size": {"value": 9},
                "gradient_accumulation_steps": {"value": 2},
            },
            on_indivisible="skip",
        )
        with pytest.raises(SpecInvalid) as refused:
            studies.create(data)
        assert refused.value.errors
        assert studies.list() == ([], None)

    def test_every_point_that_cannot_be_is_named_at_once(self, studies: Studies) -> None:
        data = spec(
            scaling={"hold": "global_batch"},
            parameters={
                "model": {"value": "vit_tiny_patch16_224"},
                "train_batch_size": {"values": [7, 8, 9]},
                "gradient_accumulation_steps": {"value": 2},
            },
        )
        refused = studies.plan(data).refused
        with pytest.raises(SpecInvalid) as error:
            studies.create(data)
        assert len(refused) == 2
        assert [item.pointer for item in error.value.errors] == [refusal.pointer for refusal in refused]
        assert "train_batch_size=7" in error.value.errors[0].detail
        assert studies.list() == ([], None)

    def test_what_is_not_available_yet_is_refused_as_such(self, studies: Studies) -> None:
        with pytest.raises(NotAvailable):
            studies.create(spec(execution={"isolation": "node"}))

    def test_a_spec_that_does_not_fit_is_refused(self, studies: Studies) -> None:
        with pytest.raises(SpecInvalid) as error:
            studies.create({"name": "x", "paramters": {}})
        assert error.value.errors


class TestIdempotency:
    def test_the_same_key_and_body_is_the_same_study(self, studies: Studies) -> None:
        first, created = studies.create(spec(), "key", "digest")
        again, created_again = studies.create(spec(), "key", "digest")
        assert (created, created_again) == (True, False)
        assert again == first
        assert len(studies.list()[0]) == 1

    def test_the_same_key_with_another_body_is_refused(self, studies: Studies) -> None:
        studies.create(spec(), "key", "digest")
        with pytest.raises(IdempotencyKeyReused):
            studies.create(spec(), "key", "other")

    def test_without_a_digest_the_data_decides(self, studies: Studies) -> None:
        first, _ = studies.create(spec(), "key")
        assert studies.create(spec(), "key") == (first, False)
        with pytest.raises(IdempotencyKeyReused):
            studies.create(spec(name="other"), "key")

    def test_another_key_is_another_study(self, studies: Studies) -> None:
        assert studies.create(spec(), "a")[0].id != studies.create(spec(), "b")[0].id

    def test_a_refused_body_leaves_the_key_free(self, studies: Studies) -> None:
        with pytest.raises(SpecInvalid):
            studies.create({"name": "x"}, "key", "1")
        assert studies.create(spec(), "key", "2")[1]

    def test_a_deleted_study_frees_its_key(self, studies: Studies) -> None:
        first, _ = studies.create(spec(), "key", "digest")
        studies.cancel(first.id)
        studies.delete(first.id)
        second, created = studies.create(spec(), "key", "other")
        assert created
        assert second.id != first.id

    @pytest.mark.parametrize("key", ["", "x" * 256, "a\x00b"])
    def test_a_key_that_cannot_be_kept_is_refused(self, studies: Studies, key: str) -> None:
        with pytest.raises(BadRequest):
            studies.create(spec(), key)

    def test_many_at_once_make_one_study(self, studies: Studies) -> None:
        barrier = threading.Barrier(6)
        outcomes: list[tuple[str, bool]] = []

        def post() -> None:
            barrier.wait(timeout=30)
            view, created = studies.create(spec(), "key", "digest")
            outcomes.append((view.id, created))

        threads = [threading.Thread(target=post) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert len(outcomes) == 6
        assert len({study_id for study_id, _ in outcomes}) == 1
        assert sum(created for _, created in outcomes) == 1
        assert len(studies.list()[0]) == 1


class TestList:
    def test_studies_come_newest_first_page_by_page(self, studies: Studies) -> None:
        ids = [create(studies, name=f"n{n}").id for n in range(5)][::-1]
        found: list[str] = []
        cursor = None
        while True:
            page, cursor = studies.list(limit=2, cursor=cursor)
            found += [view.id for view in page]
            if cursor is None:
                break
        assert found == ids

    def test_a_study_made_meanwhile_moves_no_page(self, studies: Studies) -> None:
        ids = [create(studies).id for _ in range(4)][::-1]
        first, cursor = studies.list(limit=2)
        create(studies)
        second, _ = studies.list(limit=2, cursor=cursor)
        assert [view.id for view in first + second] == ids

    def test_filters_narrow_the_list(self, studies: Studies) -> None:
        a = create(studies, name="Batch Sweep 100%", tags=["x", "y"])
        b = create(studies, name="straße", tags=["y"])
        studies.cancel(b.id)

        def ids(**filters: Any) -> list[str]:
            return [view.id for view in studies.list(**filters)[0]]

        assert ids(name="batch sw") == [a.id]
        assert ids(name="STRASSE") == [b.id]
        assert ids(name="0%") == [a.id]
        assert ids(name="_") == []
        assert ids(tag="y") == [b.id, a.id]
        assert ids(tag="x") == [a.id]
        assert ids(tag="z") == []
        assert ids(status=StudyState.CANCELLED) == [b.id]
        assert ids(status=StudyState.QUEUED, tag="y") == [a.id]

    @pytest.mark.parametrize("limit", [0, -1, 1001])
    def test_a_limit_out_of_bounds_is_refused(self, studies: Studies, limit: int) -> None:
        with pytest.raises(BadRequest):
            studies.list(limit=limit)

    @pytest.mark.parametrize(
        "cursor", ["", "x", "!!", "bm9wZQ", "WyJ0cmlhbCIsMV0", "é", "W" * 4000, "WyJzdHVkeSIsIngiLCJ5Il0"]
    )
    def test_a_cursor_that_is_not_ours_is_refused(self, studies: Studies, cursor: str) -> None:
        with pytest.raises(BadRequest):
            studies.list(cursor=cursor)


class TestChange:
    def test_tags_and_description_change_alone(self, studies: Studies) -> None:
        view = create(studies, tags=["a"], description="old")
        assert studies.patch(view.id, tags=["b", "c"]).tags == ["b", "c"]
        changed = studies.patch(view.id, description="new")
        assert (changed.tags, changed.description) == (["b", "c"], "new")
        assert [found.id for found in studies.list(tag="c")[0]] == [view.id]
        assert studies.list(tag="a")[0] == []

    def test_none_removes(self, studies: Studies) -> None:
        view = create(studies, tags=["a"], description="old")
        changed = studies.patch(view.id, tags=None, description=None)
        assert (changed.tags, changed.description) == ([], "")

    @pytest.mark.parametrize(
        ("change", "pointer"),
        [
            ({"tags": ["x" * 51]}, "/tags/0"),
            ({"tags": ["a", "a"]}, "/tags"),
            ({"tags": [f"t{n}" for n in range(21)]}, "/tags"),
            ({"description": "x" * 10_001}, "/description"),
            ({"description": "a\x00"}, "/description"),
        ],
    )
    def test_what_a_spec_could_not_have_is_refused(
        self, studies: Studies, change: dict[str, Any], pointer: str
    ) -> None:
        view = create(studies)
        with pytest.raises(SpecInvalid) as error:
            studies.patch(view.id, **change)
        assert [item.pointer for item in error.value.errors] == [pointer]
        assert studies.get(view.id) == view

    def test_a_study_that_is_over_can_be_deleted_with_all_its_rows(self, database: Database, studies: Studies) -> None:
        other = create(studies)
        view = create(studies, tags=["a"])
        plan = begin(database, view.id)
        job = Job(plan)
        success = job.succeeded(2, result=trial_result(epochs=[epoch_row(1)]))
        feed(database, plan, ["x", job.started(1), success])
        studies.cancel(view.id)
        with database.session() as session:
            finish_study(session, view.id, cancelled=True, error=None)
        studies.delete(view.id)
        with pytest.raises(NotFound):
            studies.get(view.id)
        with database.reading() as session:
            left = {
                name: session.scalar(select(func.count()).select_from(table))
                for name, table in Base.metadata.tables.items()
            }
        assert {name: count for name, count in left.items() if count} == {"studies": 1, "trials": 2}
        assert studies.get(other.id) == other

    def test_one_that_is_not_over_cannot_be_deleted(self, database: Database, studies: Studies) -> None:
        view = create(studies)
        with pytest.raises(WrongState, match="queued"):
            studies.delete(view.id)
        begin(database, view.id)
        with pytest.raises(WrongState, match="running"):
            studies.delete(view.id)


class TestNotFound:
    @pytest.mark.parametrize("study_id", ["aaaaaaaaaaaa", "", "a\x00", "x" * 10_000, "AAAAAAAAAAAA", "' or 1=1 --"])
    @pytest.mark.parametrize(
        "method",
        ["get", "delete", "cancel", "resume", "retry", "patch", "trials", "results", "results_csv", "study_logs"],
    )
    def test_an_unknown_study_is_not_found(self, studies: Studies, method: str, study_id: str) -> None:
        with pytest.raises(NotFound):
            getattr(studies, method)(study_id)

    @pytest.mark.parametrize("number", [0, -1, 3, 2**31, 2**70])
    def test_an_unknown_trial_is_not_found(self, studies: Studies, number: int) -> None:
        view = create(studies)
        for method in (studies.trial, studies.trial_logs):
            with pytest.raises(NotFound):
                method(view.id, number)


def test_times_are_written_in_utc_with_a_z(studies: Studies) -> None:
    shown = json.loads(create(studies).model_dump_json())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", shown["created_at"])


def test_all_errors_are_ones_that_a_person_can_act_on() -> None:
    for error in (SpecInvalid, NotAvailable, IdempotencyKeyReused, NotFound, WrongState, BadRequest):
        assert issubclass(error, VitScaleError)
        assert error.status < 500
