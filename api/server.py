"""Runs the server: one per data directory, one process, from a bound socket to a clean end."""

import asyncio
import errno
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn

from api.app import create_app
from api.data_dir import StartRefused, ensure_token, prepare_data_dir
from api.routes.probes import own_version
from api.runtime import STOP_SECONDS, Runtime
from api.server_record import ServerLock, remove_record, write_record
from service.errors import VitScaleError
from service.settings import Settings

EXIT_REFUSED = 2
BACKLOG = 128
REQUESTS_END_SECONDS = 5  # what requests in flight get at the end
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_PRIVATE_UMASK = 0o077
log = logging.getLogger(__name__)


def serve(settings: Settings, no_auth: bool = False) -> None:
    """Serves until SIGINT or SIGTERM, then stops the queue and the local Ray head.

    Raises:
        SystemExit: with 2 and one line on stderr where it does not start: another server has the data directory, the
            port is taken, `no_auth` on an address that others can reach, a token or database that cannot be used.
    """
    try:
        _serve(settings, no_auth)
    except VitScaleError as error:
        print(f"vitscale: {error.detail}", file=sys.stderr)
        raise SystemExit(EXIT_REFUSED) from None


def _serve(settings: Settings, no_auth: bool) -> None:
    os.umask(_PRIVATE_UMASK)
    family, address = _address(settings.host, settings.port)
    if no_auth and not ipaddress.ip_address(address[0]).is_loopback:
        raise StartRefused(
            f"--no-auth is for loopback only, and VITSCALE_HOST is {settings.host}: whoever reaches it could run code "
            "on the cluster. Use 127.0.0.1, or leave --no-auth away"
        )
    prepare_data_dir(settings.data_dir)
    with ServerLock(settings.data_dir) as lock, _bound(family, address) as listener:
        if not no_auth:
            ensure_token(settings)
        app = create_app(settings, no_auth=no_auth, lock=lock)
        runtime: Runtime = app.state.runtime
        config = uvicorn.Config(
            app,
            log_config=_LOGGING,
            lifespan="on",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=REQUESTS_END_SECONDS,
        )
        server = _Server(config, runtime, no_auth=no_auth, url=_url(listener))
        try:
            server.run(sockets=[listener])
        finally:
            remove_record(settings.data_dir)
            # Done already after an end in order; not after a second Ctrl-C, or where the start failed half-way.
            if not runtime.stop_within(STOP_SECONDS):
                log.error("Not everything was stopped within %g s; what is left ends with this process", STOP_SECONDS)


class _Server(uvicorn.Server):
    """uvicorn's server, which also writes where it answers, and takes a signal as a wish, not as an accident."""

    def __init__(self, config: uvicorn.Config, runtime: Runtime, *, no_auth: bool, url: str) -> None:
        super().__init__(config)
        self._runtime = runtime
        self._no_auth = no_auth
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Before the application's own lifespan, which finds all started: from here a refusal reaches `serve` as it is.
        await asyncio.to_thread(self._runtime.start, no_auth=self._no_auth)
        await super().startup(sockets)
        data_dir = self._runtime.settings.data_dir
        write_record(data_dir, self._url, own_version())
        log.info("VitScale %s answers at %s (data in %s)", own_version(), self._url, data_dir)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("VitScale is stopping")
        remove_record(self._runtime.settings.data_dir)  # first: nobody new should come
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Unlike uvicorn's own, does not raise the signal again afterwards: an end that was asked for is a good one."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # not under nohup
            wanted.append(signal.SIGHUP)
        previous = {number: signal.signal(number, self.handle_exit) for number in wanted}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise StartRefused(f"VITSCALE_HOST {host!r} is no address ({error})") from None
    # IPv4 first: `localhost` in a URL reaches it everywhere.
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _bound(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    """A socket that listens already, so that the port is really ours. Callers wait in its queue until all is ready."""
    # With the protocol named, asyncio turns Nagle's algorithm off on each connection; else an answer that goes out in
    # two writes waits for the client's delayed acknowledgement, 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not held up by connections of the last server
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        host, port = address
        reasons = {
            errno.EADDRINUSE: "is taken by another program: stop that, or set VITSCALE_PORT (0: a free one)",
            errno.EADDRNOTAVAIL: "is no address of this machine: set VITSCALE_HOST",
            errno.EACCES: "may not be used by this user: set VITSCALE_PORT to one above 1023",
        }
        reason = reasons.get(error.errno or 0, f"cannot be used: {error.strerror}")
        raise StartRefused(f"{_netloc(host, port)} {reason}") from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{_netloc(_WILDCARDS.get(host, host), port)}"


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class WithoutQuery(logging.Filter):
    """Takes the query off the path in access lines: people put secrets there, even where nobody reads them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(each.partition("?")[0] if isinstance(each, str) else each for each in record.args)
        return True


_LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "filters": {"without_query": {"()": WithoutQuery}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "line"},
        "access": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["without_query"]},
    },
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "uvicorn.error": {"level": "WARNING"},
        "uvicorn.access": {"handlers": ["access"], "level": "INFO", "propagate": False},
        # These tell every request and every migration at INFO.
        "httpx": {"level": "WARNING"},
        "httpcore": {"level": "WARNING"},
        "alembic": {"level": "WARNING"},
    },
}
