"""Makes the one report of a trial out of what its ranks saw."""

import hashlib
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from trainers.config import TrialConfig
from trainers.device import TrainingDevice
from trainers.device_peaks import dense_peak
from trainers.flops import achieved_flops_per_second, model_flops_utilisation
from trainers.measure.interval import WANDER_SOURCE
from trainers.measure.summary import TimingSummary, summarise
from trainers.measure.windows import Window, step_seconds_mean
from trainers.memory import ModelStates, TensorSizes, model_states
from trainers.parts.blocks import TakenApart
from trainers.parts.rows import LinkRow, Measured, StepParts
from trainers.result import EpochRow, Hardware, Metrics, Quality, RankRow, TrialOverhead, TrialResult
from trainers.telemetry.readings import RankReadings
from trainers.telemetry.verdict import judge
from trainers.versions import installed_versions
from trainers.world import LaunchError, World

_LAST_STEPS_FOR_LOSS = 10


@dataclass(frozen=True)
class RankReport:
    """What one rank tells of itself."""

    row: RankRow
    cpu_count: int | None
    threads: int
    readings: RankReadings | None = None

    @classmethod
    def of(
        cls,
        world: World,
        device: TrainingDevice,
        windows: Sequence[Window],
        readings: RankReadings,
        held: ModelStates,
    ) -> "RankReport":
        row = RankRow(
            rank=world.rank,
            local_rank=world.launch.local_rank,
            node=world.node,
            node_ip=world.node_ip,
            pid=os.getpid(),
            device=device.name,
            device_uuid=device.uuid,
            peak_memory_bytes=max(device.peak_memory_bytes(), 0),
            reserved_memory_bytes=device.reserved_memory_bytes(),
            model_states=held,
            step_seconds_mean=step_seconds_mean(windows),
        )
        return cls(row, os.cpu_count(), torch.get_num_threads(), readings)


@dataclass(frozen=True)
class OverheadSeconds:
    """Seconds beside the measurement. None: the trial is not compiled, its step not taken apart."""

    startup_seconds: float
    compile_seconds: float | None
    warmup_seconds: float
    parts_seconds: float | None = None


@dataclass(frozen=True)
class Observations:
    """What rank 0 saw of the trial as a whole."""

    windows: Sequence[Window]
    epochs: Sequence[EpochRow]
    loss_history: Sequence[float]
    images_per_epoch: int
    flops_per_image: float
    tensor_sizes: TensorSizes
    overhead: OverheadSeconds
    backend: str
    deepspeed_config: dict[str, Any]
    taken_apart: TakenApart | None = None
    links: Sequence[LinkRow] = ()
    graphs_while_measured: int = 0  # made by torch.compile in the middle of it, which its shapes should rule out


def build_result(config: TrialConfig, ranks: Sequence[RankReport], seen: Observations) -> TrialResult:
    """The result of a trial.

    Raises:
        LaunchError: two ranks trained on one GPU.
    """
    _refuse_shared_devices(ranks)
    overhead, apart = seen.overhead, seen.taken_apart
    timing = summarise(
        config.train_batch_size, seen.windows, config.measurement, warmup_seconds=overhead.warmup_seconds
    )
    history, history_note = _finite_part(seen.loss_history)
    notes, flags = [*timing.notes, *([history_note] if history_note else [])], list(timing.flags)
    if timing.skipped_steps:
        flags.append("skipped_steps")
        notes.append(f"{timing.skipped_steps} of {timing.measured_steps} measured steps were skipped for an overflow")
    if seen.graphs_while_measured:
        notes.append(f"torch.compile made {seen.graphs_while_measured} more graphs while the steps were timed")
    if apart is not None:
        notes.extend(apart.notes)
        if _is_negative(apart.parts.communication):
            flags.append("negative_communication")
            notes.append("steps without the exchange took longer than steps with it: other work disturbed them")
    verdict = judge([report.readings for report in ranks if report.readings is not None], timing.measured_steps)
    return TrialResult(
        metrics=_metrics(config, ranks, seen, timing, None if history_note else _tail_mean(history)),
        quality=Quality(state=timing.state, flags=[*flags, *verdict.flags], notes=[*notes, *verdict.notes]),
        overhead=TrialOverhead(
            startup_seconds=overhead.startup_seconds,
            compile_seconds=overhead.compile_seconds,
            warmup_seconds=overhead.warmup_seconds + timing.truncated_seconds,
            measure_seconds=timing.measured_seconds,
            parts_seconds=overhead.parts_seconds,
        ),
        hardware=_hardware(ranks, seen.backend),
        ranks=_rank_rows(ranks, apart),
        telemetry=verdict.telemetry,
        parts=None if apart is None else apart.parts,
        links=list(seen.links),
        epochs=list(seen.epochs),
        loss_history=history,
        deepspeed_config=seen.deepspeed_config,
        versions=_versions(),
    )


