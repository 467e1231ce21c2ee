"""Presets, probes, version, and the OpenAPI document."""

import platform
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.routes.studies import EXAMPLE_SPEC, EXAMPLE_YAML
from tests.api.routes.answers import YAML, assert_problem


class TestPresets:
    def test_are_listed(self, client: TestClient) -> None:
        presets = client.get("/presets").json()["presets"]
        assert {"demo", "nebula-batch-sweep", "vector-strong", "vector-weak"} <= {preset["name"] for preset in presets}

    def test_each_fits_the_schema_as_it_is(self, client: TestClient) -> None:
        for preset in client.get("/presets").json()["presets"]:
            response = client.get(f"/presets/{preset['name']}")
            assert response.headers["content-type"] == "application/yaml"
            plan = client.post("/studies/plan", content=response.content, headers=YAML)
            assert plan.status_code == 200, plan.text
            pointers = {point["pointer"] for point in plan.json()["refused"]}
            assert pointers <= {"/workload/data_root"}  # this server has no data roots

    @pytest.mark.parametrize("name", ["nothing", "..%2fdemo", "demo.yaml", "%00"])
    def test_an_unknown_one_is_404(self, client: TestClient, name: str) -> None:
        assert_problem(client.get(f"/presets/{name}"), 404, "NOT_FOUND")


class TestProbes:
    def test_health_is_the_process(self, client: TestClient) -> None:
        assert client.get("/healthz").json() == {"status": "ok"}

    def test_readiness_names_what_is_missing(self, client: TestClient) -> None:
        response = client.get("/readyz")
        assert response.status_code == 503
        assert response.json() == {
            "ready": False,
            "database": {"ready": True, "reason": None},
            "ray": {"ready": False, "reason": "The server was started without Ray"},
        }


class TestVersion:
    def test_names_what_runs_here(self, client: TestClient) -> None:
        version = client.get("/version").json()
        assert version["version"] == "0.1.0"
        assert version["python"] == platform.python_version()
        assert version["ray"].startswith("2.")


class TestCluster:
    def test_without_ray_is_503(self, client: TestClient) -> None:
        response = client.get("/cluster")
        assert_problem(response, 503, "RAY_UNREACHABLE")
        assert response.headers["retry-after"] == "5"


class TestOpenApi:
    @pytest.fixture
    def document(self, client: TestClient) -> dict[str, Any]:
        return dict(client.get("/openapi.json").json())

    def test_names_every_call_once(self, document: dict[str, Any]) -> None:
        operations = [operation for path in document["paths"].values() for operation in path.values()]
        assert sorted(operation["operationId"] for operation in operations) == [
            "cancelStudy", "compareStudies", "createStudy", "deleteStudy", "extendStudy", "getAnalysis",
            "getCluster", "getHealth", "getPreset", "getReadiness", "getResults", "getStudy", "getStudyLogs",
            "getTrial", "getTrialLogs", "getVersion", "importStudy", "listPresets", "listStudies", "listTrials",
            "planStudy", "resumeStudy", "retryStudy", "updateStudy",
        ]  # fmt: skip
        assert all(operation["summary"] and operation["tags"] for operation in operations)

    def test_every_reference_leads_somewhere(self, document: dict[str, Any]) -> None:
        schemas = document["components"]["schemas"]
        found = set(_references(document))
        assert "#/components/schemas/StudySpec" in found
        assert {each.removeprefix("#/components/schemas/") for each in found} <= set(schemas)
        assert "HTTPValidationError" not in schemas

    def test_every_error_is_a_problem(self, document: dict[str, Any]) -> None:
        for path in document["paths"].values():
            for operation in path.values():
                for status, response in operation["responses"].items():
                    if status.startswith("4"):
                        assert list(response["content"]) == ["application/problem+json"]

    def test_only_probes_are_without_a_token(self, document: dict[str, Any]) -> None:
        assert document["security"] == [{"token": []}]
        without = {
            path for path, calls in document["paths"].items() for call in calls.values() if call.get("security") == []
        }
        assert without == {"/healthz", "/readyz"}

    def test_the_examples_can_be_planned(self, client: TestClient, document: dict[str, Any]) -> None:
        content = document["paths"]["/studies"]["post"]["requestBody"]["content"]
        assert content["application/json"]["example"] == EXAMPLE_SPEC
        assert content["application/yaml"]["example"] == EXAMPLE_YAML
        from_json = client.post("/studies/plan", json=EXAMPLE_SPEC).json()
        from_yaml = client.post("/studies/plan", content=EXAMPLE_YAML, headers=YAML).json()
        assert from_json == from_yaml
        assert len(from_json["trials"]) == 6


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in _references(value)]
    if isinstance(node, list):
        return [found for value in node for found in _references(value)]
    return []
