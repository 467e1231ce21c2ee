"""A Ray head that VitScale did not start: somebody else's cluster on this machine, with a token of its own."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

START_SECONDS = 120.0
STOP_SECONDS = 20.0


@dataclass
class ForeignHead:
    dashboard_url: str
    token: str
    process: subprocess.Popen[bytes]

    def answers(self) -> bool:
        """Whether its dashboard answers to its token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            return httpx.get(f"{self.dashboard_url}/api/version", headers=headers, timeout=5).is_success
        except httpx.HTTPError:
            return False


@contextmanager
def foreign_head(labels: str = "") -> Iterator[ForeignHead]:
    """Started by hand, as a person would; ended by its own process's signal only."""
    folder = Path(tempfile.mkdtemp(prefix="foreign-", dir="/tmp"))
    token_file = folder / "token"
    token_file.write_text(secrets.token_hex(32))
    token_file.chmod(0o600)
    port, client_port = free_port(), free_port()
    words = f"""start --head --block --port 0 --dashboard-host 127.0.0.1 --dashboard-port {port} --num-cpus 2
        --dashboard-agent-listen-port 0 --ray-client-server-port {client_port} --min-worker-port 0 --max-worker-port 0
        --object-store-memory 100000000 --temp-dir {folder}/r --disable-usage-stats""".split()
    if labels:
        words += ["--labels", labels]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *words],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    head = ForeignHead(f"http://127.0.0.1:{port}", token_file.read_text(), process)
    try:
        deadline = time.monotonic() + START_SECONDS
        while "Ray runtime started" not in (folder / "log").read_text() or not head.answers():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.3)
        yield head
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
