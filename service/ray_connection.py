"""How to reach a Ray cluster: its dashboard's URL, its token, and where the token of another's cluster lies."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from service.errors import RayRefused
from service.settings import Settings

NO_TOKEN = "no token (set VITSCALE_RAY_AUTH_TOKEN, RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH)"


@dataclass(frozen=True)
class RayConnection:
    """Where a cluster's dashboard answers. The token goes into a request header and nowhere else."""

    dashboard_url: str  # without a trailing slash
    token: str | None = field(default=None, repr=False)
    token_source: str = NO_TOKEN  # for messages; never the token itself

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


class Head(Protocol):
    """A Ray head as the dispatcher sees it."""

    is_local: bool  # ours: we start it, restart it and take it down

    @property
    def connection(self) -> RayConnection:
        """Raises RayUnreachable while there is none."""

    def start(self) -> None:
        """Returns when jobs can be submitted; at once if that is so already. Raises RayUnreachable."""

    def stop(self) -> None: ...

    def is_alive(self) -> bool:
        """False: known to be gone. True says nothing about whether it answers."""


class RemoteHead:
    """A cluster that VitScale did not start (VITSCALE_RAY_DASHBOARD_URL)."""

    is_local = False

    def __init__(self, settings: Settings) -> None:
        if not settings.ray_dashboard_url:
            raise RayRefused("VITSCALE_RAY_DASHBOARD_URL is not set: there is no cluster to connect to.")
        self._dashboard_url = normalized_dashboard_url(settings.ray_dashboard_url)
        self._settings = settings

    @property
    def connection(self) -> RayConnection:
        """The token is read again each time: clusters rotate it."""
        if self._settings.ray_auth_token is not None:
            token = self._settings.ray_auth_token.get_secret_value()
            return RayConnection(self._dashboard_url, token, "VITSCALE_RAY_AUTH_TOKEN")
        return RayConnection(self._dashboard_url, *token_of_environment(os.environ))

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Not ours to stop."""

    def is_alive(self) -> bool:
        return True


def normalized_dashboard_url(url: str) -> str:
    """`url` with a scheme and without a trailing slash.

    Raises:
        RayRefused: it is no http(s) URL, or carries a password, which would end up in logs and answers.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise RayRefused(
            "VITSCALE_RAY_DASHBOARD_URL must look like http://host:8265, not like "
            f"{parts.scheme}://{parts.hostname or ''}."
        )
    if parts.username or parts.password:
        raise RayRefused("VITSCALE_RAY_DASHBOARD_URL must not carry a user or password; give the token apart.")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def token_of_environment(environment: Mapping[str, str]) -> tuple[str | None, str]:
    """The cluster's token and where it was found, in the order Ray itself uses.

    Raises:
        RayRefused: RAY_AUTH_TOKEN_PATH names a file that cannot be read.
    """
    if token := environment.get("RAY_AUTH_TOKEN", "").strip():
        return token, "RAY_AUTH_TOKEN"
    if named := environment.get("RAY_AUTH_TOKEN_PATH"):
        try:
            return Path(named).expanduser().read_text().strip(), f"RAY_AUTH_TOKEN_PATH ({named})"
        except OSError as error:
            raise RayRefused(f"RAY_AUTH_TOKEN_PATH names {named}, which cannot be read: {error.strerror}.") from error
    default = Path(environment.get("HOME", "~")).expanduser() / ".ray" / "auth_token"
    try:
        return default.read_text().strip(), str(default)
    except OSError:
        return None, NO_TOKEN
