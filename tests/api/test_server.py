"""The server as a process: one per data directory, a clean start and a clean end."""

import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.data_dir import StartRefused
from api.server import WithoutQuery, serve
from service.settings import Settings

pytestmark = pytest.mark.slow

WAIT_SECONDS = 60.0
_SERVE = """
from api.server import serve
from service.settings import Settings
serve(Settings(_env_file=None))
"""


def environment(data_dir: Path, **more: str) -> dict[str, str]:
    """Cluster mode with a dashboard that is not there: no Ray is started."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("VITSCALE_")}
    own = {
        "DATA_DIR": str(data_dir),
        "PORT": "0",
        "RAY_DASHBOARD_URL": "http://127.0.0.1:9",
        "RAY_TIMEOUT_SECONDS": "1",
    }
    return kept | {f"VITSCALE_{key}": value for key, value in {**own, **more}.items()}


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Calls `serve` where it must not start, and returns the one line that it leaves on stderr."""
    mask = os.umask(0o077)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def line_of(data_dir: Path, *, no_auth: bool = False, **more: str) -> str:
        with monkeypatch.context() as patch:
            for key, value in environment(data_dir, **more).items():
                patch.setenv(key, value)
            with pytest.raises(SystemExit) as ended:
                serve(Settings(_env_file=None), no_auth=no_auth)
        assert ended.value.code == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vitscale: ")]
        return str(line)

    yield line_of
    os.umask(mask)
    root.handlers[:] = handlers
    root.setLevel(level)


@contextmanager
def running(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A server that answers. Killed at the end, if it still runs."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVE], env=environment(data_dir), stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: server.poll() is not None or record(data_dir).get("pid") == server.pid)
        assert server.poll() is None, server.communicate()[1]
        yield server
    finally:
        server.kill()
        server.communicate()


def record(data_dir: Path) -> dict[str, str | int]:
    path = data_dir / "server.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestServe:
    def test_a_life_from_start_to_end_after_one_that_was_killed(
        self, tmp_path: Path, refused: Callable[..., str]
    ) -> None:
        data_dir = tmp_path / "data"
        with running(data_dir) as killed:
            token = (data_dir / "api_token").read_text().strip()
            killed.kill()
            killed.wait()
        assert record(data_dir)["pid"] == killed.pid  # left behind, and in nobody's way

        with running(data_dir) as server:
            url = str(record(data_dir)["url"])
            bearer = {"Authorization": f"Bearer {token}"}  # still the same
            assert httpx.get(f"{url}/healthz").json() == {"status": "ok"}
            assert httpx.get(f"{url}/studies").status_code == 401
            assert httpx.get(f"{url}/studies", headers=bearer).json()["studies"] == []
            answer = httpx.get(f"{url}/studies?secret=hush", headers=bearer)
            assert (answer.status_code, answer.headers.get("server")) == (422, None)

            assert mode(data_dir) == 0o700
            private = [path for path in data_dir.iterdir() if path.is_file()]
            assert {"api_token", "server.json", "server.lock", "vitscale.db"} <= {path.name for path in private}
            assert {mode(path) for path in private} == {0o600}

            line = refused(data_dir)  # a second one
            assert url in line
            assert str(server.pid) in line

            server.send_signal(signal.SIGTERM)
            _, log = server.communicate(timeout=WAIT_SECONDS)
        assert server.returncode == 0
        assert record(data_dir) == {}
        assert token not in log
        assert "hush" not in log
        assert '"GET /studies HTTP/1.1" 422' in log

    def test_a_taken_port_is_one_clear_line(self, tmp_path: Path, refused: Callable[..., str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            line = refused(tmp_path, PORT=str(port))
        assert f"127.0.0.1:{port} is taken" in line
        assert "VITSCALE_PORT" in line

    @pytest.mark.parametrize("host", ["0.0.0.0", "::"])
    def test_without_a_token_only_on_loopback(self, tmp_path: Path, refused: Callable[..., str], host: str) -> None:
        assert "--no-auth is for loopback only" in refused(tmp_path, no_auth=True, HOST=host)

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"HOST": "192.0.2.1"}, "is no address of this machine"),
            ({"HOST": "no.such.host.invalid"}, "is no address"),
            ({"API_TOKEN": ""}, "VITSCALE_API_TOKEN is empty"),
            ({"DATABASE_URL": "nonsense"}, "The database cannot be used"),
            ({"RAY_DASHBOARD_URL": "ftp://x"}, "VITSCALE_RAY_DASHBOARD_URL"),
        ],
        ids=["foreign-address", "unknown-name", "empty-token", "bad-database", "bad-dashboard"],
    )
    def test_settings_that_cannot_be_are_one_clear_line(
        self, tmp_path: Path, refused: Callable[..., str], more: dict[str, str], said: str
    ) -> None:
        assert said in refused(tmp_path, **more)


class TestProcess:
    def test_import_starts_nothing_and_neither_it_nor_a_running_server_loads_training(self, tmp_path: Path) -> None:
        code = (
            "import sys, psutil\n"
            "from pathlib import Path\n"
            "from api.app import create_app\n"
            "app = create_app()\n"
            "heavy = {'torch', 'deepspeed', 'ray', 'timm', 'torchvision', 'sklearn', 'numpy', 'scipy'}\n"
            "late = {'sqlalchemy', 'alembic', 'uvicorn'}\n"
            "print(sorted((heavy | late) & {*sys.modules}), psutil.Process().children(), Path(sys.argv[1]).exists())\n"
            "from starlette.testclient import TestClient\n"
            "with TestClient(app, base_url='http://localhost') as client:\n"
            "    client.get('/openapi.json'), client.get('/readyz')\n"
            "print(sorted(heavy & set(sys.modules)))\n"
        )
        data_dir = tmp_path / "data"
        output = subprocess.check_output(
            [sys.executable, "-c", code, str(data_dir)], env=environment(data_dir), text=True, timeout=WAIT_SECONDS
        )
        assert output.splitlines() == ["[] [] False", "[]"]

    def test_a_second_worker_process_of_one_server_does_not_come_up(self, tmp_path: Path) -> None:
        settings = Settings(_env_file=None, data_dir=tmp_path)
        with TestClient(create_app(settings, with_ray=False)):
            second = TestClient(create_app(settings, with_ray=False))
            with pytest.raises(StartRefused, match="A VitScale server already runs"):
                second.__enter__()
        with TestClient(create_app(settings, with_ray=False), base_url="http://localhost") as third:
            assert third.get("/healthz").status_code == 200


class TestAccessLines:
    def test_have_no_query(self) -> None:
        arguments = ("127.0.0.1:1", "GET", "/studies?token=hush&x=1", "1.1", 200)
        line = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s "%s %s HTTP/%s" %d', arguments, None)
        assert WithoutQuery().filter(line)
        assert line.getMessage() == '127.0.0.1:1 "GET /studies HTTP/1.1" 200'
