"""Local mode: VitScale's own Ray head on this machine, for this user, on the loopback interface only."""

import fcntl
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

import httpx
import psutil

from service import ray_head_keeper
from service.errors import RayUnreachable
from service.ray_connection import Head, RayConnection, RemoteHead
from service.settings import Settings

__all__ = ["Head", "LocalHead", "RayConnection", "RemoteHead", "head_of"]

START_SECONDS = 120.0  # 11 s seen on two idle cores; a laptop that is busy takes several times that
STOP_SECONDS = ray_head_keeper.GRACE_SECONDS + ray_head_keeper.KILL_SECONDS + 5.0
START_TRIES = 3
OBJECT_STORE_BYTES = 256 * 1024**2  # results pass through logs; Ray's default takes 30 % of the memory for it

# Variables of the user's own Ray that would point ours at another cluster, token or directory.
_FOREIGN = {
    "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH",
    "RAY_CLIENT_MODE", "RAY_GCS_SERVER_PORT", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_NAMESPACE", "RAY_REDIS_ADDRESS",
    "RAY_RUNTIME_ENV_HOOK", "RAY_START_HOOK", "RAY_TMPDIR", "OMP_NUM_THREADS",
}  # fmt: skip

# Ray's own processes share the cores that are measured: what they do all the time, they do less often.
QUIET: Final = {
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # else 30 s of waiting for running tasks
    "RAY_worker_niceness": "0",  # Ray's 15 lets any other process distort a measured step
    "REPORTER_UPDATE_INTERVAL_MS": "15000",  # of the node, for the dashboard; 5 s otherwise
    "LOG_NAME_UPDATE_INTERVAL_S": "2",  # looking for new log files; 0.5 s otherwise
    "RAY_task_events_report_interval_ms": "5000",  # of every process, for the dashboard; 1 s otherwise
    "RAY_metrics_report_interval_ms": "60000",  # of every process; 10 s otherwise
}


def head_of(settings: Settings) -> Head:
    """The configured cluster, or a head of our own where none is configured."""
    return RemoteHead(settings) if settings.ray_dashboard_url else LocalHead(settings.data_dir)


