"""One server without Ray for the routes' tests, with a real database in a folder of its own."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.app import create_app
from api.routes.studies import EXAMPLE_SPEC
from service.settings import Settings
from service.store import Database
from tests.api.routes.answers import TOKEN


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(_env_file=None, data_dir=tmp_path_factory.mktemp("data"), api_token=TOKEN)


@pytest.fixture(scope="module")
def app(settings: Settings) -> FastAPI:
    return create_app(settings, with_ray=False)


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(app, base_url="http://localhost", headers=headers, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def database(client: TestClient, settings: Settings) -> Iterator[Database]:
    """A second way into the running server's database, as the dispatcher has one."""
    assert client.get("/healthz").is_success  # up: it has made the tables
    database = Database(settings.resolved_database_url)
    yield database
    database.close()


@pytest.fixture
def spec() -> dict[str, Any]:
    """The documented example: six trials."""
    return copy.deepcopy(EXAMPLE_SPEC)


@pytest.fixture
def study(client: TestClient, spec: dict[str, Any]) -> str:
    """The id of a new, queued study of the example."""
    response = client.post("/studies", json=spec)
    assert response.status_code == 202, response.text
    return str(response.json()["id"])