def _metrics(
    config: TrialConfig,
    ranks: Sequence[RankReport],
    seen: Observations,
    timing: TimingSummary,
    last_loss: float | None,
) -> Metrics:
    rate, flops, interval = timing.images_per_second, seen.flops_per_image, timing.interval
    peaks = [dense_peak(report.row.device, config.precision) for report in ranks]
    # Over unlike devices the denominator is the sum of their peaks; one unknown makes it unknown.
    known = [peak for peak in peaks if peak is not None]
    all_known = len(known) == len(peaks)
    mean_peak = fmean(peak.flops_per_second for peak in known) if all_known else None
    held = [report.row.model_states.total_bytes for report in ranks if report.row.model_states is not None]
    epoch_seconds = [row.epoch_seconds for row in seen.epochs]
    last = seen.epochs[-1] if seen.epochs else None
    return Metrics(
        images_per_second=rate,
        images_per_second_per_worker=rate / config.world_size,
        step_seconds_mean=timing.step_seconds_mean,
        step_seconds_ci95_low=timing.step_seconds_ci95_low,
        step_seconds_ci95_high=timing.step_seconds_ci95_high,
        interval_kind=None if interval is None else "within_run",
        step_seconds_noise_half_width=None if interval is None else interval.noise_half_width,
        step_seconds_wander_half_width=None if interval is None else interval.wander_half_width,
        wander_source=None if interval is None else WANDER_SOURCE,
        correlation_steps=None if interval is None else interval.correlation_steps,
        step_seconds_p50=timing.step_seconds_p50,
        step_seconds_p95=timing.step_seconds_p95,
        measured_steps=timing.measured_steps,
        truncated_steps=timing.truncated_steps,
        skipped_steps=timing.skipped_steps,
        epoch_seconds=fmean(epoch_seconds) if epoch_seconds else seen.images_per_epoch / rate,
        epoch_seconds_source="measured" if epoch_seconds else "derived",
        epoch_seconds_without_first=fmean(epoch_seconds[1:]) if len(epoch_seconds) > 1 else None,
        images_seen=sum(row.images_seen for row in seen.epochs) + timing.measured_steps * config.train_batch_size,
        **({} if seen.taken_apart is None else _part_metrics(seen.taken_apart.parts)),
        peak_memory_bytes=max(report.row.peak_memory_bytes for report in ranks),
        model_state_bytes=max(held, default=None),
        estimated_model_state_bytes=model_states(config, seen.tensor_sizes).total_bytes,
        forward_flops_per_image=flops,
        achieved_flops_per_second=achieved_flops_per_second(flops, rate),
        peak_flops_per_device=mean_peak,
        peak_flops_source="; ".join(dict.fromkeys(peak.source for peak in known)) if all_known else None,
        mfu=model_flops_utilisation(flops, rate, config.world_size, mean_peak),
        train_loss=last.train_loss if last else last_loss,
        train_accuracy=last.train_accuracy if last else None,
        eval_loss=last.eval_loss if last else None,
        eval_accuracy=last.eval_accuracy if last else None,
    )


def _part_metrics(parts: StepParts) -> dict[str, Any]:
    """The keys of `Metrics` that take a step apart."""
    metrics: dict[str, Any] = {
        "straggler_persistent_seconds": parts.straggler_persistent.value,
        "straggler_jitter_seconds": parts.straggler_jitter.value,
        "communication_source": parts.source,
        "communication_wire_bytes": parts.wire_bytes,
    }
    for name, measured in (
        ("compute_seconds", parts.compute),
        ("data_wait_seconds", parts.data_wait),
        ("straggler_wait_seconds", parts.straggler_wait),
        ("communication_seconds", parts.communication),
        ("communication_share", parts.communication_share),
    ):
        if measured is not None:
            metrics |= {
                name: measured.value,
                f"{name}_ci95_low": measured.ci95_low,
                f"{name}_ci95_high": measured.ci95_high,
            }
    return metrics


def _rank_rows(ranks: Sequence[RankReport], apart: TakenApart | None) -> list[RankRow]:
    if apart is None:
        return [report.row for report in ranks]
    return [
        report.row.model_copy(
            update={
                "compute_seconds": parts.compute.value,
                "data_wait_seconds": None if parts.data_wait is None else parts.data_wait.value,
                "straggler_wait_seconds": parts.straggler_wait.value,
                "communication_seconds": None if parts.communication is None else parts.communication.value,
                "parts": parts,
            }
        )
        for report, parts in zip(ranks, apart.estimates.ranks, strict=True)
    ]


def _is_negative(communication: Measured | None) -> bool:
    """Surely below zero, where there is an interval."""
    if communication is None:
        return False
    return (communication.value if communication.ci95_high is None else communication.ci95_high) < 0


def _hardware(ranks: Sequence[RankReport], backend: str) -> Hardware:
    """The fingerprint leaves out how many workers and nodes there are: that is where a series' points differ."""
    kinds = sorted({(report.row.device, report.cpu_count or 0, report.threads) for report in ranks})
    return Hardware(
        devices=[report.row.device for report in ranks],
        nodes=len({(report.row.node, report.row.node_ip) for report in ranks}),
        backend=backend,
        fingerprint=hashlib.sha256(json.dumps([kinds, backend]).encode()).hexdigest()[:16],
        num_threads=ranks[0].threads,
    )


def _refuse_shared_devices(ranks: Sequence[RankReport]) -> None:
    uuids = Counter(report.row.device_uuid for report in ranks if report.row.device_uuid is not None)
    for uuid, count in uuids.items():
        if count > 1:
            sharing = [report.row.rank for report in ranks if report.row.device_uuid == uuid]
            raise LaunchError(f"ranks {sharing} trained on one GPU ({uuid}): the timing means nothing")


def _finite_part(history: Sequence[float]) -> tuple[list[float], str | None]:
    for step, loss in enumerate(history):
        if not abs(loss) < float("inf"):
            return list(history[:step]), f"the loss was not finite from step {step + 1} on: it is not reported"
    return list(history), None


def _tail_mean(history: Sequence[float]) -> float | None:
    return fmean(history[-_LAST_STEPS_FOR_LOSS:]) if history else None


def _versions() -> dict[str, str]:
    versions = {**installed_versions(), "vitscale_platform": f"{sys.platform} {platform.machine()}"}
    if torch.version.cuda is not None and torch.cuda.is_available():
        versions["cuda"] = torch.version.cuda
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return versions
