"""Writing runs that were measured elsewhere: trials that have succeeded, with the rows that own ones have."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import insert
from sqlalchemy.orm import Session

from service.states import TrialState
from service.store import result_text
from service.store.tables import Attempt, AttemptEpoch, AttemptRank, Study, Trial
from service.views import RowHardware, RowMetrics

if TYPE_CHECKING:
    from service.measured_rows import MeasuredTrial

NO_JOB = 0  # the study's attempt that an imported run belongs to
ONLY_ATTEMPT = 1


def insert_imported(session: Session, study: Study, trials: "Sequence[MeasuredTrial]") -> None:
    """The runs as trials of the study, each with one attempt, its ranks and its epochs."""
    rows = [_trial(study, trial) for trial in trials]
    session.add_all(rows)
    session.flush()
    attempts = [_attempt(study, row, trial) for row, trial in zip(rows, trials, strict=True)]
    session.add_all(attempts)
    session.flush()
    ranks = [
        {
            "attempt_id": attempt.id,
            "rank": rank.rank,
            "device": rank.device,
            "epoch_seconds": rank.epoch_seconds,
            "step_seconds_mean": rank.step_seconds,
            "compute_seconds": rank.compute_seconds,
            "communication_seconds": rank.communication_seconds,
        }
        for attempt, trial in zip(attempts, trials, strict=True)
        for rank in trial.ranks
    ]
    epochs = [
        {
            "attempt_id": attempt.id,
            "epoch": epoch.epoch,
            "epoch_seconds": epoch.epoch_seconds,
            "steps": epoch.steps,
            "images_seen": epoch.images_seen,
            "train_loss": epoch.loss,
            "train_accuracy": epoch.accuracy,
        }
        for attempt, trial in zip(attempts, trials, strict=True)
        for epoch in trial.epochs
    ]
    if ranks:
        session.execute(insert(AttemptRank), ranks)
    if epochs:
        session.execute(insert(AttemptEpoch), epochs)


def _trial(study: Study, trial: "MeasuredTrial") -> Trial:
    return Trial(
        study_id=study.id,
        number=trial.number,
        repeat=trial.repeat,
        run_order=trial.number,
        point_hash=trial.point_hash,
        state=TrialState.SUCCEEDED,
        attempt=ONLY_ATTEMPT,
        step_seconds_mean=trial.step_seconds,
        interrupted=False,
        placement={},
        config=None,
        parameters_json=json.dumps(trial.parameters, separators=(",", ":"), allow_nan=False),
        outcome_json=result_text.imported(_metrics(trial), _hardware(trial), trial.notes)[0],
    )


def _attempt(study: Study, row: Trial, trial: "MeasuredTrial") -> Attempt:
    metrics, hardware = _metrics(trial), _hardware(trial)
    quality = result_text.imported(metrics, hardware, trial.notes)[1]
    return Attempt(
        study_id=study.id,
        trial_id=row.id,
        number=ONLY_ATTEMPT,
        study_attempt=NO_JOB,
        state=TrialState.SUCCEEDED,
        started_at=study.created_at,  # of the import: when it ran is not known
        finished_at=study.created_at,
        done=0,
        worker_pids=[],
        loss_history=[],
        result={
            "metrics": metrics.model_dump(mode="json"),
            "quality": quality.model_dump(mode="json"),
            "hardware": hardware.model_dump(mode="json"),
        },
    )


def _metrics(trial: "MeasuredTrial") -> RowMetrics:
    workers = int(trial.parameters["world_size"])
    rate = trial.images_per_second
    images = [epoch.images_seen for epoch in trial.epochs]
    return RowMetrics(
        images_per_second=rate,
        images_per_second_per_worker=None if rate is None else rate / workers,
        step_seconds_mean=trial.step_seconds,
        measured_steps=trial.measured_steps,
        epoch_seconds=trial.epoch_seconds,
        epoch_seconds_source=trial.epoch_seconds_source,
        epoch_seconds_without_first=trial.epoch_seconds_without_first,
        images_seen=sum(count or 0 for count in images) if images and None not in images else None,
        compute_seconds=trial.compute_seconds,
        communication_seconds=trial.communication_seconds,
        train_loss=trial.loss,
        train_accuracy=trial.accuracy,
    )


def _hardware(trial: "MeasuredTrial") -> RowHardware:
    return RowHardware(devices=list(trial.devices), nodes=trial.nodes)
