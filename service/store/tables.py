"""The tables. Whatever is shown often is a column with an index; what is only passed on is JSON.

`trials.parameters_json` and `trials.outcome_json` are the parts of a results row as finished JSON text, so that a page
of results is put together without parsing anything (see `result_text`).
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

# Named constraints, so that a later migration can change them on every database.
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

# SQLite counts rows by itself in INTEGER columns only.
RowId = BigInteger().with_variant(Integer(), "sqlite")


class UtcDateTime(TypeDecorator[datetime]):
    """Timezone-aware in and out; kept in UTC. SQLite has no time zones, so it gets the UTC wall time."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING_CONVENTION)


class Study(Base):
    __tablename__ = "studies"
    __table_args__ = (
        Index("ix_studies_created_at_id", "created_at", "id"),
        Index("ix_studies_status_queued_at", "status", "queued_at"),
    )

    id: Mapped[str] = mapped_column(String(12), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    name_folded: Mapped[str] = mapped_column(Text)  # casefolded, to search without regard to case on every database
    description: Mapped[str] = mapped_column(Text)
    tags: Mapped[list[str]] = mapped_column(JSON)  # as given; study_tags is what is searched
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)  # of a planned study; an imported one says {"imported": true}
    extensions: Mapped[list[dict[str, Any]]] = mapped_column(
        JSON, default=list
    )  # the specs that added points, in order
    status: Mapped[str] = mapped_column(String(16))
    error: Mapped[str | None] = mapped_column(Text)
    notes: Mapped[list[str]] = mapped_column(JSON)

    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    queued_at: Mapped[datetime] = mapped_column(UtcDateTime)  # of the last time: the order of the queue
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    # The current attempt: one Ray job.
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    attempt_started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    attempts_without_progress: Mapped[int] = mapped_column(Integer, default=0)
    ray_job_id: Mapped[str | None] = mapped_column(Text)
    ray_dashboard_url: Mapped[str | None] = mapped_column(Text)
    log_position: Mapped[int] = mapped_column(BigInteger, default=0)  # the next line to read of its log
    last_seq: Mapped[int] = mapped_column(BigInteger, default=0)  # of its last applied event
    finished_event: Mapped[bool] = mapped_column(default=False)  # study_finished was seen
    finished_cancelled: Mapped[bool] = mapped_column(default=False)  # ... and what it said
    finished_error: Mapped[str | None] = mapped_column(Text)

    num_log_lines: Mapped[int] = mapped_column(Integer, default=0)  # kept, over all attempts


class StudyTag(Base):
    __tablename__ = "study_tags"

    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"), primary_key=True)
    tag: Mapped[str] = mapped_column(Text, primary_key=True, index=True)


class Trial(Base):
    __tablename__ = "trials"
    __table_args__ = (
        UniqueConstraint("study_id", "number"),
        UniqueConstraint("study_id", "point_hash", "repeat"),
        # Counts and the mean of the seconds come from this index alone; pages of one state walk along it.
        Index("ix_trials_study_id_state", "study_id", "state", "number", "total_seconds"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    number: Mapped[int] = mapped_column(Integer)  # from 1, in product order
    repeat: Mapped[int] = mapped_column(Integer)  # from 0
    run_order: Mapped[int] = mapped_column(Integer)  # the place in the order of starting
    point_hash: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))
    attempt: Mapped[int] = mapped_column(Integer, default=0)  # the last one
    total_seconds: Mapped[float | None] = mapped_column(Float)  # of the last attempt, where it ended by itself
    step_seconds_mean: Mapped[float | None] = mapped_column(Float)  # as in `outcome_json`: repeats are compared by it
    reason: Mapped[str | None] = mapped_column(String(32))
    # Ended by us because its job had gone, not by a report: such a trial never finished, and resume takes it up.
    interrupted: Mapped[bool] = mapped_column(default=False)
    skip_reason: Mapped[str | None] = mapped_column(Text)
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))  # ErrorCause of the last attempt
    placement: Mapped[dict[str, Any]] = mapped_column(JSON)
    config: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))  # null: skipped or imported
    parameters_json: Mapped[str] = mapped_column(Text)
    outcome_json: Mapped[str | None] = mapped_column(Text)  # null until an attempt ended by itself


