"""With a Ray that hangs, or is not there: what needs no Ray answers at once, and what needs it says so in time."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from service.settings import Settings
from tests.api.routes.answers import TOKEN, assert_problem

pytestmark = pytest.mark.slow

RAY_TIMEOUT_SECONDS = 2.0
PROMPT_SECONDS = 1.8  # far above what it takes, below Ray's timeout


def served(data_dir: Path, port: int) -> TestClient:
    settings = Settings(
        _env_file=None,
        data_dir=data_dir,
        api_token=TOKEN,
        ray_dashboard_url=f"http://127.0.0.1:{port}",
        ray_timeout_seconds=RAY_TIMEOUT_SECONDS,
    )
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return TestClient(create_app(settings), base_url="http://localhost", headers=headers)


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server whose Ray takes connections (the kernel does) and never answers."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        served(tmp_path_factory.mktemp("data"), silent.getsockname()[1]) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def absent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server whose Ray's port is closed."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with served(tmp_path_factory.mktemp("data"), port) as client:
        yield client


class TestHung:
    def test_cluster_is_503_within_the_timeout(self, hung: TestClient) -> None:
        started = time.monotonic()
        response = hung.get("/cluster")
        assert_problem(response, 503, "RAY_UNREACHABLE")
        assert time.monotonic() - started < RAY_TIMEOUT_SECONDS + PROMPT_SECONDS

    def test_all_else_answers_while_many_wait_for_ray(self, hung: TestClient, spec: dict[str, Any]) -> None:
        waiting = [threading.Thread(target=hung.get, args=("/cluster",)) for _ in range(50)]
        for thread in waiting:
            thread.start()
        try:
            for path, status in (("/healthz", 200), ("/studies", 200), ("/readyz", 503)):
                started = time.monotonic()
                assert hung.get(path).status_code == status
                assert time.monotonic() - started < PROMPT_SECONDS
            assert hung.post("/studies", json=spec).json()["status"] == "queued"
        finally:
            for thread in waiting:
                thread.join()

    def test_readiness_says_why(self, hung: TestClient) -> None:
        readiness = hung.get("/readyz").json()
        assert readiness["database"] == {"ready": True, "reason": None}
        assert readiness["ray"]["ready"] is False
        assert readiness["ray"]["reason"]


class TestAbsent:
    def test_cluster_is_503_in_time(self, absent: TestClient) -> None:
        assert_problem(absent.get("/cluster"), 503, "RAY_UNREACHABLE")

    def test_a_study_is_taken_and_waits(self, absent: TestClient, spec: dict[str, Any]) -> None:
        study = absent.post("/studies", json=spec).json()
        assert absent.get(f"/studies/{study['id']}").json()["status"] == "queued"

    def test_the_server_stops_in_time(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = served(tmp_path, silent.getsockname()[1])
            with client:
                client.get("/healthz")
                started = time.monotonic()
            assert time.monotonic() - started < 5 + RAY_TIMEOUT_SECONDS
