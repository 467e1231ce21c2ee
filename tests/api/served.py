"""A real server without Ray for tests of the client and the command line: HTTP on a free port, SQLite in its folder."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from api.app import create_app
from api.client import Client
from api.server_record import record_path, write_record
from service.settings import Settings
from service.store import Database
from service.store.attempts import finish_study
from tests.service.factories import Job, begin, feed, trial_result

TOKEN = "the-token-of-these-tests"
START_SECONDS = 30.0
Run = Callable[..., tuple[int, str, str]]  # a command line typed: its exit code, output and errors


@dataclass(frozen=True)
class Served:
    """A running server, the way into its database that a dispatcher has, and where it lies."""

    settings: Settings
    url: str
    database: Database

    def client(self) -> Client:
        return Client(self.url, TOKEN)


@contextmanager
def served(data_dir: Path) -> Iterator[Served]:
    """Serves in a thread, leaves its address in the data directory as a real server does, and takes it away again."""
    settings = Settings(_env_file=None, data_dir=data_dir, api_token=TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(create_app(settings, with_ray=False), log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline, "the server did not start in time"
            time.sleep(0.01)
        database = Database(settings.resolved_database_url)
        write_record(data_dir, url, "0")
        try:
            yield Served(settings, url, database)
        finally:
            database.close()
            record_path(data_dir).unlink(missing_ok=True)
            server.should_exit = True
            thread.join(START_SECONDS)
            assert not thread.is_alive(), "the server did not stop"


def sweep(name: str = "sweep", *, micro_batches: Sequence[int] = (4,), **more: Any) -> dict[str, Any]:
    """A strong-scaling spec: world size 1 and 2 for each micro batch, in the given order."""
    return {
        "name": name,
        "scaling": {"mode": "strong"},
        "workload": {"dataset": "digits", "image_size": 32},
        "parameters": {
            "model": {"value": "vit_tiny_patch16_224"},
            "patch_size": {"value": 8},
            "world_size": {"values": [1, 2]},
            "train_micro_batch_size_per_gpu": {"values": list(micro_batches)},
        },
        "measurement": {"order": "given"},
        **more,
    }


def started_job(served: Served, study_id: str) -> Job:
    """The study's job, begun as the dispatcher begins it."""
    return Job(begin(served.database, study_id))


def finish(served: Served, study_id: str, *, cancelled: bool = False, error: str | None = None) -> None:
    with served.database.session() as session:
        finish_study(session, study_id, cancelled=cancelled, error=error)


def measured(images_per_second: float, epoch_seconds: float, world_size: int = 1) -> Any:
    """A result with these two numbers."""
    metrics = {
        "images_per_second": images_per_second,
        "images_per_second_per_worker": images_per_second / world_size,
        "epoch_seconds": epoch_seconds,
    }
    return trial_result(world_size=world_size, metrics=metrics)


def run_to_the_end(served: Served, study_id: str, *, failing: Sequence[int] = ()) -> None:
    """Every trial runs: those of world size 1 at 100 images/s, the rest at 160; `failing` ones fail."""
    job = started_job(served, study_id)
    lines: list[str] = []
    for trial in job.plan.trials:
        size = trial.config.world_size
        lines.append(job.started(trial.number))
        if trial.number in failing:
            lines.append(job.failed(trial.number))
        else:
            result = measured(100.0, 18.0) if size == 1 else measured(160.0, 11.25, size)
            lines.append(job.succeeded(trial.number, result=result))
    feed(served.database, job.plan, lines)
    finish(served, study_id)
