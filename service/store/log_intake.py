"""Taking in the log of a study's current job: each line once, in order, as an event or as a log line."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from service.events import Event, TrialProgress
from service.ingest import MAX_LOG_LINES, EventLine, PlainLine, clean_json, read_line, shortened, utc, worker_pid
from service.store.study_rows import add_note
from service.store.tables import Attempt, StoredEvent, StoredLogLine, Study, Trial
from service.store.trial_events import StudyEvents

_NUMBERS_PER_QUERY = 1_000
_Lines = list[tuple[int, EventLine | PlainLine | None]]


class LogIntake:
    """The reader of one unit of work. Rows are written together at its end: a log may bring thousands at once.

    Args:
        running: the trials that run now, each with its attempt.
    """

    def __init__(self, session: Session, study: Study, running: Sequence[tuple[Trial, Attempt]]) -> None:
        self._session = session
        self._study = study
        self._running = running
        self._events: list[dict[str, Any]] = []
        self._lines: list[dict[str, Any]] = []

    def take(self, lines: Iterable[tuple[int, str]]) -> None:
        """Takes in (position, line); positions below the study's `log_position` were taken before and are skipped."""
        new = list(self._unseen(lines))
        with self._session.no_autoflush:
            state = StudyEvents(self._session, self._study, self._trials_named_in(new), self._running)
            for position, line in new:
                match line:
                    case EventLine(event):
                        self._take_event(position, event, state)
                    case PlainLine(text, problem):
                        self._take_text(position, text, problem, state.running)
        self._session.flush()
        if self._events:
            self._session.execute(insert(StoredEvent), self._events)
        if self._lines:
            self._session.execute(insert(StoredLogLine), self._lines)

    def _unseen(self, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, EventLine | PlainLine | None]]:
        for position, line in lines:
            if position >= self._study.log_position:
                self._study.log_position = position + 1
                yield position, read_line(line)

    def _trials_named_in(self, lines: _Lines) -> dict[int, Trial]:
        named = {line.event.trial for _, line in lines if isinstance(line, EventLine) and hasattr(line.event, "trial")}
        numbers = sorted(named)
        found: dict[int, Trial] = {}
        for start in range(0, len(numbers), _NUMBERS_PER_QUERY):
            some = numbers[start : start + _NUMBERS_PER_QUERY]
            query = select(Trial).where(Trial.study_id == self._study.id, Trial.number.in_(some))
            found.update((trial.number, trial) for trial in self._session.scalars(query))
        return found

    def _take_event(self, position: int, event: Event, state: StudyEvents) -> None:
        """Applies the event if it is of this attempt and new."""
        study = self._study
        if event.study != study.id or event.attempt != study.attempt or event.seq <= study.last_seq:
            return
        if event.seq > study.last_seq + 1:
            missing = f"events {study.last_seq + 1} to {event.seq - 1} are missing from the log"
            add_note(study, f"Attempt {study.attempt}: {missing}")
        study.last_seq = event.seq
        problem = state.apply(event)
        if problem is not None:
            self._take_text(position, f"[{event.type}, seq {event.seq}]", problem, state.running)
        elif not isinstance(event, TrialProgress):
            self._events.append(_stored(study, event))

    def _take_text(self, position: int, text: str, problem: str | None, running: Mapping[int, Attempt]) -> None:
        study = self._study
        if problem is not None:
            where = f"Attempt {study.attempt}, line {position + 1} of the log"
            add_note(study, f"{where}: an event could not be used and is kept as a log line ({problem[:200]})")
        if study.num_log_lines > MAX_LOG_LINES:
            return
        study.num_log_lines += 1
        trial_number = _trial_of(text, running)
        if study.num_log_lines > MAX_LOG_LINES:
            trial_number, text = None, f"[{MAX_LOG_LINES:,} lines are kept per study; those that follow are not]"
        self._lines.append(
            {
                "study_id": study.id,
                "study_attempt": study.attempt,
                "position": position,
                "trial_number": trial_number,
                "text": shortened(text),
            }
        )


def _trial_of(text: str, running: Mapping[int, Attempt]) -> int | None:
    """Whose line it is: the only running trial's, else that of the trial with a worker of the line's pid."""
    if len(running) == 1:
        return next(iter(running))
    pid = worker_pid(text)
    numbers = [number for number, attempt in running.items() if pid is not None and pid in attempt.worker_pids]
    return numbers[0] if len(numbers) == 1 else None


def _stored(study: Study, event: Event) -> dict[str, Any]:
    return {
        "study_id": study.id,
        "study_attempt": study.attempt,
        "seq": event.seq,
        "at": utc(event.at),
        "type": event.type,
        "payload": clean_json(event.model_dump(mode="json", exclude={"result"})),
    }
