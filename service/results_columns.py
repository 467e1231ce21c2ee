"""The columns of results rows as a table, for CSV and Parquet alike: names, values and types, in this order:

trial, repeat, attempt, state, reason
every parameter under its own name (`service.spec.PARAMETER_NAMES`)
every metric under its own name
quality_state, quality_flags, quality_notes
queue_seconds, startup_seconds, compile_seconds, warmup_seconds, measure_seconds, parts_seconds, total_seconds
devices, nodes, backend, fingerprint, num_threads
between_runs_runs, between_runs_images_per_second, ... (the point's runs together, where there are repeats)
"""

from types import UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from service.analysis.repeats import BetweenRuns
from service.spec import PARAMETER_NAMES
from service.views import Overhead, ResultRow, RowHardware, RowMetrics, RowQuality
from trainers.config import TrialConfig

_HEAD = ("trial", "repeat", "attempt", "state", "reason")
_BETWEEN_RUNS = tuple(name for name in BetweenRuns.model_fields if name != "interval_kind")


def _fields(model: type[BaseModel], names: tuple[str, ...] | None = None, prefix: str = "") -> dict[str, type]:
    return {prefix + name: _plain_type(model.model_fields[name].annotation) for name in names or model.model_fields}


def _plain_type(annotation: Any) -> type:
    """int, float, bool, str or list (of str), whatever the annotation allows beside null."""
    if get_origin(annotation) is Literal:
        return type(get_args(annotation)[0])
    if isinstance(annotation, UnionType):
        (annotation,) = (one for one in get_args(annotation) if one is not type(None))
        return _plain_type(annotation)
    plain = get_origin(annotation) or annotation
    return str if issubclass(plain, str) else plain


TYPES: dict[str, type] = {
    **_fields(ResultRow, _HEAD),
    # A placement is a trial's own affair: the worker's configuration has all other parameters.
    **{name: str if name == "placement" else _fields(TrialConfig, (name,))[name] for name in PARAMETER_NAMES},
    **_fields(RowMetrics),
    **_fields(RowQuality, prefix="quality_"),
    **_fields(Overhead),
    **_fields(RowHardware),
    **_fields(BetweenRuns, _BETWEEN_RUNS, "between_runs_"),
}
COLUMNS: tuple[str, ...] = tuple(TYPES)


def values(row: ResultRow) -> list[Any]:
    """The row's value in each column."""
    return [
        row.trial,
        row.repeat,
        row.attempt,
        row.state.value,
        None if row.reason is None else row.reason.value,
        *(row.parameters.get(name) for name in PARAMETER_NAMES),
        *(getattr(row.metrics, name) for name in RowMetrics.model_fields),
        *(getattr(row.quality, name) for name in RowQuality.model_fields),
        *(getattr(row.overhead, name) for name in Overhead.model_fields),
        *(getattr(row.hardware, name) for name in RowHardware.model_fields),
        *(None if row.between_runs is None else getattr(row.between_runs, name) for name in _BETWEEN_RUNS),
    ]
