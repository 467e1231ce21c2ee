"""Reading a job's log line by line: what is an event, what is a log line, and what is wrong with it. Pure: no database.

The log holds whatever the job and its workers printed. Nothing in it is trusted, and nothing in it may raise.
"""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from service.events import ErrorCause, Event, TrialFinished, TrialProgress, parse_event
from service.states import Reason
from trainers.result import TrialResult

MAX_LINE_CHARACTERS = 4_000  # of a kept log line
MAX_LOG_LINES = 20_000  # kept per study
_LARGEST_INTEGER = 2**63 - 1  # what a database column holds
_LARGEST_NUMBER = 2**31 - 1  # of trials, attempts and ranks
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # Ray colours its prefixes
_PID = re.compile(r"\bpid=(\d{1,10})\b")  # in the prefix that Ray puts before a worker's line


@dataclass(frozen=True)
class EventLine:
    event: Event


@dataclass(frozen=True)
class PlainLine:
    """A log line; `problem` says what was wrong where it looks like an event."""

    text: str
    problem: str | None = None


def read_line(line: str) -> EventLine | PlainLine | None:
    """What this line is; None for an empty one."""
    text = clean_text(line.rstrip())
    if not text:
        return None
    try:
        event = parse_event(text)
    except ValidationError as error:
        return PlainLine(text, problem=_first_problem(error))
    if event is None:
        return PlainLine(text)
    problem = _out_of_range(event)
    return EventLine(event) if problem is None else PlainLine(text, problem)


def shortened(text: str) -> str:
    """At most MAX_LINE_CHARACTERS, and the mark that something was cut."""
    if len(text) <= MAX_LINE_CHARACTERS:
        return text
    mark = f" … [cut: {len(text):,} characters]"
    return text[: MAX_LINE_CHARACTERS - len(mark)] + mark


def worker_pid(text: str) -> int | None:
    """The pid in Ray's prefix of a worker's line, e.g. `(RayTrainWorker pid=4711, ip=10.0.0.2) ...`."""
    match = _PID.search(text, 0, 200)
    return int(match.group(1)) if match else None


def clean_text(text: str) -> str:
    """Without what a database refuses or a terminal obeys: NUL, other control characters, colours, lone surrogates."""
    if text.isprintable():
        return text
    text = _COLOURS.sub("", text.encode("utf-8", "replace").decode("utf-8"))
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_control(character) else character for character in text)


def clean_json(value: Any) -> Any:
    """`value` (of JSON types) with clean texts and keys, and null for every number that is not finite."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {clean_text(str(key)): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    return value


def utc(moment: datetime) -> datetime:
    """`moment` in UTC; one without a zone is taken to be UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def outcome_of(event: TrialFinished) -> tuple[Reason | None, ErrorCause | None, TrialResult | None]:
    """Reason, cause and result that stand: a success without a sound result is BAD_RESULT, a failure has a reason."""
    if event.state == "succeeded":
        problem = "no result was reported" if event.result is None else _unsound(event.result)
        if problem is None:
            return None, None, event.result
        return Reason.BAD_RESULT, ErrorCause(type="BadResult", message=problem), None
    if event.state == "failed":
        return event.reason or Reason.ERROR, event.error, None
    return event.reason, event.error, None


def _is_control(character: str) -> bool:
    return character not in "\t\n" and (character < " " or "\x7f" <= character < "\xa0")


def _unsound(result: TrialResult) -> str | None:
    ranks = [row.rank for row in result.ranks]
    if not ranks or sorted(ranks) != list(range(len(ranks))):
        return f"the result's ranks are {ranks[:20]}, not 0 to {max(len(ranks) - 1, 0)}, each once"
    epochs = [row.epoch for row in result.epochs]
    if sorted(epochs) != list(range(1, len(epochs) + 1)):
        return f"the result's epochs are {epochs[:20]}, not 1 to {len(epochs)}, each once"
    return None


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def _out_of_range(event: Event) -> str | None:
    try:
        moment = utc(event.at)
    except OverflowError:
        return "at: not a time"
    if not 2000 <= moment.year <= 9000:
        return "at: not a time"
    if isinstance(event, TrialProgress | TrialFinished) or hasattr(event, "trial_attempt"):
        for key in ("trial", "trial_attempt"):
            if not 1 <= getattr(event, key) <= _LARGEST_NUMBER:
                return f"{key}: out of range"
    if any(abs(number) > _LARGEST_INTEGER for number in _integers(event.model_dump())):
        return "an integer is out of range"
    if isinstance(event, TrialFinished) and event.result is not None:
        small = [n for row in event.result.ranks for n in (row.rank, row.local_rank)]
        small += [row.epoch for row in event.result.epochs]
        if any(not 0 <= number <= _LARGEST_NUMBER for number in small):
            return "result: a rank or an epoch is out of range"
    return None


def _integers(value: Any) -> list[int]:
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [value]
    if isinstance(value, dict):
        return [number for item in value.values() for number in _integers(item)]
    if isinstance(value, list):
        return [number for item in value for number in _integers(item)]
    return []
