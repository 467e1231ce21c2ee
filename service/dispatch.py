"""The queue: starts studies when their turn comes, sees each to its end, and takes up again what a stop left.

Threads of its own (one that looks at the queue, one for each running study, one while a head starts), so that nothing
of Ray's ever makes an HTTP request wait.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from service.errors import RayRefused, RayUnreachable, WrongState
from service.ingest import clean_text
from service.job_attempt import HUNG_SECONDS, AttemptEnd, Ending, JobAttempt
from service.job_package import package_files
from service.job_plan import JobPlan
from service.ray_connection import Head
from service.ray_jobs import RayJobs
from service.settings import Settings
from service.store.attempts import (
    ActiveStudy,
    active_studies,
    automatic_attempts_without_progress,
    begin_attempt,
    finish_study,
    oldest_queued,
    submission_id,
)
from service.store.database import Database
from service.store.study_rows import add_note, locked_study

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # a new study wakes the dispatcher; this is for what nobody tells it
MAX_LOST_ATTEMPTS = 3  # automatic attempts in a row without a trial finished; then the study has failed
MAX_LOST_ATTEMPTS_EVER = 10  # the same across restarts of the server, which are not the study's fault
MAX_FAULTS = 3  # of the server itself at one study in a row; then the study has failed, and others have their turn
LOOK_AGAIN_SECONDS = (2.0, 5.0, 10.0, 30.0)  # while Ray is down, and between tries to start a head; the last repeats


class _Retry:
    """When to try again something that fails: later and later."""

    def __init__(self) -> None:
        self._failures = 0
        self._not_before = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._not_before

    def failed(self) -> None:
        self._not_before = time.monotonic() + LOOK_AGAIN_SECONDS[min(self._failures, len(LOOK_AGAIN_SECONDS) - 1)]
        self._failures += 1

    def succeeded(self) -> None:
        self._failures, self._not_before = 0, 0.0


class Dispatcher:
    """Runs the queue of one database on one head. `stop` leaves the head alone: whoever made it stops it."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        head: Head,
        package: Callable[[JobPlan], dict[str, bytes]] = package_files,
    ) -> None:
        self._database = database
        self._head = head
        self._package = package
        self._timeout = settings.ray_timeout_seconds
        self._max_running = settings.max_running_studies
        self._stopping = threading.Event()
        self._news = threading.Event()
        self._runs: dict[str, threading.Thread] = {}
        self._queue_thread = threading.Thread(target=self._watch_queue, name="dispatcher", daemon=True)
        self._head_thread: threading.Thread | None = None
        self._head_retry, self._ray_retry, self._run_retry = _Retry(), _Retry(), _Retry()
        self._faults: Counter[str] = Counter()  # by study
        self._ray_problem: str | None = None
        self._silent_since: float | None = None  # Ray, with a study waiting

    @property
    def ray_problem(self) -> str | None:
        """Why nothing can be started now, as far as known; None where nothing is in the way."""
        return self._ray_problem

    def start(self) -> None:
        """Returns at once; the head (if it is ours) starts in the background."""
        self._queue_thread.start()

    def wake(self) -> None:
        """There may be something new in the queue."""
        self._news.set()

    def stop(self, timeout: float) -> None:
        """Ends all threads within `timeout` seconds. Studies stay as they are in the store, and the next start takes
        them up; a thread that waits for Ray longer than that is left behind and changes nothing any more.
        """
        deadline = time.monotonic() + timeout
        self._stopping.set()
        self._news.set()
        for thread in [self._queue_thread, *self._runs.values()]:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.warning("%s did not end within %.0f s", thread.name, timeout)

    # -- the queue -----------------------------------------------------------------------------------------------------

    def _watch_queue(self) -> None:
        while not self._stopping.is_set():
            self._news.clear()
            try:
                self._keep_head()
                self._start_studies()
            except SQLAlchemyError:
                logger.exception("the queue could not be read; trying again")
            self._news.wait(POLL_SECONDS)

    def _keep_head(self) -> None:
        """Starts a head of our own where there is none, in a thread: it takes seconds, on a busy machine a minute."""
        if self._head_thread is not None and self._head_thread.is_alive():
            return
        if self._head.is_local and not self._head.is_alive() and self._head_retry.is_due():
            self._head_thread = threading.Thread(target=self._start_head, name="ray-head", daemon=True)
            self._head_thread.start()

    def _start_head(self) -> None:
        try:
            self._head.start()
        except (RayUnreachable, OSError) as error:
            if not self._stopping.is_set():
                logger.error("the local Ray head does not start: %s", error)
                self._ray_problem = str(error)
                self._head_retry.failed()
            return
        if self._stopping.is_set():
            self._head.stop()  # whoever stops us has stopped the head before it was there
        self._ray_problem = None
        self._head_retry.succeeded()
        self._ray_retry.succeeded()
        self._news.set()

    def _start_studies(self) -> None:
        self._runs = {study_id: thread for study_id, thread in self._runs.items() if thread.is_alive()}
        if self._head.is_local and not self._head.is_alive():
            # Only one server can have a head in a data directory. So a second one on the same database, started by
            # mistake, keeps its hands off the first one's studies.
            return
        with self._database.reading() as session:
            active, queued = active_studies(session), oldest_queued(session)
        for study in active:
            if study.study_id not in self._runs and self._run_retry.is_due():
                self._start_run(study.study_id, study.attempt, None)
        while queued is not None and len(self._runs) < self._max_running and not self._stopping.is_set():
            if queued in self._runs or not self._ray_answers(queued):
                return  # in its runs: resumed while the job of the attempt before still winds down
            try:
                with self._database.session() as session:
                    plan = begin_attempt(session, queued)
            except WrongState:
                logger.info("study %s was cancelled before it began", queued)
            else:
                self._start_run(queued, plan.attempt, plan)
            with self._database.reading() as session:
                queued = oldest_queued(session)

    def _ray_answers(self, waiting: str) -> bool:
        """Whether a study may begin: it stays queued, with a note, as long as there is no cluster to run it."""
        if not self._ray_retry.is_due():
            return False
        try:
            with RayJobs(self._head.connection, self._timeout) as jobs:
                jobs.version()
        except (RayUnreachable, RayRefused) as error:
            if self._head_thread is None or not self._head_thread.is_alive():
                self._without_answer(error, waiting)
            return False
        self._ray_problem = self._silent_since = None
        self._ray_retry.succeeded()
        return True

    def _without_answer(self, error: RayUnreachable | RayRefused, waiting: str) -> None:
        self._ray_retry.failed()
        self._ray_problem = self._ray_problem or error.detail
        with self._database.session() as session:
            add_note(locked_study(session, waiting), f"Waiting for Ray: {self._ray_problem}")
        self._silent_since = self._silent_since or time.monotonic()
        if self._head.is_local and self._head.is_alive() and time.monotonic() - self._silent_since > HUNG_SECONDS:
            logger.error("the local Ray head does not answer any more: restarting it")
            self._head.stop()
            self._silent_since = None

    # -- one study -----------------------------------------------------------------------------------------------------

    def _start_run(self, study_id: str, attempt: int, plan: JobPlan | None) -> None:
        thread = threading.Thread(
            target=self._run_study, args=(study_id, attempt, plan), name=f"study-{study_id}", daemon=True
        )
        self._runs[study_id] = thread
        thread.start()

    def _run_study(self, study_id: str, attempt: int, plan: JobPlan | None) -> None:
        try:
            self._run_attempts(study_id, attempt, plan)
            self._run_retry.succeeded()
            self._faults.pop(study_id, None)
        except SQLAlchemyError:
            # The study stays active in the store, so it is taken up again; its thread must not end unseen.
            logger.exception("study %s: the database could not be used; it is taken up again", study_id)
            self._run_retry.failed()
        except Exception as error:
            self._faults[study_id] += 1
            gives_up = self._faults[study_id] >= MAX_FAULTS
            logger.exception("study %s: its run failed%s", study_id, "" if gives_up else "; it is taken up again")
            self._run_retry.failed()
            if gives_up:
                self._give_up(study_id, error)
        self._news.set()

    def _give_up(self, study_id: str, error: Exception) -> None:
        """Ends a study at which the server itself fails again and again: a fault of ours, told as what it is."""
        active = self._active(study_id)
        if active is None:
            return
        try:
            with RayJobs(self._head.connection, self._timeout) as jobs:
                jobs.stop(submission_id(study_id, active.attempt))
        except (RayUnreachable, RayRefused) as unstopped:
            logger.warning("study %s: its job could not be stopped: %s", study_id, unstopped.detail)
        cause = f"The server failed {MAX_FAULTS} times in a row: {type(error).__name__}: {error}"
        with self._database.session() as session:
            finish_study(session, study_id, cancelled=False, error=clean_text(cause))
        self._faults.pop(study_id, None)

    def _run_attempts(self, study_id: str, attempt: int, plan: JobPlan | None) -> None:
        """Attempts of one study, one after the other, until it is over or the server stops."""
        lost_in_a_row, trials_left = 0, -1
        taken_up = plan is None
        while True:
            job = JobAttempt(
                self._database,
                self._head,
                study_id,
                attempt,
                timeout=self._timeout,
                stopping=self._stopping,
                package=self._package,
            )
            end = job.run(plan)
            if end.ending is not Ending.LOST:
                return
            active = self._active(study_id)
            if active is None:
                return
            logger.warning("study %s, attempt %s: %s", study_id, attempt, end.cause)
            # The end of a job whose server was down is not held against it.
            lost_in_a_row = 0 if taken_up or 0 <= active.trials_left < trials_left else lost_in_a_row + 1
            trials_left, taken_up = active.trials_left, False
            if self._stopping.wait(min(2.0 ** max(lost_in_a_row - 1, 0), 10.0) if lost_in_a_row else 0.0):
                return
            plan = self._next_attempt(active, end, lost_in_a_row)
            if plan is None:
                return
            attempt = plan.attempt

    def _next_attempt(self, active: ActiveStudy, end: AttemptEnd, lost_in_a_row: int) -> JobPlan | None:
        """Begins the next attempt, or ends the study where there is nothing to gain by one."""
        study_id = active.study_id
        with self._database.session() as session:
            ever = automatic_attempts_without_progress(session, study_id)
            if active.trials_left == 0:
                finish_study(session, study_id, cancelled=False, error=None)
                return None
            if lost_in_a_row > MAX_LOST_ATTEMPTS or ever >= MAX_LOST_ATTEMPTS_EVER:
                error = f"{lost_in_a_row} attempts in a row ended before a trial did. {end.cause}"
                finish_study(session, study_id, cancelled=False, error=error)
                return None
            add_note(locked_study(session, study_id), f"Attempt {active.attempt}: {end.cause}")
            try:
                return begin_attempt(session, study_id)
            except WrongState:  # cancelled a moment ago, with no job to stop
                finish_study(session, study_id, cancelled=True, error=None)
                return None

    def _active(self, study_id: str) -> ActiveStudy | None:
        with self._database.reading() as session:
            return next((study for study in active_studies(session) if study.study_id == study_id), None)
