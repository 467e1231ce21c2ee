"""Errors of HTTP itself, calls that come later, and what must not leak."""

import logging

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.problems import problem_response
from api.routes.later import NOT_YET
from service.errors import ErrorItem, SpecInvalid
from tests.api.routes.answers import assert_problem


class TestUnknown:
    @pytest.mark.parametrize("path", ["/", "/nowhere", "/studies/", "/docs", "/redoc", "/studies/aaaaaaaaaaaa/nothing"])
    def test_a_path_that_is_not_there_is_404(self, client: TestClient, path: str) -> None:
        assert_problem(client.get(path), 404, "NOT_FOUND")

    @pytest.mark.parametrize(
        ("method", "path", "allowed"),
        [
            ("PUT", "/studies", {"GET", "POST"}),
            ("POST", "/studies/aaaaaaaaaaaa", {"GET", "PATCH", "DELETE"}),
            ("GET", "/studies/aaaaaaaaaaaa/cancel", {"POST"}),
            ("POST", "/healthz", {"GET"}),
            ("OPTIONS", "/studies/aaaaaaaaaaaa/results", {"GET"}),
        ],
    )
    def test_a_method_that_is_not_there_is_405_and_names_all_that_are(
        self, client: TestClient, method: str, path: str, allowed: set[str]
    ) -> None:
        response = client.request(method, path)
        assert_problem(response, 405, "METHOD_NOT_ALLOWED")
        assert set(response.headers["allow"].split(", ")) == allowed


class TestLater:
    @pytest.mark.parametrize(("method", "path"), NOT_YET)
    def test_a_documented_call_says_that_it_is_not_there_yet(self, client: TestClient, method: str, path: str) -> None:
        path = path.replace("{study_id}", "aaaaaaaaaaaa").replace("{rest:path}", "studies/aaaaaaaaaaaa")
        assert_problem(client.request(method, f"{path}?a=1"), 501, "NOT_AVAILABLE")


class TestUnexpected:
    def test_is_500_without_internals_and_with_a_log(
        self, client: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_study_id: str) -> None:
            raise ZeroDivisionError("a secret of the inside")

        monkeypatch.setattr(app.state.runtime.studies, "get", broken)
        response = client.get("/studies/aaaaaaaaaaaa")
        assert_problem(response, 500, "INTERNAL")
        assert "secret" not in response.text
        assert "ZeroDivisionError" not in response.text

    def test_the_server_gets_the_error_to_log(
        self, client: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_study_id: str) -> None:
            raise ZeroDivisionError("for the log")

        monkeypatch.setattr(app.state.runtime.studies, "get", broken)
        strict = TestClient(app, base_url="http://localhost", headers=client.headers, raise_server_exceptions=True)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        with pytest.raises(ZeroDivisionError, match="for the log"):
            strict.get("/studies/aaaaaaaaaaaa")


class TestProblemResponse:
    def test_text_that_utf_8_cannot_carry_is_escaped(self) -> None:
        error = SpecInvalid("half a pair: \ud800", [ErrorItem("/name", "\udfff", None)])
        body = problem_response(error).body
        assert b"\\ud800" in bytes(body)
        bytes(body).decode("ascii")
