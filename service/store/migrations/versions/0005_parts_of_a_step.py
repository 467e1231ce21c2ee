"""A step taken apart: its parts with their intervals in each row, and those of each rank."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TRIALS = sa.table(
    "trials", sa.column("id", sa.BigInteger()), sa.column("config", sa.JSON()), sa.column("outcome_json", sa.Text())
)
_ATTEMPTS = sa.table("attempts", sa.column("id", sa.BigInteger()), sa.column("result", sa.JSON()))
# Each with the key that it follows in a row.
_NEW_METRICS: dict[str, tuple[str, ...]] = {
    "compute_seconds": ("compute_seconds_ci95_low", "compute_seconds_ci95_high"),
    "data_wait_seconds": ("data_wait_seconds_ci95_low", "data_wait_seconds_ci95_high"),
    "straggler_wait_seconds": (
        "straggler_wait_seconds_ci95_low",
        "straggler_wait_seconds_ci95_high",
        "straggler_persistent_seconds",
        "straggler_jitter_seconds",
    ),
    "communication_seconds": (
        "communication_seconds_ci95_low",
        "communication_seconds_ci95_high",
        "communication_share",
        "communication_share_ci95_low",
        "communication_share_ci95_high",
        "communication_source",
        "communication_wire_bytes",
    ),
}
_NEW_KEYS = [key for keys in _NEW_METRICS.values() for key in keys]


def upgrade() -> None:
    op.add_column("attempt_ranks", sa.Column("straggler_wait_seconds", sa.Float(), nullable=True))
    op.add_column("attempt_ranks", sa.Column("parts", sa.JSON(), nullable=True))
    op.add_column("attempts", sa.Column("parts_seconds", sa.Float(), nullable=True))
    for row_id, outcome in _outcomes():
        _write_outcome(row_id, _with_parts(outcome))


def downgrade() -> None:
    for row_id, outcome in _outcomes():
        outcome["metrics"] = _without_parts(outcome["metrics"])
        outcome["overhead"].pop("parts_seconds", None)
        _write_outcome(row_id, outcome)
    # Earlier versions refuse keys that they do not know.
    connection = op.get_bind()
    for row_id, result in connection.execute(sa.select(_ATTEMPTS.c.id, _ATTEMPTS.c.result)).all():
        if result is not None:
            kept = {key: value for key, value in result.items() if key not in {"parts", "links"}}
            if "metrics" in kept:
                kept["metrics"] = _without_parts(kept["metrics"])
            connection.execute(sa.update(_ATTEMPTS).where(_ATTEMPTS.c.id == row_id).values(result=kept))
    for row_id, config in connection.execute(sa.select(_TRIALS.c.id, _TRIALS.c.config)).all():
        if config is not None and "communication" in config["measurement"]:
            measurement = {key: value for key, value in config["measurement"].items() if key != "communication"}
            changed = {**config, "measurement": measurement}
            connection.execute(sa.update(_TRIALS).where(_TRIALS.c.id == row_id).values(config=changed))
    op.drop_column("attempts", "parts_seconds")
    op.drop_column("attempt_ranks", "parts")
    op.drop_column("attempt_ranks", "straggler_wait_seconds")


def _outcomes() -> Iterator[tuple[int, dict[str, Any]]]:
    """An outcome is kept without its braces."""
    query = sa.select(_TRIALS.c.id, _TRIALS.c.outcome_json).where(_TRIALS.c.outcome_json.is_not(None))
    for row_id, outcome in op.get_bind().execute(query).all():
        yield row_id, json.loads(f"{{{outcome}}}")


def _write_outcome(row_id: int, outcome: dict[str, Any]) -> None:
    text = json.dumps(outcome, separators=(",", ":"), ensure_ascii=False)[1:-1]
    op.get_bind().execute(sa.update(_TRIALS).where(_TRIALS.c.id == row_id).values(outcome_json=text))


def _with_parts(outcome: dict[str, Any]) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for key, value in outcome["metrics"].items():
        metrics[key] = value
        for new in _NEW_METRICS.get(key, ()):
            metrics[new] = outcome["metrics"].get(new)
    quality = outcome["quality"]
    told = set(re.findall(r"\w+", " ".join(quality["notes"])))
    if metrics["images_per_second"] is not None and (untold := [key for key in _NEW_KEYS if key not in told]):
        note = f"{', '.join(untold)}: not known to the version that measured this"
        quality = {**quality, "notes": [*quality["notes"], note]}
    overhead = {**outcome["overhead"], "parts_seconds": None}
    return {**outcome, "metrics": metrics, "quality": quality, "overhead": overhead}


def _without_parts(metrics: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metrics.items() if key not in _NEW_KEYS}
