"""Results rows as JSON text, prepared when they are written.

A row is `{"trial": .., "repeat": .., "attempt": .., "state": .., "reason": .., "parameters": {..}, <outcome>,
"between_runs": {..} or null}`, where the outcome, `"metrics": {..}, "quality": {..}, "overhead": {..},
"hardware": {..}`, and the parameters are kept as text. So a page of 500 rows costs one query and one join of strings,
and one query more where there are repeats.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from service.analysis.repeats import between_runs
from service.events import ErrorCause
from service.ingest import clean_text
from service.states import Reason, TrialState
from service.store.null_reasons import null_notes
from service.views import Overhead, RowHardware, RowMetrics, RowQuality
from trainers.result import TrialResult


@dataclass(frozen=True)
class RowParts:
    """What a results row is made of, as it comes from the database."""

    number: int
    repeat: int
    attempt: int
    state: str
    reason: str | None
    parameters_json: str
    outcome_json: str | None
    between_runs_json: str = "null"  # of the point, where the study has repeats


def row_text(row: RowParts) -> str:
    """The row as one JSON object."""
    reason = "null" if row.reason is None else f'"{row.reason}"'  # states and reasons are plain words
    outcome = row.outcome_json or unmeasured_yet(row.state)
    return (
        f'{{"trial":{row.number},"repeat":{row.repeat},"attempt":{row.attempt},"state":"{row.state}","reason":{reason},'
        f'"parameters":{row.parameters_json},{outcome},"between_runs":{row.between_runs_json}}}'
    )


def between_runs_text(step_seconds_means: Sequence[float], parameters_json: str) -> str:
    """What the runs of one point say together. The same for each of its rows: make it once, they may be thousands."""
    if len(step_seconds_means) < 2:
        return "null"
    together = between_runs(step_seconds_means, json.loads(parameters_json)["train_batch_size"])
    return "null" if together is None else together.model_dump_json()


def rows_text(rows: Iterable[RowParts]) -> str:
    """The rows as one JSON array."""
    return "[" + ",".join(map(row_text, rows)) + "]"


@cache
def unmeasured_yet(state: str) -> str:
    """The outcome of a trial that has not been run to its end."""
    return unmeasured(f"Nothing is measured: the trial is {state}.", Overhead())


def unmeasured(note: str, overhead: Overhead) -> str:
    """The outcome of a trial without a result."""
    return _outcome(RowMetrics(), RowQuality(notes=[clean_text(note)]), overhead, RowHardware())


def failure_note(state: TrialState, reason: Reason | None, error: ErrorCause | None) -> str:
    """One sentence on why there is nothing: the state, the reason and the cause's first line."""
    return f"Nothing is measured: the trial {how_it_ended(state, reason, error)}."


def how_it_ended(state: TrialState, reason: Reason | None, error: ErrorCause | None) -> str:
    """The predicate of a sentence on a trial without a result."""
    why = "was cancelled" if state is TrialState.CANCELLED else state.value
    why = why if reason is None else f"{why} with {reason.value}"
    if error is None:
        return why
    message = (error.message.strip().splitlines() or [""])[0][:200]
    return f"{why} ({error.type}: {message})"


def measured(result: TrialResult, overhead: Overhead, *, is_taken_apart: bool) -> str:
    """The outcome of a trial with a result. `is_taken_apart`: it was asked to take its step apart."""
    metrics = RowMetrics.model_validate(result.metrics.model_dump())
    notes = [clean_text(note) for note in result.quality.notes]
    quality = RowQuality(
        state=result.quality.state,
        flags=[clean_text(flag) for flag in result.quality.flags],
        notes=notes + null_notes(result.metrics, notes, workers=len(result.ranks), is_taken_apart=is_taken_apart),
    )
    hardware = RowHardware(
        devices=[clean_text(device) for device in result.hardware.devices],
        nodes=result.hardware.nodes,
        backend=clean_text(result.hardware.backend),
        fingerprint=clean_text(result.hardware.fingerprint),
        num_threads=result.hardware.num_threads,
    )
    return _outcome(metrics, quality, overhead, hardware)


def measured_before(kept: Mapping[str, Any], overhead: Overhead, note: str, *, is_taken_apart: bool) -> str:
    """The outcome of a trial with an earlier attempt's result, as it was kept (clean JSON). `note`: why that one."""
    metrics, quality = RowMetrics.model_validate(kept["metrics"]), RowQuality.model_validate(kept["quality"])
    notes = [clean_text(note), *quality.notes]
    hardware = RowHardware.model_validate(kept["hardware"])
    reasons = null_notes(metrics, notes, workers=len(hardware.devices), is_taken_apart=is_taken_apart)
    return _outcome(metrics, quality.model_copy(update={"notes": notes + reasons}), overhead, hardware)


def imported(metrics: RowMetrics, hardware: RowHardware, notes: Sequence[str]) -> tuple[str, RowQuality]:
    """The outcome of a run that was measured elsewhere, and its quality: nobody knows whether it was steady."""
    told = " ".join(notes)
    unknown = [key for key, value in metrics.model_dump().items() if value is None and key not in told]
    reasons = [f"{', '.join(unknown)}: not in the imported rows"] if unknown else []
    quality = RowQuality(state="unassessed", notes=[clean_text(note) for note in notes] + reasons)
    return _outcome(metrics, quality, Overhead(), hardware), quality


def _outcome(metrics: RowMetrics, quality: RowQuality, overhead: Overhead, hardware: RowHardware) -> str:
    return (
        f'"metrics":{metrics.model_dump_json()},"quality":{quality.model_dump_json()},'
        f'"overhead":{overhead.model_dump_json()},"hardware":{hardware.model_dump_json()}'
    )
