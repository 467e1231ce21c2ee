"""POST, plan, list, look, change, delete, and cancel, resume, retry over HTTP."""

from datetime import datetime
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.routes.studies import EXAMPLE_YAML
from service.store import Database
from service.store.attempts import finish_study
from tests.api.routes.answers import JSON, YAML, assert_problem, finish
from tests.service.factories import begin


class TestCreate:
    def test_answers_202_with_the_queued_study_and_where_it_is(self, client: TestClient, spec: dict[str, Any]) -> None:
        response = client.post("/studies", json=spec)
        study = response.json()
        assert response.status_code == 202
        assert response.headers["location"] == f"/studies/{study['id']}"
        assert client.get(response.headers["location"]).json() == study
        assert (study["name"], study["status"]) == ("first-batch-sweep", "queued")
        assert study["trial_counts"]["pending"] == 6
        assert study["spec"]["execution"]["retries"] == 1  # complete, defaults and all

    def test_yaml_and_json_make_the_same_study(self, client: TestClient, spec: dict[str, Any]) -> None:
        del spec["description"]
        from_json = client.post("/studies", json=spec).json()
        from_yaml = client.post("/studies", content=EXAMPLE_YAML, headers=YAML).json()
        assert from_yaml["spec"] == from_json["spec"]

    def test_times_are_rfc_3339_in_utc_with_a_z(self, client: TestClient, study: str) -> None:
        created_at = client.get(f"/studies/{study}").json()["created_at"]
        assert created_at.endswith("Z")
        assert datetime.fromisoformat(created_at).utcoffset().total_seconds() == 0

    def test_an_unknown_key_is_refused_with_its_pointer_and_a_hint(
        self, client: TestClient, spec: dict[str, Any]
    ) -> None:
        spec["parameters"]["micro_batch_per_gpu"] = spec["parameters"].pop("train_micro_batch_size_per_gpu")
        problem = assert_problem(client.post("/studies", json=spec), 422, "SPEC_INVALID")
        item = next(each for each in problem["errors"] if each["pointer"] == "/parameters/micro_batch_per_gpu")
        assert "train_micro_batch_size_per_gpu" in item["hint"]

    def test_a_key_that_is_not_honoured_yet_is_refused(self, client: TestClient, spec: dict[str, Any]) -> None:
        spec["execution"] = {**spec.get("execution", {}), "isolation": "node"}
        problem = assert_problem(client.post("/studies", json=spec), 422, "NOT_AVAILABLE")
        assert problem["errors"][0]["pointer"] == "/execution/isolation"

    def test_more_than_10000_trials_are_refused(self, client: TestClient, spec: dict[str, Any]) -> None:
        spec["parameters"]["train_micro_batch_size_per_gpu"] = {"values": list(range(1, 101))}
        spec["parameters"]["learning_rate"] = {"values": [index / 1000 for index in range(1, 102)]}
        assert_problem(client.post("/studies", json=spec), 422, "SPEC_INVALID")

    @pytest.mark.parametrize("document", ["[]", '"text"', "7", "null", "true"])
    def test_a_body_that_is_no_object_is_refused(self, client: TestClient, document: str) -> None:
        assert_problem(client.post("/studies", content=document, headers=JSON), 422, "SPEC_INVALID")

    def test_malformed_json_is_refused_with_line_and_column(self, client: TestClient) -> None:
        problem = assert_problem(client.post("/studies", content='{"name":\n  oops}', headers=JSON), 400, "BAD_REQUEST")
        assert "line 2, column 3" in problem["detail"]

    def test_malformed_yaml_is_refused_with_line_and_column(self, client: TestClient) -> None:
        problem = assert_problem(client.post("/studies", content="name: [1,\nb: }", headers=YAML), 400, "BAD_REQUEST")
        assert "line 2" in problem["detail"]

    @pytest.mark.parametrize(
        ("content", "headers"),
        [
            ('{"name": NaN}', JSON),
            ('{"a": 1, "a": 2}', JSON),
            ("[" * 100_000, JSON),
            ('{"seed": ' + "9" * 5000 + "}", JSON),
            ("a: &a [x]\n" + "b: [" + "*a, " * 200_000 + "]", YAML),
            ("name: !!python/object/apply:os.system [id]", YAML),
        ],
        ids=["nan", "duplicate", "deep", "long-number", "aliases", "tag"],
    )
    def test_hostile_text_is_refused(self, client: TestClient, content: str, headers: dict[str, str]) -> None:
        response = client.post("/studies", content=content, headers=headers)
        assert 400 <= response.status_code < 500
        assert response.headers["content-type"] == "application/problem+json"

    @pytest.mark.parametrize("name", ["half a pair: \\ud800", "zero: \\u0000"])
    def test_text_that_cannot_be_stored_is_refused(self, client: TestClient, name: str) -> None:
        response = client.post("/studies", content=f'{{"name": "{name}"}}', headers=JSON)
        assert response.status_code in {400, 422}
        response.content.decode("ascii")


