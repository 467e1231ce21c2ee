"""What is shown of studies, trials and results: which columns, in which units."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from api.cli.console import Grid, on_one_line, printable, screen, write
from api.cli.drawing import bar
from api.cli.parts import NOTE, part_cell, part_columns
from service.analysis.scaling import (
    ACCUMULATION,
    GLOBAL_BATCH,
    MICRO_BATCH,
    Hold,
    MeasuredPoint,
    RowScaling,
    ScalingSeries,
    derived_batch_keys,
    scaling_series,
)
from service.states import TrialState
from service.views import ResultRow, StudyView, TrialSummary

_NONE = "-"
_BAR_WIDTH = 6
_EFFICIENCY = "effi\N{SOFT HYPHEN}\nciency"
# Line breaks and soft hyphens are for narrow columns; `Grid` and `parameters_line` know them.
_LABELS = {
    "world_size": "world\nsize",
    MICRO_BATCH: "micro\nbatch",
    ACCUMULATION: "accumu\N{SOFT HYPHEN}\nlation",
    GLOBAL_BATCH: "global\nbatch",
    "zero_stage": "ZeRO",
    "precision": "preci\N{SOFT HYPHEN}\nsion",
    "image_size": "image\npx",
    "patch_size": "patch\npx",
    "dataset_fraction": "fraction\nof data",
    "activation_checkpointing": "check\N{SOFT HYPHEN}\npointing",
    "input_pipeline": "input",
    "compile": "com\N{SOFT HYPHEN}\npiled",
}
_LEADING = ("model", "dataset", "placement", "zero_stage", "precision", MICRO_BATCH, ACCUMULATION, "world_size")


def spec_section(study: StudyView, name: str) -> Mapping[str, Any]:
    section = study.spec.get(name)
    return section if isinstance(section, Mapping) else {}


def varied_keys(study: StudyView) -> list[str]:
    """The parameters that take several values in the specification and what extended it, in the order given."""
    values: dict[str, set[str]] = {}
    for spec in (study.spec, *study.extensions):
        for key, axis in (spec.get("parameters") or {}).items():
            if isinstance(axis, Mapping):
                values.setdefault(key, set()).update(map(repr, axis.get("values") or [axis.get("value")]))
    return [key for key, found in values.items() if len(found) > 1]


def differing_keys(parameters: Sequence[Mapping[str, Any]], left_out: frozenset[str] = frozenset()) -> list[str]:
    """The keys that do not have one and the same value throughout: the sweep's own first, then by name."""
    keys = {key for one in parameters for key in one} - left_out
    differ = {key for key in keys if len({repr(one.get(key)) for one in parameters}) > 1}
    return [key for key in _LEADING if key in differ] + sorted(differ - set(_LEADING))


def label(key: str) -> str:
    return _LABELS.get(key, key.replace("_", "\n"))


def parameters_line(parameters: Mapping[str, Any], keys: Sequence[str]) -> str:
    """ "world size 2, micro batch 16" """
    shown = [key for key in keys if key in parameters] or [key for key in _LEADING if key in parameters]
    return ", ".join(f"{on_one_line(label(key))} {shown_value(parameters[key])}" for key in shown)


def shown_value(value: object) -> str:
    if value is None:
        return _NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return printable(str(value))


# Results


def series_of(study: StudyView, rows: Sequence[ResultRow]) -> list[ScalingSeries]:
    """The rows' scaling, as the study's specification asks for it."""
    scaling = spec_section(study, "scaling")
    points = [
        MeasuredPoint(
            trial=row.trial,
            parameters=row.parameters,
            epoch_seconds=row.metrics.epoch_seconds,
            images_per_second=row.metrics.images_per_second,
            step_seconds_mean=row.metrics.step_seconds_mean,
            devices=row.hardware.devices,
        )
        for row in rows
        if row.state is not TrialState.SKIPPED and "world_size" in row.parameters
    ]
    return scaling_series(
        points,
        mode=scaling.get("mode") or "none",
        hold=scaling.get("hold") or "micro_batch",
        requested_batch_keys=_requested_batch_keys(study),
        baseline_world_size=scaling.get("baseline_world_size"),
    )


def write_results(study: StudyView, rows: Sequence[ResultRow], *, shown_state: TrialState | None = None) -> None:
    """One line per trial: what varies, throughput, step, epoch or parts, and against the baseline where world sizes
    differ.

    Args:
        rows: all of the study's, so that the baseline is among them.
        shown_state: only rows in this state are shown.
    """
    if not rows:
        write("no rows yet")
        return
    scaling = {row.trial: row for series in series_of(study, rows) for row in series.rows}
    hold: Hold = spec_section(study, "scaling").get("hold") or "micro_batch"
    # What follows from the other columns is left out: the table must fit 80 columns, and JSON and CSV have it.
    implied = derived_batch_keys(hold, _requested_batch_keys(study)) if hold == "micro_batch" else frozenset()
    keys = differing_keys([row.parameters for row in rows], implied)
    texts = {key for key in keys if any(isinstance(row.parameters.get(key), str) for row in rows)}
    shown = [row for row in rows if shown_state in {None, row.state}]
    columns = _columns(study, rows, keys, texts, scaling)
    if part_columns(rows) and all(row.state is TrialState.SUCCEEDED for row in shown):
        columns.pop()  # the state, which all have: the parts need the place
    grid = Grid(*(column.header for column in columns), numeric=[column.is_number for column in columns])
    for row in shown:
        is_failed = row.state is TrialState.FAILED
        grid.add(*(column.cell(row) for column in columns), style="red" if is_failed else None)
    grid.write()
    if any(row.between_runs for row in rows):
        write("")
        _write_points(rows, keys, texts)
    for note in _notes(study, rows, scaling):
        write(note)


