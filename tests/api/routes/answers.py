"""What the routes' tests have in common: sending, checking refusals, and running a study to its end without Ray."""

from typing import Any

from service.store import Database
from service.store.attempts import finish_study
from tests.service.factories import Job, begin, feed

TOKEN = "the-token-of-these-tests"
YAML = {"Content-Type": "application/yaml"}
JSON = {"Content-Type": "application/json"}


def assert_problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """Checks that the answer is this problem, in the documented form, and returns it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["type"] == "urn:vitscale:problem:" + code.lower().replace("_", "-")
    assert problem["title"]
    assert problem["detail"]
    return dict(problem)


def finish(database: Database, study: str, *, failed: int = 0) -> None:
    """Runs the study to its end: the first `failed` trials of its order fail."""
    plan = begin(database, study)
    job = Job(plan)
    lines = []
    for index, trial in enumerate(plan.trials):
        lines += [job.started(trial.number), job.failed(trial.number)] if index < failed else job.run(trial.number)
    feed(database, plan, lines)
    with database.session() as session:
        finish_study(session, study, cancelled=False, error=None)
