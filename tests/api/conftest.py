"""What the command line's tests have in common: a server, the settings of someone beside it, and a way to type."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.main import run
from tests.api.served import TOKEN, Run, Served, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("cli")) as running:
        yield running


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No settings but a data directory of its own, where no server runs."""
    for name in list(os.environ):
        if name.startswith("VITSCALE_") or name in {"NO_COLOR", "FORCE_COLOR"}:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITSCALE_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def here(nowhere: Path, server: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The settings of someone on the server's machine."""
    assert nowhere.is_dir()
    monkeypatch.setenv("VITSCALE_DATA_DIR", str(server.settings.data_dir))
    monkeypatch.setenv("VITSCALE_API_TOKEN", TOKEN)
    return server


@pytest.fixture
def vitscale(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call
