"""Observations for tests: valid, and easy to bend."""

from collections.abc import Sequence
from typing import Any

from service.analysis.observation import Estimate, Observation, RankObservation
from service.states import TrialState

MODEL = "vit_base_patch16_224"
T4 = "Tesla T4"


def estimate(value: float, share: float | None = None) -> Estimate:
    """`value` with an interval of so large a share on both sides."""
    return Estimate(value) if share is None else Estimate(value, value * (1 - share), value * (1 + share))


def observed(
    trial: int = 1,
    seconds: float | None = 1.0,
    *,
    repeat: int = 0,
    world_size: int = 1,
    micro_batch: int = 64,
    accumulation: int = 1,
    interval: float | None = 0.005,
    device: str | None = T4,
    parameters: dict[str, Any] | None = None,
    **fields: Any,
) -> Observation:
    """One trial of `seconds` per optimizer step; None: it has no result.

    Args:
        interval: of the step, as a share of it.
        device: of every rank, where `devices` is not given.
        parameters: added to the usual ones; None takes one away.
    """
    batch = micro_batch * accumulation * world_size
    usual: dict[str, Any] = {
        "model": MODEL,
        "world_size": world_size,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": batch,
        "zero_stage": 0,
        "precision": "fp32",
        "dataset": "cifar10",
        "image_size": 224,
        **(parameters or {}),
    }
    measured: dict[str, Any] = {"state": TrialState.FAILED}
    if seconds is not None:
        measured = {
            "state": TrialState.SUCCEEDED,
            "step_seconds": estimate(seconds, interval),
            "images_per_second": estimate(batch / seconds, interval),
            "epoch_seconds": estimate(50_000 / batch * seconds, interval),
            "interval_kind": None if interval is None else "within_run",
            "devices": () if device is None else (device,) * world_size,
            "nodes": 1,
            "quality_state": "steady",
        }
    return Observation(
        **{
            "trial": trial,
            "repeat": repeat,
            "parameters": {key: value for key, value in usual.items() if value is not None},
            **measured,
            **fields,
        }
    )


def ranks(compute: Sequence[float | None], communication: Sequence[float | None] = (), **fields: Any) -> Any:
    """One row per rank, each on a node of its own."""
    exchanged = [*communication, *[None] * (len(compute) - len(communication))]
    return tuple(
        RankObservation(
            **{"rank": rank, "node": f"n{rank}", "device": T4, "compute_seconds": own, "communication_seconds": other}
            | {key: value[rank] for key, value in fields.items()}
        )
        for rank, (own, other) in enumerate(zip(compute, exchanged, strict=True))
    )
