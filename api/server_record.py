"""One server per data directory, and how programs on this machine find it.

`server.lock` is held (flock) as long as a server lives, however it dies. `server.json` says where it answers; what a
killed server left is told by its pid and the time that process was started. Knows no web framework.
"""

import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from pydantic import BaseModel, ValidationError

from api.data_dir import StartRefused, write_private

_CLOCK_SLACK_SECONDS = 2.0  # the kernel's process start times are that coarse


class ServerRecord(BaseModel):
    """The content of server.json."""

    url: str
    pid: int
    started_at: datetime  # when it was ready to answer
    version: str

    @property
    def is_alive(self) -> bool:
        """Whether the process that wrote the record still runs, and is not another with its pid."""
        try:
            process = psutil.Process(self.pid)
            return process.create_time() <= self.started_at.timestamp() + _CLOCK_SLACK_SECONDS
        except psutil.NoSuchProcess:
            return False


def record_path(data_dir: Path) -> Path:
    return data_dir / "server.json"


def write_record(data_dir: Path, url: str, version: str) -> ServerRecord:
    record = ServerRecord(url=url, pid=os.getpid(), started_at=datetime.now(UTC), version=version)
    write_private(record_path(data_dir), record.model_dump_json() + "\n")
    return record


def remove_record(data_dir: Path) -> None:
    """Removes the record, if it is this process's own."""
    record = _read(data_dir)
    if record is not None and record.pid == os.getpid():
        record_path(data_dir).unlink(missing_ok=True)


def running_server(data_dir: Path) -> ServerRecord | None:
    """The server that runs for this data directory, or None.

    A client should ask here before it sends its token to a port: a killed server's port may be anybody's by now.
    """
    record = _read(data_dir)
    return record if record is not None and record.is_alive else None


def _read(data_dir: Path) -> ServerRecord | None:
    try:
        return ServerRecord.model_validate_json(record_path(data_dir).read_bytes())
    except (OSError, ValidationError):
        return None


class ServerLock:
    """Held by the one server of a data directory; a context manager. The kernel frees it with the process."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        """Takes the lock, or raises StartRefused that names the server which has it."""
        if self.is_held:
            return
        path = self._data_dir / "server.lock"
        try:
            # Not inherited by child processes: a Ray that outlives its server must not keep the lock.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StartRefused(f"{path} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise StartRefused(self._taken(holder)) from None
        except OSError as error:  # a file system without locks, e.g. some network mounts
            os.close(descriptor)
            raise StartRefused(
                f"{path} cannot be locked ({error.strerror}): the data directory belongs on a local disk"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _taken(self, holder: str) -> str:
        record = running_server(self._data_dir)
        if record is not None:
            where = f"at {record.url} (pid {record.pid})"
        else:
            where = f"(pid {holder or 'unknown'}, not ready yet)"
        return f"A VitScale server already runs for {self._data_dir} {where}: use it, stop it, or set VITSCALE_DATA_DIR"
