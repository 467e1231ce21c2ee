"""Asks Ray in the background whether it answers, and remembers it, so that no probe ever waits for Ray."""

import logging
import threading

from service.errors import RayRefused, RayUnreachable
from service.ray_connection import Head

CHECK_SECONDS = 5.0  # between two looks; a look itself is bounded by the timeout
CHECK_WHILE_AWAY_SECONDS = 1.0
JOIN_SECONDS = 1.0  # a look in progress is left behind: its thread ends with the process
log = logging.getLogger(__name__)


class RayWatch:
    """One thread. `problem` is why Ray cannot be used now, or None."""

    def __init__(self, head: Head, timeout_seconds: float) -> None:
        self._head = head
        self._timeout_seconds = timeout_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray-watch", daemon=True)
        self.problem: str | None = "The local Ray head is starting" if head.is_local else "Ray has not been asked yet"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self.problem = "The server is stopping"
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            problem = self._look()
            if self._stopping.is_set():
                return
            if problem != self.problem:
                log.info("Ray: %s", problem or "answers")
            self.problem = problem
            self._stopping.wait(CHECK_SECONDS if problem is None else CHECK_WHILE_AWAY_SECONDS)

    def _look(self) -> str | None:
        from service.ray_http import RayHttp

        try:
            with RayHttp(self._head.connection, self._timeout_seconds) as ray:
                ray.version()
        except (RayUnreachable, RayRefused) as error:
            return error.detail
        return None
