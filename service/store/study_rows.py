"""Reading and writing studies, and putting together what is shown of them."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import and_, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from service.errors import NotFound
from service.states import StudyState, TrialState
from service.store import cursors
from service.store.tables import Attempt, IdempotencyKey, Study, StudyTag, Trial
from service.views import Progress, RayReference, RunningTrial, StudyView

MAX_NOTES = 50  # kept per study
_ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"  # base32
_ID_LENGTH = 12


def now() -> datetime:
    return datetime.now(UTC)


def new_study_id() -> str:
    """Twelve lowercase base32 characters: 60 random bits."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))


def study(session: Session, study_id: str) -> Study:
    """Raises NotFound."""
    return _found(session.get(Study, study_id) if _may_be_id(study_id) else None, study_id)


def locked_study(session: Session, study_id: str) -> Study:
    """The study with its row locked until the unit of work ends, so that its state cannot change meanwhile.

    SQLite has no row locks and needs none: the unit of work holds the write lock. Raises NotFound.
    """
    query = select(Study).where(Study.id == study_id).with_for_update().execution_options(populate_existing=True)
    return _found(session.scalars(query).one_or_none() if _may_be_id(study_id) else None, study_id)


def insert_study(
    session: Session,
    *,
    name: str,
    description: str,
    tags: Sequence[str],
    spec: dict[str, Any],
    status: StudyState = StudyState.QUEUED,
) -> Study:
    """A new study, queued, or over from the beginning."""
    created_at = now()
    row = Study(
        id=new_study_id(),
        name=name,
        name_folded=name.casefold(),
        description=description,
        tags=[],
        spec=spec,
        extensions=[],
        status=status,
        notes=[],
        created_at=created_at,
        queued_at=created_at,
        finished_at=created_at if status.is_final else None,
    )
    session.add(row)
    session.flush()
    set_tags(session, row, tags)
    return row


def set_tags(session: Session, row: Study, tags: Sequence[str]) -> None:
    """Replaces the tags; each is kept once, in the given order."""
    row.tags = list(dict.fromkeys(tags))
    session.execute(delete(StudyTag).where(StudyTag.study_id == row.id))
    session.add_all(StudyTag(study_id=row.id, tag=tag) for tag in row.tags)


def delete_study(session: Session, row: Study) -> None:
    """With all that belongs to it: the database's own cascades do that."""
    session.execute(delete(Study).where(Study.id == row.id))


def add_note(row: Study, note: str) -> None:
    """Adds a note to the study, once, as long as there is room."""
    if note in row.notes or len(row.notes) > MAX_NOTES:
        return
    row.notes = [*row.notes, note if len(row.notes) < MAX_NOTES else "More was noted than is kept here."]


def move(row: Study, state: StudyState) -> None:
    """Changes the study's state; an assertion that the caller asked `may_become` or knows the state."""
    assert StudyState(row.status).may_become(state), f"{row.status} -> {state}"
    row.status = state
    row.finished_at = now() if state.is_final else None
    if state is StudyState.QUEUED:
        row.queued_at = now()
        row.error = None


def remembered_study(session: Session, key: str) -> IdempotencyKey | None:
    return session.get(IdempotencyKey, key)


def remember(session: Session, key: str, body_digest: str, study_id: str) -> None:
    """Raises sqlalchemy.exc.IntegrityError where the key is there already."""
    session.add(IdempotencyKey(key=key, body_digest=body_digest, study_id=study_id, created_at=now()))
    session.flush()


def listed_studies(
    session: Session, *, status: StudyState | None, name: str | None, tag: str | None, limit: int, cursor: str | None
) -> tuple[list[Study], str | None]:
    """A page of studies, newest first, and the next page's cursor. `name`: any part of it, case does not matter."""
    query = select(Study).order_by(Study.created_at.desc(), Study.id.desc()).limit(limit + 1)
    if status is not None:
        query = query.where(Study.status == status)
    if name:
        query = query.where(Study.name_folded.contains(name.casefold(), autoescape=True))
    if tag is not None:
        query = query.where(exists().where(StudyTag.study_id == Study.id, StudyTag.tag == tag))
    if (after := cursors.study_after(cursor)) is not None:
        created_at, study_id = after
        earlier = and_(Study.created_at == created_at, Study.id < study_id)
        query = query.where(or_(Study.created_at < created_at, earlier))
    rows = list(session.scalars(query))
    more = len(rows) > limit
    rows = rows[:limit]
    return rows, cursors.study_cursor(rows[-1].created_at, rows[-1].id) if more else None


