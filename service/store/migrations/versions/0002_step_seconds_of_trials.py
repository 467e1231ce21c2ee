"""A trial's mean step seconds in a column of its own: repeats are compared by it."""

import json
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TRIALS = sa.table(
    "trials",
    sa.column("id", sa.BigInteger()),
    sa.column("outcome_json", sa.Text()),
    sa.column("step_seconds_mean", sa.Float()),
)


def upgrade() -> None:
    op.add_column("trials", sa.Column("step_seconds_mean", sa.Float(), nullable=True))
    connection = op.get_bind()
    stored = connection.execute(
        sa.select(_TRIALS.c.id, _TRIALS.c.outcome_json).where(_TRIALS.c.outcome_json.is_not(None))
    )
    for row_id, outcome in stored.all():
        seconds = json.loads(f"{{{outcome}}}")["metrics"]["step_seconds_mean"]
        if seconds is not None:
            connection.execute(sa.update(_TRIALS).where(_TRIALS.c.id == row_id).values(step_seconds_mean=seconds))


def downgrade() -> None:
    op.drop_column("trials", "step_seconds_mean")
