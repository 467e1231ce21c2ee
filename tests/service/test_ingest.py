"""Lines of a job's log: what they are read as. Nothing in a log raises."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.events import MARK, StudyFinished, TrialFinished, TrialStarted, format_event
from service.ingest import (
    MAX_LINE_CHARACTERS,
    EventLine,
    PlainLine,
    clean_json,
    clean_text,
    outcome_of,
    read_line,
    shortened,
    utc,
    worker_pid,
)
from service.states import Reason
from tests.service.factories import epoch_row, error_cause, rank_row, trial_result

STARTED = TrialStarted(seq=1, study="s", attempt=1, trial=3, trial_attempt=1, at=datetime(2026, 1, 2, tzinfo=UTC))


def finished(**fields: object) -> TrialFinished:
    return TrialFinished.model_validate(
        {"seq": 1, "study": "s", "attempt": 1, "trial": 1, "trial_attempt": 1, "state": "succeeded", **fields}
    )


class TestReadLine:
    def test_an_event_line_gives_the_event_that_was_written(self) -> None:
        assert read_line(format_event(STARTED)) == EventLine(STARTED)

    def test_trailing_line_ends_do_not_matter(self) -> None:
        assert read_line(format_event(STARTED) + "\r\n") == EventLine(STARTED)

    @pytest.mark.parametrize("line", ["", "\n", "  \r\n"])
    def test_an_empty_line_is_nothing(self, line: str) -> None:
        assert read_line(line) is None

    def test_any_other_line_is_a_log_line_without_a_problem(self) -> None:
        assert read_line("loading the data") == PlainLine("loading the data")

    def test_an_event_behind_other_text_is_a_log_line(self) -> None:
        line = "(worker) " + format_event(STARTED)
        assert read_line(line) == PlainLine(line)

    @pytest.mark.parametrize(
        "line",
        [
            format_event(STARTED)[:-10],
            MARK + "not JSON",
            MARK + "[]",
            MARK + "{}",
            format_event(STARTED).replace('"trial":3', '"trial":"three"'),
            format_event(STARTED).replace('"type":"trial_started"', '"type":"trial_gone"'),
            format_event(STARTED).replace('"seq":1', '"seq":0'),
            format_event(STARTED).replace('"seq":1', '"seq":1,"more":1'),
            format_event(STARTED).replace('"seq":1', f'"seq":{2**63}'),
            format_event(STARTED).replace('"trial":3', f'"trial":{2**31}'),
            format_event(STARTED).replace('"trial":3', '"trial":0'),
            format_event(STARTED).replace("2026-01-02T00:00:00Z", "0001-01-01T00:00:00+14:00"),
            MARK + "[" * 5000,
        ],
        ids=lambda line: line[:60] if len(line) < 200 else "deep",
    )
    def test_what_looks_like_an_event_and_is_none_is_kept_with_its_problem(self, line: str) -> None:
        read = read_line(line)
        assert isinstance(read, PlainLine)
        assert read.text == line
        assert read.problem

    @given(st.text() | st.text().map(lambda text: MARK + text) | st.binary().map(lambda raw: raw.decode("latin-1")))
    def test_no_text_raises(self, line: str) -> None:
        read = read_line(line)
        if isinstance(read, PlainLine):
            read.text.encode()

    def test_a_number_that_is_not_finite_makes_the_event_unreadable(self) -> None:
        line = MARK + json.dumps({**STARTED.model_dump(mode="json"), "type": "trial_progress", "phase": "measure"})
        assert isinstance(read_line(line), EventLine)
        read = read_line(line[:-1] + ', "images_per_second": NaN}')
        assert isinstance(read, PlainLine)
        assert read.problem is not None
        assert "finite" in read.problem


class TestText:
    def test_colours_and_control_characters_are_taken_out(self) -> None:
        assert clean_text("\x1b[36m(Worker pid=7)\x1b[0m a\tb\x00\x9b") == "(Worker pid=7) a\tb\ufffd\ufffd"

    def test_lone_surrogates_become_writable(self) -> None:
        assert clean_text("a\ud800b") == "a?b"

    def test_json_is_cleaned_at_every_depth_and_has_only_finite_numbers(self) -> None:
        value = {"a\x00": [1, 2.5, float("nan"), {"b": float("inf")}], "c": "x\x07", "d": None, "e": True}
        assert clean_json(value) == {"a\ufffd": [1, 2.5, None, {"b": None}], "c": "x\ufffd", "d": None, "e": True}

    def test_a_long_line_is_cut_to_the_bound_and_says_so(self) -> None:
        text = shortened("x" * (MAX_LINE_CHARACTERS + 1))
        assert len(text) == MAX_LINE_CHARACTERS
        assert text.endswith("[cut: 4,001 characters]")
        assert shortened("x" * MAX_LINE_CHARACTERS) == "x" * MAX_LINE_CHARACTERS

    @pytest.mark.parametrize(
        ("text", "pid"),
        [
            ("(RayTrainWorker pid=4711, ip=10.0.0.2) step 3", 4711),
            ("(RayTrainWorker pid=12) [repeated 3x across cluster]", 12),
            ("no pid here", None),
            ("pid=" + "9" * 30, None),
        ],
    )
    def test_the_pid_is_read_from_rays_prefix(self, text: str, pid: int | None) -> None:
        assert worker_pid(text) == pid

    def test_a_time_without_a_zone_is_utc(self) -> None:
        assert utc(datetime(2026, 1, 1, 12)) == datetime(2026, 1, 1, 12, tzinfo=UTC)


class TestOutcome:
    def test_a_sound_success_stands(self) -> None:
        result = trial_result(epochs=[epoch_row(1), epoch_row(2)])
        assert outcome_of(finished(result=result)) == (None, None, result)

    def test_a_success_without_a_result_is_a_bad_result(self) -> None:
        reason, error, result = outcome_of(finished(result=None))
        assert (reason, result) == (Reason.BAD_RESULT, None)
        assert error is not None
        assert error.message == "no result was reported"

    @pytest.mark.parametrize(
        "fields",
        [{"ranks": []}, {"ranks": [rank_row(0), rank_row(0)]}, {"ranks": [rank_row(1)]}, {"epochs": [epoch_row(2)]}],
    )
    def test_a_success_with_a_result_that_cannot_be_is_a_bad_result(self, fields: dict[str, Any]) -> None:
        reason, error, result = outcome_of(finished(result=trial_result(**fields)))
        assert (reason, result) == (Reason.BAD_RESULT, None)
        assert error is not None

    def test_a_failure_keeps_its_cause_and_never_a_result(self) -> None:
        event = finished(state="failed", reason=Reason.TIMEOUT, error=error_cause(), result=trial_result())
        assert outcome_of(event) == (Reason.TIMEOUT, error_cause(), None)

    def test_a_failure_without_a_reason_is_an_error(self) -> None:
        assert outcome_of(finished(state="failed"))[0] is Reason.ERROR


def test_the_end_of_a_study_is_read() -> None:
    event = StudyFinished(seq=2, study="s", attempt=1, cancelled=True)
    assert read_line(format_event(event)) == EventLine(event)
