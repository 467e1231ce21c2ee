"""Results rows as CSV after RFC 4180: one line per trial, fields quoted where needed, lines ended with CR LF.

Columns, in this order:

    trial, repeat, attempt, state, reason
    every parameter under its own name (`service.spec.PARAMETER_NAMES`)
    every metric under its own name
    quality_state, quality_flags, quality_notes
    queue_seconds, startup_seconds, compile_seconds, warmup_seconds, measure_seconds, total_seconds
    devices, nodes, backend, fingerprint, num_threads
    between_runs_runs, between_runs_images_per_second, ... (the point's runs together, where there are repeats)

What is null is an empty field. Booleans are true and false; several values in one field are joined with "; ".
"""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO

from service.analysis.repeats import BetweenRuns
from service.spec import PARAMETER_NAMES
from service.views import Overhead, ResultRow, RowHardware, RowMetrics

_QUALITY = ("quality_state", "quality_flags", "quality_notes")
_BETWEEN_RUNS = tuple(name for name in BetweenRuns.model_fields if name != "interval_kind")

COLUMNS: tuple[str, ...] = (
    "trial",
    "repeat",
    "attempt",
    "state",
    "reason",
    *PARAMETER_NAMES,
    *RowMetrics.model_fields,
    *_QUALITY,
    *Overhead.model_fields,
    *RowHardware.model_fields,
    *(f"between_runs_{name}" for name in _BETWEEN_RUNS),
)


def csv_text(rows: Iterable[ResultRow]) -> str:
    """The rows as CSV with a header, which is there without rows too."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows([_field(value) for value in _values(row)] for row in rows)
    return text.getvalue()


def _values(row: ResultRow) -> list[object]:
    return [
        row.trial,
        row.repeat,
        row.attempt,
        row.state.value,
        None if row.reason is None else row.reason.value,
        *(row.parameters.get(name) for name in PARAMETER_NAMES),
        *(getattr(row.metrics, name) for name in RowMetrics.model_fields),
        row.quality.state,
        row.quality.flags,
        row.quality.notes,
        *(getattr(row.overhead, name) for name in Overhead.model_fields),
        *(getattr(row.hardware, name) for name in RowHardware.model_fields),
        *(None if row.between_runs is None else getattr(row.between_runs, name) for name in _BETWEEN_RUNS),
    ]


def _field(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; ".join(str(item) for item in value)
    return str(value)