def study_view(session: Session, row: Study) -> StudyView:
    return study_views(session, [row])[0]


def study_views(session: Session, rows: Sequence[Study]) -> list[StudyView]:
    """The studies as shown, with two queries for all of them together."""
    ids = [row.id for row in rows]
    counts = _trial_counts(session, ids)
    running = _running_trials(session, [row.id for row in rows if not StudyState(row.status).is_final])
    return [_view(row, counts[row.id], running.get(row.id, [])) for row in rows]


class _Counts:
    """Trials of one study by state, and the seconds that finished ones took."""

    def __init__(self) -> None:
        self.by_state = {state.value: 0 for state in TrialState}
        self.timed = 0
        self.timed_seconds = 0.0


def _trial_counts(session: Session, ids: Sequence[str]) -> dict[str, _Counts]:
    result = {study_id: _Counts() for study_id in ids}
    query = (
        select(
            Trial.study_id, Trial.state, func.count(), func.count(Trial.total_seconds), func.sum(Trial.total_seconds)
        )
        .where(Trial.study_id.in_(ids))
        .group_by(Trial.study_id, Trial.state)
    )
    for study_id, state, num_trials, num_timed, seconds in session.execute(query):
        counts = result[study_id]
        counts.by_state[state] = num_trials
        if state in (TrialState.SUCCEEDED, TrialState.FAILED):
            counts.timed += num_timed
            counts.timed_seconds += seconds or 0.0
    return result


def _running_trials(session: Session, ids: Sequence[str]) -> dict[str, list[tuple[RunningTrial, datetime]]]:
    """The running trials of each study with the time they began, in the order of their numbers."""
    result: dict[str, list[tuple[RunningTrial, datetime]]] = {}
    if not ids:
        return result
    query = (
        select(Attempt, Trial.number)
        .join(Trial, Trial.id == Attempt.trial_id)
        .where(Attempt.study_id.in_(ids), Attempt.state == TrialState.RUNNING)
        .order_by(Trial.number)
    )
    for attempt, number in session.execute(query):
        shown = RunningTrial(
            trial=number,
            attempt=attempt.number,
            phase=attempt.phase,
            done=attempt.done,
            total=attempt.total,
            images_per_second=attempt.images_per_second,
        )
        result.setdefault(attempt.study_id, []).append((shown, attempt.started_at))
    return result


def _view(row: Study, counts: _Counts, running: Sequence[tuple[RunningTrial, datetime]]) -> StudyView:
    total = sum(counts.by_state.values()) - counts.by_state[TrialState.SKIPPED]
    left = counts.by_state[TrialState.PENDING] + counts.by_state[TrialState.RUNNING]
    state = StudyState(row.status)
    return StudyView(
        id=row.id,
        name=row.name,
        description=row.description,
        tags=row.tags,
        status=state,
        spec=row.spec,
        extensions=row.extensions,
        trial_counts=counts.by_state,
        progress=Progress(
            done=total - left,
            total=total,
            running=[shown for shown, _ in running],
            seconds_left=None if state.is_final else _seconds_left(counts, left, [began for _, began in running]),
        ),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        error=row.error,
        ray=RayReference(job_id=row.ray_job_id, dashboard_url=row.ray_dashboard_url),
        notes=row.notes,
    )


def _seconds_left(counts: _Counts, left: int, began: Sequence[datetime]) -> float | None:
    """Trials left times the mean of those that finished, less what the running ones have done, side by side as now."""
    if counts.timed == 0 or left == 0:
        return None
    mean = counts.timed_seconds / counts.timed
    # The running ones' clock is the cluster's, so neither a negative time nor more than a trial is taken off.
    done = sum(min(max((now() - start) / timedelta(seconds=1), 0.0), mean) for start in began)
    return round(max(mean * left - done, 0.0) / max(len(began), 1), 1)


def _may_be_id(study_id: str) -> bool:
    return len(study_id) == _ID_LENGTH and all(character in _ID_ALPHABET for character in study_id)


def _found(row: Study | None, study_id: str) -> Study:
    if row is None:
        raise NotFound(f"There is no study {study_id[:40]!r}")
    return row
