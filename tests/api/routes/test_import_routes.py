"""POST /studies/import and /studies/{id}/extend over HTTP."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from api.limits import MAX_BODY_BYTES, MAX_CSV_BYTES
from api.routes.imports import EXAMPLE_CSV
from service.store import Database
from tests.api.routes.answers import assert_problem, finish

CSV = {"Content-Type": "text/csv; charset=utf-8"}


def post(client: TestClient, content: str | bytes, query: str = "name=old", **headers: str) -> Any:
    return client.post(f"/studies/import?{query}", content=content, headers={**CSV, **headers})


class TestImport:
    def test_answers_201_with_the_finished_study_and_where_it_is(self, client: TestClient) -> None:
        response = post(client, EXAMPLE_CSV, "name=old%20cluster&mode=strong&tag=a&tag=b&description=T4s")
        study = response.json()
        assert response.status_code == 201
        assert client.get(response.headers["location"]).json() == study
        assert (study["name"], study["status"], study["description"]) == ("old cluster", "succeeded", "T4s")
        assert study["tags"] == ["a", "b"]
        assert study["spec"]["scaling"]["mode"] == "strong"
        rows = client.get(f"/studies/{study['id']}/results").json()["results"]
        assert [row["metrics"]["epoch_seconds"] for row in rows] == [1817.7, 941.9]

    def test_columns_are_renamed_by_a_repeated_parameter(self, client: TestClient) -> None:
        text = EXAMPLE_CSV.replace("world_size", "gpus").replace("dataset,", "notes,")
        assert post(client, text, "name=a&map=gpus=world_size&map=notes=").status_code == 201
        assert post(client, text, "name=a&map=gpus%3Dworld_size").status_code == 422

    def test_all_that_is_wrong_is_named_by_line_and_column_and_nothing_is_stored(self, client: TestClient) -> None:
        text = EXAMPLE_CSV.replace("1817.7", "soon").replace("two-gpus,2", "two-gpus,0")
        problem = assert_problem(post(client, text, "name=never-stored"), 422, "ROWS_INVALID")
        assert [item["pointer"] for item in problem["errors"]] == ["/line/2/epoch_seconds", "/line/3/world_size"]
        assert client.get("/studies?name=never-stored").json()["studies"] == []

    def test_a_key_stands_for_one_study(self, client: TestClient) -> None:
        first = post(client, EXAMPLE_CSV, **{"Idempotency-Key": "k"}).json()
        assert post(client, EXAMPLE_CSV, **{"Idempotency-Key": "k"}).json() == first
        again = post(client, EXAMPLE_CSV, "name=other", **{"Idempotency-Key": "k"})
        assert_problem(again, 422, "IDEMPOTENCY_KEY_REUSED")

    @pytest.mark.parametrize(
        ("query", "status", "code"),
        [
            ("", 422, "REQUEST_INVALID"),
            ("name=", 422, "REQUEST_INVALID"),
            ("name=a&mode=fast", 422, "REQUEST_INVALID"),
            ("name=a&maps=b", 422, "REQUEST_INVALID"),
            ("name=a&map=b", 400, "BAD_REQUEST"),
            ("name=%20a", 422, "SPEC_INVALID"),
        ],
    )
    def test_other_questions_are_refused(self, client: TestClient, query: str, status: int, code: str) -> None:
        assert_problem(post(client, EXAMPLE_CSV, query), status, code)

    def test_another_type_than_csv_is_refused_with_what_is_read(self, client: TestClient) -> None:
        response = post(client, EXAMPLE_CSV, **{"Content-Type": "application/json"})
        assert_problem(response, 415, "UNSUPPORTED_MEDIA_TYPE")
        assert response.headers["accept"] == "text/csv"
        assert_problem(client.post("/studies", content="a", headers=CSV), 415, "UNSUPPORTED_MEDIA_TYPE")

    def test_what_is_not_utf_8_is_refused(self, client: TestClient) -> None:
        assert_problem(post(client, EXAMPLE_CSV.encode("utf-16")), 400, "BAD_REQUEST")

    def test_rows_may_be_larger_than_a_specification_up_to_a_bound(self, client: TestClient) -> None:
        padding = " " * 99 + "\n"
        larger = EXAMPLE_CSV + padding * (MAX_BODY_BYTES // 100 + 1)
        assert post(client, larger).status_code == 201
        assert_problem(post(client, padding * (MAX_CSV_BYTES // 100 + 1)), 413, "BODY_TOO_LARGE")

    def test_it_needs_the_token(self, client: TestClient) -> None:
        assert_problem(post(client, EXAMPLE_CSV, Authorization="Bearer wrong"), 401, "UNAUTHORIZED")


class TestExtend:
    def test_answers_202_with_the_queued_study(
        self, client: TestClient, database: Database, study: str, spec: dict[str, Any]
    ) -> None:
        finish(database, study)
        spec["parameters"]["train_micro_batch_size_per_gpu"]["values"].append(128)
        response = client.post(f"/studies/{study}/extend", json=spec)
        assert response.status_code == 202, response.text
        assert response.headers["location"] == f"/studies/{study}"
        view = client.get(f"/studies/{study}").json()
        assert view == response.json()
        assert (view["status"], view["trial_counts"]["pending"], len(view["extensions"])) == ("queued", 2, 1)
        assert_problem(client.post(f"/studies/{study}/extend", json=spec), 409, "WRONG_STATE")

    def test_what_would_not_be_comparable_is_refused_with_its_pointer(
        self, client: TestClient, database: Database, study: str, spec: dict[str, Any]
    ) -> None:
        finish(database, study)
        spec["measurement"]["max_steps"] = 70
        problem = assert_problem(client.post(f"/studies/{study}/extend", json=spec), 422, "SPEC_INVALID")
        assert [item["pointer"] for item in problem["errors"]] == ["/measurement/max_steps"]

    def test_an_imported_one_has_nothing_to_run(self, client: TestClient, spec: dict[str, Any]) -> None:
        study = post(client, EXAMPLE_CSV).json()["id"]
        for verb, body in (("extend", spec), ("resume", None), ("retry", None)):
            problem = assert_problem(client.post(f"/studies/{study}/{verb}", json=body), 409, "WRONG_STATE")
            assert "was imported" in problem["detail"]

    def test_an_unknown_study_is_404(self, client: TestClient, spec: dict[str, Any]) -> None:
        assert_problem(client.post("/studies/aaaaaaaaaaaa/extend", json=spec), 404, "NOT_FOUND")
