"""Stands between the server and its Ray head, so that nothing of the head outlives the server.

Run as a script by `service.ray_head`, in a session of its own. Its standard input is a pipe that only the server holds:
however the server dies, the pipe closes, and the keeper ends the head. Every process the head starts stays below the
keeper (on Linux it adopts orphans), so exactly those are ended, and no other Ray on the machine is touched.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

MARKER = "VITSCALE_RAY_HEAD"  # in the environment of each process of a head: its temporary directory
GRACE_SECONDS = 8.0  # for Ray's own way down after SIGTERM (4 s seen with workers running)
KILL_SECONDS = 5.0  # for what is left to be gone after SIGKILL

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def marked_processes(temp_dir: str) -> list[psutil.Process]:
    """This user's processes that belong to the head of `temp_dir`, wherever they are in the process tree.

    Some of Ray's processes overwrite their environment with a title: of those, the ones whose arguments name the
    directory.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.uids().real == os.getuid() and _is_marked(process, temp_dir):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def _is_marked(process: psutil.Process, temp_dir: str) -> bool:
    environment = process.environ()
    if "PATH" in environment:  # readable: a pager that somebody opened on one of Ray's logs is not ours to end
        return environment.get(MARKER) == temp_dir
    return any(temp_dir in argument for argument in process.cmdline())


def _descendants(temp_dir: str) -> set[psutil.Process]:
    """All that the head started. Without adoption of orphans (not Linux) the marker finds those cut loose."""
    below = set(psutil.Process().children(recursive=True))
    return below if sys.platform == "linux" else below | set(marked_processes(temp_dir))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _die_with_the_keeper() -> None:
    """In the child, before exec. The signal is tied to the keeper's main thread, which is its only one."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _reap() -> set[int]:
    """Ids of children (adopted ones too) that have ended since the last call."""
    ended: set[int] = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.add(pid)


@contextmanager
def _wakeups() -> Iterator[int]:
    """A descriptor that becomes readable with each SIGCHLD, SIGTERM, SIGINT or SIGHUP: the byte is its number."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    yield reading


def _wait_for_the_end(head_pid: int, owner_fd: int, wakeup_fd: int) -> str:
    """Blocks until the head, the owner or the keeper is to end; says which."""
    while True:
        readable, _, _ = select.select([owner_fd, wakeup_fd], [], [], 5.0)
        if wakeup_fd in readable and set(os.read(wakeup_fd, 512)) - {signal.SIGCHLD}:
            return "asked to stop"
        if head_pid in _reap():
            return "the head ended by itself"
        if owner_fd in readable and not os.read(owner_fd, 512):
            return "the server is gone"


def _end_all(head_pid: int, temp_dir: str) -> None:
    """SIGTERM to the head and a bounded wait, then SIGKILL to whatever is left below the keeper."""
    head = next((process for process in psutil.Process().children() if process.pid == head_pid), None)
    if head is not None:
        head.terminate()
        head.resume()  # a stopped process would not see the signal
    deadline = time.monotonic() + GRACE_SECONDS
    while _descendants(temp_dir) and time.monotonic() < deadline:
        _reap()
        time.sleep(0.05)
    deadline = time.monotonic() + KILL_SECONDS
    while (left := _descendants(temp_dir)) and time.monotonic() < deadline:
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        _reap()
        time.sleep(0.05)


def main(temp_dir: str, command: list[str]) -> int:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with _wakeups() as wakeup_fd:
        head = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_the_keeper)
        reason = _wait_for_the_end(head.pid, sys.stdin.fileno(), wakeup_fd)
        print(f"vitscale: ending the Ray head: {reason}", flush=True)
        _end_all(head.pid, temp_dir)
    shutil.rmtree(Path(temp_dir), ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
