"""Sees the worker processes of a trial off: waits until they are gone, and ends those that do not go. Pure of Ray.

Works on the machine it runs on. A stopped process (SIGSTOP) goes only by SIGKILL, and its memory with it.
"""

import contextlib
import time
from collections.abc import Collection

import psutil

_RAY_TITLE = "ray::"  # Ray names its workers so; a reused process id bears another title


def see_off(pids: Collection[int], *, grace_seconds: float, timeout_seconds: float) -> list[int]:
    """Waits for worker processes to end by themselves, then kills the rest and waits for them.

    Args:
        pids: process ids of Ray workers on this machine.
        grace_seconds: how long they may take by themselves.
        timeout_seconds: after which waiting ends, grace included.

    Returns:
        Those still there: empty unless the system itself holds one (a driver call that does not return).
    """
    start = time.monotonic()
    killed = False
    while True:
        left = [pid for pid in pids if is_worker(pid)]
        waited = time.monotonic() - start
        if not left or waited > timeout_seconds:
            return left
        if waited >= grace_seconds and not killed:
            kill(left)
            killed = True
        time.sleep(0.02)


def kill(pids: Collection[int]) -> None:
    """SIGKILL to those of these processes that are still Ray workers."""
    for pid in pids:
        if is_worker(pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()


def is_worker(pid: int) -> bool:
    """Whether this process is a Ray worker that holds memory (a dead one that nobody has collected does not)."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and _title(process).startswith(_RAY_TITLE)
    except psutil.NoSuchProcess:
        return False


def _title(process: psutil.Process) -> str:
    return next(iter(process.cmdline()), "")
