"""Trials, their logs, and results rows over HTTP."""

import csv
import io
from typing import Any

import pytest
from pyarrow import parquet
from starlette.testclient import TestClient

from service.store import Database
from tests.api.routes.answers import assert_problem, finish
from tests.service.factories import Job, begin, feed


@pytest.fixture
def finished(database: Database, study: str) -> str:
    """A study whose job is over: six trials, one of them failed."""
    finish(database, study, failed=1)
    return study


def rows_of(response: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(response.text)))


def parquet_of(response: Any) -> Any:
    return parquet.ParquetFile(io.BytesIO(response.content)).read()


class TestResultsAsJson:
    def test_one_row_per_trial_whatever_its_state(self, client: TestClient, finished: str) -> None:
        page = client.get(f"/studies/{finished}/results").json()
        assert (page["study_id"], page["status"], page["count"]) == (finished, "partial", 6)
        assert [row["trial"] for row in page["results"]] == [1, 2, 3, 4, 5, 6]
        assert sorted(row["state"] for row in page["results"]) == ["failed"] + ["succeeded"] * 5
        assert page["next_cursor"] is None

    def test_what_was_not_measured_is_null_with_a_reason(self, client: TestClient, finished: str) -> None:
        rows = client.get(f"/studies/{finished}/results").json()["results"]
        measured = next(row for row in rows if row["state"] == "succeeded")
        failed = next(row for row in rows if row["state"] == "failed")
        assert measured["metrics"]["images_per_second"] == 80.0
        assert measured["metrics"]["mfu"] is None
        assert any("mfu" in note for note in measured["quality"]["notes"])
        assert failed["metrics"]["images_per_second"] is None
        assert failed["reason"] == "ERROR"
        assert failed["quality"]["notes"]

    def test_pages_join_to_the_whole(self, client: TestClient, finished: str) -> None:
        whole = client.get(f"/studies/{finished}/results").json()["results"]
        rows: list[dict[str, Any]] = []
        cursor = None
        while True:
            query = {"limit": 4} if cursor is None else {"limit": 4, "cursor": cursor}
            page = client.get(f"/studies/{finished}/results", params=query).json()
            rows += page["results"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert rows == whole

    def test_only_the_asked_state(self, client: TestClient, finished: str) -> None:
        page = client.get(f"/studies/{finished}/results", params={"state": "failed"}).json()
        assert page["count"] == 1
        assert [row["state"] for row in page["results"]] == ["failed"]

    @pytest.mark.parametrize(
        ("query", "status", "code"),
        [
            ("format=xml", 422, "REQUEST_INVALID"),
            ("state=done", 422, "REQUEST_INVALID"),
            ("limit=0", 422, "REQUEST_INVALID"),
            ("cursor=x", 400, "BAD_REQUEST"),
            ("sort=trial", 422, "REQUEST_INVALID"),
        ],
    )
    def test_other_questions_are_refused(
        self, client: TestClient, study: str, query: str, status: int, code: str
    ) -> None:
        assert_problem(client.get(f"/studies/{study}/results?{query}"), status, code)

    @pytest.mark.parametrize("format", ["json", "csv", "parquet"])
    def test_an_unknown_study_is_404(self, client: TestClient, format: str) -> None:
        assert_problem(client.get(f"/studies/aaaaaaaaaaaa/results?format={format}"), 404, "NOT_FOUND")


class TestResultsAsCsv:
    def test_all_rows_with_a_header(self, client: TestClient, finished: str) -> None:
        response = client.get(f"/studies/{finished}/results?format=csv")
        assert response.headers["content-type"].startswith("text/csv")
        assert f"{finished}.csv" in response.headers["content-disposition"]
        rows = rows_of(response)
        assert [row["trial"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
        assert {row["train_micro_batch_size_per_gpu"] for row in rows} == {"4", "16", "64"}
        assert {row["images_per_second"] for row in rows} == {"80.0", ""}

    def test_a_page_links_to_the_next(self, client: TestClient, finished: str) -> None:
        first = client.get(f"/studies/{finished}/results?format=csv&limit=4")
        second = client.get(first.links["next"]["url"])
        assert [row["trial"] for row in rows_of(first) + rows_of(second)] == ["1", "2", "3", "4", "5", "6"]
        assert "next" not in second.links


class TestResultsAsParquet:
    def test_all_rows_with_types(self, client: TestClient, finished: str) -> None:
        response = client.get(f"/studies/{finished}/results?format=parquet")
        assert response.headers["content-type"] == "application/vnd.apache.parquet"
        assert f"{finished}.parquet" in response.headers["content-disposition"]
        rows = parquet_of(response).to_pylist()
        assert [row["trial"] for row in rows] == [1, 2, 3, 4, 5, 6]
        assert {row["images_per_second"] for row in rows} == {80.0, None}

    def test_a_page_links_to_the_next(self, client: TestClient, finished: str) -> None:
        first = client.get(f"/studies/{finished}/results?format=parquet&limit=4&state=succeeded")
        second = client.get(first.links["next"]["url"])
        counts = [parquet_of(page).num_rows for page in (first, second)]
        assert counts == [4, 1]


class TestTrials:
    def test_are_listed_with_state_and_cause(self, client: TestClient, finished: str) -> None:
        page = client.get(f"/studies/{finished}/trials", params={"limit": 4}).json()
        rest = client.get(f"/studies/{finished}/trials", params={"limit": 4, "cursor": page["next_cursor"]}).json()
        trials = page["trials"] + rest["trials"]
        assert [trial["trial"] for trial in trials] == [1, 2, 3, 4, 5, 6]
        (failed,) = [trial for trial in trials if trial["state"] == "failed"]
        assert (failed["reason"], failed["error"]["type"]) == ("ERROR", "ValueError")

    def test_one_has_attempts_and_ranks(self, client: TestClient, finished: str) -> None:
        trials = client.get(f"/studies/{finished}/trials").json()["trials"]
        number = next(trial["trial"] for trial in trials if trial["state"] == "succeeded")
        trial = client.get(f"/studies/{finished}/trials/{number}").json()
        assert [attempt["state"] for attempt in trial["attempts"]] == ["succeeded"]
        assert [rank["rank"] for rank in trial["ranks"]] == [0, 1]
        assert trial["attempts"][0]["started_at"].endswith("Z")

    def test_logs_are_the_lines_of_the_trial(self, client: TestClient, database: Database, study: str) -> None:
        plan = begin(database, study)
        job = Job(plan)
        number = plan.trials[0].number
        feed(database, plan, [job.started(number), "a line of its own", job.succeeded(number)])
        logs = client.get(f"/studies/{study}/trials/{number}/logs").json()
        assert (logs["study_id"], logs["trial"]) == (study, number)
        assert [line["text"] for line in logs["lines"]] == ["a line of its own"]
        client.post(f"/studies/{study}/cancel")

    @pytest.mark.parametrize("suffix", ["", "/logs"])
    def test_an_unknown_number_is_404(self, client: TestClient, study: str, suffix: str) -> None:
        assert_problem(client.get(f"/studies/{study}/trials/7{suffix}"), 404, "NOT_FOUND")

    @pytest.mark.parametrize("number", ["0", "-1", "one", "9" * 40, "1.5"])
    def test_what_is_no_number_is_refused(self, client: TestClient, study: str, number: str) -> None:
        assert_problem(client.get(f"/studies/{study}/trials/{number}"), 422, "REQUEST_INVALID")