class TestIdempotencyKey:
    def test_the_same_key_and_body_is_the_same_study(self, client: TestClient, spec: dict[str, Any]) -> None:
        first = client.post("/studies", json=spec, headers={"Idempotency-Key": "once"})
        second = client.post("/studies", json=spec, headers={"Idempotency-Key": "once"})
        assert (first.status_code, second.status_code) == (202, 202)
        assert first.json()["id"] == second.json()["id"]
        assert first.headers["location"] == second.headers["location"]

    def test_the_same_key_with_another_body_is_refused(self, client: TestClient, spec: dict[str, Any]) -> None:
        client.post("/studies", json=spec, headers={"Idempotency-Key": "twice"})
        spec["name"] = "another"
        response = client.post("/studies", json=spec, headers={"Idempotency-Key": "twice"})
        assert_problem(response, 422, "IDEMPOTENCY_KEY_REUSED")

    def test_without_a_key_each_post_is_a_study(self, client: TestClient, spec: dict[str, Any]) -> None:
        ids = {client.post("/studies", json=spec).json()["id"] for _ in range(2)}
        assert len(ids) == 2

    @pytest.mark.parametrize("key", ["", "k" * 256])
    def test_a_key_of_no_or_too_many_characters_is_refused(
        self, client: TestClient, spec: dict[str, Any], key: str
    ) -> None:
        response = client.post("/studies", json=spec, headers={"Idempotency-Key": key})
        assert response.status_code in {400, 422}


class TestPlan:
    def test_names_every_trial_and_stores_nothing(self, client: TestClient, spec: dict[str, Any]) -> None:
        spec["name"] = "only planned"
        response = client.post("/studies/plan", json=spec)
        plan = response.json()
        assert response.status_code == 200
        assert [trial["trial"] for trial in plan["trials"]] == [1, 2, 3, 4, 5, 6]
        batches = [trial["parameters"]["train_micro_batch_size_per_gpu"] for trial in plan["trials"]]
        assert batches == [4, 16, 64] * 2
        assert sorted(plan["order"]) == [1, 2, 3, 4, 5, 6]
        assert plan["refused"] == []
        assert plan["placement"]
        assert plan["device_seconds_bound"] > 0
        assert client.get("/studies", params={"name": "only planned"}).json()["studies"] == []

    def test_lists_points_that_cannot_be_where_post_refuses_them(
        self, client: TestClient, spec: dict[str, Any]
    ) -> None:
        spec["parameters"]["patch_size"] = {"values": [5, 8]}  # 32 px do not divide by 5
        response = client.post("/studies/plan", json=spec)
        assert response.status_code == 200
        refused = response.json()["refused"]
        assert len(refused) == 6
        assert all(point["pointer"] and point["reason"] for point in refused)
        problem = assert_problem(client.post("/studies", json=spec), 422, "SPEC_INVALID")
        assert len(problem["errors"]) == 6

    def test_a_spec_outside_the_schema_is_refused_as_by_post(self, client: TestClient) -> None:
        assert_problem(client.post("/studies/plan", json={"name": "x"}), 422, "SPEC_INVALID")

    def test_is_not_taken_for_a_study(self, client: TestClient) -> None:
        assert_problem(client.get("/studies/plan"), 404, "NOT_FOUND")


class TestList:
    def test_newest_first_page_by_page(self, client: TestClient, spec: dict[str, Any]) -> None:
        spec["tags"] = ["paged"]
        made = [client.post("/studies", json=spec).json()["id"] for _ in range(3)]
        first = client.get("/studies", params={"tag": "paged", "limit": 2}).json()
        second = client.get("/studies", params={"tag": "paged", "limit": 2, "cursor": first["next_cursor"]}).json()
        assert [study["id"] for study in first["studies"] + second["studies"]] == made[::-1]
        assert second["next_cursor"] is None

    def test_filters_by_status(self, client: TestClient, study: str) -> None:
        client.post(f"/studies/{study}/cancel")
        cancelled = {each["id"] for each in client.get("/studies", params={"status": "cancelled"}).json()["studies"]}
        queued = {each["id"] for each in client.get("/studies", params={"status": "queued"}).json()["studies"]}
        assert study in cancelled
        assert study not in queued

    @pytest.mark.parametrize(
        "query", ["limit=0", "limit=1001", "limit=many", "status=done", "limit=99999999999999999999999"]
    )
    def test_a_parameter_out_of_range_is_refused_by_name(self, client: TestClient, query: str) -> None:
        problem = assert_problem(client.get(f"/studies?{query}"), 422, "REQUEST_INVALID")
        assert problem["errors"][0]["pointer"] == "/query/" + query.partition("=")[0]

    def test_a_misspelt_filter_is_refused(self, client: TestClient) -> None:
        problem = assert_problem(client.get("/studies?stauts=queued"), 422, "REQUEST_INVALID")
        assert problem["errors"][0]["pointer"] == "/query/stauts"
        assert "status" in problem["errors"][0]["hint"]

    def test_a_cursor_that_is_not_ours_is_refused(self, client: TestClient) -> None:
        assert_problem(client.get("/studies?cursor=%00nonsense"), 400, "BAD_REQUEST")


