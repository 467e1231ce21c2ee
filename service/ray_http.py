"""Calls to a Ray dashboard over plain HTTP, with a bound on each and errors that a person can act on."""

import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from service.errors import RayRefused, RayUnreachable
from service.ray_connection import RayConnection

RETRY_SECONDS = (0.2, 1.0)  # before the second and third try of a call that may be repeated
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def uses_proxy(connection: RayConnection) -> bool:
    """Whether the environment's proxy settings apply: never to this machine itself."""
    return urlsplit(connection.dashboard_url).hostname not in _LOOPBACK


def refused_authentication(connection: RayConnection, status: int) -> RayRefused:
    """401: no token came with the request, 403: a wrong one."""
    return RayRefused(
        f"The Ray cluster at {connection.dashboard_url} wants a token and answered {status} to the one from "
        f"{connection.token_source}."
    )


class RayHttp:
    """One cluster's dashboard. Used in a `with` block, not shared between threads.

    Every call raises RayUnreachable where no answer (or a passing failure) comes within `timeout` seconds a try, and
    RayRefused where the cluster says no.
    """

    def __init__(self, connection: RayConnection, timeout: float) -> None:
        self.connection = connection
        self._http = httpx.Client(
            base_url=connection.dashboard_url,
            headers=connection.headers,
            timeout=timeout,
            trust_env=uses_proxy(connection),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def repeated(self, method: str, url: str, accept: tuple[int, ...] = (), **request: Any) -> httpx.Response:
        """A call that may safely be made twice."""
        for pause in RETRY_SECONDS:
            try:
                return self.once(method, url, accept, **request)
            except RayUnreachable as error:
                if isinstance(error.__cause__, httpx.TimeoutException):
                    raise  # waited long enough: whoever called decides about more
                time.sleep(pause)
        return self.once(method, url, accept, **request)

    def once(self, method: str, url: str, accept: tuple[int, ...] = (), **request: Any) -> httpx.Response:
        where = self.connection.dashboard_url
        try:
            answer = self._http.request(method, url, **request)
        except httpx.TimeoutException as error:
            raise RayUnreachable(f"The Ray cluster at {where} did not answer in time ({method} {url}).") from error
        except httpx.HTTPError as error:
            raise RayUnreachable(f"The Ray cluster at {where} cannot be reached: {error}.") from error
        if answer.is_success or answer.status_code in accept:
            return answer
        if answer.status_code in {401, 403}:
            raise refused_authentication(self.connection, answer.status_code)
        reason = f"{method} {url} was answered with {answer.status_code}: {_last_line(answer.text)}"
        if answer.is_server_error:
            raise RayUnreachable(f"The Ray cluster at {where} failed: {reason}")
        raise RayRefused(f"The Ray cluster at {where} refused: {reason}")

    def json(self, answer: httpx.Response) -> dict[str, Any]:
        where = self.connection.dashboard_url
        try:
            data = answer.json()
        except ValueError as error:
            raise RayRefused(f"{where} does not answer like a Ray dashboard (no JSON).") from error
        if not isinstance(data, dict):
            raise RayRefused(f"{where} does not answer like a Ray dashboard (no JSON object).")
        return data

    def version(self) -> str:
        """The cluster's Ray version."""
        version = self.json(self.repeated("GET", "/api/version")).get("ray_version")
        if not isinstance(version, str):
            raise RayRefused(f"{self.connection.dashboard_url} does not answer like a Ray dashboard (no version).")
        return version


def _last_line(text: str) -> str:
    """Ray answers failures with a traceback, whose last line says what happened."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" .")]
    return lines[-1][:300] if lines else "(no text)"
