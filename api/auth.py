"""Who may call: the Host allow-list, the bearer token, and what guards a server without one.

Loopback is not private. Any web page may send requests to it (so a body needs a Content-Type that a plain form cannot
send, and without a token the Origin is checked), and by DNS rebinding even read the answers (so the Host is checked).
"""

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import CrossOrigin, HostNotAllowed, Unauthorized, problem_response
from service.errors import VitScaleError

PROBES = frozenset({"/healthz", "/readyz"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^\[\]:]*):[0-9]*")
_WILDCARDS = frozenset({"0.0.0.0", "[::]"})
_ANSWER_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


def host_name(value: str) -> str:
    """The host of a Host header or of a setting, in one form: lower case, no port, IPv6 in brackets."""
    value = value.strip().lower()
    if value.count(":") > 1 and not value.startswith("["):
        return f"[{value}]"
    with_port = _HOST_AND_PORT.fullmatch(value)
    return with_port[1] if with_port else value


@dataclass
class Access:
    """The rules of one server. Until `token` is set nobody passes but the probes (or everyone, with `no_auth`)."""

    hosts: frozenset[str]
    no_auth: bool = False
    token: SecretStr | None = field(default=None)

    @classmethod
    def of(cls, allowed_hosts: Iterable[str], bound_host: str, *, no_auth: bool) -> "Access":
        """The listed hosts and the address that the server is bound to, if it is a definite one."""
        hosts = {host_name(host) for host in (*allowed_hosts, bound_host)} - _WILDCARDS
        return cls(hosts=frozenset(hosts), no_auth=no_auth)

    def refusal(self, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> VitScaleError | None:
        """Why this call may not pass, or None. `headers` are as ASGI has them: names in lower case."""
        named = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(named) != 1 or host_name(named[0]) not in self.hosts:
            shown = ", ".join(named) or "none"
            return HostNotAllowed(
                f"The Host header ({shown}) is not in the allow-list: {', '.join(sorted(self.hosts))} "
                "(set VITSCALE_ALLOWED_HOSTS to add one)"
            )
        if path in PROBES:
            return None
        if self.no_auth:
            return self._cross_origin(method, named[0], headers)
        return self._unauthorized(headers)

    def _cross_origin(self, method: str, host: str, headers: list[tuple[bytes, bytes]]) -> VitScaleError | None:
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        if method in _SAFE_METHODS or all(_netloc(origin) == host.strip().lower() for origin in origins):
            return None
        return CrossOrigin(
            "This server asks for no token, so it takes changes from its own pages and from programs only"
        )

    def _unauthorized(self, headers: list[tuple[bytes, bytes]]) -> VitScaleError | None:
        given = [value for name, value in headers if name == b"authorization"]
        if not given:
            return Unauthorized("Send the token as `Authorization: Bearer <token>`; `vitscale token` prints it")
        scheme, _, credential = given[0].strip().partition(b" ")
        expected = self.token.get_secret_value().encode() if self.token else b""
        is_equal = secrets.compare_digest(credential.strip(), expected)
        if len(given) == 1 and scheme.lower() == b"bearer" and expected and is_equal:
            return None
        return Unauthorized("The bearer token is not the one of this server; `vitscale token` prints it")


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # e.g. an unclosed bracket
        return ""


class Gate:
    """ASGI middleware in front of all routes: lets pass what `access` does not refuse."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_ANSWER_HEADERS]
            await send(message)

        refusal = self._access.refusal(scope["method"], scope["path"], scope["headers"])
        if refusal is None:
            await self._app(scope, receive, send_guarded)
            return
        # RFC 9110, 11.6.1: a 401 names the scheme that would be accepted.
        extra = {"WWW-Authenticate": 'Bearer realm="vitscale"'} if isinstance(refusal, Unauthorized) else {}
        await problem_response(refusal, extra)(scope, receive, send_guarded)
