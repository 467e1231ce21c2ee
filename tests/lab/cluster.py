"""A Ray cluster on the hosts of a lab, and `vitscale serve` beside it in cluster mode, as a person would have them.

The head is a host of its own without CPUs to give, so that a study's drivers run there and workers elsewhere. The
server runs on this machine, outside of the hosts, and reaches the head's dashboard; the hosts reach no server.
"""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from api.cli.child_server import LOG_FILE, child_server
from api.client import Client
from service.analysis.answer import StudyAnalysis
from service.analysis.finding import Finding, FindingCode
from service.cluster import describe
from service.errors import RayRefused, RayUnreachable
from service.ray_connection import RayConnection
from service.ray_head import QUIET
from service.settings import Settings
from service.states import StudyState
from service.views import TrialView
from tests.lab.hosts import Host, Lab, lab
from trainers.parts.rows import Measured as Measurement

HEAD: Final = "head"
_GCS_PORT: Final = 6379
_DASHBOARD_PORT: Final = 8265
_START_SECONDS: Final = 180.0
_POLL_SECONDS: Final = 1.0  # the server answers on the cores that are measured


@dataclass(frozen=True)
class Measured:
    """What a study came to: its trials in their order, and what is concluded from them."""

    trials: Sequence[TrialView]
    analysis: StudyAnalysis

    def findings(self, *codes: FindingCode) -> list[Finding]:
        return [finding for finding in self.analysis.findings if finding.code in codes]


@dataclass(frozen=True)
class Cluster:
    """Hosts with a Ray node each (label `host`: their name), and a client of the server that runs studies there."""

    lab: Lab
    client: Client
    server_log: Path

    def host(self, name: str) -> Host:
        return self.lab[name]

    @property
    def workers(self) -> list[Host]:
        """The hosts that workers run on."""
        return [host for name, host in self.lab.hosts.items() if name != HEAD]

    def equalise(self, cores: float | None = None) -> None:
        """All of them alike again: this quota each, no limit on any link."""
        for host in self.workers:
            host.set_quota(cores)
            host.set_rate(None)

    def run(self, spec: Mapping[str, Any], seconds: float = 300.0) -> Measured:
        """Posts a study, waits for its end, and reads all there is to read."""
        study = self.client.create_study(spec)
        deadline = time.monotonic() + seconds
        while not (view := self.client.get_study(study.id)).status.is_final:
            assert time.monotonic() < deadline, f"not over after {seconds:.0f} s: {self._what_is_known(study.id)}"
            time.sleep(_POLL_SECONDS)
        assert view.status == StudyState.SUCCEEDED, self._what_is_known(study.id)
        trials = [self.client.get_trial(study.id, each.trial) for each in self.client.iter_trials(study.id)]
        print(view.name, f"({(view.finished_at or view.created_at) - view.created_at})")  # shown where a test fails
        for trial in trials:
            _show(trial)
        return Measured(trials, self.client.get_analysis(study.id))

    def _what_is_known(self, study_id: str) -> str:
        trials = [str(trial) for trial in self.client.iter_trials(study_id)]
        job = [line.text for line in self.client.get_study_logs(study_id)]
        server = [line for line in self.server_log.read_text().splitlines() if "uvicorn.access" not in line]
        error = str(self.client.get_study(study_id).error)
        return "\n".join([error, *trials, "-- job", *job[-20:], "-- server", *server[-20:]])


@contextmanager
def cluster(names: Sequence[str], folder: Path) -> Iterator[Cluster]:
    """Hosts, Ray and the server, which keeps its data in `folder`; all is taken down at the end."""
    with lab([HEAD, *names]) as built, pytest.MonkeyPatch.context() as patch:
        token = secrets.token_hex(32)
        connection = RayConnection(f"http://{built[HEAD].address}:{_DASHBOARD_PORT}", token, "the lab's own")
        _start_ray(built, names, connection)
        settings = _settings(patch, folder, connection)
        with child_server(settings, print) as connect, connect() as client:
            yield Cluster(built, client, settings.data_dir / LOG_FILE)


