"""Observations for tests: valid, and easy to bend."""

from collections.abc import Sequence
from typing import Any

from service.analysis.observation import Estimate, LinkObservation, Observation, RankObservation
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


def taken_apart(
    trial: int = 1,
    *,
    compute: Sequence[float] = (0.6, 0.6),
    communication: float = 0.0,
    jitter: float = 0.0,
    data_wait: Sequence[float] = (),
    certainty: float = 0.02,
    **fields: Any,
) -> Observation:
    """A trial that took its step apart: what each rank computes, by the definitions of the parts.

    Args:
        compute: seconds of each rank; `data_wait` as many, or none for no waiting.
        jitter: seconds of a step that are lost to a slowest rank that changes.
        certainty: half of each interval, as a share of its value.
    """
    waits = [*data_wait] or [0.0] * len(compute)
    local = [own + wait for own, wait in zip(compute, waits, strict=True)]
    mean, slowest = sum(local) / len(local), max(local)
    step = slowest + jitter + communication
    sizes = len(compute)
    usual: dict[str, Any] = {
        "world_size": sizes,
        "nodes": sizes,
        "parts_step_seconds": estimate(step, certainty),
        "compute_seconds": estimate(sum(compute) / sizes, certainty),
        "data_wait_seconds": estimate(sum(waits) / sizes, certainty),
        "straggler_wait_seconds": estimate(slowest - mean + jitter, certainty),
        "straggler_persistent_seconds": estimate(slowest - mean, certainty),
        "straggler_jitter_seconds": estimate(jitter, certainty),
        "communication_seconds": estimate(communication, certainty),
        "communication_share": estimate(communication / step, certainty),
        "communication_source": "exchange_left_out",
        "ranks": ranks(
            compute,
            [communication] * sizes,
            data_wait_seconds=waits,
            compute_low_seconds=[one * (1 - certainty) for one in compute],
            compute_high_seconds=[one * (1 + certainty) for one in compute],
        ),
    }
    return observed(trial, fields.pop("seconds", step), **{**usual, **fields})


def pairs(certainty: float = 0.02, **betas: float) -> tuple[LinkObservation, ...]:
    """Links in MB/s by two nodes each: `n0_n1=100.0`."""
    return tuple(
        LinkObservation("pair", tuple(nodes.split("_")), Estimate(1e-4), estimate(beta * 1e6, certainty))
        for nodes, beta in betas.items()
    )
