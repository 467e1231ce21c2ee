"""Writes a job's events to its standard output, so that each is one line of its own whatever else is printed there."""

import os
import threading
from typing import Any

from service.events import (
    Event,
    StudyFinished,
    StudyStarted,
    TrialFinished,
    TrialProgress,
    TrialStarted,
    format_event,
)

STANDARD_OUTPUT = 1


class EventWriter:
    """Numbers events from 1 and writes each with one system call. Threads may share it."""

    def __init__(self, study: str, attempt: int, *, descriptor: int = STANDARD_OUTPUT) -> None:
        self._study = study
        self._attempt = attempt
        self._descriptor = descriptor
        self._seq = 0
        self._lock = threading.Lock()

    def study_started(self, **fields: Any) -> None:
        self._write(StudyStarted, fields)

    def trial_started(self, **fields: Any) -> None:
        self._write(TrialStarted, fields)

    def trial_progress(self, **fields: Any) -> None:
        self._write(TrialProgress, fields)

    def trial_finished(self, **fields: Any) -> None:
        self._write(TrialFinished, fields)

    def study_finished(self, **fields: Any) -> None:
        self._write(StudyFinished, fields)

    def _write(
        self,
        kind: type[StudyStarted] | type[TrialStarted] | type[TrialProgress] | type[TrialFinished] | type[StudyFinished],
        fields: dict[str, Any],
    ) -> None:
        with self._lock:
            event: Event = kind(seq=self._seq + 1, study=self._study, attempt=self._attempt, **fields)
            # The newline in front ends whatever another writer left unfinished on this descriptor.
            data = f"\n{format_event(event)}\n".encode()
            while data:
                data = data[os.write(self._descriptor, data) :]
            self._seq += 1
