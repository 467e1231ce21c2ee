"""Reading and writing trials: what is planned, what came of it, and their logs."""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVarTuple

from sqlalchemy import Select, func, insert, or_, select, update
from sqlalchemy.orm import Session

from service.errors import NotFound
from service.events import ErrorCause
from service.states import Reason, TrialState
from service.store import cursors, result_text
from service.store.tables import Attempt, AttemptEpoch, AttemptRank, StoredLogLine, Trial
from service.views import (
    AttemptView,
    EpochView,
    LogLine,
    Overhead,
    RankView,
    RowMetrics,
    RowQuality,
    TrialSummary,
    TrialView,
)

if TYPE_CHECKING:
    from service.plan import PlannedPoint

_LARGEST_NUMBER = 2**31 - 1
Columns = TypeVarTuple("Columns")


def insert_trials(
    session: Session, study_id: str, points: Iterable["PlannedPoint"], order: Sequence[int], *, first_place: int = 0
) -> None:
    """The planned points as trials, pending or skipped.

    Args:
        order: trial numbers in the order of starting.
        first_place: of the first of them in the study's whole order.
    """
    places = {number: place for place, number in enumerate(order, start=first_place)}
    rows = [
        {
            "study_id": study_id,
            "number": point.number,
            "repeat": point.repeat,
            # Skipped points are in no order; behind all others they hurt nobody.
            "run_order": places.get(point.number, first_place + len(places) + point.number),
            "point_hash": point.point_hash,
            "state": str(point.state),
            "attempt": 0,
            "interrupted": False,
            "skip_reason": point.skip_reason,
            "placement": point.placement.model_dump(mode="json"),
            "config": None if point.config is None else point.config.model_dump(mode="json"),
            "parameters_json": json.dumps(point.parameters, separators=(",", ":"), allow_nan=False),
            "outcome_json": _skipped_outcome(point.skip_reason) if point.state == "skipped" else None,
        }
        for point in points
    ]
    session.execute(insert(Trial), rows)


def trial(session: Session, study_id: str, number: int) -> Trial:
    """Raises NotFound."""
    row = find_trial(session, study_id, number)
    if row is None:
        raise NotFound(f"Study {study_id} has no trial {number}")
    return row


def find_trial(session: Session, study_id: str, number: int) -> Trial | None:
    if not 1 <= number <= _LARGEST_NUMBER:
        return None
    return session.scalars(select(Trial).where(Trial.study_id == study_id, Trial.number == number)).one_or_none()


def count_trials(session: Session, study_id: str, state: TrialState | None = None) -> int:
    query = select(func.count()).select_from(Trial).where(Trial.study_id == study_id)
    return session.scalar(query if state is None else query.where(Trial.state == state)) or 0


def trial_states(session: Session, study_id: str) -> list[TrialState]:
    return [TrialState(state) for state in session.scalars(select(Trial.state).where(Trial.study_id == study_id))]


def pending_trials(session: Session, study_id: str) -> list[Trial]:
    """In the order in which they are to start."""
    query = select(Trial).where(Trial.study_id == study_id, Trial.state == TrialState.PENDING)
    return list(session.scalars(query.order_by(Trial.run_order)))


def requeue(session: Session, study_id: str, *, failed_too: bool) -> int:
    """Makes pending again what never finished, and with `failed_too` what failed. Returns how many are pending."""
    states = [TrialState.CANCELLED] + ([TrialState.FAILED] if failed_too else [])
    wanted = or_(Trial.state.in_(states), Trial.interrupted)
    session.execute(
        update(Trial)
        .where(Trial.study_id == study_id, wanted)
        .values(
            state=TrialState.PENDING,
            reason=None,
            error=None,
            outcome_json=None,
            total_seconds=None,
            step_seconds_mean=None,
            interrupted=False,
        )
    )
    return count_trials(session, study_id, TrialState.PENDING)


def known_points(session: Session, study_id: str) -> dict[tuple[str, int], int]:
    """The number of each trial of the study, by its point's hash and its repeat."""
    query = select(Trial.point_hash, Trial.repeat, Trial.number).where(Trial.study_id == study_id)
    return {(identity, repeat): number for identity, repeat, number in session.execute(query)}


def next_place(session: Session, study_id: str) -> int:
    """The first free place in the order of starting."""
    last = session.scalar(select(func.max(Trial.run_order)).where(Trial.study_id == study_id))
    return 0 if last is None else last + 1


def cancel_pending(session: Session, study_id: str) -> None:
    session.execute(
        update(Trial)
        .where(Trial.study_id == study_id, Trial.state == TrialState.PENDING)
        .values(state=TrialState.CANCELLED)
    )


def results_page(
    session: Session, study_id: str, *, has_repeats: bool, state: TrialState | None, limit: int, cursor: str | None
) -> tuple[list[result_text.RowParts], str | None]:
    """The parts of a page of results rows in the order of trial numbers, and the next page's cursor."""
    columns = select(
        Trial.number,
        Trial.repeat,
        Trial.attempt,
        Trial.state,
        Trial.reason,
        Trial.parameters_json,
        Trial.outcome_json,
        Trial.point_hash,
    )
    found = session.execute(_page_of(columns, study_id, state, limit, cursor)).all()
    more = len(found) > limit
    found = found[:limit]
    points = {row.point_hash: row.parameters_json for row in found} if has_repeats else {}
    together = {
        point: result_text.between_runs_text(seconds, points[point])
        for point, seconds in _runs_of(session, study_id, points.keys()).items()
    }
    rows = [result_text.RowParts(*row[:-1], together.get(row.point_hash, "null")) for row in found]
    return rows, cursors.trial_cursor(rows[-1].number) if more else None


