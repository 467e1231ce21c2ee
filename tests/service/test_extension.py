"""More points for a study that is over: only the new ones are run, and only beside rows they can be compared with."""

from typing import Any

import pytest

from service.errors import ErrorItem, NotAvailable, SpecInvalid, WrongState
from service.states import StudyState
from service.store import Database
from service.store.attempts import finish_study
from service.studies import Studies
from tests.service.factories import Job, begin, create, feed, open_studies, run, spec


def more(**fields: Any) -> dict[str, Any]:
    """The study's own spec of `finished`, with more micro batches or whatever is given."""
    return spec(**{"micro_batches": (4, 8, 16), **fields})


@pytest.fixture
def finished(database: Database, studies: Studies) -> str:
    """A study of micro batch 4 and 8 that is over; trial 2 failed."""
    view = create(studies)
    run(database, view.id, failing=(2,))
    return view.id


def points(studies: Studies, study_id: str) -> list[tuple[int, int, int, str]]:
    """(number, micro batch, repeat, state) of every trial."""
    return [
        (row.trial, row.parameters["train_micro_batch_size_per_gpu"], row.repeat, row.state.value)
        for row in studies.results(study_id).results
    ]


def refused(studies: Studies, study_id: str, **fields: Any) -> list[ErrorItem]:
    with pytest.raises(SpecInvalid, match=f"cannot extend study {study_id}") as caught:
        studies.extend(study_id, more(**fields))
    return caught.value.errors


class TestPoints:
    def test_only_new_ones_are_run(self, database: Database, finished: str) -> None:
        woken: list[bool] = []
        studies = open_studies(database, wake=lambda: woken.append(True))
        view = studies.extend(finished, more())
        assert (view.status, view.finished_at, view.error, woken) == (StudyState.QUEUED, None, None, [True])
        assert points(studies, finished) == [(1, 4, 0, "succeeded"), (2, 8, 0, "failed"), (3, 16, 0, "pending")]
        plan = begin(database, finished)
        assert (plan.attempt, [trial.number for trial in plan.trials]) == (2, [3])
        assert plan.trials[0].config.train_micro_batch_size_per_gpu == 16

    def test_finished_rows_stay_as_they_are_and_the_state_is_of_all(
        self, database: Database, studies: Studies, finished: str
    ) -> None:
        before = studies.results(finished).results
        studies.extend(finished, more())
        run(database, finished)
        assert studies.results(finished).results[:2] == before
        assert studies.get(finished).status is StudyState.PARTIAL  # the failed one is still failed
        studies.retry(finished)
        run(database, finished)
        assert studies.get(finished).status is StudyState.SUCCEEDED

    def test_more_repeats_are_added_to_every_point(self, database: Database, studies: Studies, finished: str) -> None:
        measurement = {"order": "given", "repeats": 3}
        studies.extend(finished, spec(measurement=measurement))
        assert points(studies, finished)[2:] == [
            (3, 4, 1, "pending"),
            (4, 8, 1, "pending"),
            (5, 4, 2, "pending"),
            (6, 8, 2, "pending"),
        ]
        run(database, finished)
        row = studies.results(finished).results[0]
        assert row.between_runs is not None
        assert row.between_runs.runs == 3

    def test_none_is_taken_away_and_axes_may_differ_from_the_studys(self, studies: Studies, finished: str) -> None:
        extra = spec(micro_batches=(32,))
        extra["parameters"]["zero_stage"] = {"values": [0, 1]}
        assert studies.extend(finished, extra).trial_counts["pending"] == 2
        assert len(points(studies, finished)) == 4

    def test_the_order_goes_on_behind_the_old_ones(self, database: Database, studies: Studies, finished: str) -> None:
        studies.extend(finished, spec(micro_batches=(64, 16, 8)))
        assert [trial.number for trial in begin(database, finished).trials] == [3, 4]
        assert [point[1] for point in points(studies, finished)] == [4, 8, 64, 16]

    def test_trials_that_were_never_run_are_run_with_them(self, database: Database, studies: Studies) -> None:
        view = create(studies)
        plan = begin(database, view.id)
        feed(database, plan, [Job(plan).succeeded(1)])
        with database.session() as session:
            finish_study(session, view.id, cancelled=False, error="the cluster is gone")
        studies.extend(view.id, more())
        assert [trial.number for trial in begin(database, view.id).trials] == [2, 3]

    def test_nothing_new_is_refused(self, studies: Studies, finished: str) -> None:
        with pytest.raises(WrongState, match="it has all points of this specification already"):
            studies.extend(finished, spec())
        assert studies.get(finished).status is StudyState.PARTIAL
        assert studies.get(finished).extensions == []

    def test_a_study_that_is_not_over_cannot_be_extended(self, database: Database, studies: Studies) -> None:
        view = create(studies)
        with pytest.raises(WrongState, match="queued: it can be extended when it is over"):
            studies.extend(view.id, more())
        begin(database, view.id)
        with pytest.raises(WrongState, match="running"):
            studies.extend(view.id, more())


