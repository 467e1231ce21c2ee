"""One attempt of a study: a Ray job from its submission to its end, with everything it says written to the store.

SQL is the truth and Ray a hint: what the job's log said stands, whatever Ray says of the job. Every wait ends when the
server stops.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from service.errors import RayRefused, RayUnreachable
from service.job_log import JobLog, LogLines
from service.job_package import ENTRYPOINT, package_files
from service.job_plan import JobPlan
from service.ray_connection import Head
from service.ray_jobs import JobInfo, JobStatus, RayJobs
from service.states import StudyState
from service.store.attempts import ActiveStudy, active_studies, apply_lines, finish_study, set_ray, submission_id
from service.store.database import Database
from service.store.study_rows import add_note, locked_study

logger = logging.getLogger(__name__)

DRIVER_STOP_SECONDS = 25  # the driver ends within 20 s of SIGTERM; Ray's own patience is 3 s
STOP_SECONDS = DRIVER_STOP_SECONDS + 20.0  # until a stopped job is seen to be over
GRACE_SECONDS = 10.0  # Ray may call a job ended while its driver still lives (its control service was restarted)
EXITED_GRACE_SECONDS = 3.0  # where it has seen the driver exit: only the log may be behind
WIND_DOWN_SECONDS = 30.0  # from the job's last event to its end
IDLE_SECONDS = 60.0  # a stream without news is opened anew: it may be dead without having been closed
HUNG_SECONDS = 180.0  # without any answer a head of our own is given up
CANCEL_HUNG_SECONDS = 60.0  # the same, where somebody waits for a cancellation
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 20.0)  # between tries while Ray does not answer; the last repeats
MAX_CAUSE_CHARACTERS = 2000

ENV_VARS = {
    "RAY_JOB_STOP_WAIT_TIME_S": str(
        DRIVER_STOP_SECONDS
    ),  # read by the job's supervisor, which gets this environment too
    "PYTHONIOENCODING": "utf-8:backslashreplace",  # Ray cannot follow a log that is not valid UTF-8
}


class Ending(Enum):
    FINISHED = "finished"  # the study is over, and stored so
    LOST = "lost"  # the job is over, the study is not
    LEFT = "left"  # the server stops; the job may go on


@dataclass(frozen=True)
class AttemptEnd:
    ending: Ending
    cause: str = ""  # of LOST, for a person


class JobAttempt:
    """Runs or picks up one attempt. One thread calls `run`, once."""

    def __init__(
        self,
        database: Database,
        head: Head,
        study_id: str,
        attempt: int,
        *,
        timeout: float,  # seconds, of one call to Ray
        stopping: threading.Event,
        package: Callable[[JobPlan], dict[str, bytes]] = package_files,
    ) -> None:
        self._database = database
        self._head = head
        self._timeout = timeout
        self._stopping = stopping
        self._package = package
        self._study_id = study_id
        self._attempt = attempt
        self._job = submission_id(study_id, attempt)
        self._last_lines: deque[str] = deque(maxlen=10)
        self._last_answer = time.monotonic()
        self._stop_sent_at: float | None = None
        self._over_since: float | None = None  # when the job was first seen to be over
        self._misses = 0

    def run(self, plan: JobPlan | None) -> AttemptEnd:
        """Submits the job where `plan` is given, then follows it to its end."""
        while not self._stopping.is_set():
            try:
                with RayJobs(self._head.connection, self._timeout) as jobs:
                    if plan is not None:
                        if self._is_cancelling():
                            jobs.stop(self._job)  # a submission without an answer may have been accepted
                            return self._finished(cancelled=True)
                        self._submit(jobs, plan)
                        plan = None
                    end = self._follow(jobs)
            except (RayUnreachable, RayRefused) as error:
                end = self._without_answer(error, submitted=plan is None)
            if end is not None:
                return end
        return AttemptEnd(Ending.LEFT)

    # -- with Ray answering --------------------------------------------------------------------------------------------

    def _submit(self, jobs: RayJobs, plan: JobPlan) -> None:
        jobs.submit(self._job, self._package(plan), ENTRYPOINT, ENV_VARS)
        with self._database.session() as session:
            set_ray(session, self._study_id, self._job, jobs.connection.dashboard_url)

    def _follow(self, jobs: RayJobs) -> AttemptEnd | None:
        """Follows the job for as long as one stream of its log lasts; None: look again."""
        info = jobs.info(self._job)
        self._answered()
        if info is not None:
            self._read_log(jobs, drain=info.status.is_terminal)
        active = self._active()
        if active is None:
            return AttemptEnd(Ending.FINISHED)  # somebody else ended it
        if active.finished_event:
            return self._conclude(jobs, active)
        if self._stopping.is_set():
            return AttemptEnd(Ending.LEFT)
        if info is None:
            return self._over(f"Ray does not know the job {self._job} (any more).")
        if info.status.is_terminal:
            self._over_since = self._over_since or time.monotonic()
            driver_is_gone = info.driver_exit_code is not None or info.status is JobStatus.STOPPED
            grace = EXITED_GRACE_SECONDS if driver_is_gone else GRACE_SECONDS
            if time.monotonic() - self._over_since >= grace:
                return self._over(self._cause(info))
            self._pause(2.0)
            return None
        self._over_since = None
        if self._stop_sent_at is not None and time.monotonic() - self._stop_sent_at > STOP_SECONDS:
            return self._cannot_be_stopped("does not end, although it was told to")
        self._pause(0.5)
        return None

    def _read_log(self, jobs: RayJobs, *, drain: bool) -> None:
        """Takes in one stream of the log, to its end or until there is something else to do.

        `drain`: the job is over, so the stream holds all there is.
        """
        idle_since = time.monotonic()
        position = self._position()
        with JobLog(jobs.connection, self._job, self._timeout) as log:
            for lines in log.batches():
                self._answered()
                new = [line for line in lines if line[0] >= position]
                active = self._take_in(new)
                if new:
                    position = new[-1][0] + 1
                    idle_since = time.monotonic()
                if self._stopping.is_set() or active is None or active.finished_event:
                    return
                if active.state is StudyState.CANCELLING and not drain:
                    if self._stop_sent_at is None:
                        jobs.stop(self._job)
                        self._stop_sent_at = time.monotonic()
                    elif time.monotonic() - self._stop_sent_at > STOP_SECONDS:
                        return
                if time.monotonic() - idle_since > IDLE_SECONDS:
                    return
            if drain:
                self._take_in([line for line in log.rest() if line[0] >= position])

    def _conclude(self, jobs: RayJobs, active: ActiveStudy) -> AttemptEnd:
        """The job said that it is done: so is the study, and what is left of the job is seen off."""
        cancelling = active.state is StudyState.CANCELLING
        if active.finished_cancelled and not cancelling:
            self._see_off(jobs)
            return AttemptEnd(Ending.LOST, "The job was stopped, and not by VitScale.")
        end = self._finished(cancelled=cancelling, error=active.finished_error)
        try:
            self._see_off(jobs)
        except (RayUnreachable, RayRefused) as error:
            logger.warning("study %s is over; its job %s was not seen to end: %s", self._study_id, self._job, error)
        return end

    def _see_off(self, jobs: RayJobs) -> None:
        """Waits for the job's end, with force after a while: an attempt is over before the next one begins."""
        if self._gone_within(jobs, WIND_DOWN_SECONDS):
            return
        jobs.stop(self._job)
        if not self._gone_within(jobs, STOP_SECONDS):
            raise RayUnreachable(f"The job {self._job} did not end within {STOP_SECONDS:.0f} s of being stopped.")

    def _gone_within(self, jobs: RayJobs, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            info = jobs.info(self._job)
            if info is None or info.status.is_terminal or self._stopping.is_set():
                return True
            if time.monotonic() > deadline:
                return False
            self._stopping.wait(0.5)

    # -- without an answer ---------------------------------------------------------------------------------------------

    def _without_answer(self, error: RayUnreachable | RayRefused, *, submitted: bool) -> AttemptEnd | None:
        """Ray is down, hangs or refuses. Waits and tells the study; gives the attempt up where that is for the best."""
        if self._stopping.is_set():
            return AttemptEnd(Ending.LEFT)
        cancelling = self._is_cancelling()
        if self._head.is_local and not self._head.is_alive():
            if cancelling:
                return self._finished(cancelled=True)
            if submitted:
                return AttemptEnd(Ending.LOST, self._with_log("The local Ray head ended, and the job with it."))
            self._last_answer = time.monotonic()  # a head that starts is not one that hangs
        elif isinstance(error, RayRefused) and not submitted:
            return AttemptEnd(Ending.LOST, error.detail)
        silent_seconds = time.monotonic() - self._last_answer
        if silent_seconds > (CANCEL_HUNG_SECONDS if cancelling else HUNG_SECONDS) and (
            self._head.is_local or cancelling
        ):
            return self._cannot_be_stopped(f"cannot be reached ({error.detail})")
        with self._database.session() as session:
            add_note(locked_study(session, self._study_id), f"Waiting for Ray: {error.detail}")
        is_starting = self._head.is_local and not self._head.is_alive()
        self._pause(RETRY_SECONDS[0 if is_starting else min(self._misses, len(RETRY_SECONDS) - 1)])
        self._misses += 1
        return None

    def _cannot_be_stopped(self, what: str) -> AttemptEnd:
        """A head of our own goes down with its jobs (the dispatcher starts it again); another's job is left alone."""
        if self._head.is_local:
            logger.error("job %s %s: restarting the local Ray head", self._job, what)
            self._head.stop()
            return self._over(f"The job {self._job} {what}; the local Ray head was restarted.")
        return self._finished(cancelled=True, error=f"The job {self._job} {what}: it may still run on the cluster.")

    # -- the store -----------------------------------------------------------------------------------------------------

    def _take_in(self, lines: LogLines) -> ActiveStudy | None:
        """Writes the lines; the study as it is then, None where it is over or at another attempt."""
        if not lines:
            return self._active()
        self._last_lines.extend(line for _, line in lines)
        with self._database.session() as session:
            apply_lines(session, self._study_id, self._attempt, lines)
        return self._active()

    def _active(self) -> ActiveStudy | None:
        with self._database.reading() as session:
            return next(
                (
                    study
                    for study in active_studies(session)
                    if study.study_id == self._study_id and study.attempt == self._attempt
                ),
                None,
            )

    def _position(self) -> int:
        active = self._active()
        return 0 if active is None else active.log_position

    def _is_cancelling(self) -> bool:
        active = self._active()
        return active is not None and active.state is StudyState.CANCELLING

    def _finished(self, *, cancelled: bool, error: str | None = None) -> AttemptEnd:
        with self._database.session() as session:
            finish_study(session, self._study_id, cancelled=cancelled, error=error)
        return AttemptEnd(Ending.FINISHED)

    def _over(self, cause: str) -> AttemptEnd:
        """The job is over without having said so."""
        if self._is_cancelling():
            return self._finished(cancelled=True)
        return AttemptEnd(Ending.LOST, cause)

    def _cause(self, info: JobInfo) -> str:
        message = info.message.strip() or "no message"
        return f"Ray says of the job {self._job}: {info.status}: {message}"[:MAX_CAUSE_CHARACTERS]

    def _with_log(self, cause: str) -> str:
        tail = "\n".join(self._last_lines)
        return f"{cause} The end of its log:\n{tail}"[:MAX_CAUSE_CHARACTERS] if tail else cause

    # -- time ----------------------------------------------------------------------------------------------------------

    def _answered(self) -> None:
        self._last_answer = time.monotonic()
        self._misses = 0

    def _pause(self, seconds: float) -> None:
        """Waits; shorter where the server stops or somebody begins to cancel."""
        deadline = time.monotonic() + seconds
        was_cancelling = self._is_cancelling()
        while (left := deadline - time.monotonic()) > 0 and not self._stopping.wait(min(left, 0.5)):
            if self._is_cancelling() is not was_cancelling:
                return
