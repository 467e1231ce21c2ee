"""Who may call: Host, token, Origin; and what every answer carries."""

import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from starlette.testclient import TestClient

from api.app import create_app
from api.auth import Access, host_name
from service.settings import Settings
from tests.api.routes.answers import TOKEN, assert_problem

PROTECTED = ["/studies", "/version", "/presets", "/cluster", "/openapi.json", "/nowhere", "/metrics", "/ui"]


@pytest.fixture
def stranger(client: TestClient, app: FastAPI) -> TestClient:
    """A caller without a token, of the running server."""
    assert client is not None
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


class TestToken:
    @pytest.mark.parametrize("path", PROTECTED)
    def test_every_path_but_the_probes_needs_it(self, stranger: TestClient, path: str) -> None:
        response = stranger.get(path)
        assert_problem(response, 401, "UNAUTHORIZED")
        assert response.headers["www-authenticate"].startswith("Bearer")

    @pytest.mark.parametrize("path", ["/healthz", "/readyz"])
    def test_probes_need_none(self, stranger: TestClient, path: str) -> None:
        assert stranger.get(path).status_code in {200, 503}

    @pytest.mark.parametrize("path", ["/healthz/", "//healthz", "/healthz/../studies", "/HEALTHZ", "/healthz%2f"])
    def test_what_looks_like_a_probe_is_none(self, stranger: TestClient, path: str) -> None:
        assert stranger.get(path).status_code == 401

    @pytest.mark.parametrize(
        "value",
        [
            "",
            "Bearer",
            "Bearer ",
            f"Basic {TOKEN}",
            TOKEN,
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            "Bearer tökén".encode(),
        ],
    )
    def test_anything_else_is_refused(self, stranger: TestClient, value: str | bytes) -> None:
        response = stranger.get("/studies", headers={"Authorization": value})
        assert_problem(response, 401, "UNAUTHORIZED")
        assert TOKEN not in response.text

    def test_two_headers_are_refused(self, stranger: TestClient) -> None:
        headers = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer other")]
        assert stranger.get("/studies", headers=headers).status_code == 401

    @pytest.mark.parametrize("value", [f"bearer {TOKEN}", f"BEARER  {TOKEN} "])
    def test_the_scheme_may_be_written_in_any_case(self, stranger: TestClient, value: str) -> None:
        assert stranger.get("/studies", headers={"Authorization": value}).status_code == 200

    def test_in_the_query_it_does_not_count(self, stranger: TestClient) -> None:
        assert stranger.get(f"/studies?token={TOKEN}&access_token={TOKEN}").status_code == 401

    def test_nobody_passes_before_it_is_known(self) -> None:
        access = Access.of(["localhost"], "127.0.0.1", no_auth=False)
        for credential in (b"Bearer ", b"Bearer None"):
            refusal = access.refusal("GET", "/studies", [(b"host", b"localhost"), (b"authorization", credential)])
            assert refusal is not None
            assert refusal.code == "UNAUTHORIZED"

    def test_it_is_not_shown_by_a_repr(self) -> None:
        assert TOKEN not in repr(Access(hosts=frozenset(), token=SecretStr(TOKEN)))


class TestHost:
    @pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8321", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8321"])
    def test_a_listed_one_passes_with_any_port(self, client: TestClient, host: str) -> None:
        assert client.get("/studies", headers={"Host": host}).status_code == 200

    @pytest.mark.parametrize(
        "host",
        ["evil.example", "localhost.evil.example", "evil.example:8321", "127.0.0.1.nip.io", "", "localhost@evil.org",
         "[::1].evil.example", "localhost:80:evil.example", "localhost:x", "127.0.0.2"],
    )  # fmt: skip
    @pytest.mark.parametrize("path", ["/studies", "/healthz", "/readyz"])
    def test_any_other_is_refused_whatever_the_token(self, client: TestClient, host: str, path: str) -> None:
        assert_problem(client.get(path, headers={"Host": host}), 421, "HOST_NOT_ALLOWED")

    def test_the_bound_address_is_listed_and_a_wildcard_is_not(self) -> None:
        assert "192.0.2.7" in Access.of(["localhost"], "192.0.2.7", no_auth=False).hosts
        assert Access.of(["localhost"], "0.0.0.0", no_auth=False).hosts == {"localhost"}
        assert Access.of(["localhost"], "::", no_auth=False).hosts == {"localhost"}

    @pytest.mark.parametrize(
        ("written", "name"),
        [("Example.org:80", "example.org"), ("::1", "[::1]"), ("[::1]:80", "[::1]"), ("[::1", "[::1"), ("", "")],
    )
    def test_one_form_of_a_name(self, written: str, name: str) -> None:
        assert host_name(written) == name


class TestWithoutAuth:
    @pytest.fixture
    def open_app(self, tmp_path) -> FastAPI:  # type: ignore[no-untyped-def]
        return create_app(Settings(_env_file=None, data_dir=tmp_path), no_auth=True, with_ray=False)

    def test_programs_and_own_pages_may_change_things_and_other_pages_may_not(self, open_app: FastAPI) -> None:
        with TestClient(open_app, base_url="http://localhost:8321") as client:
            path = "/studies/aaaaaaaaaaaa/cancel"
            assert client.post(path).status_code == 404
            assert client.post(path, headers={"Origin": "http://localhost:8321"}).status_code == 404
            for origin in ("http://evil.example", "http://localhost:3000", "null", "http://[", ""):
                assert_problem(client.post(path, headers={"Origin": origin}), 403, "CROSS_ORIGIN")
            assert client.get("/studies", headers={"Origin": "http://evil.example"}).status_code == 200

    def test_no_answer_lets_another_page_read_it(self, open_app: FastAPI) -> None:
        with TestClient(open_app, base_url="http://localhost") as client:
            response = client.get("/studies", headers={"Origin": "http://evil.example"})
            assert "access-control-allow-origin" not in response.headers
            assert client.options("/studies", headers={"Origin": "http://evil.example"}).status_code == 405

    def test_the_host_is_checked_all_the_same(self, open_app: FastAPI) -> None:
        with TestClient(open_app, base_url="http://evil.example") as client:
            assert client.get("/studies").status_code == 421

    def test_no_token_is_made(self, open_app: FastAPI, tmp_path) -> None:  # type: ignore[no-untyped-def]
        with TestClient(open_app, base_url="http://localhost"):
            assert not (tmp_path / "api_token").exists()


class TestEveryAnswer:
    @pytest.mark.parametrize("path", ["/studies", "/healthz", "/nowhere", "/studies?limit=x"])
    def test_is_not_sniffed_and_not_kept(self, client: TestClient, path: str) -> None:
        response = client.get(path)
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
