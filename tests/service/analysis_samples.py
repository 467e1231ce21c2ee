"""Observations for tests of the analysis: made by hand, and the paper's."""

import csv
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from service.analysis.observation import EpochObservation, Estimate, Observation
from service.states import Reason, TrialState

PAPER_EPOCHS = Path(__file__).parent.parent / "data" / "reference_epochs.csv"


def observed(
    trial: int, world_size: int = 1, seconds: float | None = 10.0, *, images: float = 1000.0, **given: Any
) -> Observation:
    """One trial whose epoch of `images` images takes `seconds`; without seconds it failed. Other keys: parameters, or
    fields of Observation."""
    micro, accumulation = given.pop("micro", 4), given.pop("accumulation", 1)
    fields = {key: given.pop(key) for key in list(given) if key in Observation.__dataclass_fields__}
    parameters = {
        "world_size": world_size,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": micro * accumulation * world_size,
        **given,
    }
    measured: dict[str, Any] = {"reason": Reason.ERROR}
    if seconds is not None:
        measured = {"epoch_seconds": Estimate(seconds), "images_per_second": Estimate(images / seconds)}
    state = TrialState.FAILED if seconds is None else TrialState.SUCCEEDED
    defaults = {"devices": ["Tesla T4"] * world_size, "nodes": 1, "repeat": 0, "state": state, **measured}
    return Observation(trial=trial, parameters=parameters, **{**defaults, **fields})


def strong_series(seconds: Iterable[float], **given: Any) -> list[Observation]:
    """World size 1, 2, ... with these epoch seconds."""
    return [observed(size, size, one, **given) for size, one in enumerate(seconds, 1)]


def paper_runs(name: str) -> list[Observation]:
    """The runs of one series in `reference_epochs.csv`, with all their epochs and the mean of them."""
    epochs: dict[int, list[EpochObservation]] = defaultdict(list)
    with PAPER_EPOCHS.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["series"] == name:
                epoch = EpochObservation(int(row["epoch"]), float(row["epoch_seconds"]))
                epochs[int(row["world_size"])].append(epoch)
    return [
        observed(size, size, None, micro=64, state=TrialState.SUCCEEDED, reason=None, epochs=rows,
                 epoch_seconds=Estimate(fmean(row.epoch_seconds for row in rows)))
        for size, rows in sorted(epochs.items())
    ]  # fmt: skip
