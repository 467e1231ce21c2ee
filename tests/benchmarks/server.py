"""(c) and (d): what the server costs, with a stored study of 5,000 trials behind it."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil

from service.events import TrialFinished, TrialStarted, format_event
from service.store import Database
from service.store.attempts import apply_lines, begin_attempt, finish_study
from service.studies import Studies
from tests.benchmarks.outcome import Outcome, percentile
from tests.service.factories import trial_result

NUM_TRIALS = 5_000
SPEC = {
    "name": "five-thousand",
    "workload": {"dataset": "synthetic", "image_size": 32},
    "parameters": {
        "model": {"value": "vit_tiny_patch16_224"},
        "world_size": {"values": list(range(1, 11))},
        "train_micro_batch_size_per_gpu": {"values": list(range(1, 51))},
        "gradient_accumulation_steps": {"values": list(range(1, 11))},
    },
}


def measure_import_seconds(*, repeats: int = 9) -> Outcome:
    """`import api.app` in a fresh interpreter, less the interpreter's own start; the files are warm in the cache."""
    code = "import time; t = time.perf_counter(); import api.app; print(time.perf_counter() - t)"
    samples = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(repeats)]
    return Outcome("import api.app", statistics.median(samples), "s", 1.0, "at_most", samples)


def fill(data_dir: Path) -> str:
    """Stores a finished study of 5,000 trials through the product's own way in, and returns its id."""
    database = Database(f"sqlite:///{data_dir / 'vitscale.db'}")
    database.upgrade()
    study, _ = Studies(database, data_roots=(), wake=lambda: None).create(SPEC)
    with database.session() as session:
        plan = begin_attempt(session, study.id)
    result = trial_result()
    lines: list[str] = []
    for trial in plan.trials:
        common = {"study": study.id, "attempt": plan.attempt, "trial": trial.number, "trial_attempt": trial.attempt}
        lines.append(format_event(TrialStarted(seq=len(lines) + 1, **common)))
        lines.append(
            format_event(
                TrialFinished(
                    seq=len(lines) + 1,
                    state="succeeded",
                    result=result,
                    queue_seconds=0.1,
                    total_seconds=10.0,
                    **common,
                )
            )
        )
    for start in range(0, len(lines), 500):
        with database.session() as session:
            apply_lines(session, study.id, plan.attempt, list(enumerate(lines))[start : start + 500])
    with database.session() as session:
        finish_study(session, study.id, cancelled=False, error=None)
    database.close()
    return study.id


def measure_server(data_dir: Path) -> list[Outcome]:
    """RSS of the idle server (Ray's processes apart) and the tail latency of two reads over HTTP on loopback."""
    study = fill(data_dir)
    environment = {**os.environ, "VITSCALE_DATA_DIR": str(data_dir), "VITSCALE_PORT": "0"}
    server = subprocess.Popen(
        [sys.executable, "-m", "api.cli.main", "serve"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with _client(data_dir, server) as client:
            _until(
                lambda: client.get("/readyz").status_code == 200, seconds=120, reason="the server's own Ray to start"
            )
            rss = psutil.Process(server.pid).memory_info().rss / 2**20
            single = _latencies(client, f"/studies/{study}")
            page = _latencies(client, f"/studies/{study}/results?limit=500")
        return [
            Outcome("RSS of the idle server", rss, "MiB", 200, "at_most", [rss], "Ray's own processes apart"),
            Outcome("p99 of GET /studies/{id}", percentile(single, 0.99), "ms", 50, "at_most", single),
            Outcome("p99 of a 500-row results page", percentile(page, 0.99), "ms", 50, "at_most", page),
        ]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


def _client(data_dir: Path, server: subprocess.Popen[bytes]) -> httpx.Client:
    file = data_dir / "server.json"
    _until(
        lambda: file.exists() and json.loads(file.read_text())["pid"] == server.pid,
        seconds=60,
        reason="server.json to be written",
    )
    token = (data_dir / "api_token").read_text().strip()
    url = json.loads(file.read_text())["url"]
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30)


def _latencies(client: httpx.Client, path: str, *, repeats: int = 300) -> list[float]:
    """Milliseconds of each of `repeats` calls after 20 to warm up."""
    samples = []
    for index in range(repeats + 20):
        start = time.perf_counter()
        client.get(path).raise_for_status()
        if index >= 20:
            samples.append((time.perf_counter() - start) * 1e3)
    return samples


def _until(condition, *, seconds: float, reason: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {reason}")
        time.sleep(0.1)
