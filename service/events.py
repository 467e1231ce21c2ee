"""The event stream of a job: one line each on standard output, `VITSCALE ` + JSON.

`seq` counts from 1 within one study attempt, so reading a log twice is harmless. Events of a past attempt are dropped
by the reader.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from service.states import Reason
from trainers.result import TrialResult

MARK = "VITSCALE "


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    seq: int = Field(ge=1)
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    study: str
    attempt: int = Field(ge=1)  # of the study: one Ray job each


class ErrorCause(BaseModel):
    """The root cause, from the raising rank."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str  # exception class name
    message: str
    rank: int | None = None
    node: str | None = None
    traceback_tail: list[str] = Field(default_factory=list)  # last lines


class StudyStarted(_Event):
    type: Literal["study_started"] = "study_started"
    num_trials: int
    num_gpus_per_worker: int  # "auto", resolved
    nodes: list[dict[str, Any]] = Field(default_factory=list)  # node id, ip, resources, labels


class TrialStarted(_Event):
    type: Literal["trial_started"] = "trial_started"
    trial: int
    trial_attempt: int


class TrialProgress(_Event):
    """`done`/`total`: of the phase, in the phase's own unit (steps or epochs)."""

    type: Literal["trial_progress"] = "trial_progress"
    trial: int
    trial_attempt: int
    phase: Literal["queued", "starting", "warmup", "measure", "parts", "train"]
    done: int = 0
    total: int | None = None
    images_per_second: float | None = None
    worker_pids: list[int] = Field(default_factory=list)  # once known; to attribute log lines


class TrialFinished(_Event):
    type: Literal["trial_finished"] = "trial_finished"
    trial: int
    trial_attempt: int
    state: Literal["succeeded", "failed", "cancelled"]
    reason: Reason | None = None
    error: ErrorCause | None = None
    result: TrialResult | None = None  # with succeeded only
    # The runner starts the next attempt of this trial by itself: after a failure that may pass, or, with a result, to
    # measure once more what was contended. Should that fail, this result stands.
    will_retry: bool = False
    queue_seconds: float | None = None  # wanted -> workers placed
    total_seconds: float | None = None  # wanted -> everything of it gone


class StudyFinished(_Event):
    """The runner came to its end in good order. `error`: why the study as a whole could not run or was stopped."""

    type: Literal["study_finished"] = "study_finished"
    cancelled: bool = False
    error: str | None = None


Event = Annotated[
    StudyStarted | TrialStarted | TrialProgress | TrialFinished | StudyFinished, Field(discriminator="type")
]
_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)


def format_event(event: Event) -> str:
    """The event's line, without the newline."""
    return MARK + event.model_dump_json()


def parse_event(line: str) -> Event | None:
    """The event on this line, or None where the line is no event at all.

    Raises:
        pydantic.ValidationError: the line starts with the mark but is truncated or does not fit the schema.
    """
    if not line.startswith(MARK):
        return None
    return _ADAPTER.validate_json(line[len(MARK) :])