def _show(trial: TrialView) -> None:
    attempt = trial.attempts[-1]
    parts = attempt.parts
    assert parts is not None, f"trial {trial.trial} was not taken apart"
    for name in ("step", "compute", "straggler_wait", "communication", "profiled_communication"):
        measured: Measurement | None = getattr(parts, name)
        if measured is not None:
            print(f"  {name:24} {1e3 * measured.value:8.1f} ms", _between(measured, 1e3))
    print("  compute of", {rank.node: rank.compute_seconds for rank in trial.ranks}, "wire bytes", parts.wire_bytes)
    for link in attempt.links:
        if (beta := link.beta_bytes_per_second) is not None:
            print("  link", link.nodes, f"{8e-6 * beta.value:.1f} Mbit/s", _between(beta, 8e-6), link.note or "")
    print("  flags", attempt.quality.flags if attempt.quality else None, attempt.overhead.model_dump(exclude_none=True))


def _between(measured: Measurement, unit: float) -> str:
    low, high = measured.ci95_low, measured.ci95_high
    return "" if low is None or high is None else f"({unit * low:.1f} to {unit * high:.1f})"


# ---- Ray ----


def _start_ray(built: Lab, names: Sequence[str], connection: RayConnection) -> None:
    head = built[HEAD]
    started = [
        _start_node(head, connection, "--head", f"--port={_GCS_PORT}", f"--dashboard-host={head.address}",
                    f"--dashboard-port={_DASHBOARD_PORT}", "--num-cpus=0")
    ]  # fmt: skip
    _wait(built, started, connection, nodes=1)
    joining = f"--address={head.address}:{_GCS_PORT}"
    started += [
        _start_node(built[name], connection, joining, "--num-cpus=1", f"--labels=host={name}") for name in names
    ]
    _wait(built, started, connection, nodes=len(names) + 1)


def _start_node(host: Host, connection: RayConnection, *options: str) -> "subprocess.Popen[bytes]":
    token_file = host.folder / "token"  # each host its own copy
    token_file.touch(mode=0o600)
    token_file.write_text(connection.token or "")
    (host.folder / "empty").mkdir()
    command = [
        *("env", "--chdir", str(host.home / "empty")),  # `python -m` puts the working directory first on its path
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={host.address}"),
        *(f"--temp-dir={host.home / 'ray'}", "--object-store-memory=100000000", "--disable-usage-stats", *options),
    ]
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(host.home / "token"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        **QUIET,
    }
    with (host.folder / "ray.log").open("wb") as log:
        return host.start(command, log=log, environment=environment)


def _wait(built: Lab, started: Sequence["subprocess.Popen[bytes]"], connection: RayConnection, *, nodes: int) -> None:
    """Until that many nodes are alive."""
    deadline = time.monotonic() + _START_SECONDS
    problem = ""
    while True:
        try:
            alive = [node for node in describe(connection).nodes if node.state == "ALIVE"]
            if len(alive) == nodes:
                return
            problem = f"{len(alive)} of {nodes} nodes are alive"
        except (RayUnreachable, RayRefused) as error:
            problem = str(error)
        ended = [process.args for process in started if process.poll() is not None]
        assert not ended, f"{problem}; ended: {ended}\n{_logs(built)}"
        assert time.monotonic() < deadline, f"{problem}\n{_logs(built)}"
        time.sleep(_POLL_SECONDS)


def _logs(built: Lab) -> str:
    logs = {name: host.folder / "ray.log" for name, host in built.hosts.items()}
    return "\n".join(f"{name}: {path.read_text()[-2000:]}" for name, path in logs.items() if path.exists())


# ---- the server ----


def _settings(patch: pytest.MonkeyPatch, folder: Path, connection: RayConnection) -> Settings:
    """Those of the server to come, which reads them from the environment as a person would give them."""
    for name in list(os.environ):
        if name.startswith(("VITSCALE_", "RAY_")) or name.lower().endswith("_proxy"):
            patch.delenv(name)
    token_path = folder / "cluster_token"
    token_path.touch(mode=0o600)
    token_path.write_text(connection.token or "")
    patch.setenv("VITSCALE_RAY_DASHBOARD_URL", connection.dashboard_url)
    patch.setenv("RAY_AUTH_TOKEN_PATH", str(token_path))
    return Settings(_env_file=None, data_dir=folder / "data")
