"""Imported runs have rows of which not everything is known; the parts of a step per rank; what extended a study."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_RANK_MAY_BE_NULL: dict[str, sa.types.TypeEngine[Any]] = {
    "local_rank": sa.Integer(),
    "node": sa.Text(),
    "node_ip": sa.Text(),
    "pid": sa.BigInteger(),
    "device": sa.Text(),
    "peak_memory_bytes": sa.BigInteger(),
}
_EPOCH_MAY_BE_NULL: dict[str, sa.types.TypeEngine[Any]] = {
    "steps": sa.BigInteger(),
    "images_seen": sa.BigInteger(),
    "train_accuracy": sa.Float(),
}
_NEW_OF_RANK = ("epoch_seconds", "compute_seconds", "data_wait_seconds", "communication_seconds")


def upgrade() -> None:
    # SQLite cannot change a column: the table is made anew and its rows are copied.
    with op.batch_alter_table("attempt_ranks") as table:
        for name, kind in _RANK_MAY_BE_NULL.items():
            table.alter_column(name, existing_type=kind, nullable=True)
        for name in _NEW_OF_RANK:
            table.add_column(sa.Column(name, sa.Float(), nullable=True))
    with op.batch_alter_table("attempt_epochs") as table:
        for name, kind in _EPOCH_MAY_BE_NULL.items():
            table.alter_column(name, existing_type=kind, nullable=True)
    op.add_column("studies", sa.Column("extensions", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Studies that were imported are gone then: earlier versions cannot hold them."""
    op.execute("DELETE FROM studies WHERE id IN (SELECT study_id FROM attempts WHERE study_attempt = 0)")
    op.drop_column("studies", "extensions")  # not as a batch: dropping the old table would take all trials with it
    with op.batch_alter_table("attempt_epochs") as table:
        for name, kind in _EPOCH_MAY_BE_NULL.items():
            table.alter_column(name, existing_type=kind, nullable=False)
    with op.batch_alter_table("attempt_ranks") as table:
        for name in _NEW_OF_RANK:
            table.drop_column(name)
        for name, kind in _RANK_MAY_BE_NULL.items():
            table.alter_column(name, existing_type=kind, nullable=False)
