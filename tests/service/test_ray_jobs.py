"""The Jobs API's client against a dashboard in trouble."""

import time

import pytest

from service.errors import RayRefused, RayUnreachable
from service.ray_connection import RayConnection
from service.ray_jobs import JobStatus, RayJobs
from tests.service.answering_server import answering

JOB = {"status": "RUNNING", "message": "Job is currently running.", "driver_exit_code": None}
FILES = {"plan.json": b"{}"}


def test_a_job_is_read_and_an_unknown_one_is_none() -> None:
    with answering(lambda _, path: (200, JOB) if path.endswith("/known") else (404, "no such job")) as server:
        with RayJobs(RayConnection(server.url, "t0ken")) as jobs:
            known = jobs.info("known")
            assert known is not None
            assert known.status is JobStatus.RUNNING
            assert jobs.info("unknown") is None
        assert {headers["Authorization"] for headers in server.headers} == {"Bearer t0ken"}


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_told_by_its_source_and_not_by_itself(status: int) -> None:
    with (
        answering(lambda *_: (status, "no")) as server,
        RayJobs(RayConnection(server.url, "s3cret", "RAY_AUTH_TOKEN")) as jobs,
        pytest.raises(RayRefused) as refusal,
    ):
        jobs.version()
    assert "RAY_AUTH_TOKEN" in refusal.value.detail
    assert "s3cret" not in refusal.value.detail


def test_a_call_that_may_be_repeated_is() -> None:
    answers = iter([(500, "Traceback\nRuntimeError: agent away"), (200, JOB)])
    with answering(lambda *_: next(answers)) as server, RayJobs(RayConnection(server.url)) as jobs:
        assert jobs.info("job") is not None
        assert len(server.seen) == 2


@pytest.mark.slow
def test_a_lasting_failure_says_what_ray_said_last() -> None:
    with (
        answering(lambda *_: (500, "Traceback\n  File\nRuntimeError: agent away\n.")) as server,
        RayJobs(RayConnection(server.url)) as jobs,
        pytest.raises(RayUnreachable, match="RuntimeError: agent away"),
    ):
        jobs.stop("job")


def test_a_dashboard_that_does_not_answer_costs_one_timeout() -> None:
    with answering(lambda *_: None) as server, RayJobs(RayConnection(server.url), timeout=0.3) as jobs:
        began = time.monotonic()
        with pytest.raises(RayUnreachable, match="did not answer in time"):
            jobs.info("job")
        assert time.monotonic() - began < 3


@pytest.mark.slow
def test_nobody_there_is_unreachable() -> None:
    with answering(lambda *_: (200, {})) as server:
        url = server.url
    with RayJobs(RayConnection(url)) as jobs, pytest.raises(RayUnreachable, match="cannot be reached"):
        jobs.version()


@pytest.mark.parametrize("body", ["<html>a proxy's login page</html>", ["a list"], {"version": 4}])
def test_something_else_than_ray_is_noticed(body: object) -> None:
    with (
        answering(lambda *_: (200, body)) as server,
        RayJobs(RayConnection(server.url)) as jobs,
        pytest.raises(RayRefused, match="does not answer like a Ray dashboard"),
    ):
        jobs.version()


class TestSubmit:
    def test_a_job_that_is_there_is_not_submitted_again(self) -> None:
        with answering(lambda *_: (200, JOB)) as server, RayJobs(RayConnection(server.url)) as jobs:
            jobs.submit("job", FILES, "exec python", {})
            assert server.seen == [("GET", "/api/jobs/job")]

    def test_a_failure_after_the_job_was_accepted_is_a_success(self) -> None:
        accepted = False

        def answer(method: str, path: str) -> tuple[int, object]:
            nonlocal accepted
            if method == "POST":
                accepted = True
                return 500, "the connection to the agent was lost"
            if path.startswith("/api/jobs/"):
                return (200, JOB) if accepted else (404, "")
            return 200, ""

        with answering(answer) as server, RayJobs(RayConnection(server.url)) as jobs:
            jobs.submit("job", FILES, "exec python", {})
            assert [method for method, _ in server.seen].count("POST") == 1

    def test_a_failure_before_that_is_one(self) -> None:
        def answer(method: str, path: str) -> tuple[int, object]:
            if method == "POST":
                return 500, "No available agent to submit job, please try again later."
            return 404, path

        def uploading(method: str, path: str) -> tuple[int, object]:
            return (200, "") if method == "PUT" else answer(method, path)

        with answering(uploading) as server, RayJobs(RayConnection(server.url)) as jobs:
            with pytest.raises(RayUnreachable, match="No available agent"):
                jobs.submit("job", FILES, "exec python", {})
            assert [method for method, _ in server.seen] == ["GET", "GET", "PUT", "POST", "GET"]
