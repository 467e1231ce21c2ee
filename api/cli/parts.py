"""Where a step's time goes, as columns of a table: shares of the step, with the interval of what is exchanged."""

import math
from collections.abc import Sequence
from typing import Final

from service.views import ResultRow, RowMetrics

NOTE: Final = "Shares of a step: computing, waiting for data, for the slowest, exposed communication (±95 %)."
_NONE = "-"
_COLUMNS: Final[dict[str, str]] = {
    "com\N{SOFT HYPHEN}\npute": "compute_seconds",
    "data": "data_wait_seconds",
    "wait": "straggler_wait_seconds",
    "comm.": "communication_seconds",
}


def part_columns(rows: Sequence[ResultRow]) -> list[str]:
    """The headers of the parts that any row has; none where no step was taken apart."""
    return [header for header, key in _COLUMNS.items() if any(getattr(row.metrics, key) is not None for row in rows)]


def part_cell(row: ResultRow, header: str) -> str:
    """ "62 %", "38 ±3 %" """
    key = _COLUMNS[header]
    seconds, step = getattr(row.metrics, key), _step_of_parts(row.metrics)
    if seconds is None or step is None:
        return _NONE
    return f"{_percent(seconds / step)}{_margin(row.metrics) if key == 'communication_seconds' else ''} %"


def _step_of_parts(metrics: RowMetrics) -> float | None:
    """The parts add up to the step of the pass that took it apart; those of imported rows are of their own step."""
    if metrics.communication_source is None:
        return metrics.step_seconds_mean
    step = sum(getattr(metrics, key) or 0.0 for key in _COLUMNS.values())
    return step if step > 0 else None


def _margin(metrics: RowMetrics) -> str:
    """Of the share: the farther end of its interval, rounded up, as an interval need not be symmetric."""
    share, low, high = (
        metrics.communication_share,
        metrics.communication_share_ci95_low,
        metrics.communication_share_ci95_high,
    )
    if share is None or low is None or high is None:
        return ""
    return f" ±{math.ceil(100 * max(high - share, share - low))}"


def _percent(share: float) -> str:
    """Whole, and never "-0"."""
    return str(round(100 * share))
