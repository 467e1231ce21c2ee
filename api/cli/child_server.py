"""A server of our own for as long as a command needs it: started, waited for, and stopped whatever happens."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from api.cli.outcome import FAILED, Complaint
from api.client import Client, ClientError
from api.data_dir import prepare_data_dir
from api.server_record import running_server
from service.settings import Settings

START_SECONDS = 60.0  # until it answers; it needs 2 s on an idle machine
READY_SECONDS = 150.0  # until Ray takes jobs; the local head itself gives up after 120 s
STOP_SECONDS = 60.0  # above what the server takes at most for its own end
LOG_FILE = "demo-server.log"
_TAIL_LINES = 15
_POLL_SECONDS = 0.2


@contextmanager
def child_server(settings: Settings, say: Callable[[str], None]) -> Iterator[Callable[[], Client]]:
    """Runs a server in the settings' data directory, on a free port of 127.0.0.1, and stops it at the end.

    It stops by itself if this process is killed: it holds the other end of its standard input.

    Yields:
        What connects to it, and raises a Complaint with the end of its log once it has ended.

    Raises:
        Complaint: it did not start, or its Ray did not; with the end of its log.
    """
    prepare_data_dir(settings.data_dir)
    log_path = settings.data_dir / LOG_FILE
    place = ["--host", "127.0.0.1", "--port", "0", "--data-dir", str(settings.data_dir)]
    with os.fdopen(os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
        child = subprocess.Popen(
            # -P: the directory that the command is typed in may have an `api` of its own.
            [sys.executable, "-P", "-m", "api.cli.main", "serve", *place, "--stop-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process, which stops the server in order
        )

    def connect() -> Client:
        if child.poll() is not None:
            raise _with_tail(f"the server ended (exit code {child.returncode})", log_path)
        return Client.discover(settings.model_copy(update={"url": None}))

    try:
        _wait_until_it_answers(child, settings.data_dir, log_path)
        with connect() as client:
            _wait_until_ready(child, client, log_path, say)
        yield connect
    finally:
        _stop(child)


def _wait_until_it_answers(child: subprocess.Popen[bytes], data_dir: Path, log_path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (record := running_server(data_dir)) is None or record.pid != child.pid:
        if child.poll() is not None:
            raise _with_tail(f"the server ended while it started (exit code {child.returncode})", log_path)
        if time.monotonic() > deadline:
            raise _with_tail(f"the server does not answer after {START_SECONDS:.0f} s", log_path)
        time.sleep(_POLL_SECONDS)


def _wait_until_ready(
    child: subprocess.Popen[bytes], client: Client, log_path: Path, say: Callable[[str], None]
) -> None:
    deadline = time.monotonic() + READY_SECONDS
    reason = ""
    while True:
        try:
            is_ready, parts = client.readiness()
            problem = "; ".join(str(part["reason"]) for part in parts.values() if _has_reason(part))
        except ClientError as error:
            is_ready, problem = False, str(error)
        if is_ready:
            return
        if problem != reason:
            reason = problem
            say(f"Waiting: {reason}")
        if child.poll() is not None:
            raise _with_tail(f"the server ended (exit code {child.returncode})", log_path)
        if time.monotonic() > deadline:
            raise _with_tail(f"the server is not ready after {READY_SECONDS:.0f} s: {reason}", log_path)
        time.sleep(_POLL_SECONDS)


def _has_reason(part: object) -> bool:
    return isinstance(part, dict) and bool(part.get("reason"))


def _stop(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.terminate()
    child.stdin.close()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _with_tail(what: str, log_path: Path) -> Complaint:
    tail = log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    return Complaint(FAILED, f"{what}; the end of {log_path}:", *(f"  {line}" for line in tail))
