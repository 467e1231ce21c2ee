"""The paper's runs (tests/data/reference_runs.csv) as observations: one trial a run."""

import csv
from pathlib import Path
from statistics import fmean

from service.analysis.observation import EpochObservation, Estimate, Observation, RankObservation
from service.states import TrialState

RUNS = Path(__file__).parents[2] / "data" / "reference_runs.csv"
IMAGES = 50_000


def paper_runs(series: str, *, with_parts: bool = True) -> list[Observation]:
    """The runs of one series in their order. Rank 0's parts are left out where `with_parts` is not asked for."""
    with RUNS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["series"] == series]
    return [_run(number, row, with_parts) for number, row in enumerate(rows, 1)]


def _run(number: int, row: dict[str, str], with_parts: bool) -> Observation:
    size, micro = int(row["world_size"]), int(row["train_micro_batch_size_per_gpu"])
    epochs = [float(seconds) for seconds in row["epoch_seconds"].split("; ")]
    seconds, batch = fmean(epochs), micro * size
    devices = tuple(row["devices"].split("; ")) if row["devices"] else ()
    logged = [float(row[key]) if row[key] else None for key in ("compute_seconds", "communication_seconds")]
    has_parts = with_parts and any(value is not None for value in logged)
    rank = RankObservation(rank=0, compute_seconds=logged[0], communication_seconds=logged[1])
    return Observation(
        trial=number,
        repeat=0,
        state=TrialState.SUCCEEDED,
        parameters={
            "model": "vit_base_patch16_224",
            "world_size": size,
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": 1,
            "train_batch_size": batch,
            "zero_stage": 0,
            "precision": row["precision"],
            "dataset": row["dataset"],
        },
        devices=devices,
        nodes=int(row["nodes"]),
        epoch_seconds=Estimate(seconds),
        step_seconds=Estimate(seconds / (IMAGES / batch)),
        images_per_second=Estimate(IMAGES / seconds),
        train_accuracy=float(row["train_accuracy"]),
        ranks=(rank,) if has_parts else (),
        epochs=tuple(EpochObservation(epoch, one) for epoch, one in enumerate(epochs, 1)) if len(epochs) > 1 else (),
    )
