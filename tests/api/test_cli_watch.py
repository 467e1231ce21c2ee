"""`vitscale watch`: what it shows while a study moves. Each pause between two looks lets the job go on by a step."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from api.cli.outcome import Complaint
from api.cli.watch import RECONNECT_SECONDS, Interrupted, Terminated, follow
from api.client import ApiError, Client
from service.states import Reason, StudyState
from tests.api.served import TOKEN, Served, finish, measured, served, started_job, sweep
from tests.service.factories import error_cause, feed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("watch")) as running:
        yield running


@pytest.fixture
def study_id(server: Served) -> str:
    with server.client() as client:
        return client.create_study(sweep("watched")).id


def steps(*actions: Callable[[], object]) -> Callable[[float], None]:
    """A pause that does the next action each time."""
    left = iter(actions)
    return lambda _seconds: next(left)() and None


def whole_job(server: Served, study_id: str) -> list[Callable[[], object]]:
    """The study's life in steps: trial 1 succeeds, trial 2 fails."""
    job = started_job(server, study_id)
    position = 0

    def say(*lines: str) -> None:
        nonlocal position
        feed(server.database, job.plan, lines, start=position)
        position += len(lines)

    cause = error_cause(message="CUDA out of memory\nsecond line")
    result = measured(100.0, 18.0)
    script = [
        (job.started(1), job.progress(1, phase="starting")),
        (job.progress(1, phase="measure", done=20, total=60, images_per_second=98.7),),
        (job.succeeded(1, result=result), job.started(2), job.progress(2, phase="warmup", done=1, total=3)),
        (job.failed(2, Reason.OUT_OF_MEMORY, error=cause),),
    ]
    return [*((lambda lines=lines: say(*lines)) for lines in script), lambda: finish(server, study_id)]


class TestPlainLines:
    def test_there_is_a_line_for_each_change(
        self, server: Served, study_id: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        actions = whole_job(server, study_id)
        nothing_new = [lambda: None] * 3
        study = follow(server.client, study_id, pause=steps(*nothing_new, *actions))
        assert study.status is StudyState.PARTIAL
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"study {study_id} (watched): running, 2 trials"
        assert lines[1:3] == ["trial 1 (world size 1): starting", "trial 1 (world size 1): measure"]
        assert lines[3] == "trial 1 (world size 1): succeeded"
        assert lines[4].startswith("1/2 done, about ")
        assert lines[5] == "trial 2 (world size 2): warmup"
        assert lines[6] == "trial 2 (world size 2): failed: OUT_OF_MEMORY (CUDA out of memory)"
        assert lines[7] == "2/2 done, 1 failed"
        assert re.fullmatch(rf"study {study_id}: partial after \d+ s \(1 succeeded, 1 failed\)", lines[8])
        assert len(lines) == 9

    def test_a_finished_study_is_one_line(
        self, server: Served, study_id: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with server.client() as client:
            client.cancel_study(study_id)
        assert follow(server.client, study_id, pause=steps()).status is StudyState.CANCELLED
        assert capsys.readouterr().out == f"study {study_id}: cancelled (2 cancelled)\n"


class TestTheBar:
    @pytest.fixture(autouse=True)
    def terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.delenv("NO_COLOR", raising=False)

    def test_it_shows_counts_and_the_running_trial_in_80_columns(
        self, server: Served, study_id: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        follow(server.client, study_id, pause=steps(*whole_job(server, study_id)))
        out = capsys.readouterr().out
        frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out).replace("\r", "\n")
        assert "trial 1 (world size 1)  measure 20/60  98.70 images/s" in frames
        assert "0/2 done" in frames
        assert "2/2 done, 1 failed" in frames
        assert f"study {study_id}: partial" in frames
        assert max(map(len, frames.splitlines())) <= 80
        assert out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")  # the cursor is back


class TestInterruptions:
    def test_ctrl_c_leaves_the_study_running_and_says_so(self, server: Served, study_id: str) -> None:
        def interrupt(_seconds: float) -> None:
            signal.raise_signal(signal.SIGINT)

        with pytest.raises(Interrupted, match=f"goes on.*vitscale watch {study_id}") as interrupted:
            follow(server.client, study_id, pause=interrupt)
        assert interrupted.value.exit_code == 130
        with server.client() as client:
            assert client.get_study(study_id).status is StudyState.QUEUED

    def test_sigterm_ends_it_and_gives_the_signal_back(self, server: Served, study_id: str) -> None:
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(Terminated) as terminated:
            follow(server.client, study_id, pause=lambda _seconds: os.kill(os.getpid(), signal.SIGTERM))
        assert terminated.value.code == 143
        assert signal.getsignal(signal.SIGTERM) is before

    @pytest.mark.slow
    def test_it_survives_a_restart_of_the_server_at_another_address(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with ExitStack() as first, ExitStack() as second:
            server = first.enter_context(served(tmp_path))
            with server.client() as client:
                study_id = client.create_study(sweep("watched")).id
            actions = [
                first.close,
                lambda: None,
                lambda: second.enter_context(served(tmp_path)),
                lambda: finish_by_cancelling(server, study_id),
            ]

            def finish_by_cancelling(server: Served, study_id: str) -> None:
                with Client.discover(server.settings) as client:
                    client.cancel_study(study_id)

            study = follow(lambda: Client.discover(server.settings), study_id, pause=steps(*actions))
        assert study.status is StudyState.CANCELLED
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition(":")[0] for line in lines][1:3] == ["reconnecting", "connected again"]

    def test_a_server_that_stays_away_is_given_up(self, study_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("api.cli.watch.RECONNECT_SECONDS", 0.0)
        gone = Client("http://127.0.0.1:9", TOKEN)
        with pytest.raises(Complaint, match="has been away") as given_up:
            follow(lambda: gone, study_id, pause=lambda _seconds: None)
        assert given_up.value.exit_code == 1
        assert RECONNECT_SECONDS > 60

    def test_a_study_that_is_deleted_meanwhile_is_not_waited_for(self, server: Served, study_id: str) -> None:
        def delete() -> None:
            with server.client() as client:
                client.cancel_study(study_id)
                client.delete_study(study_id)

        with pytest.raises(ApiError) as gone:
            follow(server.client, study_id, pause=steps(delete))
        assert gone.value.status == 404
