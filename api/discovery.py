"""Which server a client talks to, and the token that was meant for it.

VITSCALE_URL (with VITSCALE_API_TOKEN) names a server; without it, it is the one that `vitscale serve` runs from the
same data directory, where its address and its token lie.
"""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from api.data_dir import read_token
from api.server_record import running_server
from service.settings import Settings

HOW_TO_START = "start one with `vitscale serve` (in a checkout: `make serve`), or set VITSCALE_URL"
_PORTS = {"http": 80, "https": 443}


class ServerNotFound(Exception):
    """There is no server to talk to; the message says how to start one."""


class AddressInvalid(ValueError):
    """VITSCALE_URL (or a URL given to the client) is not an address of a server."""


@dataclass(frozen=True)
class Target:
    """Where to, with what, and whether it was found through the data directory (a restart may move it then)."""

    url: str  # without a trailing slash
    token: str | None = field(repr=False)
    is_local: bool


def find_server(settings: Settings) -> Target:
    """The server these settings mean.

    Raises:
        ServerNotFound: VITSCALE_URL is not set and no server runs from the data directory.
        AddressInvalid: the address is not an http(s) URL.
        api.data_dir.StartRefused: the token is not one that a header can carry, or its file cannot be read.
    """
    # A record that a killed server left does not count: its port may be another program's by now.
    running = running_server(settings.data_dir)
    if settings.url is not None:
        url = checked_url(settings.url)
        # The token in the data directory was made for the server that runs there, and goes nowhere else.
        is_meant = settings.api_token is not None or (running is not None and _origin(running.url) == _origin(url))
        return Target(url, _token(settings) if is_meant else None, is_local=False)
    if running is None:
        raise ServerNotFound(f"no VitScale server runs from {settings.data_dir}: {HOW_TO_START}")
    return Target(checked_url(running.url), _token(settings), is_local=True)


def checked_url(url: str) -> str:
    """The address without its trailing slash.

    Raises:
        AddressInvalid: it has no http(s) scheme or host, or carries a user, query or fragment.
    """
    text = url.strip().rstrip("/")
    try:
        parts = urlsplit(text)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError as problem:
        raise AddressInvalid(f"{url!r} is not a URL ({problem})") from problem
    if parts.username is not None or parts.password is not None:
        # Not repeated: it holds a password.
        raise AddressInvalid("the URL carries a user or password; give the token as VITSCALE_API_TOKEN instead")
    is_address = parts.scheme in _PORTS and bool(parts.hostname) and port_is_valid
    if not is_address or any(character.isspace() for character in text):
        raise AddressInvalid(f"{url!r} is not the address of a server (for example http://127.0.0.1:8321)")
    if parts.query or parts.fragment:
        raise AddressInvalid(f"{url!r} must end with the path: no query, no fragment")
    return text


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in {"localhost", "::1"} or host.startswith("127.")


def _token(settings: Settings) -> str | None:
    token = read_token(settings)
    return None if token is None else token.get_secret_value()


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    return parts.scheme, host, parts.port or _PORTS.get(parts.scheme, 0)
