"""A fresh database for each test, and the studies in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.store import Database
from service.studies import Studies
from tests.service.factories import open_database, open_studies


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_database(tmp_path)
    yield database
    database.close()


@pytest.fixture
def studies(database: Database) -> Studies:
    return open_studies(database)
