"""Initial schema."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("name_folded", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("attempt_started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts_without_progress", sa.Integer(), nullable=False),
        sa.Column("ray_job_id", sa.Text(), nullable=True),
        sa.Column("ray_dashboard_url", sa.Text(), nullable=True),
        sa.Column("log_position", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("finished_event", sa.Boolean(), nullable=False),
        sa.Column("finished_cancelled", sa.Boolean(), nullable=False),
        sa.Column("finished_error", sa.Text(), nullable=True),
        sa.Column("num_log_lines", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
    )
    op.create_index("ix_studies_created_at_id", "studies", ["created_at", "id"], unique=False)
    op.create_index("ix_studies_status_queued_at", "studies", ["status", "queued_at"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("study_id", sa.String(length=12), nullable=False),
        sa.Column("study_attempt", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_events_study_id_studies"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sa.UniqueConstraint("study_id", "study_attempt", "seq", name=op.f("uq_events_study_id_study_attempt_seq")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_digest", sa.String(length=128), nullable=False),
        sa.Column("study_id", sa.String(length=12), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_idempotency_keys_study_id_studies"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_study_id"), "idempotency_keys", ["study_id"], unique=False)
    op.create_table(
        "log_lines",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("study_id", sa.String(length=12), nullable=False),
        sa.Column("study_attempt", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("trial_number", sa.Integer(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_log_lines_study_id_studies"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_lines")),
        sa.UniqueConstraint(
            "study_id", "study_attempt", "position", name=op.f("uq_log_lines_study_id_study_attempt_position")
        ),
    )
    op.create_index("ix_log_lines_study_id_trial_number", "log_lines", ["study_id", "trial_number"], unique=False)
    op.create_table(
        "study_tags",
        sa.Column("study_id", sa.String(length=12), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_study_tags_study_id_studies"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("study_id", "tag", name=op.f("pk_study_tags")),
    )
    op.create_index(op.f("ix_study_tags_tag"), "study_tags", ["tag"], unique=False)
    op.create_table(
        "trials",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("study_id", sa.String(length=12), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("run_order", sa.Integer(), nullable=False),
        sa.Column("point_hash", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("total_seconds", sa.Float(), nullable=True),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("interrupted", sa.Boolean(), nullable=False),
        sa.Column("skip_reason", sa.Text(), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("placement", sa.JSON(), nullable=False),
        sa.Column("config", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("parameters_json", sa.Text(), nullable=False),
        sa.Column("outcome_json", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_trials_study_id_studies"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        sa.UniqueConstraint("study_id", "number", name=op.f("uq_trials_study_id_number")),
        sa.UniqueConstraint("study_id", "point_hash", "repeat", name=op.f("uq_trials_study_id_point_hash_repeat")),
    )
    op.create_index(
        "ix_trials_study_id_state", "trials", ["study_id", "state", "number", "total_seconds"], unique=False
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("study_id", sa.String(length=12), nullable=False),
        sa.Column("trial_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("study_attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("phase", sa.String(length=16), nullable=True),
        sa.Column("done", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("images_per_second", sa.Float(), nullable=True),
        sa.Column("worker_pids", sa.JSON(), nullable=False),
        sa.Column("queue_seconds", sa.Float(), nullable=True),
        sa.Column("startup_seconds", sa.Float(), nullable=True),
        sa.Column("warmup_seconds", sa.Float(), nullable=True),
        sa.Column("measure_seconds", sa.Float(), nullable=True),
        sa.Column("total_seconds", sa.Float(), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("deepspeed_config", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("versions", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("loss_history", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_attempts_study_id_studies"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_attempts_trial_id_trials"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("trial_id", "number", name=op.f("uq_attempts_trial_id_number")),
    )
    op.create_index("ix_attempts_study_id_state", "attempts", ["study_id", "state"], unique=False)
    op.create_table(
        "attempt_epochs",
        sa.Column("attempt_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch_seconds", sa.Float(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("images_seen", sa.BigInteger(), nullable=False),
        sa.Column("train_loss", sa.Float(), nullable=True),
        sa.Column("train_accuracy", sa.Float(), nullable=False),
        sa.Column("eval_loss", sa.Float(), nullable=True),
        sa.Column("eval_accuracy", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_attempt_epochs_attempt_id_attempts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("attempt_id", "epoch", name=op.f("pk_attempt_epochs")),
    )
    op.create_table(
        "attempt_ranks",
        sa.Column("attempt_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("local_rank", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("node_ip", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("device_uuid", sa.Text(), nullable=True),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reserved_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("step_seconds_mean", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_attempt_ranks_attempt_id_attempts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("attempt_id", "rank", name=op.f("pk_attempt_ranks")),
    )


def downgrade() -> None:
    op.drop_table("attempt_ranks")
    op.drop_table("attempt_epochs")
    op.drop_index("ix_attempts_study_id_state", table_name="attempts")
    op.drop_table("attempts")
    op.drop_index("ix_trials_study_id_state", table_name="trials")
    op.drop_table("trials")
    op.drop_index(op.f("ix_study_tags_tag"), table_name="study_tags")
    op.drop_table("study_tags")
    op.drop_index("ix_log_lines_study_id_trial_number", table_name="log_lines")
    op.drop_table("log_lines")
    op.drop_index(op.f("ix_idempotency_keys_study_id"), table_name="idempotency_keys")
    op.drop_table("idempotency_keys")
    op.drop_table("events")
    op.drop_index("ix_studies_status_queued_at", table_name="studies")
    op.drop_index("ix_studies_created_at_id", table_name="studies")
    op.drop_table("studies")
