"""States of studies and trials and the reasons of failure, with their rules as methods.

A state is apart from its reason; the reason alone decides whether a trial is run again.
"""

from enum import StrEnum


class StudyState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in {StudyState.SUCCEEDED, StudyState.PARTIAL, StudyState.FAILED, StudyState.CANCELLED}

    def may_become(self, other: "StudyState") -> bool:
        return other in _STUDY_MOVES[self]


_STUDY_MOVES: dict[StudyState, frozenset[StudyState]] = {
    StudyState.QUEUED: frozenset({StudyState.RUNNING, StudyState.CANCELLED, StudyState.FAILED}),
    StudyState.RUNNING: frozenset({StudyState.SUCCEEDED, StudyState.PARTIAL, StudyState.FAILED, StudyState.CANCELLING}),
    StudyState.CANCELLING: frozenset({StudyState.CANCELLED}),
    StudyState.SUCCEEDED: frozenset({StudyState.QUEUED}),
    StudyState.PARTIAL: frozenset({StudyState.QUEUED}),
    StudyState.FAILED: frozenset({StudyState.QUEUED}),
    StudyState.CANCELLED: frozenset({StudyState.QUEUED}),
}


class TrialState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    @property
    def is_final(self) -> bool:
        return self not in {TrialState.PENDING, TrialState.RUNNING}


class Reason(StrEnum):
    """Why a trial failed."""

    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    INFEASIBLE = "INFEASIBLE"
    QUEUE_TIMEOUT = "QUEUE_TIMEOUT"
    INIT_TIMEOUT = "INIT_TIMEOUT"
    TIMEOUT = "TIMEOUT"
    WORKER_LOST = "WORKER_LOST"
    PLACEMENT_VIOLATION = "PLACEMENT_VIOLATION"
    BAD_RESULT = "BAD_RESULT"
    INVALID_CONFIG = "INVALID_CONFIG"
    ERROR = "ERROR"

    @property
    def is_retried(self) -> bool:
        """Run again by itself, up to `execution.retries`."""
        return self in {Reason.WORKER_LOST, Reason.INIT_TIMEOUT}


def final_study_state(trials: list[TrialState]) -> StudyState:
    """The state of a study whose job is over, from its trials' states (skipped points do not count)."""
    counted = [state for state in trials if state is not TrialState.SKIPPED]
    succeeded = sum(state is TrialState.SUCCEEDED for state in counted)
    if counted and succeeded == len(counted):
        return StudyState.SUCCEEDED
    return StudyState.PARTIAL if succeeded else StudyState.FAILED