@dataclass(frozen=True)
class _Column:
    header: str
    cell: Callable[[ResultRow], str]
    is_number: bool = True


def _columns(
    study: StudyView,
    rows: Sequence[ResultRow],
    keys: Sequence[str],
    texts: Collection[str],
    scaling: Mapping[int, RowScaling],
) -> list[_Column]:
    """From the trial's number to its state. Where a step was taken apart, its parts take the place of what says little
    more than the other columns: the bar, the epoch, the speed-up beside the efficiency."""
    parts = part_columns(rows)
    columns = [_Column("trial", lambda row: str(row.trial))]
    if any(row.repeat for row in rows):
        columns.append(_Column("repeat", lambda row: str(row.repeat)))
    columns += [_Column(label(key), partial(_parameter, key=key), key not in texts) for key in keys]
    columns.append(_Column("images/s", lambda row: number(row.metrics.images_per_second)))
    if screen().is_terminal and not parts:
        largest = max((row.metrics.images_per_second or 0.0 for row in rows), default=0.0)
        columns.append(_Column("", partial(_rate_bar, largest=largest), is_number=False))
    columns.append(_Column("step ms\n±95 %", _step))
    columns += [_Column(header, partial(part_cell, header=header)) for header in parts]
    if not parts and any(row.metrics.epoch_seconds is not None for row in rows):
        columns.append(_Column("epoch\ns", lambda row: number(row.metrics.epoch_seconds)))
    for header in _baseline_columns(study, rows):
        if not parts or "speed" not in header:
            columns.append(_Column(header, partial(_against_baseline, scaling=scaling, column=header)))
    return [*columns, _Column("state", _row_state, is_number=False)]


def _parameter(row: ResultRow, key: str) -> str:
    return shown_value(row.parameters.get(key))


def _rate_bar(row: ResultRow, largest: float) -> str:
    rate = row.metrics.images_per_second
    return bar(rate and rate / largest, _BAR_WIDTH)


def _against_baseline(row: ResultRow, scaling: Mapping[int, RowScaling], column: str) -> str:
    return _against(scaling.get(row.trial), column)


def _write_points(rows: Sequence[ResultRow], keys: Sequence[str], texts: Collection[str]) -> None:
    """One line per point with at least two runs: what they say together."""
    headers = [*map(label, keys), "runs", "images/s", "step ms\n±95 %", "spread"]
    grid = Grid(*headers, numeric=[key not in texts for key in keys] + [True] * 4)
    shown: set[str] = set()
    for row in rows:
        together, point = row.between_runs, repr(sorted(row.parameters.items()))
        if together is None or point in shown:
            continue
        shown.add(point)
        margin = together.step_seconds_ci95_high - together.step_seconds_mean
        grid.add(
            *(shown_value(row.parameters.get(key)) for key in keys),
            str(together.runs),
            number(together.images_per_second),
            f"{number(together.step_seconds_mean * 1e3)} ±{_margin(margin * 1e3)}",
            f"{together.spread:.1%}",
        )
    write("Runs of one point together (mean, interval between runs, largest less smallest):")
    grid.write()


def _baseline_columns(study: StudyView, rows: Sequence[ResultRow]) -> list[str]:
    if len({repr(row.parameters.get("world_size")) for row in rows}) < 2:
        return []
    mode = spec_section(study, "scaling").get("mode") or "none"
    return {"strong": ["speed-\nup", _EFFICIENCY], "weak": ["scaled\nspeed-\nup", _EFFICIENCY]}.get(
        mode, ["images/s\nper worker\nvs. baseline"]
    )


def _against(scaling: RowScaling | None, column: str) -> str:
    if scaling is None:
        return _NONE
    if "speed" in column:
        return _NONE if scaling.speedup is None else f"{scaling.speedup:.2f}"
    value = scaling.efficiency if column == _EFFICIENCY else scaling.throughput_efficiency
    return _NONE if value is None else f"{value:.2f}"