class TestGet:
    @pytest.mark.parametrize(
        "study_id", ["aaaaaaaaaaaa", "latest", "AAAAAAAAAAAA", "a" * 5000, "%00", "%ff", "..%2f..", "aaaaaaaaaaaa%0a"]
    )
    def test_an_unknown_id_is_404(self, client: TestClient, study_id: str) -> None:
        assert_problem(client.get(f"/studies/{study_id}"), 404, "NOT_FOUND")


class TestPatch:
    def test_changes_what_is_given_and_nothing_else(self, client: TestClient, study: str) -> None:
        first = client.patch(f"/studies/{study}", json={"tags": ["a", "b"]})
        second = client.patch(f"/studies/{study}", json={"description": "said later"})
        assert first.status_code == second.status_code == 200
        assert sorted(second.json()["tags"]) == ["a", "b"]
        assert second.json()["description"] == "said later"
        assert client.get(f"/studies/{study}").json() == second.json()

    def test_yaml_will_do(self, client: TestClient, study: str) -> None:
        changed = client.patch(f"/studies/{study}", content="tags: [yaml]", headers=YAML)
        assert changed.json()["tags"] == ["yaml"]

    @pytest.mark.parametrize(
        ("change", "pointer"),
        [
            ({"name": "x"}, "/name"),
            ({"tags": "abc"}, "/tags"),
            ({"tags": [1]}, "/tags/0"),
            ({"description": 1}, "/description"),
        ],
    )
    def test_anything_else_is_refused_with_its_pointer(
        self, client: TestClient, study: str, change: dict[str, Any], pointer: str
    ) -> None:
        problem = assert_problem(client.patch(f"/studies/{study}", json=change), 422, "REQUEST_INVALID")
        assert problem["errors"][0]["pointer"] == pointer

    def test_tags_must_be_such_as_a_spec_may_have(self, client: TestClient, study: str) -> None:
        assert client.patch(f"/studies/{study}", json={"tags": ["x" * 10_000]}).status_code == 422

    def test_an_unknown_study_is_404(self, client: TestClient) -> None:
        assert_problem(client.patch("/studies/aaaaaaaaaaaa", json={"tags": []}), 404, "NOT_FOUND")


class TestDelete:
    def test_only_a_study_that_is_over_goes(self, client: TestClient, study: str) -> None:
        assert_problem(client.delete(f"/studies/{study}"), 409, "WRONG_STATE")
        client.post(f"/studies/{study}/cancel")
        gone = client.delete(f"/studies/{study}")
        assert (gone.status_code, gone.content) == (204, b"")
        assert_problem(client.get(f"/studies/{study}"), 404, "NOT_FOUND")
        assert_problem(client.delete(f"/studies/{study}"), 404, "NOT_FOUND")


class TestCancelResumeRetry:
    def test_a_queued_study_is_cancelled_at_once_and_resumed(self, client: TestClient, study: str) -> None:
        cancelled = client.post(f"/studies/{study}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (202, "cancelled")
        resumed = client.post(f"/studies/{study}/resume")
        assert (resumed.status_code, resumed.json()["status"]) == (202, "queued")
        assert resumed.json()["trial_counts"]["pending"] == 6

    def test_a_running_study_is_cancelling_first(self, client: TestClient, database: Database, study: str) -> None:
        begin(database, study)
        assert client.post(f"/studies/{study}/cancel").json()["status"] == "cancelling"
        with database.session() as session:
            finish_study(session, study, cancelled=True, error=None)

    def test_resume_leaves_failed_trials_and_retry_runs_them(
        self, client: TestClient, database: Database, study: str
    ) -> None:
        finish(database, study, failed=2)
        assert client.get(f"/studies/{study}").json()["status"] == "partial"
        assert_problem(client.post(f"/studies/{study}/resume"), 409, "WRONG_STATE")
        retried = client.post(f"/studies/{study}/retry")
        assert (retried.status_code, retried.json()["trial_counts"]["pending"]) == (202, 2)

    @pytest.mark.parametrize("verb", ["cancel", "resume", "retry"])
    def test_not_on_a_study_that_succeeded(self, client: TestClient, database: Database, study: str, verb: str) -> None:
        finish(database, study)
        assert_problem(client.post(f"/studies/{study}/{verb}"), 409, "WRONG_STATE")

    @pytest.mark.parametrize("verb", ["cancel", "resume", "retry"])
    def test_an_unknown_study_is_404(self, client: TestClient, verb: str) -> None:
        assert_problem(client.post(f"/studies/aaaaaaaaaaaa/{verb}"), 404, "NOT_FOUND")