class Attempt(Base):
    """One run of a trial."""

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("trial_id", "number"),
        Index("ix_attempts_study_id_state", "study_id", "state"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"))
    number: Mapped[int] = mapped_column(Integer)  # from 1
    study_attempt: Mapped[int] = mapped_column(Integer)  # 0: imported, no job ran it
    state: Mapped[str] = mapped_column(String(16))  # running | succeeded | failed | cancelled
    reason: Mapped[str | None] = mapped_column(String(32))
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    # The latest progress.
    phase: Mapped[str | None] = mapped_column(String(16))
    done: Mapped[int] = mapped_column(BigInteger, default=0)
    total: Mapped[int | None] = mapped_column(BigInteger)
    images_per_second: Mapped[float | None] = mapped_column(Float)
    worker_pids: Mapped[list[int]] = mapped_column(JSON, default=list)

    queue_seconds: Mapped[float | None] = mapped_column(Float)
    startup_seconds: Mapped[float | None] = mapped_column(Float)
    compile_seconds: Mapped[float | None] = mapped_column(Float)
    warmup_seconds: Mapped[float | None] = mapped_column(Float)
    measure_seconds: Mapped[float | None] = mapped_column(Float)
    parts_seconds: Mapped[float | None] = mapped_column(Float)
    total_seconds: Mapped[float | None] = mapped_column(Float)

    # The report, with ranks and epochs in tables of their own.
    result: Mapped[dict[str, Any] | None] = mapped_column(
        JSON(none_as_null=True)
    )  # metrics, quality, hardware, telemetry, parts, links
    deepspeed_config: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    versions: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    loss_history: Mapped[list[float]] = mapped_column(JSON, default=list)


class AttemptRank(Base):
    """What one worker reported (`trainers.result.RankRow`); of an imported run what is known of it."""

    __tablename__ = "attempt_ranks"

    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[Attempt] = relationship(lazy="raise")  # to write together with it
    rank: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    local_rank: Mapped[int | None] = mapped_column(Integer)
    node: Mapped[str | None] = mapped_column(Text)
    node_ip: Mapped[str | None] = mapped_column(Text)
    pid: Mapped[int | None] = mapped_column(BigInteger)
    device: Mapped[str | None] = mapped_column(Text)
    device_uuid: Mapped[str | None] = mapped_column(Text)
    peak_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    reserved_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    model_states: Mapped[dict[str, int] | None] = mapped_column(JSON(none_as_null=True))
    step_seconds_mean: Mapped[float | None] = mapped_column(Float)
    epoch_seconds: Mapped[float | None] = mapped_column(Float)  # mean over its epochs; of imported runs only
    compute_seconds: Mapped[float | None] = mapped_column(Float)
    data_wait_seconds: Mapped[float | None] = mapped_column(Float)
    straggler_wait_seconds: Mapped[float | None] = mapped_column(Float)
    communication_seconds: Mapped[float | None] = mapped_column(Float)
    parts: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))  # RankParts


class AttemptEpoch(Base):
    """One whole epoch (`trainers.result.EpochRow`); of an imported run what is known of it."""

    __tablename__ = "attempt_epochs"

    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[Attempt] = relationship(lazy="raise")  # to write together with it
    epoch: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    epoch_seconds: Mapped[float] = mapped_column(Float)
    steps: Mapped[int | None] = mapped_column(BigInteger)
    images_seen: Mapped[int | None] = mapped_column(BigInteger)
    train_loss: Mapped[float | None] = mapped_column(Float)
    train_accuracy: Mapped[float | None] = mapped_column(Float)
    eval_loss: Mapped[float | None] = mapped_column(Float)
    eval_accuracy: Mapped[float | None] = mapped_column(Float)


class StoredEvent(Base):
    """An applied event without its result. That is on the attempt, and so is the latest progress, which is not here."""

    __tablename__ = "events"
    __table_args__ = (UniqueConstraint("study_id", "study_attempt", "seq"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    study_attempt: Mapped[int] = mapped_column(Integer)
    seq: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    type: Mapped[str] = mapped_column(String(32))
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)


class StoredLogLine(Base):
    __tablename__ = "log_lines"
    __table_args__ = (
        UniqueConstraint("study_id", "study_attempt", "position"),
        Index("ix_log_lines_study_id_trial_number", "study_id", "trial_number"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    study_attempt: Mapped[int] = mapped_column(Integer)
    position: Mapped[int] = mapped_column(BigInteger)  # counts lines from 0 within that attempt's log
    trial_number: Mapped[int | None] = mapped_column(Integer)  # null: the study's own
    text: Mapped[str] = mapped_column(Text)


class IdempotencyKey(Base):
    __tablename__ = "idempotency_keys"

    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    body_digest: Mapped[str] = mapped_column(String(128))
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
