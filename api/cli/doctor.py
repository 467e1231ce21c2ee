"""`vitscale doctor`: one line for each thing VitScale needs here, with what to do about it."""

from collections.abc import Iterator
from dataclasses import asdict

from api.cli.console import Grid, write, write_json
from api.cli.machine_checks import Check, data_checks, machine_checks, package_checks
from api.cli.outcome import FAILED, GOOD
from api.cli.target import settings_of
from api.client import Client, ClientError
from api.data_dir import StartRefused
from api.discovery import AddressInvalid, ServerNotFound, find_server, is_loopback
from service.errors import VitScaleError
from service.ray_head import RemoteHead
from service.settings import Settings

_ANSWER_SECONDS = 10.0


def doctor(*, as_json: bool) -> int:
    """Prints every check, and gives 1 where something that is needed is missing."""
    settings = settings_of()
    checks = [*package_checks(), *machine_checks(settings), *data_checks(settings), *_ray(settings), *_server(settings)]
    is_good = all(check.state != "missing" for check in checks)
    if as_json:
        write_json({"ok": is_good, "checks": [asdict(check) for check in checks]})
        return GOOD if is_good else FAILED
    grid = Grid("", "what", "how it is")
    styles = {"ok": None, "warn": "yellow", "missing": "red"}
    for check in checks:
        hint = f": {check.hint}" if check.hint else ""
        grid.add(check.state, check.name, f"{check.detail}{hint}", style=styles[check.state])
    grid.write()
    write("Everything that is needed is there." if is_good else "Something that is needed is missing.")
    return GOOD if is_good else FAILED


def _ray(settings: Settings) -> Iterator[Check]:
    """A cluster that is configured must answer; a local head is started by the server."""
    if not settings.ray_dashboard_url:
        yield Check("ok", "Ray", "local: the server starts its own head on 127.0.0.1")
        return
    from service.cluster import describe

    try:
        connection = RemoteHead(settings).connection
        cluster = describe(connection, settings.ray_timeout_seconds)
    except VitScaleError as error:
        hint = "see VITSCALE_RAY_DASHBOARD_URL and VITSCALE_RAY_AUTH_TOKEN"
        yield Check("missing", "Ray", error.detail, hint)
        return
    yield Check("ok", "Ray", f"{connection.dashboard_url} answers, {len(cluster.nodes)} nodes")


def _server(settings: Settings) -> Iterator[Check]:
    try:
        target = find_server(settings)
    except ServerNotFound:
        yield Check("ok", "server", f"none runs from {settings.data_dir}; `vitscale serve` starts one")
        return
    except AddressInvalid as error:
        yield Check("missing", "server", str(error), "set VITSCALE_URL right")
        return
    except StartRefused as error:
        yield Check("missing", "server", error.detail)
        return
    if target.token and target.url.startswith("http:") and not is_loopback(target.url):
        yield Check("warn", "server", f"{target.url} is not encrypted", "the token can be read on the way: use https")
    with Client.of(target, timeout=_ANSWER_SECONDS) as client:
        try:
            version = client.get_version().get("version")
            is_ready, parts = client.readiness()
        except ClientError as error:
            yield Check("missing", "server", f"{target.url}: {error}", "see VITSCALE_URL and VITSCALE_API_TOKEN")
            return
    if is_ready:
        yield Check("ok", "server", f"{version} at {target.url}, ready")
        return
    reasons = [str(part["reason"]) for part in parts.values() if isinstance(part, dict) and part.get("reason")]
    yield Check("warn", "server", f"{version} at {target.url} is not ready", "; ".join(reasons) or None)
