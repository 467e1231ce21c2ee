"""The queue while there is no Ray to be had: nothing is lost, nothing blocks."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service import dispatch
from service.dispatch import Dispatcher
from service.job_attempt import AttemptEnd, JobAttempt
from service.job_plan import JobPlan
from service.ray_connection import RemoteHead
from service.settings import Settings
from service.states import StudyState
from service.studies import Studies
from tests.service.answering_server import answering
from tests.service.factories import begin, open_database, spec

pytestmark = pytest.mark.slow


@contextmanager
def dispatching(folder: Path, url: str, *, timeout: float = 0.5) -> Iterator[tuple[Studies, Dispatcher]]:
    database = open_database(folder)
    settings = Settings(_env_file=None, data_dir=folder, ray_dashboard_url=url, ray_timeout_seconds=timeout)
    dispatcher = Dispatcher(database, settings, RemoteHead(settings))
    try:
        yield Studies(database, data_roots=(), wake=dispatcher.wake), dispatcher
    finally:
        dispatcher.stop(5.0)
        database.close()


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_without_a_cluster_a_study_waits_in_the_queue_and_says_so(tmp_path: Path) -> None:
    with answering(lambda *_: (200, {})) as server:
        nobody = server.url
    with dispatching(tmp_path, nobody) as (studies, dispatcher):
        study, _ = studies.create(spec())
        dispatcher.start()
        wait_for(lambda: bool(studies.get(study.id).notes))
        waiting = studies.get(study.id)
        assert waiting.status == StudyState.QUEUED
        assert waiting.notes[0].startswith(f"Waiting for Ray: The Ray cluster at {nobody} cannot be reached")
        assert dispatcher.ray_problem is not None
        studies.cancel(study.id)
        assert studies.get(study.id).status == StudyState.CANCELLED


def test_a_refused_token_is_what_the_study_waits_for(tmp_path: Path) -> None:
    with answering(lambda *_: (401, "no")) as server, dispatching(tmp_path, server.url) as (studies, dispatcher):
        study, _ = studies.create(spec())
        dispatcher.start()
        wait_for(lambda: bool(studies.get(study.id).notes))
        assert "wants a token" in studies.get(study.id).notes[0]


def test_a_hung_cluster_stops_neither_the_store_nor_the_shutdown(tmp_path: Path) -> None:
    with answering(lambda *_: None) as server, dispatching(tmp_path, server.url) as (studies, dispatcher):
        study, _ = studies.create(spec())
        dispatcher.start()
        wait_for(lambda: bool(server.seen))
        began = time.monotonic()
        assert studies.get(study.id).status == StudyState.QUEUED
        assert time.monotonic() - began < 0.3
        dispatcher.stop(3.0)
        assert time.monotonic() - began < 3.0


def test_a_running_study_whose_cluster_is_away_stays_running_with_a_note(tmp_path: Path) -> None:
    with answering(lambda *_: (503, "down")) as server, dispatching(tmp_path, server.url) as (studies, dispatcher):
        study, _ = studies.create(spec())
        begin(dispatcher._database, study.id)
        dispatcher.start()
        wait_for(lambda: bool(studies.get(study.id).notes))
        assert studies.get(study.id).status == StudyState.RUNNING
        assert "503" in studies.get(study.id).notes[0]


def test_a_study_at_which_the_server_itself_fails_again_and_again_ends_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faulty(JobAttempt):
        def run(self, plan: JobPlan | None) -> AttemptEnd:  # noqa: ARG002
            raise TypeError("a fault of ours")

    monkeypatch.setattr(dispatch, "JobAttempt", Faulty)
    monkeypatch.setattr(dispatch, "LOOK_AGAIN_SECONDS", (0.0,))
    with answering(lambda *_: (200, {})) as server, dispatching(tmp_path, server.url) as (studies, dispatcher):
        study, _ = studies.create(spec())
        begin(dispatcher._database, study.id)
        dispatcher.start()
        wait_for(lambda: studies.get(study.id).status.is_final)
        ended = studies.get(study.id)
        assert ended.status == StudyState.FAILED
        assert ended.error is not None
        assert "The server failed 3 times in a row: TypeError: a fault of ours" in ended.error
        assert any(path.endswith(f"vitscale-{study.id}-1/stop") for _, path in server.seen)
