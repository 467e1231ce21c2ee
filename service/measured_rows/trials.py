"""From runs to trials: what each measured, and which runs are repeats of one point."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from service.canonical import point_hash
from service.measured_rows.columns import PARAMETERS
from service.measured_rows.errors import Problems
from service.measured_rows.runs import Run
from service.measured_rows.table import Row


@dataclass(frozen=True)
class MeasuredRank:
    """One worker's means over the run. Seconds are per optimizer step but `epoch_seconds`."""

    rank: int
    device: str | None
    epoch_seconds: float | None
    step_seconds: float | None
    compute_seconds: float | None
    communication_seconds: float | None


@dataclass(frozen=True)
class MeasuredEpoch:
    """One whole epoch, from 1."""

    epoch: int
    epoch_seconds: float
    steps: int | None
    images_seen: int | None
    loss: float | None
    accuracy: float | None


@dataclass(frozen=True)
class MeasuredTrial:
    """One run as a trial. `parameters` are those that the text has columns for, null where this run's are empty."""

    run: str
    line: int  # of its first row
    number: int  # from 1
    repeat: int
    point_hash: str
    parameters: Mapping[str, Any]
    nodes: int | None
    devices: Sequence[str]  # by rank; empty where they are not known
    step_seconds: float | None
    images_per_second: float | None
    epoch_seconds: float | None
    epoch_seconds_source: Literal["measured", "derived"] | None
    epoch_seconds_without_first: float | None
    measured_steps: int | None
    compute_seconds: float | None
    communication_seconds: float | None
    loss: float | None  # of the last epoch
    accuracy: float | None
    ranks: Sequence[MeasuredRank]
    epochs: Sequence[MeasuredEpoch]
    notes: Sequence[str]


def to_trials(runs: Sequence[Run], columns: Iterable[str], problems: Problems) -> list[MeasuredTrial]:
    """One trial for each run, in the runs' order; runs with the same parameters are repeats of one point.

    Args:
        columns: of the text; batch columns that follow from others count as there.
    """
    derived = {key for run in runs for key in run.constants}
    names = [name for name in PARAMETERS if name in set(columns) | derived]
    firsts: dict[str, Run] = {}
    repeats: dict[str, int] = {}
    trials = []
    for number, run in enumerate(runs, start=1):
        parameters = {name: run.constants.get(name) for name in names}
        identity = point_hash(parameters)
        first = firsts.setdefault(identity, run)
        if (what := _other_hardware(first, run)) is not None:
            problems.add(
                run.line,
                what,
                f"run {run.name} has the parameters of run {first.name} (line {first.line}) and other hardware",
                "give each a name in the column placement",
            )
        repeats[identity] = repeats.get(identity, -1) + 1
        trials.append(_trial(run, number, repeats[identity], identity, parameters))
    return trials


def _other_hardware(first: Run, run: Run) -> Literal["nodes", "device"] | None:
    if first.constants.get("nodes") != run.constants.get("nodes"):
        return "nodes"
    return "device" if sorted(first.devices) != sorted(run.devices) else None


def _trial(run: Run, number: int, repeat: int, identity: str, parameters: Mapping[str, Any]) -> MeasuredTrial:
    batch, steps = int(run.constants["train_batch_size"]), run.steps_per_epoch
    by_epoch = _by_epoch(run)
    seconds = {epoch: _epoch_seconds(rows, steps) for epoch, rows in by_epoch.items()}
    step_seconds = _mean(_step_seconds(rows, steps) for rows in by_epoch.values())
    epoch_seconds = _mean(seconds.values())
    is_measured = any("epoch_seconds" in row.values for row in run.rows.values())
    epochs = [
        MeasuredEpoch(
            epoch=epoch,
            epoch_seconds=took,
            steps=steps,
            images_seen=None if steps is None else steps * batch,
            loss=_mean_of(by_epoch[epoch], "loss"),
            accuracy=_mean_of(by_epoch[epoch], "accuracy"),
        )
        for epoch, took in seconds.items()
        if epoch and took is not None
    ]
    last = by_epoch[max(by_epoch)]
    later = [epoch.epoch_seconds for epoch in epochs if epoch.epoch > 1]
    nodes = run.constants.get("nodes")
    return MeasuredTrial(
        run=run.name,
        line=run.line,
        number=number,
        repeat=repeat,
        point_hash=identity,
        parameters=parameters,
        nodes=None if nodes is None else int(nodes),
        devices=run.devices,
        step_seconds=step_seconds,
        images_per_second=None if step_seconds is None else batch / step_seconds,
        epoch_seconds=epoch_seconds,
        epoch_seconds_source=None if epoch_seconds is None else "measured" if is_measured else "derived",
        epoch_seconds_without_first=fmean(later) if later and len(later) < len(epochs) else None,
        measured_steps=None if steps is None or not epochs else steps * len(epochs),
        compute_seconds=_part(run, by_epoch.values(), "compute_seconds"),
        communication_seconds=_part(run, by_epoch.values(), "communication_seconds"),
        loss=_mean_of(last, "loss"),
        accuracy=_mean_of(last, "accuracy"),
        ranks=_ranks(run),
        epochs=epochs,
        notes=_notes(run, step_seconds, by_epoch.values()),
    )


