"""Why a metric is null, where the trial itself does not say so in a note that names it."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from service.views import RowMetrics
from trainers.result import Metrics

Reasons = tuple[tuple[str, ...], str]

_TAKEN_APART: Final = (
    "compute_seconds",
    "compute_seconds_ci95_low",
    "compute_seconds_ci95_high",
    "data_wait_seconds",
    "data_wait_seconds_ci95_low",
    "data_wait_seconds_ci95_high",
    "straggler_wait_seconds",
    "straggler_wait_seconds_ci95_low",
    "straggler_wait_seconds_ci95_high",
    "straggler_persistent_seconds",
    "straggler_jitter_seconds",
    "communication_seconds",
    "communication_seconds_ci95_low",
    "communication_seconds_ci95_high",
    "communication_share",
    "communication_share_ci95_low",
    "communication_share_ci95_high",
    "communication_source",
    "communication_wire_bytes",
)
_OF_THE_EXCHANGE: Final = tuple(key for key in _TAKEN_APART if key.startswith("communication_"))
_REASONS: Final[tuple[Reasons, ...]] = (
    (("mfu",), "no dense peak is known for this device and precision"),
    (("peak_flops_per_device", "peak_flops_source"), "no data sheet of this device and precision is on record"),
    (("train_loss", "train_accuracy"), "no whole epochs were trained (workload.epochs)"),
    (("eval_loss", "eval_accuracy"), "nothing was evaluated"),
    (
        (
            "step_seconds_ci95_low",
            "step_seconds_ci95_high",
            "interval_kind",
            "step_seconds_noise_half_width",
            "step_seconds_wander_half_width",
            "wander_source",
            "correlation_steps",
        ),
        "too few steps for an interval",
    ),
    (("epoch_seconds", "epoch_seconds_source"), "the data set has no epoch"),
    (("epoch_seconds_without_first",), "fewer than two whole epochs were trained"),
)


def null_notes(metrics: Metrics | RowMetrics, notes: Sequence[str], *, workers: int, is_taken_apart: bool) -> list[str]:
    """A reason for every null metric that none of `notes` names.

    Args:
        workers: the trial's world size.
        is_taken_apart: the trial was asked to take its step apart (`measurement.communication`).
    """
    told = set(re.findall(r"\w+", " ".join(notes).casefold()))
    missing = [key for key, value in metrics.model_dump().items() if value is None and key not in told]
    reasons = []
    for keys, reason in (*_of_the_parts(metrics, workers, is_taken_apart=is_taken_apart), *_REASONS):
        if group := [key for key in keys if key in missing]:
            reasons.append(f"{', '.join(group)}: {reason}")
            missing = [key for key in missing if key not in group]
    if missing:
        reasons.append(f"{', '.join(missing)}: not reported")
    return reasons


def _of_the_parts(metrics: Metrics | RowMetrics, workers: int, *, is_taken_apart: bool) -> Iterator[Reasons]:
    if metrics.compute_seconds is None:
        yield (
            _TAKEN_APART,
            (
                "the step could not be taken apart"
                if is_taken_apart
                else "the step was not taken apart (measurement.communication is off)"
            ),
        )
        return
    if workers == 1:
        yield _OF_THE_EXCHANGE, "one worker exchanges nothing"
    if metrics.data_wait_seconds is None:
        data_wait = tuple(key for key in _TAKEN_APART if key.startswith("data_wait_"))
        yield data_wait, "a profile does not tell waiting for data from computing"
    yield tuple(key for key in _TAKEN_APART if "_ci95_" in key), "too few blocks of steps for an interval"
