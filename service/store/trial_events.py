"""Applying a job's checked events to the stored study. Every function here runs in the caller's unit of work.

Harmless whatever comes: an event for a trial that is over, for an attempt that is over, or for a trial that the study
does not have changes nothing.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.events import ErrorCause, Event, StudyFinished, StudyStarted, TrialFinished, TrialProgress, TrialStarted
from service.ingest import clean_json, clean_text, outcome_of, utc
from service.states import Reason, TrialState
from service.store import result_text
from service.store.standing import is_taken_apart, kept_result, let_stand, standing_attempt
from service.store.study_rows import add_note
from service.store.tables import Attempt, AttemptEpoch, AttemptRank, Study, Trial
from service.views import Overhead
from trainers.result import TrialResult

LOST = ErrorCause(type="JobEnded", message="the job ended before the trial did")


def running_trials(session: Session, study_id: str) -> list[tuple[Trial, Attempt]]:
    """The study's running trials, each with the attempt that runs."""
    query = (
        select(Trial, Attempt)
        .join(Attempt, Attempt.trial_id == Trial.id)
        .where(Attempt.study_id == study_id, Attempt.state == TrialState.RUNNING)
        .order_by(Trial.number)
    )
    return [(trial, attempt) for trial, attempt in session.execute(query)]


def close_attempt(
    attempt: Attempt, state: TrialState, at: datetime, reason: Reason | None, error: ErrorCause | None
) -> None:
    attempt.state = state
    attempt.reason = reason
    attempt.error = None if error is None else clean_json(error.model_dump(mode="json"))
    attempt.finished_at = at


class StudyEvents:
    """Applies events of a study's current attempt, one after the other.

    Args:
        trials: by number, at least those that the events name.
        running: the trials that run now, each with its attempt.
    """

    def __init__(
        self, session: Session, study: Study, trials: Mapping[int, Trial], running: Iterable[tuple[Trial, Attempt]]
    ) -> None:
        self._session = session
        self._study = study
        self._trials = trials
        self._running = {trial.number: attempt for trial, attempt in running}

    @property
    def running(self) -> Mapping[int, Attempt]:
        """The running attempt of each trial that runs, by the trial's number."""
        return self._running

    def apply(self, event: Event) -> str | None:
        """Changes the rows. Returns what is wrong with the event, or None."""
        match event:
            case StudyStarted():
                if self._study.spec.get("resources", {}).get("num_gpus") == "auto":
                    add_note(self._study, f"resources.num_gpus: auto was {event.num_gpus_per_worker} per worker")
            case StudyFinished():
                self._study.finished_event = True
                self._study.finished_cancelled = event.cancelled
                self._study.finished_error = None if event.error is None else clean_text(event.error)
            case TrialStarted() | TrialProgress() | TrialFinished():
                return self._apply_to_trial(event)
        return None

    def _apply_to_trial(self, event: TrialStarted | TrialProgress | TrialFinished) -> str | None:
        trial = self._trials.get(event.trial)
        if trial is None:
            return f"the study has no trial {event.trial}"
        attempt = self._open_attempt(trial, event)
        if attempt is None:
            return None
        if isinstance(event, TrialProgress):
            _progress(attempt, event)
        elif isinstance(event, TrialFinished):
            del self._running[trial.number]
            _finish(self._session, self._study, trial, attempt, event)
        return None

    def _open_attempt(self, trial: Trial, event: TrialStarted | TrialProgress | TrialFinished) -> Attempt | None:
        """The running attempt that the event is about, made where it is the first word of it; None where it is over."""
        if TrialState(trial.state).is_final or event.trial_attempt < trial.attempt:
            return None
        running = self._running.get(trial.number)
        if event.trial_attempt == trial.attempt:
            return running
        if running is not None:  # its end was never told
            close_attempt(running, TrialState.FAILED, utc(event.at), Reason.WORKER_LOST, LOST)
        attempt = Attempt(
            study_id=self._study.id,
            trial_id=trial.id,
            number=event.trial_attempt,
            study_attempt=self._study.attempt,
            state=TrialState.RUNNING,
            started_at=_began(event),
            done=0,
            worker_pids=[],
            loss_history=[],
        )
        self._session.add(attempt)
        self._running[trial.number] = attempt
        trial.attempt = event.trial_attempt
        trial.state = TrialState.RUNNING
        return attempt


def _began(event: TrialStarted | TrialProgress | TrialFinished) -> datetime:
    at = utc(event.at)
    if isinstance(event, TrialFinished) and event.total_seconds is not None and 0 <= event.total_seconds < 1e8:
        return at - timedelta(seconds=event.total_seconds)
    return at


def _progress(attempt: Attempt, event: TrialProgress) -> None:
    attempt.phase = event.phase
    attempt.done = event.done
    attempt.total = event.total
    attempt.images_per_second = event.images_per_second
    if event.worker_pids:
        attempt.worker_pids = list(event.worker_pids)


def _finish(session: Session, study: Study, trial: Trial, attempt: Attempt, event: TrialFinished) -> None:
    reason, error, result = outcome_of(event)
    # A success without a sound result is a failure; the runner's other words stand.
    state = TrialState.FAILED if event.state == "succeeded" and result is None else TrialState(event.state)
    close_attempt(attempt, state, utc(event.at), reason, error)
    overhead = _overhead(event, result)
    for key, value in overhead.model_dump().items():
        setattr(attempt, key, value)
    if result is not None:
        _keep_result(session, attempt, result)
    if result is not None:
        study.attempts_without_progress = 0
    if event.will_retry and state in (TrialState.FAILED, TrialState.SUCCEEDED):
        trial.state = TrialState.PENDING
        return
    study.attempts_without_progress = 0
    if result is None and attempt.number > 1 and (before := standing_attempt(session, trial)) is not None:
        ended = result_text.how_it_ended(state, reason, error)
        let_stand(trial, before, f"attempt {attempt.number} {ended}.")
        return
    trial.state = state
    trial.reason = attempt.reason
    trial.error = attempt.error
    trial.interrupted = False
    trial.total_seconds = overhead.total_seconds
    trial.step_seconds_mean = None if result is None else result.metrics.step_seconds_mean
    trial.outcome_json = (
        result_text.measured(result, overhead, is_taken_apart=is_taken_apart(trial))
        if result is not None
        else result_text.unmeasured(result_text.failure_note(state, reason, error), overhead)
    )


def _overhead(event: TrialFinished, result: TrialResult | None) -> Overhead:
    parts = {} if result is None else result.overhead.model_dump()
    return Overhead(queue_seconds=event.queue_seconds, total_seconds=event.total_seconds, **parts)


def _keep_result(session: Session, attempt: Attempt, result: TrialResult) -> None:
    attempt.result = kept_result(result)
    attempt.deepspeed_config = clean_json(result.deepspeed_config)
    attempt.versions = clean_json(result.versions)
    attempt.loss_history = list(result.loss_history)
    session.add_all(AttemptRank(attempt=attempt, **clean_json(row.model_dump())) for row in result.ranks)
    session.add_all(AttemptEpoch(attempt=attempt, **row.model_dump()) for row in result.epochs)