Rows = Mapping[int | None, Row]  # of one epoch (or of the run as a whole), by rank


def _by_epoch(run: Run) -> dict[int, Rows]:
    """The rows of each epoch, in their order; 0 is the run as a whole."""
    found: dict[int, dict[int | None, Row]] = {}
    for place, row in run.rows.items():
        found.setdefault(place.epoch or 0, {})[place.rank] = row
    return dict(sorted(found.items()))


def _mean_of(rows: Rows, column: str) -> float | None:
    """The row without a rank says it, else the mean over the ranks that do."""
    whole = rows.get(None)
    if whole is not None and (value := whole.number(column)) is not None:
        return value
    return _mean(row.number(column) for rank, row in rows.items() if rank is not None)


def _epoch_seconds(rows: Rows, steps: int | None) -> float | None:
    if (seconds := _mean_of(rows, "epoch_seconds")) is not None:
        return seconds
    step = _mean_of(rows, "step_seconds")
    return None if step is None or steps is None else step * steps


def _step_seconds(rows: Rows, steps: int | None) -> float | None:
    if (seconds := _mean_of(rows, "step_seconds")) is not None:
        return seconds
    epoch = _mean_of(rows, "epoch_seconds")
    return None if epoch is None or steps is None else epoch / steps


def _part(run: Run, by_epoch: Iterable[Rows], column: str) -> float | None:
    """The mean over epochs of those that tell it of the whole: a row without a rank, or every rank."""
    values = []
    for rows in by_epoch:
        whole = rows.get(None)
        if whole is not None and column in whole.values:
            values.append(whole.number(column))
        elif all(rank in rows and column in rows[rank].values for rank in range(run.world_size)):
            values.append(_mean(rows[rank].number(column) for rank in range(run.world_size)))
    return _mean(values)


def _ranks(run: Run) -> list[MeasuredRank]:
    """Every rank of which anything is known apart: a device, or rows of its own."""
    by_rank: dict[int, list[Rows]] = {rank: [] for rank in run.rank_devices}
    for place, row in run.rows.items():
        if place.rank is not None:
            by_rank.setdefault(place.rank, []).append({place.rank: row})
    steps = run.steps_per_epoch
    shown = []
    for rank, own in sorted(by_rank.items()):
        shown.append(
            MeasuredRank(
                rank=rank,
                device=run.rank_devices.get(rank),
                epoch_seconds=_mean(_epoch_seconds(rows, steps) for rows in own),
                step_seconds=_mean(_step_seconds(rows, steps) for rows in own),
                compute_seconds=_mean(_mean_of(rows, "compute_seconds") for rows in own),
                communication_seconds=_mean(_mean_of(rows, "communication_seconds") for rows in own),
            )
        )
    return shown


def _notes(run: Run, step_seconds: float | None, by_epoch: Iterable[Rows]) -> list[str]:
    notes = [f"Measured elsewhere; imported from run {run.name}."]
    if step_seconds is None:
        notes.append("images_per_second, step_seconds_mean: neither step_seconds nor steps_per_epoch was given")
    elif any("step_seconds" in row.values for row in run.rows.values()):
        notes.append("images_per_second is train_batch_size / step_seconds")
    else:
        notes.append(
            "images_per_second is train_batch_size x steps_per_epoch / epoch_seconds: a partial last batch counts as a "
            "full one"
        )
    if run.assumed_accumulation:
        notes.append("gradient_accumulation_steps was not given and is taken to be 1")
    told = [{place.rank for place, row in run.rows.items() if place.rank is not None and part in row.values}
            for part in ("compute_seconds", "communication_seconds")]  # fmt: skip
    some = sorted(told[0] | told[1])
    if some and len(some) < run.world_size:
        names = ", ".join(map(str, some[:8])) + (", ..." if len(some) > 8 else "")
        notes.append(f"compute_seconds and communication_seconds are known of rank {names} only: see its rank rows")
    missing = [
        len(ranks)
        for rows in by_epoch
        if None not in rows and 0 < len(ranks := [rank for rank in rows if rank is not None]) < run.world_size
    ]
    if missing:
        notes.append(f"Some epochs are a mean over {min(missing)} of {run.world_size} ranks: the others have no row")
    return notes


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None