def _notes(study: StudyView, rows: Sequence[ResultRow], scaling: Mapping[int, RowScaling]) -> list[str]:
    notes = [NOTE] if part_columns(rows) else []
    flagged = [f"trial {row.trial}: {', '.join(row.quality.flags)}" for row in rows if row.quality.flags]
    notes += [f"Flagged: {'; '.join(flagged[:8])}{' ...' if len(flagged) > 8 else ''}"] if flagged else []
    unsteady = [str(row.trial) for row in rows if _is_measured(row) and row.quality.state != "steady"]
    if unsteady:
        shown = ", ".join(unsteady[:12]) + (" ..." if len(unsteady) > 12 else "")
        notes.append(f"Not known to be steady (measured too short, or drifting): trial {shown}.")
    reasons = {one.reason for one in scaling.values() if one.reason and one.reason != "the trial has no result"}
    if _baseline_columns(study, rows):
        notes += [f"Without speed-up: {reason}." for reason in sorted(reasons)]
    if any(series.mixed_hardware for series in series_of(study, rows)):
        notes.append("Mixed hardware: rows of one series ran on unlike devices; read their efficiency with care.")
    return notes


def _is_measured(row: ResultRow) -> bool:
    return row.metrics.images_per_second is not None


def _requested_batch_keys(study: StudyView) -> list[str]:
    axes = spec_section(study, "parameters")
    return [key for key in (MICRO_BATCH, ACCUMULATION, GLOBAL_BATCH) if axes.get(key) is not None]


def _step(row: ResultRow) -> str:
    metrics = row.metrics
    ends = metrics.step_seconds_ci95_low, metrics.step_seconds_ci95_high
    return with_interval(metrics.step_seconds_mean, *ends, times=1e3)


def with_interval(value: float | None, low: float | None, high: float | None, *, times: float) -> str:
    """ "100.0 ±1.0": `value` in a unit so many `times` smaller, with the farther end of its interval, so that it holds
    on both sides."""
    if value is None or low is None or high is None:
        return number(None if value is None else value * times)
    return f"{number(value * times)} ±{_margin(max(high - value, value - low) * times)}"


def _margin(value: float) -> str:
    """Two significant digits: of an error no more is known."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:#.2g}"


def _row_state(row: ResultRow) -> str:
    return str(row.reason) if row.reason else str(row.state)


def number(value: float | None) -> str:
    """Four significant digits, never in powers of ten for what a table holds."""
    if value is None:
        return _NONE
    if value == 0 or not 1e-3 <= abs(value) < 1e7:
        return f"{value:.3g}"
    whole_digits = len(str(int(abs(value))))
    return f"{value:.{max(0, 4 - whole_digits) if abs(value) >= 1 else 3}f}"


# Studies and trials


def write_studies(studies: Sequence[StudyView]) -> None:
    if not studies:
        write("no studies yet: vitscale submit preset:demo")
        return
    grid = Grid("id", "name", "status", "done", "failed", "created (UTC)", numeric=[False] * 3 + [True] * 2)
    for study in studies:
        grid.add(
            study.id,
            study.name,
            study.status,
            f"{study.progress.done}/{study.progress.total}",
            str(study.trial_counts.get(TrialState.FAILED, 0)),
            moment(study.created_at),
        )
    grid.write()


def write_study(study: StudyView) -> None:
    """One study, a line per fact."""
    counts = ", ".join(f"{count} {state}" for state, count in study.trial_counts.items() if count)
    facts = {
        "id": study.id,
        "name": study.name,
        "description": " ".join(study.description.split()),
        "tags": ", ".join(study.tags),
        "status": str(study.status),
        "error": study.error,
        "trials": counts or "none",
        "created": moment(study.created_at),
        "started": moment(study.started_at) if study.started_at else None,
        "finished": moment(study.finished_at) if study.finished_at else None,
        "Ray job": study.ray.job_id,
        "dashboard": study.ray.dashboard_url,
    }
    for name, value in facts.items():
        if value:
            write(f"{name + ':':<13} {printable(value)}")
    for running in study.progress.running:
        total = "" if running.total is None else f"/{running.total}"
        write(f"{'running:':<13} trial {running.trial}, {running.phase or 'starting'} {running.done}{total}")
    if study.progress.seconds_left is not None and not study.status.is_final:
        write(f"{'time left:':<13} about {duration(study.progress.seconds_left)}")
    for note in study.notes:
        write(f"{'note:':<13} {printable(note)}")


def write_failures(trials: Sequence[TrialSummary], keys: Sequence[str], limit: int = 5) -> None:
    """The root cause of each failed trial (the first few)."""
    failed = [trial for trial in trials if trial.state is TrialState.FAILED]
    for trial in failed[:limit]:
        cause = f"{trial.error.type}: {trial.error.message}" if trial.error else "no cause is known"
        where = f", rank {trial.error.rank}" if trial.error and trial.error.rank is not None else ""
        one_line = printable(" ".join(cause.split()))
        write(
            f"trial {trial.trial} ({parameters_line(trial.parameters, keys)}): {trial.reason}{where}: {one_line[:300]}"
        )
    if len(failed) > limit:
        write(f"... and {len(failed) - limit} more failed trials")


def moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def gibibytes(count: int) -> str:
    return number(count / 2**30)


def duration(seconds: float) -> str:
    """ "1 h 05 min", "3 min 20 s", "8 s" """
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
