"""`GET /studies/{id}/analysis`: from stored rows to the answer."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from service.store import Database
from service.store.attempts import finish_study
from tests.api.routes.answers import assert_problem
from tests.service.factories import Job, begin, epoch_row, feed, rank_row, trial_result

SIZES = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def scaled(client: TestClient, database: Database) -> str:
    """A strong study of four world sizes: 100 images/s for each worker, less 2 % with every further one."""
    spec = {
        "name": "scaled",
        "scaling": {"mode": "strong"},
        "workload": {"dataset": "digits", "image_size": 32},
        "parameters": {
            "model": {"value": "vit_tiny_patch16_224"},
            "patch_size": {"value": 8},
            "world_size": {"values": list(SIZES)},
            "train_micro_batch_size_per_gpu": {"value": 4},
        },
        "measurement": {"order": "given"},
    }
    study = str(client.post("/studies", json=spec).json()["id"])
    plan = begin(database, study)
    job = Job(plan)
    lines = []
    for trial, size in zip(plan.trials, SIZES, strict=True):
        rate = 100.0 * size / (1 + 0.02 * (size - 1))
        step = 4 * size / rate
        metrics = {
            "images_per_second": rate,
            "step_seconds_mean": step,
            "step_seconds_ci95_low": 0.99 * step,
            "step_seconds_ci95_high": 1.01 * step,
            "epoch_seconds": 1000 / rate,
        }
        ranks = [rank_row(rank) for rank in range(size)]
        epochs = [epoch_row(n, epoch_seconds=1000 / rate * (1.5 if n == 1 else 1 + n / 1000)) for n in range(1, 6)]
        result = trial_result(world_size=size, metrics=metrics, ranks=ranks, epochs=epochs)
        lines += [job.started(trial.number), job.succeeded(trial.number, result=result)]
    feed(database, plan, lines)
    with database.session() as session:
        finish_study(session, study, cancelled=False, error=None)
    return study


def analysis_of(client: TestClient, study: str, **query: Any) -> dict[str, Any]:
    response = client.get(f"/studies/{study}/analysis", params=query)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_the_answer_has_the_documented_shape(client: TestClient, scaled: str) -> None:
    answer = analysis_of(client, scaled, forecast="16,32")
    assert (answer["study_id"], answer["status"]) == (scaled, "succeeded")
    (series,) = answer["series"]
    assert (series["series_id"], series["mode"], series["hold"]) == ("a1", "strong", "micro_batch")
    assert series["baseline_world_size"] == 1
    assert series["fixed"]["train_micro_batch_size_per_gpu"] == 4
    two = series["points"][1]
    assert (two["world_size"], two["hardware"]) == (2, "2 x Some CPU")
    assert two["speedup"] == pytest.approx(2 / 1.02)
    assert two["efficiency"] == pytest.approx(1 / 1.02)
    assert two["speedup_ci95_low"] < two["speedup"] < two["speedup_ci95_high"]
    assert {"model", "parameters", "loo_error"} <= series["fits"][0].keys()
    assert series["chosen_fit"] in {fit["model"] for fit in series["fits"]}
    assert [one["world_size"] for one in series["forecasts"]] == [16, 32]
    assert {"epoch_seconds", "epoch_seconds_low", "epoch_seconds_high", "efficiency"} <= series["forecasts"][0].keys()
    assert isinstance(answer["findings"], list)
    assert answer["batch_size"] == []


def test_a_derived_epoch_has_the_relative_interval_of_its_step(client: TestClient, scaled: str) -> None:
    one = analysis_of(client, scaled)["series"][0]["points"][0]
    assert one["epoch_seconds_ci95_low"] == pytest.approx(0.99 * one["epoch_seconds"])
    assert one["images_per_second_ci95_high"] == pytest.approx(one["images_per_second"] / 0.99)
    assert one["interval_kind"] == "within_run"


def test_epoch_rows_are_read(client: TestClient, scaled: str) -> None:
    points = analysis_of(client, scaled)["series"][0]["points"]
    assert [point["first_epoch_is_outlier"] for point in points] == [True] * 4
    assert points[0]["first_epoch_ratio"] == pytest.approx(1.5 / 1.0035)


def test_the_settings_are_taken_and_told(client: TestClient, scaled: str) -> None:
    answer = analysis_of(client, scaled, efficiency=0.5, sweet_spot_ratio=0.8)
    assert answer["options"] == {"sweet_spot_ratio": 0.8, "efficiency_target": 0.5, "forecast_sizes": []}
    assert answer["series"][0]["largest_useful_size"]["efficiency"] == 0.5


def test_without_a_result_it_is_empty_and_says_so(client: TestClient, study: str) -> None:
    answer = analysis_of(client, study)
    assert answer["notes"] == ["No trial has a result yet."]
    assert answer["series"] == []


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("forecast=16,x", "/query/forecast"),
        ("forecast=0", "/query/forecast"),
        ("forecast=", "/query/forecast"),
        ("forecast=200000", "/query/forecast"),
        ("forecast=" + ",".join(map(str, range(1, 40))), "/query/forecast"),
        ("forecast=" + "9" * 399, "/query/forecast"),
        ("efficiency=0", "/query/efficiency"),
        ("sweet_spot_ratio=nan", "/query/sweet_spot_ratio"),
        ("forcast=16", "/query/forcast"),
    ],
)
def test_other_questions_are_refused(client: TestClient, scaled: str, query: str, pointer: str) -> None:
    problem = assert_problem(client.get(f"/studies/{scaled}/analysis?{query}"), 422, "REQUEST_INVALID")
    assert problem["errors"][0]["pointer"] == pointer


def test_an_unknown_study_is_404(client: TestClient) -> None:
    assert_problem(client.get("/studies/aaaaaaaaaaaa/analysis"), 404, "NOT_FOUND")
