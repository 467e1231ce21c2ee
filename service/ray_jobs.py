"""Ray's Jobs API: the only way in which VitScale's server talks about jobs.

Ray's own client (ray.job_submission) sets no timeout and reads its token from the process's environment; importing it
costs the server some 70 MB besides. The few calls needed are stable and documented:
https://docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import httpx

from service.errors import RayRefused, RayUnreachable
from service.job_package import zip_package
from service.ray_connection import RayConnection
from service.ray_http import RayHttp

SUBMIT_SECONDS = 60.0  # at the first job Ray starts the agent's own driver (2 s seen on an idle machine)


class JobStatus(StrEnum):
    """As Ray names them."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        return self in {JobStatus.STOPPED, JobStatus.SUCCEEDED, JobStatus.FAILED}


@dataclass(frozen=True)
class JobInfo:
    """What Ray says about a job. A hint: results that are stored already stand, whatever it says."""

    submission_id: str
    status: JobStatus
    message: str
    driver_exit_code: int | None


class RayJobs(RayHttp):
    """The jobs of one cluster, named by their submission id only."""

    def __init__(self, connection: RayConnection, timeout: float = 10.0) -> None:
        super().__init__(connection, timeout)

    def info(self, submission_id: str) -> JobInfo | None:
        """The job, or None where the cluster knows none of that id."""
        answer = self.repeated("GET", f"/api/jobs/{submission_id}", accept=(404,))
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        job = self.json(answer)
        try:
            status = JobStatus(job["status"])
        except (KeyError, ValueError) as error:
            raise RayRefused(f"Ray answered with a job that has no known status: {str(job)[:200]}") from error
        return JobInfo(submission_id, status, str(job.get("message") or ""), job.get("driver_exit_code"))

    def submit(
        self, submission_id: str, files: Mapping[str, bytes], entrypoint: str, env_vars: Mapping[str, str]
    ) -> None:
        """Makes sure the job exists: uploads `files` as its working directory and submits it, unless it is there.

        May be repeated with the same id. Ray answers a second submission of an id with an error, and a request that
        timed out may have been accepted, so after a failure the id is looked up.
        """
        if self.info(submission_id) is not None:
            return
        name, archive = zip_package(dict(files))
        url = f"/api/packages/gcs/{name}"
        if self.repeated("GET", url, accept=(404,)).status_code == httpx.codes.NOT_FOUND:  # a hit keeps it 10 minutes
            self.repeated("PUT", url, content=archive)
        job = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "runtime_env": {"working_dir": f"gcs://{name}", "env_vars": dict(env_vars)},
        }
        try:
            self.once("POST", "/api/jobs/", json=job, timeout=SUBMIT_SECONDS)
        except RayUnreachable:
            if self.info(submission_id) is None:
                raise

    def stop(self, submission_id: str) -> None:
        """Asks the job to end (SIGTERM to its driver, SIGKILL later). Returns at once; no error for an unknown job."""
        self.repeated("POST", f"/api/jobs/{submission_id}/stop", accept=(404,))
