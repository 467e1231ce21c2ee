"""What the dispatcher asks of the store: the queue, the running studies, and a job's way from its plan to its end.

Every function takes the session of a unit of work and changes nothing outside it. Rows that are finished are never
changed, whatever becomes of the job.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.errors import WrongState
from service.job_plan import Execution, JobPlan, Placement, PlannedTrial, Resources
from service.states import Reason, StudyState, TrialState, final_study_state
from service.store import result_text, trial_rows
from service.store.log_intake import LogIntake
from service.store.standing import contended_attempts, let_stand, let_waiting_stand, standing_attempt
from service.store.study_rows import add_note, locked_study, move, now
from service.store.study_rows import study as read_study
from service.store.tables import Attempt, Study, Trial
from service.store.trial_events import LOST, close_attempt, running_trials
from service.views import Overhead
from trainers.config import TrialConfig


@dataclass(frozen=True)
class ActiveStudy:
    """A study whose job runs or should run. `log_position`: the next line to read of the current attempt's log."""

    study_id: str
    attempt: int  # of the study, from 1
    state: StudyState  # running | cancelling
    submission_id: str
    log_position: int
    trials_left: int  # pending or running
    finished_event: bool  # the job said that it came to its end in order ...
    started_at: datetime  # of this attempt
    finished_cancelled: bool = False  # ... and that it had been stopped
    finished_error: str | None = None


def submission_id(study_id: str, attempt: int) -> str:
    """Ray's id of the job of a study's attempt."""
    return f"vitscale-{study_id}-{attempt}"


def oldest_queued(session: Session) -> str | None:
    """The study that has waited longest."""
    query = select(Study.id).where(Study.status == StudyState.QUEUED).order_by(Study.queued_at, Study.id).limit(1)
    return session.scalars(query).one_or_none()


def active_studies(session: Session) -> list[ActiveStudy]:
    """Running and cancelling studies, the oldest attempt first."""
    query = select(Study).where(Study.status.in_([StudyState.RUNNING, StudyState.CANCELLING]))
    return [
        ActiveStudy(
            study_id=row.id,
            attempt=row.attempt,
            state=StudyState(row.status),
            submission_id=submission_id(row.id, row.attempt),
            log_position=row.log_position,
            trials_left=sum(
                trial_rows.count_trials(session, row.id, state) for state in (TrialState.PENDING, TrialState.RUNNING)
            ),
            finished_event=row.finished_event,
            started_at=row.attempt_started_at or row.queued_at,
            finished_cancelled=row.finished_cancelled,
            finished_error=row.finished_error,
        )
        for row in session.scalars(query.order_by(Study.attempt_started_at, Study.id))
    ]


def begin_attempt(session: Session, study_id: str) -> JobPlan:
    """Begins the next attempt of a queued study, or of a running one whose job is over, with what is left to run.

    Trials that the job before left running are pending again; that run counts as an attempt, not as a retry.

    Raises:
        NotFound, WrongState: the study is neither queued nor running.
    """
    study = locked_study(session, study_id)
    if study.status == StudyState.QUEUED:
        move(study, StudyState.RUNNING)
        study.attempts_without_progress = 0
    elif study.status == StudyState.RUNNING:
        study.attempts_without_progress += 1
        add_note(
            study, f"Attempt {study.attempt} ended before the study did; attempt {study.attempt + 1} runs what is left."
        )
    else:
        raise WrongState(f"Study {study_id} is {study.status}: an attempt begins when it is queued or running")
    for trial, attempt in running_trials(session, study_id):
        close_attempt(attempt, TrialState.FAILED, now(), Reason.WORKER_LOST, LOST)
        trial.state = TrialState.PENDING
    session.flush()
    measured = contended_attempts(session, study_id)
    study.attempt += 1
    study.attempt_started_at = now()
    study.started_at = study.started_at or study.attempt_started_at
    study.log_position = study.last_seq = 0
    study.finished_event = study.finished_cancelled = False
    study.finished_error = study.ray_job_id = None
    session.flush()
    spec = study.extensions[-1] if study.extensions else study.spec
    return JobPlan(
        study=study_id,
        attempt=study.attempt,
        resources=Resources(**_known(spec.get("resources", {}), Resources)),
        execution=Execution(**_known(spec.get("execution", {}), Execution)),
        trials=[_planned(trial, measured.get(trial.id, 0)) for trial in trial_rows.pending_trials(session, study_id)],
    )


