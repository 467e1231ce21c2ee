"""The commands about this machine's server and its Ray: serve, token, dashboard."""

import os
import signal
import sys
import threading
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

from api.cli.console import printable, write
from api.cli.outcome import FAILED, Complaint
from api.cli.target import connect, settings_of
from api.data_dir import read_token
from api.discovery import find_server
from service.ray_head import LocalHead, RemoteHead
from service.settings import Settings

_STANDARD_INPUT = 0


def serve(host: str | None, port: int | None, *, no_auth: bool, data_dir: Path | None, stop_with_stdin: bool) -> None:
    from api.server import serve as run_server  # loads the web framework, which token and dashboard go without

    settings = settings_of(data_dir)
    given = {key: value for key, value in {"host": host, "port": port}.items() if value is not None}
    if stop_with_stdin:
        threading.Thread(target=_stop_at_end_of_input, name="stop-with-stdin", daemon=True).start()
    run_server(settings.model_copy(update=given), no_auth=no_auth)


def _stop_at_end_of_input() -> None:
    """Ends this process in order when its standard input closes: whoever started it holds the other end, and is gone
    (killed, even) when it closes."""
    # Not through sys.stdin: its lock, held by a thread that waits, would break the interpreter's own end.
    while os.read(_STANDARD_INPUT, 4096):
        continue
    os.kill(os.getpid(), signal.SIGTERM)


def token() -> None:
    settings = settings_of()
    found = read_token(settings)
    if found is None:
        raise Complaint(FAILED, f"there is no token in {settings.data_dir} yet: the first `vitscale serve` makes it")
    write(found.get_secret_value())


def dashboard(*, may_open: bool) -> None:
    settings = settings_of()
    is_ours = find_server(settings).is_local
    with connect() as client:
        url = client.get_cluster().dashboard_url
    if not url:
        raise Complaint(FAILED, "the cluster has no dashboard")
    write(f"Ray's dashboard: {printable(url)}")
    write(f"Its token:       {_token_place(settings, is_ours=is_ours)}")
    if may_open and _has_display() and urlsplit(url).scheme in {"http", "https"}:
        webbrowser.open(url)


def _token_place(settings: Settings, *, is_ours: bool) -> str:
    """Where the token lies; never the token itself."""
    if not is_ours:
        return "on the machine of the server: ray/auth_token in its data directory, or as its cluster has it"
    if settings.ray_dashboard_url:
        return RemoteHead(settings).connection.token_source
    return f"in {LocalHead(settings.data_dir).token_path}"


def _has_display() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
