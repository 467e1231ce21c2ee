"""Two studies over HTTP."""

import pytest
from starlette.testclient import TestClient

from service.store import Database
from tests.api.routes.answers import assert_problem, finish


@pytest.fixture
def finished(database: Database, study: str) -> str:
    finish(database, study)
    return study


def test_a_study_equals_itself(client: TestClient, finished: str) -> None:
    response = client.get("/studies/compare", params={"a": finished, "b": finished, "tolerance": "5%"})
    found = response.json()
    assert response.status_code == 200
    assert [point["verdict"] for point in found["points"]] == ["equal"] * 6
    assert (found["is_regression"], found["is_complete"], found["tolerance"]) == (False, True, 0.05)
    assert any("without repeats nothing closer than 5% is ranked" in note for note in found["notes"])


@pytest.mark.parametrize("raw", ["tolerance=5%", "tolerance=5%25", "tolerance=0.05", ""])
def test_a_tolerance_is_read_however_it_is_written(client: TestClient, finished: str, raw: str) -> None:
    response = client.get(f"/studies/compare?a={finished}&b={finished}&{raw}".rstrip("&"))
    assert response.json()["tolerance"] == 0.05


@pytest.mark.parametrize("tolerance", ["5", "-1%", "much", "100%"])
def test_another_is_refused_with_what_would_be_right(client: TestClient, finished: str, tolerance: str) -> None:
    response = client.get("/studies/compare", params={"a": finished, "b": finished, "tolerance": tolerance})
    (error,) = assert_problem(response, 422, "REQUEST_INVALID")["errors"]
    assert error["pointer"] == "/query/tolerance"
    assert error["hint"].startswith("write 5% or 0.05")


def test_ids_are_asked_for_and_looked_up(client: TestClient, finished: str) -> None:
    assert_problem(client.get("/studies/compare"), 422, "REQUEST_INVALID")
    for other in ("aaaaaaaaaaaa", "nope"):
        assert_problem(client.get("/studies/compare", params={"a": finished, "b": other}), 404, "NOT_FOUND")
    assert_problem(
        client.get("/studies/compare", params={"a": finished, "b": finished, "c": "1"}), 422, "REQUEST_INVALID"
    )