class TestStored:
    def test_the_specification_stays_and_the_extensions_are_listed(
        self, database: Database, studies: Studies, finished: str
    ) -> None:
        first = studies.get(finished).spec
        studies.extend(finished, more(name="another name"))
        run(database, finished)
        view = studies.extend(finished, more(micro_batches=(32,)))
        assert (view.name, view.spec) == ("small", first)
        values = [each["parameters"]["train_micro_batch_size_per_gpu"]["values"] for each in view.extensions]
        assert values == [[4, 8, 16], [32]]
        assert studies.get(finished).extensions == view.extensions
        assert view.extensions[0]["execution"]["retries"] == 1  # complete, defaults and all

    def test_the_last_one_says_how_trials_are_waited_for(
        self, database: Database, studies: Studies, finished: str
    ) -> None:
        studies.extend(finished, more(execution={"trial_timeout_seconds": 60, "retries": 5}))
        plan = begin(database, finished)
        assert (plan.execution.trial_timeout_seconds, plan.execution.retries) == (60.0, 5)


class TestComparable:
    @pytest.mark.parametrize(
        ("fields", "pointer"),
        [
            ({"scaling": {"mode": "strong"}}, "/scaling/mode"),
            ({"measurement": {"order": "given", "max_steps": 100}}, "/measurement/max_steps"),
            ({"resources": {"num_cpus": 2}}, "/resources/num_cpus"),
            ({"workload": {"image_size": 32, "seed": 1}}, "/workload/seed"),
            ({"workload": {"image_size": 32, "epochs": 1}}, "/workload/epochs"),
            ({"execution": {"isolation": "shared"}}, "/execution/isolation"),
            ({"deepspeed": {"zero_optimization": {"overlap_comm": True}}}, "/deepspeed"),
            ({"placements": {"default": {"strategy": "SPREAD"}}}, "/placements/default"),
        ],
    )
    def test_what_is_no_parameter_must_be_as_it_was(
        self, studies: Studies, finished: str, fields: dict[str, Any], pointer: str
    ) -> None:
        (item,) = refused(studies, finished, **fields)
        assert item.pointer == pointer
        assert "would not be comparable" in item.detail
        assert str(item.hint).startswith("write ")

    def test_all_differences_are_told_at_once(self, studies: Studies, finished: str) -> None:
        items = refused(studies, finished, resources={"num_cpus": 2}, scaling={"mode": "weak"})
        assert [item.pointer for item in items] == ["/scaling/mode", "/resources/num_cpus"]

    def test_a_workload_key_that_is_a_parameter_may_differ(self, studies: Studies, finished: str) -> None:
        studies.extend(finished, spec(workload={"dataset": "synthetic", "image_size": 64}))
        assert [row.parameters["image_size"] for row in studies.results(finished).results] == [32, 32, 64, 64]

    def test_a_placement_of_a_new_name_may_be_added(self, studies: Studies, finished: str) -> None:
        extra = more(placements={"spread": {"strategy": "SPREAD"}})
        extra["parameters"]["placement"] = {"value": "spread"}
        assert studies.extend(finished, extra).trial_counts["pending"] == 3

    def test_which_batch_key_is_derived_must_be_as_it_was(self, database: Database, studies: Studies) -> None:
        def held(key: str) -> dict[str, Any]:
            text = spec(scaling={"hold": "global_batch"})
            del text["parameters"]["train_micro_batch_size_per_gpu"]
            text["parameters"] |= {"train_batch_size": {"values": [8]}, key: {"value": 2}}
            return text

        view, _ = studies.create(held("gradient_accumulation_steps"))
        run(database, view.id)
        with pytest.raises(SpecInvalid) as caught:
            studies.extend(view.id, held("train_micro_batch_size_per_gpu"))
        assert {item.pointer for item in caught.value.errors} == {
            "/parameters/gradient_accumulation_steps",
            "/parameters/train_micro_batch_size_per_gpu",
        }

    def test_the_baseline_may_be_a_size_that_only_the_study_has(self, database: Database, studies: Studies) -> None:
        scaling = {"mode": "strong", "baseline_world_size": 1}
        view = create(studies, scaling=scaling)
        run(database, view.id)
        extra = spec(scaling=scaling)
        extra["parameters"]["world_size"] = {"values": [2]}
        assert studies.extend(view.id, extra).trial_counts["pending"] == 2


class TestChecked:
    def test_a_spec_that_is_wrong_is_refused_as_ever(self, studies: Studies, finished: str) -> None:
        with pytest.raises(SpecInvalid) as caught:
            studies.extend(finished, more(tag=["a"]))
        assert caught.value.errors[0].pointer == "/tag"
        with pytest.raises(NotAvailable):
            studies.extend(finished, more(workload={"dataset": "image_folder", "image_size": 32}))
        with pytest.raises(SpecInvalid, match="1 point cannot be run"):
            studies.extend(finished, more(micro_batches=(10**9,)))

    def test_a_study_does_not_grow_beyond_what_one_may_have(self, studies: Studies, finished: str) -> None:
        with pytest.raises(SpecInvalid, match="would have 10,002 trials; at most 10,000"):
            studies.extend(
                finished, spec(micro_batches=range(100, 110), measurement={"order": "given", "repeats": 1000})
            )
        assert len(points(studies, finished)) == 2
