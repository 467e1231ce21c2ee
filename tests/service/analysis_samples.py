"""Observations for tests of the analysis: made by hand, and the paper's."""

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from service.analysis.observation import EpochObservation, Estimate, Observation
from service.states import Reason, TrialState
from tests.benchmarks.forecast import read_series


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
    (series,) = [each for each in read_series() if each.name == name]
    return [
        observed(
            size,
            size,
            None,
            micro=64,
            state=TrialState.SUCCEEDED,
            reason=None,
            epochs=[EpochObservation(epoch, seconds) for epoch, seconds in enumerate(epochs, 1)],
            epoch_seconds=Estimate(fmean(epochs)),
        )
        for size, epochs in sorted(series.epochs.items())
    ]