def _runs_of(session: Session, study_id: str, points: Collection[str]) -> dict[str, list[float]]:
    """The mean step seconds of each run that has a result, by the hash of its point."""
    if not points:
        return {}
    query = select(Trial.point_hash, Trial.step_seconds_mean).where(
        Trial.study_id == study_id, Trial.point_hash.in_(points)
    )
    runs: dict[str, list[float]] = {}
    for point, seconds in session.execute(query.order_by(Trial.number)):
        if seconds is not None:
            runs.setdefault(point, []).append(seconds)
    return runs


def trials_page(
    session: Session, study_id: str, *, state: TrialState | None, limit: int, cursor: str | None
) -> tuple[list[TrialSummary], str | None]:
    """A page of trials in the order of their numbers, and the next page's cursor."""
    columns = select(
        Trial.number,
        Trial.repeat,
        Trial.attempt,
        Trial.state,
        Trial.reason,
        Trial.skip_reason,
        Trial.error,
        Trial.parameters_json,
    )
    rows = session.execute(_page_of(columns, study_id, state, limit, cursor)).all()
    more = len(rows) > limit
    rows = rows[:limit]
    shown = [
        TrialSummary(
            trial=row.number,
            repeat=row.repeat,
            attempt=row.attempt,
            state=TrialState(row.state),
            reason=_reason(row.reason),
            skip_reason=row.skip_reason,
            error=_cause(row.error),
            parameters=json.loads(row.parameters_json),
        )
        for row in rows
    ]
    return shown, cursors.trial_cursor(shown[-1].trial) if more else None


def trial_view(session: Session, row: Trial) -> TrialView:
    """The trial with all its attempts, and the ranks and epochs of the one that stands, or else of the last."""
    attempts = list(session.scalars(select(Attempt).where(Attempt.trial_id == row.id).order_by(Attempt.number)))
    with_result = [attempt for attempt in attempts if attempt.state == TrialState.SUCCEEDED]
    shown = with_result if row.state == TrialState.SUCCEEDED else attempts
    last = shown[-1].id if shown else None
    ranks = session.scalars(select(AttemptRank).where(AttemptRank.attempt_id == last).order_by(AttemptRank.rank))
    epochs = session.scalars(select(AttemptEpoch).where(AttemptEpoch.attempt_id == last).order_by(AttemptEpoch.epoch))
    return TrialView(
        study_id=row.study_id,
        trial=row.number,
        repeat=row.repeat,
        attempt=row.attempt,
        state=TrialState(row.state),
        reason=_reason(row.reason),
        skip_reason=row.skip_reason,
        error=_cause(row.error),
        parameters=json.loads(row.parameters_json),
        placement=row.placement,
        config=row.config,
        attempts=[_attempt_view(attempt) for attempt in attempts],
        ranks=[RankView(**{key: getattr(rank, key) for key in RankView.model_fields}) for rank in ranks],
        epochs=[EpochView(**{key: getattr(epoch, key) for key in EpochView.model_fields}) for epoch in epochs],
    )


def versions_of(session: Session, study_id: str) -> dict[str, list[str]]:
    """The versions that the study's measured trials ran with, by package; several where they changed between."""
    found: dict[str, set[str]] = {}
    query = select(Attempt.versions).where(Attempt.study_id == study_id, Attempt.state == TrialState.SUCCEEDED)
    for versions in session.scalars(query):
        for package, version in (versions or {}).items():
            found.setdefault(package, set()).add(version)
    return {package: sorted(versions) for package, versions in found.items()}


def log_lines(session: Session, study_id: str, trial_number: int | None) -> list[LogLine]:
    """The kept lines of one trial, or with None those of the study itself, in the order of the log."""
    query = (
        select(StoredLogLine.study_attempt, StoredLogLine.position, StoredLogLine.text)
        .where(StoredLogLine.study_id == study_id, StoredLogLine.trial_number == trial_number)
        .order_by(StoredLogLine.study_attempt, StoredLogLine.position)
    )
    return [
        LogLine(attempt=attempt, position=position, text=text) for attempt, position, text in session.execute(query)
    ]


def _page_of(
    columns: Select[*Columns], study_id: str, state: TrialState | None, limit: int, cursor: str | None
) -> Select[*Columns]:
    query = columns.where(Trial.study_id == study_id, Trial.number > cursors.trial_after(cursor))
    if state is not None:
        query = query.where(Trial.state == state)
    return query.order_by(Trial.number).limit(limit + 1)  # one more tells whether there is a next page


def _attempt_view(attempt: Attempt) -> AttemptView:
    result = attempt.result or {}
    return AttemptView(
        attempt=attempt.number,
        study_attempt=attempt.study_attempt,
        state=TrialState(attempt.state),
        reason=_reason(attempt.reason),
        error=_cause(attempt.error),
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        overhead=Overhead(**{key: getattr(attempt, key) for key in Overhead.model_fields}),
        deepspeed_config=attempt.deepspeed_config,
        versions=attempt.versions,
        loss_history=attempt.loss_history,
        metrics=RowMetrics.model_validate(result["metrics"]) if "metrics" in result else None,
        quality=RowQuality.model_validate(result["quality"]) if "quality" in result else None,
        telemetry=result.get("telemetry"),
        parts=result.get("parts"),
        links=result.get("links") or [],
    )


def _skipped_outcome(skip_reason: str | None) -> str:
    return result_text.unmeasured(f"Nothing is measured: the point was skipped ({skip_reason}).", Overhead())


def _reason(reason: str | None) -> Reason | None:
    return None if reason is None else Reason(reason)


def _cause(error: dict[str, object] | None) -> ErrorCause | None:
    return None if error is None else ErrorCause.model_validate(error)
