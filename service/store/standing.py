"""A result that stands: of a trial that was to be measured once more, and whose last attempt came to no result.

A contended attempt ends with its result, and its trial is run again. What that run measures takes its place; whatever
else becomes of it (it fails, is cancelled, or its job is lost), the trial has succeeded with what it has, flagged.
"""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.ingest import clean_json
from service.states import TrialState
from service.store import result_text
from service.store.tables import Attempt, Trial
from service.views import Overhead
from trainers.result import TrialResult

_KEPT = {"metrics", "quality", "hardware", "telemetry", "parts", "links"}


def kept_result(result: TrialResult) -> dict[str, object]:
    """What of a result is kept with its attempt as JSON (ranks, epochs and the rest have places of their own)."""
    shown = result.model_dump(mode="json", include=_KEPT)
    cleaned: dict[str, object] = clean_json(shown)
    return cleaned


def standing_attempt(session: Session, trial: Trial) -> Attempt | None:
    """The trial's last attempt with a result, or None."""
    session.flush()  # it may have ended in this same unit of work
    query = select(Attempt).where(Attempt.trial_id == trial.id, Attempt.state == TrialState.SUCCEEDED)
    return session.scalars(query.order_by(Attempt.number.desc()).limit(1)).one_or_none()


def is_taken_apart(trial: Trial) -> bool:
    """Whether the trial was asked to take its step apart (`measurement.communication`)."""
    measurement = (trial.config or {}).get("measurement") or {}
    return bool(measurement.get("communication"))


def let_stand(trial: Trial, attempt: Attempt, why: str) -> None:
    """The trial has succeeded with this attempt's result. `why`: what became of the one that was to replace it."""
    overhead = Overhead(**{key: getattr(attempt, key) for key in Overhead.model_fields})
    note = f"These are the numbers of attempt {attempt.number}, which was to be measured once more: {why}"
    trial.state = TrialState.SUCCEEDED
    trial.reason = trial.error = None
    trial.interrupted = False
    trial.total_seconds = attempt.total_seconds
    trial.outcome_json = result_text.measured_before(
        attempt.result or {}, overhead, note, is_taken_apart=is_taken_apart(trial)
    )


def let_waiting_stand(session: Session, study_id: str) -> None:
    """Pending trials that have a result succeed with it: nobody will measure them once more."""
    query = (
        select(Trial)
        .join(Attempt, Attempt.trial_id == Trial.id)
        .where(Trial.study_id == study_id, Trial.state == TrialState.PENDING, Attempt.state == TrialState.SUCCEEDED)
    )
    for trial in session.scalars(query.distinct()):
        attempt = standing_attempt(session, trial)
        if attempt is not None:
            let_stand(trial, attempt, "the study ended before it was.")


def contended_attempts(session: Session, study_id: str) -> dict[int, int]:
    """Of each trial (by id) that is not over but has results: how many attempts have measured it."""
    query = (
        select(Trial.id, func.count())
        .join(Attempt, Attempt.trial_id == Trial.id)
        .where(Trial.study_id == study_id, Trial.state == TrialState.PENDING, Attempt.state == TrialState.SUCCEEDED)
        .group_by(Trial.id)
    )
    return {trial_id: count for trial_id, count in session.execute(query)}  # noqa: C416 - rows are no pairs to dict()