class LocalHead:
    """Starts `ray start --head --block` below a keeper (see `ray_head_keeper`) and takes it down again.

    Token authentication is on, with a token file of its own (`token_path`); all ports are free ones on 127.0.0.1; the
    temporary directory is short (Unix socket paths end at 107 bytes), private, and removed at the end. Every method may
    be called from any thread.
    """

    is_local = True

    def __init__(self, data_dir: Path, num_cpus: int | None = None) -> None:
        self.directory = data_dir / "ray"
        self.token_path = self.directory / "auth_token"
        self.log_path = self.directory / "head.log"
        self._record_path = self.directory / "head.json"
        self._num_cpus = num_cpus
        self._starting = threading.Lock()
        self._stop_wanted = threading.Event()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._temp_dir: Path | None = None
        self._connection: RayConnection | None = None
        self._owner_lock: IO[str] | None = None

    @property
    def connection(self) -> RayConnection:
        connection = self._connection
        if connection is None or not self.is_alive():
            raise RayUnreachable("The local Ray head is not running (yet); it is started by itself.")
        return connection

    def is_alive(self) -> bool:
        return self._connection is not None and self._keeper is not None and self._keeper.poll() is None

    def start(self) -> None:
        """Starts the head and returns when jobs can be submitted; returns at once if it runs already.

        Raises:
            RayUnreachable: it did not come up within START_SECONDS (a try), `stop` was called meanwhile, or another
                server uses the same data directory. The message holds the end of the head's log.
        """
        with self._starting:
            if self.is_alive():
                return
            self._stop_wanted.clear()
            self._claim_directory()
            self._end_everything()
            token = self._token()
            for attempt in range(1, START_TRIES + 1):
                try:
                    self._connection = self._launch(token)
                    return
                except RayUnreachable:
                    self._end_everything()
                    if attempt == START_TRIES or not self._may_work_next_time():
                        raise

    def stop(self) -> None:
        """Ends the head and all it started. Bounded by STOP_SECONDS; a start in progress is given up first."""
        self._stop_wanted.set()
        with self._starting:
            self._end_everything()
            if self._owner_lock is not None:
                self._owner_lock.close()  # gives the lock back
                self._owner_lock = None

    # -- start ---------------------------------------------------------------------------------------------------------

    def _claim_directory(self) -> None:
        """One head per data directory: a second server must not end the first one's head as a leftover."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory.chmod(0o700)
        if self._owner_lock is not None:
            return
        lock = (self.directory / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees it however this process ends
        except BlockingIOError as error:
            lock.close()
            raise RayUnreachable(
                f"Another VitScale server runs a Ray head in {self.directory}: stop it, or set VITSCALE_DATA_DIR."
            ) from error
        self._owner_lock = lock

    def _token(self) -> str:
        """The token of the last start, so that a browser stays logged in, or a new one."""
        try:
            token = self.token_path.read_text().strip()
        except FileNotFoundError:
            token = ""
        if len(token) < 32:
            token = secrets.token_hex(32)
        self.token_path.unlink(missing_ok=True)
        descriptor = os.open(self.token_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        return token

    def _launch(self, token: str) -> RayConnection:
        self._temp_dir = _short_temp_dir()
        (self._temp_dir / "t").mkdir()
        port, client_port = _free_ports(2)
        command = self._command(self._temp_dir, port, client_port)
        with self.log_path.open("wb") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-P", ray_head_keeper.__file__, str(self._temp_dir), *command],
                stdin=subprocess.PIPE,  # held open by this process alone
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(os.environ, self._temp_dir),
                cwd=self._temp_dir,  # `python -m` puts the working directory first on its path: an empty one
                start_new_session=True,  # Ctrl-C in the terminal reaches the server, which then stops the head in order
            )
        record = {"pid": self._keeper.pid, "temp_dir": str(self._temp_dir)}
        self._record_path.write_text(json.dumps(record))
        connection = RayConnection(f"http://127.0.0.1:{port}", token, str(self.token_path))
        self._wait_until_ready(connection, self._keeper)
        return connection

    def _wait_until_ready(self, connection: RayConnection, keeper: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        url, headers = connection.dashboard_url, connection.headers
        with httpx.Client(base_url=url, headers=headers, timeout=5.0, trust_env=False) as http:
            while not _takes_jobs(http):
                if self._stop_wanted.is_set():
                    raise RayUnreachable("The local Ray head was stopped while it started.")
                if keeper.poll() is not None:
                    raise RayUnreachable(f"The local Ray head ended while it started.{self._log_tail()}")
                if time.monotonic() > deadline:
                    raise RayUnreachable(
                        f"The local Ray head did not take jobs within {START_SECONDS:.0f} s.{self._log_tail()}"
                    )
                self._stop_wanted.wait(0.2)

    def _command(self, temp_dir: Path, port: int, client_port: int) -> list[str]:
        options = {
            "port": "0",  # 0: the component binds a free one by itself
            "dashboard-host": "127.0.0.1",
            "dashboard-port": str(port),
            "dashboard-agent-listen-port": "0",
            "dashboard-agent-grpc-port": "0",
            "metrics-export-port": "0",
            "runtime-env-agent-port": "0",
            "min-worker-port": "0",
            "max-worker-port": "0",
            "ray-client-server-port": str(client_port),  # cannot be turned off
            "include-dashboard": "true",
            "object-store-memory": str(OBJECT_STORE_BYTES),
            "temp-dir": str(temp_dir / "r"),  # Ray opens it to everyone: ours around it is 0700
            "log-style": "record",
            "log-color": "false",
        }
        if self._num_cpus is not None:
            options["num-cpus"] = str(self._num_cpus)
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
        return [*start, *arguments]

    def _environment(self, own: Mapping[str, str], temp_dir: Path) -> dict[str, str]:
        """The head's environment: no other cluster's address or token, no setting of VitScale's (they hold secrets)."""
        kept = {key: value for key, value in own.items() if key not in _FOREIGN and not key.startswith("VITSCALE_")}
        return {
            **kept,
            **QUIET,
            ray_head_keeper.MARKER: str(temp_dir),
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), own.get("PATH", os.defpath)]
            ),  # a job's `python`
            "TMPDIR": str(temp_dir / "t"),  # what jobs and workers leave there goes with the head
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token_path),
            # Makes Ray take 127.0.0.1 as the node's address, as it does on a Mac: nothing listens on the network, and a
            # laptop may change networks while a study runs.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_DASHBOARD_STARTUP_TIMEOUT_S": f"{START_SECONDS - 10:.0f}",  # 60 s otherwise: the bound is ours
        }

    def _may_work_next_time(self) -> bool:
        """A port was taken at the last moment, or the machine too busy for a wait of 30 s that Ray does not let set."""
        text = self._log_tail(100).lower()
        return any(sign in text for sign in ("occupied", "address already in use", "timed out during startup"))

    def _log_tail(self, lines: int = 12) -> str:
        try:
            tail = self.log_path.read_text(errors="replace").splitlines()[-lines:]
        except FileNotFoundError:
            return ""
        return "".join(f"\n  {line}" for line in tail)

    # -- end -----------------------------------------------------------------------------------------------------------

    def _end_everything(self) -> None:
        """Ends our keeper and, from the record, what a server that was killed may have left."""
        self._connection = None
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.terminate()
            try:
                keeper.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()
        self._end_recorded()

    def _end_recorded(self) -> None:
        try:
            recorded = json.loads(self._record_path.read_text())
            pid, temp_dir = int(recorded["pid"]), str(recorded["temp_dir"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return
        if not Path(temp_dir).name.startswith(_PREFIX):
            return
        left = ray_head_keeper.marked_processes(temp_dir)
        # A keeper that lost its server a moment ago is ending the rest in order. Only a process that names our
        # directory is touched: the id alone may be another's by now.
        keeper = next((process for process in left if process.pid == pid), None)
        if keeper is not None:
            keeper.send_signal(signal.SIGTERM)
            psutil.wait_procs([keeper], timeout=STOP_SECONDS)
        deadline = time.monotonic() + ray_head_keeper.KILL_SECONDS
        while (left := ray_head_keeper.marked_processes(temp_dir)) and time.monotonic() < deadline:
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(left, timeout=0.5)
        shutil.rmtree(temp_dir, ignore_errors=True)
        self._record_path.unlink(missing_ok=True)


_PREFIX = "vitscale-ray-"


def _short_temp_dir() -> Path:
    """A private directory with a path short enough for Ray's sockets (about 65 bytes below it, 107 in all)."""
    base = tempfile.gettempdir()
    if len(base) > 25 and os.access("/tmp", os.W_OK):
        base = "/tmp"
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))


def _free_ports(count: int) -> list[int]:
    """Below the range that the kernel hands out by itself, so that none of Ray's own free ports takes one first."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randint(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


def _takes_jobs(http: httpx.Client) -> bool:
    """Whether the dashboard answers with our token and the agent that runs jobs is up."""
    try:
        answer = http.get("/nodes", params={"view": "summary"})
        if answer.status_code != httpx.codes.OK:
            return False
        ports = [node["raylet"].get("dashboardAgentListenPort") for node in answer.json()["data"]["summary"]]
        return bool(ports) and all(
            port and http.get(f"http://127.0.0.1:{port}/api/healthz").is_success for port in ports
        )
    except (httpx.HTTPError, ValueError, KeyError):
        return False
