"""From stored rows to what the analysis reads; own and imported studies alike."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from service.analysis.observation import EpochObservation, Estimate, LinkObservation, Observation, RankObservation
from service.analysis.scaling import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH
from service.analysis.series import ScalingAsked
from service.views import ResultRow, RowMetrics
from trainers.measure.statistics import sample_variance, student_t_95
from trainers.parts.rows import LinkRow, Measured, StepParts

_MIN_EPOCHS: Final = 3  # for an interval from epochs; of two it would be as wide as it is worthless


@dataclass(frozen=True)
class TakenApart:
    """What a trial that took its step apart tells beside its row."""

    parts: StepParts | None = None
    links: Sequence[LinkRow] = ()


_WHOLE: Final = TakenApart()


def scaling_asked(spec: Mapping[str, Any]) -> ScalingAsked:
    """How the study's specification means its world sizes. An imported one may lack any of it."""
    scaling, axes = spec.get("scaling") or {}, spec.get("parameters") or {}
    return ScalingAsked(
        mode=scaling.get("mode") or "none",
        hold=scaling.get("hold") or "micro_batch",
        requested_batch_keys=frozenset(
            key for key in (MICRO_BATCH, ACCUMULATION, GLOBAL_BATCH) if axes.get(key) is not None
        ),
        baseline_world_size=scaling.get("baseline_world_size"),
    )


def observations(
    rows: Iterable[ResultRow],
    ranks: Mapping[int, Sequence[RankObservation]],
    epochs: Mapping[int, Sequence[EpochObservation]],
    taken_apart: Mapping[int, TakenApart] | None = None,
) -> list[Observation]:
    """One for each row that names its world size; `ranks`, `epochs` and `taken_apart` by trial number."""
    parts = taken_apart or {}
    return [
        _observation(row, ranks.get(row.trial, ()), epochs.get(row.trial, ()), parts.get(row.trial, _WHOLE))
        for row in rows
        if row.parameters.get("world_size") is not None
    ]


def _observation(
    row: ResultRow, ranks: Sequence[RankObservation], epochs: Sequence[EpochObservation], apart: TakenApart
) -> Observation:
    metrics, parts = row.metrics, apart.parts
    step, epoch = _step_seconds(metrics), _epoch_seconds(metrics, epochs)
    rate = _alone(metrics.images_per_second)
    if rate is not None:
        # The rate's own error is that of the step, or of the epoch where steps were not timed.
        rate = _with_ends(rate.value, step, is_inverse=True) or _with_ends(rate.value, epoch, is_inverse=True) or rate
    has_interval = any(one is not None and one.low is not None for one in (step, epoch))
    return Observation(
        trial=row.trial,
        repeat=row.repeat,
        state=row.state,
        parameters=row.parameters,
        reason=row.reason,
        devices=tuple(row.hardware.devices),
        nodes=row.hardware.nodes,
        fingerprint=row.hardware.fingerprint,
        images_per_second=rate,
        step_seconds=step,
        epoch_seconds=epoch,
        interval_kind="within_run" if has_interval else None,
        compute_seconds=_part(metrics, "compute_seconds"),
        data_wait_seconds=_part(metrics, "data_wait_seconds"),
        straggler_wait_seconds=_part(metrics, "straggler_wait_seconds"),
        communication_seconds=_part(metrics, "communication_seconds"),
        peak_memory_bytes=metrics.peak_memory_bytes,
        mfu=metrics.mfu,
        eval_accuracy=metrics.eval_accuracy,
        train_accuracy=metrics.train_accuracy,
        quality_state=row.quality.state,
        quality_flags=tuple(row.quality.flags),
        ranks=tuple(ranks),
        epochs=tuple(epochs),
        parts_step_seconds=_of_parts(parts, "step"),
        straggler_persistent_seconds=_of_parts(parts, "straggler_persistent")
        or _alone(metrics.straggler_persistent_seconds),
        straggler_jitter_seconds=_of_parts(parts, "straggler_jitter") or _alone(metrics.straggler_jitter_seconds),
        communication_share=_part(metrics, "communication_share"),
        communication_source=metrics.communication_source,
        communication_wire_bytes=metrics.communication_wire_bytes,
        decode_seconds=_of_parts(parts, "decode"),
        copy_to_device_seconds=_of_parts(parts, "copy_to_device"),
        links=tuple(
            LinkObservation(
                link.kind, tuple(link.nodes), _estimate(link.alpha_seconds), _estimate(link.beta_bytes_per_second)
            )
            for link in apart.links
        ),
    )


def _part(metrics: RowMetrics, key: str) -> Estimate | None:
    """A part of the step; an imported one has no interval."""
    value = getattr(metrics, key)
    ends = (getattr(metrics, f"{key}_ci95_low"), getattr(metrics, f"{key}_ci95_high"))
    return None if value is None else Estimate(value, *ends)


def _of_parts(parts: StepParts | None, name: str) -> Estimate | None:
    return None if parts is None else _estimate(getattr(parts, name))


def _estimate(measured: Measured | None) -> Estimate | None:
    return None if measured is None else Estimate(measured.value, measured.ci95_low, measured.ci95_high)


def _step_seconds(metrics: RowMetrics) -> Estimate | None:
    if metrics.step_seconds_mean is None:
        return None
    return Estimate(metrics.step_seconds_mean, metrics.step_seconds_ci95_low, metrics.step_seconds_ci95_high)


def _epoch_seconds(metrics: RowMetrics, epochs: Sequence[EpochObservation]) -> Estimate | None:
    """A derived epoch has the step's relative error; a measured one what its epochs scatter by, t(0.975, k - 1) s /
    sqrt(k) over k epochs (it takes them for independent, and knows nothing of the next run)."""
    value = metrics.epoch_seconds
    if value is None:
        return None
    if metrics.epoch_seconds_source == "derived":
        return _with_ends(value, _step_seconds(metrics), is_inverse=False) or Estimate(value)
    seconds = [one.epoch_seconds for one in epochs]
    if len(seconds) < _MIN_EPOCHS:
        return Estimate(value)
    half = student_t_95(len(seconds) - 1) * math.sqrt(sample_variance(seconds) / len(seconds)) / fmean(seconds)
    return Estimate(value, value * (1 - half), value * (1 + half))


def _with_ends(value: float, source: Estimate | None, *, is_inverse: bool) -> Estimate | None:
    """`value` with the relative interval of the source; None where that has none."""
    if source is None or source.low is None or source.high is None or source.low <= 0:
        return None
    low, high = source.low / source.value, source.high / source.value
    return Estimate(value, value / high, value / low) if is_inverse else Estimate(value, value * low, value * high)


def _alone(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(value)
