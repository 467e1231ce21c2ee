"""Model states of workers, seconds of compiling, and the parameter `compile`, which every earlier trial had off."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TRIALS = sa.table(
    "trials",
    sa.column("id", sa.BigInteger()),
    sa.column("point_hash", sa.String()),
    sa.column("parameters_json", sa.Text()),
    sa.column("outcome_json", sa.Text()),
)
_NEW_METRICS = ("model_state_bytes", "estimated_model_state_bytes", "peak_flops_per_device", "peak_flops_source")


def upgrade() -> None:
    op.add_column("attempt_ranks", sa.Column("model_states", sa.JSON(), nullable=True))
    op.add_column("attempts", sa.Column("compile_seconds", sa.Float(), nullable=True))
    for row_id, parameters, outcome in _stored():
        if "compile" not in parameters:
            parameters = _placed_before("placement", parameters, "compile", False)
        if outcome is not None:
            for key in _NEW_METRICS:
                outcome["metrics"].setdefault(key, None)
            outcome["overhead"].setdefault("compile_seconds", None)
        _write(row_id, parameters, outcome)


def downgrade() -> None:
    for row_id, parameters, outcome in _stored():
        parameters.pop("compile", None)
        if outcome is not None:
            for key in _NEW_METRICS:
                outcome["metrics"].pop(key, None)
            outcome["overhead"].pop("compile_seconds", None)
        _write(row_id, parameters, outcome)
    op.drop_column("attempts", "compile_seconds")
    op.drop_column("attempt_ranks", "model_states")


def _stored() -> list[tuple[int, dict[str, Any], dict[str, Any] | None]]:
    columns = (_TRIALS.c.id, _TRIALS.c.parameters_json, _TRIALS.c.outcome_json)
    return [
        (row_id, json.loads(parameters), None if outcome is None else json.loads(f"{{{outcome}}}"))
        for row_id, parameters, outcome in op.get_bind().execute(sa.select(*columns)).all()
    ]


def _write(row_id: int, parameters: dict[str, Any], outcome: dict[str, Any] | None) -> None:
    values = {
        "parameters_json": _compact(parameters),
        # The point's identity, as the planner makes it: SHA-256 of its parameters with sorted keys.
        "point_hash": hashlib.sha256(_compact(parameters, sort_keys=True).encode()).hexdigest(),
        # An outcome is kept without its braces.
        "outcome_json": None if outcome is None else _compact(outcome)[1:-1],
    }
    op.get_bind().execute(sa.update(_TRIALS).where(_TRIALS.c.id == row_id).values(values))


def _compact(value: dict[str, Any], *, sort_keys: bool = False) -> str:
    return json.dumps(value, sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=False)


def _placed_before(place: str, parameters: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    placed: dict[str, Any] = {}
    for name, given in parameters.items():
        if name == place:
            placed[key] = value
        placed[name] = given
    return {**placed, key: value} if key not in placed else placed
