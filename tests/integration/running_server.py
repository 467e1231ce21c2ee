"""The server's inside without HTTP: a database, its studies, and a dispatcher on a head."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.dispatch import Dispatcher
from service.job_package import package_files
from service.job_plan import JobPlan
from service.ray_connection import Head
from service.settings import Settings
from service.states import StudyState
from service.store import Database
from service.studies import Studies
from service.views import StudyView
from tests.service.factories import open_database

STOP_SECONDS = 15.0


@dataclass
class RunningServer:
    database: Database
    studies: Studies
    dispatcher: Dispatcher

    def wait(self, what: str, condition: Callable[[], bool], seconds: float = 90.0) -> None:
        """Until `condition` holds; fails with `what` after `seconds`."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
            time.sleep(0.1)

    def finished(self, study_id: str, seconds: float = 90.0) -> StudyView:
        """The study once it is over."""
        self.wait(f"study {study_id} over", lambda: self.studies.get(study_id).status.is_final, seconds)
        return self.studies.get(study_id)

    def running_trial(self, study_id: str, trial: int, attempt: int = 1, seconds: float = 90.0) -> None:
        """Waits until this trial runs in this attempt of the study."""

        def runs() -> bool:
            study = self.studies.get(study_id)
            return (study.ray.job_id or "").endswith(f"-{attempt}") and trial in {
                running.trial for running in study.progress.running
            }

        self.wait(f"trial {trial} of study {study_id} runs", runs, seconds)

    def attempts_of(self, study_id: str) -> dict[int, list[tuple[int, str, str | None]]]:
        """By trial: (attempt of the study, state, reason) of each of its runs."""
        trials = self.studies.trials(study_id, limit=100, cursor=None).trials
        return {
            each.trial: [
                (run.study_attempt, run.state, run.reason) for run in self.studies.trial(study_id, each.trial).attempts
            ]
            for each in trials
        }

    def is_final(self, study_id: str) -> bool:
        return StudyState(self.studies.get(study_id).status).is_final


@contextmanager
def running_server(
    folder: Path,
    head: Head,
    package: Callable[[JobPlan], dict[str, bytes]] = package_files,
    **settings: object,
) -> Iterator[RunningServer]:
    """A server on the database in `folder`; the head is the caller's to stop."""
    database = open_database(folder)
    dispatcher = Dispatcher(database, Settings(_env_file=None, data_dir=folder, **settings), head, package)
    studies = Studies(database, data_roots=(), wake=dispatcher.wake)
    dispatcher.start()
    try:
        yield RunningServer(database, studies, dispatcher)
    finally:
        dispatcher.stop(STOP_SECONDS)
        database.close()
