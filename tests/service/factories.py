"""Rows and events for tests: small, valid, and easy to bend."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from service.events import ErrorCause, Event, TrialFinished, TrialProgress, TrialStarted, format_event
from service.job_plan import JobPlan
from service.states import Reason
from service.store import Database
from service.store.attempts import apply_lines, begin_attempt, finish_study
from service.studies import Studies
from service.views import StudyView
from trainers.result import EpochRow, Hardware, Metrics, Quality, RankRow, TrialOverhead, TrialResult


def open_database(folder: Path) -> Database:
    """A fresh, up-to-date SQLite database in `folder`."""
    (folder / "vitscale.db").write_bytes(_upgraded_file())
    return Database(f"sqlite:///{folder / 'vitscale.db'}")


@cache
def _upgraded_file() -> bytes:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "vitscale.db"
        database = Database(f"sqlite:///{file}")
        database.upgrade()
        database.close()
        return file.read_bytes()


def open_studies(database: Database, **options: Any) -> Studies:
    return Studies(database, **{"data_roots": (), "wake": lambda: None, **options})


def spec(*, micro_batches: Sequence[int] = (4, 8), **more: Any) -> dict[str, Any]:
    """A spec with one trial for each micro batch, in the given order."""
    return {
        "name": "small",
        "workload": {"dataset": "synthetic", "image_size": 32},
        "parameters": {
            "model": {"value": "vit_tiny_patch16_224"},
            "train_micro_batch_size_per_gpu": {"values": list(micro_batches)},
        },
        "measurement": {"order": "given"},
        **more,
    }


def begin(database: Database, study_id: str) -> JobPlan:
    with database.session() as session:
        return begin_attempt(session, study_id)


def feed(database: Database, plan: JobPlan, lines: Iterable[str], *, start: int = 0) -> None:
    """Applies `lines` as the plan's log from position `start` on, in one unit of work."""
    with database.session() as session:
        apply_lines(session, plan.study, plan.attempt, list(enumerate(lines, start=start)))


class Job:
    """Writes the lines that the job of `plan` would print, with its `seq` counting up."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.seq = 0
        self._attempts = {trial.number: trial.attempt for trial in plan.trials}

    def line(self, event_type: type[Event], **fields: Any) -> str:
        self.seq += 1
        return format_event(event_type(seq=self.seq, study=self.plan.study, attempt=self.plan.attempt, **fields))

    def started(self, trial: int, **fields: Any) -> str:
        return self.line(TrialStarted, **{**self._of(trial), **fields})

    def progress(self, trial: int, **fields: Any) -> str:
        return self.line(TrialProgress, **{**self._of(trial), "phase": "measure", **fields})

    def succeeded(self, trial: int, **fields: Any) -> str:
        defaults = {"state": "succeeded", "result": trial_result(), "queue_seconds": 0.5, "total_seconds": 10.0}
        return self.line(TrialFinished, **{**self._of(trial), **defaults, **fields})

    def failed(self, trial: int, reason: Reason = Reason.ERROR, **fields: Any) -> str:
        defaults = {"state": "failed", "reason": reason, "error": error_cause(), "total_seconds": 4.0}
        return self.line(TrialFinished, **{**self._of(trial), **defaults, **fields})

    def run(self, trial: int) -> list[str]:
        """A trial from its start to its success."""
        return [self.started(trial), self.progress(trial), self.succeeded(trial)]

    def _of(self, trial: int) -> dict[str, int]:
        return {"trial": trial, "trial_attempt": self._attempts.get(trial, 1)}


def error_cause(**fields: Any) -> ErrorCause:
    defaults = {"type": "ValueError", "message": "a bad value", "rank": 1, "node": "n1", "traceback_tail": ["raise"]}
    return ErrorCause(**{**defaults, **fields})


def trial_result(*, world_size: int = 2, metrics: dict[str, Any] | None = None, **fields: Any) -> TrialResult:
    """A steady result of a CPU trial without epochs."""
    defaults: dict[str, Any] = {
        "metrics": Metrics(
            **{
                "images_per_second": 80.0,
                "images_per_second_per_worker": 40.0,
                "step_seconds_mean": 0.1,
                "step_seconds_ci95_low": 0.099,
                "step_seconds_ci95_high": 0.101,
                "interval_kind": "within_run",
                "step_seconds_p50": 0.1,
                "step_seconds_p95": 0.11,
                "measured_steps": 40,
                "skipped_steps": 0,
                "epoch_seconds": 12.5,
                "epoch_seconds_source": "derived",
                "images_seen": 320,
                "peak_memory_bytes": 500_000_000,
                "forward_flops_per_image": 1.5e8,
                "achieved_flops_per_second": 3.6e10,
                **(metrics or {}),
            }
        ),
        "quality": Quality(state="steady"),
        "overhead": TrialOverhead(startup_seconds=3.0, warmup_seconds=1.0, measure_seconds=4.0),
        "hardware": Hardware(
            devices=["Some CPU"] * world_size, nodes=1, backend="gloo", fingerprint="f1", num_threads=1
        ),
        "ranks": [rank_row(rank) for rank in range(world_size)],
        "loss_history": [2.3, 2.1],
        "deepspeed_config": {"train_batch_size": 8, "zero_optimization": {"stage": 0}},
        "versions": {"torch": "2.14.1", "deepspeed": "0.19.8"},
    }
    return TrialResult(**{**defaults, **fields})


def rank_row(rank: int, **fields: Any) -> RankRow:
    defaults = {
        "rank": rank,
        "local_rank": rank,
        "node": "n1",
        "node_ip": "10.0.0.1",
        "pid": 1000 + rank,
        "device": "Some CPU",
        "peak_memory_bytes": 500_000_000,
        "step_seconds_mean": 0.1,
    }
    return RankRow(**{**defaults, **fields})


def epoch_row(epoch: int, **fields: Any) -> EpochRow:
    defaults = {
        "epoch": epoch,
        "epoch_seconds": 12.0,
        "steps": 10,
        "images_seen": 80,
        "train_loss": 2.0,
        "train_accuracy": 0.3,
        "eval_loss": 2.1,
        "eval_accuracy": 0.25,
    }
    return EpochRow(**{**defaults, **fields})


def create(studies: Studies, **fields: Any) -> StudyView:
    return studies.create(spec(**fields))[0]


def run(database: Database, study_id: str, *, failing: tuple[int, ...] = ()) -> None:
    """Runs the study's pending trials to their end, and the study to its own."""
    plan = begin(database, study_id)
    job = Job(plan)
    feed(database, plan, [(job.failed if t.number in failing else job.succeeded)(t.number) for t in plan.trials])
    with database.session() as session:
        finish_study(session, study_id, cancelled=False, error=None)