def set_ray(session: Session, study_id: str, job_id: str | None, dashboard_url: str | None) -> None:
    """Where the study's job can be seen."""
    study = locked_study(session, study_id)
    study.ray_job_id = job_id
    study.ray_dashboard_url = dashboard_url


def automatic_attempts_without_progress(session: Session, study_id: str) -> int:
    """How many attempts in a row began by themselves without a trial having finished since."""
    return read_study(session, study_id).attempts_without_progress


def apply_lines(session: Session, study_id: str, attempt: int, lines: Sequence[tuple[int, str]]) -> None:
    """Takes in lines of a job's log: events change the study, all else is kept as log lines.

    Reading lines again is harmless. Lines of another attempt than the current one, or of a study that is over, are
    dropped. No line raises: one that looks like an event and cannot be read is kept as a log line, with a note.

    Args:
        lines: (position, line) in the log's order; the position counts lines from 0 within that attempt's log.

    Raises:
        NotFound: there is no such study.
    """
    study = locked_study(session, study_id)
    if attempt != study.attempt or study.status not in (StudyState.RUNNING, StudyState.CANCELLING):
        return
    LogIntake(session, study, running_trials(session, study_id)).take(lines)


def finish_study(session: Session, study_id: str, *, cancelled: bool, error: str | None) -> None:
    """Ends a study whose job is over. Does nothing to one that is over already.

    Args:
        cancelled: it was stopped because somebody asked; what is left is cancelled. Else pending trials stay pending
            (they were never touched), and running ones failed with WORKER_LOST.
        error: why the study could not run to its end; what the job itself said, where None.

    Raises:
        NotFound: there is no such study.
    """
    study = locked_study(session, study_id)
    if StudyState(study.status).is_final:
        return
    cancelled = cancelled or study.status == StudyState.CANCELLING
    for trial, attempt in running_trials(session, study_id):
        before = standing_attempt(session, trial) if attempt.number > 1 else None
        if cancelled:
            close_attempt(attempt, TrialState.CANCELLED, now(), None, None)
            trial.state = TrialState.CANCELLED
        else:
            close_attempt(attempt, TrialState.FAILED, now(), Reason.WORKER_LOST, LOST)
            _fail_interrupted(trial, attempt)
        if before is not None:
            let_stand(trial, before, f"attempt {attempt.number} was {'cancelled' if cancelled else 'lost'}.")
    let_waiting_stand(session, study_id)
    if cancelled:
        trial_rows.cancel_pending(session, study_id)
    session.flush()
    if cancelled and study.status == StudyState.RUNNING:
        move(study, StudyState.CANCELLING)
    states = trial_rows.trial_states(session, study_id)
    final = StudyState.CANCELLED if cancelled else final_study_state(states)
    if study.status == StudyState.QUEUED and not StudyState(study.status).may_become(final):
        final = StudyState.FAILED  # it never ran: what is finished in it is of an earlier time
    move(study, final)
    study.error = (
        error or study.finished_error or (_first_cause(session, study_id) if final == StudyState.FAILED else None)
    )
    session.flush()


def _fail_interrupted(trial: Trial, attempt: Attempt) -> None:
    trial.state = TrialState.FAILED
    trial.reason = Reason.WORKER_LOST
    trial.error = attempt.error
    trial.interrupted = True
    note = result_text.failure_note(TrialState.FAILED, Reason.WORKER_LOST, LOST)
    trial.outcome_json = result_text.unmeasured(note, Overhead())


def _first_cause(session: Session, study_id: str) -> str | None:
    """The first failure, for a study in which nothing succeeded."""
    query = select(Trial).where(Trial.study_id == study_id, Trial.state == TrialState.FAILED).order_by(Trial.run_order)
    trial = session.scalars(query.limit(1)).one_or_none()
    if trial is None:
        return None
    cause = f": {trial.error['type']}: {trial.error['message']}"[:500] if trial.error else ""
    return f"No trial succeeded. The first to fail was trial {trial.number}, {trial.reason}{cause}"


def _planned(trial: Trial, contended_attempts: int) -> PlannedTrial:
    return PlannedTrial(
        number=trial.number,
        repeat=trial.repeat,
        attempt=trial.attempt + 1,
        contended_attempts=contended_attempts,
        placement=Placement.model_validate(trial.placement),
        config=TrialConfig.model_validate(trial.config),
    )


def _known(values: dict[str, Any], model: type[Resources | Execution]) -> dict[str, Any]:
    """The part of the spec's object that the job needs."""
    return {key: value for key, value in values.items() if key in model.model_fields}
