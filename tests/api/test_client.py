"""The Python client against a real server, and against servers that misbehave."""

import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.client import ApiError, Client, ServerUnreachable, UnexpectedAnswer
from api.discovery import AddressInvalid, ServerNotFound, checked_url, find_server
from api.server_record import record_path, write_record
from service.settings import Settings
from service.states import Reason, StudyState, TrialState
from tests.api.served import TOKEN, Served, run_to_the_end, served, started_job, sweep
from tests.service.factories import feed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("client")) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with server.client() as client:
        yield client


class TestStudies:
    def test_a_study_is_created_read_changed_and_listed(self, client: Client) -> None:
        study = client.create_study(sweep("made-here", tags=["one"]))
        assert study.status is StudyState.QUEUED
        assert study.progress.total == 2
        assert client.get_study(study.id) == study
        changed = client.update_study(study.id, tags=["two"], description="what for")
        assert (changed.tags, changed.description) == (["two"], "what for")
        cleared = client.update_study(study.id, description="")
        assert (cleared.tags, cleared.description) == (["two"], "")
        assert [one.id for one in client.list_studies(name="made-here").studies] == [study.id]

    def test_yaml_text_is_sent_as_it_is(self, client: Client) -> None:
        text = "name: from-yaml # with a comment\nparameters:\n  model: {value: vit_tiny_patch16_224}\n"
        text += "  train_micro_batch_size_per_gpu: {value: 4}\n"
        assert client.create_study(text, media="application/yaml").name == "from-yaml"

    def test_one_idempotency_key_is_one_study(self, client: Client) -> None:
        first = client.create_study(sweep("once"), idempotency_key="k-1")
        assert client.create_study(sweep("once"), idempotency_key="k-1").id == first.id
        with pytest.raises(ApiError) as refused:
            client.create_study(sweep("other"), idempotency_key="k-1")
        assert (refused.value.status, refused.value.code) == (422, "IDEMPOTENCY_KEY_REUSED")

    def test_iterating_reads_every_page_and_nothing_twice(self, client: Client) -> None:
        made = {client.create_study(sweep("paged")).id for _ in range(5)}
        page = client.list_studies(name="paged", limit=2)
        assert len(page.studies) == 2
        assert page.next_cursor is not None
        found = [study.id for study in client.iter_studies(name="paged")]
        assert sorted(found) == sorted(made)

    def test_actions_move_the_study_and_wrong_states_are_refused(self, client: Client) -> None:
        study = client.create_study(sweep())
        with pytest.raises(ApiError) as refused:
            client.delete_study(study.id)
        assert (refused.value.status, refused.value.code) == (409, "WRONG_STATE")
        assert client.cancel_study(study.id).status is StudyState.CANCELLED
        assert client.resume_study(study.id).status is StudyState.QUEUED
        client.cancel_study(study.id)
        client.delete_study(study.id)
        with pytest.raises(ApiError) as gone:
            client.get_study(study.id)
        assert (gone.value.status, gone.value.code) == (404, "NOT_FOUND")

    def test_a_refused_spec_says_where_and_what(self, client: Client) -> None:
        spec = sweep()
        spec["parameters"]["train_micro_batch_size"] = {"value": 4}
        with pytest.raises(ApiError) as refused:
            client.create_study(spec)
        [item] = refused.value.errors
        assert refused.value.code == "SPEC_INVALID"
        assert item.pointer == "/parameters/train_micro_batch_size"
        assert item.hint is not None
        assert "train_micro_batch_size_per_gpu" in item.hint

    def test_plan_stores_nothing(self, client: Client) -> None:
        answer = client.plan_study(sweep("only-planned", micro_batches=(4, 8)))
        assert [trial.parameters["world_size"] for trial in answer.trials].count(2) == 2
        assert answer.refused == []
        assert client.list_studies(name="only-planned").studies == []

    def test_nan_is_refused_before_it_is_sent(self, client: Client) -> None:
        with pytest.raises(ValueError, match="not JSON compliant"):
            client.create_study({"name": "x", "workload": {"dataset_fraction": float("nan")}})


class TestTrialsAndResults:
    def test_rows_trials_and_csv_of_a_finished_study(self, client: Client, server: Served) -> None:
        study = client.create_study(sweep(micro_batches=(4, 8)))
        run_to_the_end(server, study.id, failing=[2])
        rows = list(client.iter_results(study.id))
        assert [row.trial for row in rows] == [1, 2, 3, 4]
        assert rows[1].reason is Reason.ERROR
        assert rows[1].metrics.images_per_second is None
        assert rows[0].metrics.images_per_second == 100.0
        assert [row.trial for row in client.iter_results(study.id, state=TrialState.FAILED)] == [2]
        assert [trial.trial for trial in client.iter_trials(study.id)] == [1, 2, 3, 4]
        assert client.get_trial(study.id, 2).attempts[0].reason is Reason.ERROR
        lines = client.get_results_csv(study.id).splitlines()
        assert lines[0].startswith("trial,repeat,attempt,state,reason")
        assert len(lines) == 5

    def test_pages_of_rows_are_joined(self, client: Client) -> None:
        study = client.create_study(sweep(micro_batches=range(1, 4)))
        page = client.list_results(study.id, limit=4)
        assert (page.count, len(page.results)) == (6, 4)
        assert [row.trial for row in client.list_results(study.id, cursor=page.next_cursor).results] == [5, 6]

    def test_logs_are_the_trials_own(self, client: Client, server: Served) -> None:
        study = client.create_study(sweep())
        job = started_job(server, study.id)
        feed(server.database, job.plan, ["the driver starts", job.started(1), "a line of the worker"])
        assert [line.text for line in client.get_trial_logs(study.id, 1)] == ["a line of the worker"]
        assert [line.text for line in client.get_study_logs(study.id)] == ["the driver starts"]


class TestTheServiceItself:
    def test_version_and_probes(self, client: Client) -> None:
        assert client.get_version()["version"]
        assert client.healthy()
        is_ready, parts = client.readiness()
        assert not is_ready  # it runs without Ray
        assert parts["database"]["ready"] is True

    def test_presets_can_be_posted_as_they_are(self, client: Client) -> None:
        assert {"demo", "vector-strong"} <= set(client.list_presets())
        assert client.create_study(client.get_preset("demo"), media="application/yaml").name == "demo"

    def test_the_cluster_cannot_be_told_without_ray(self, client: Client) -> None:
        with pytest.raises(ApiError) as refused:
            client.get_cluster()
        assert (refused.value.status, refused.value.code) == (503, "RAY_UNREACHABLE")

    def test_a_wrong_token_is_told(self, server: Served) -> None:
        with Client(server.url, "wrong") as client, pytest.raises(ApiError) as refused:
            client.list_studies()
        assert (refused.value.status, refused.value.code) == (401, "UNAUTHORIZED")
        assert "vitscale token" in refused.value.detail

    def test_an_id_cannot_lead_elsewhere(self, client: Client) -> None:
        with pytest.raises(ApiError) as refused:
            client.get_study("../version")
        assert refused.value.status == 404


class _Scripted(http.server.BaseHTTPRequestHandler):
    """Gives the answers of its class in turn, and notes what it was asked."""

    script: list[Any]
    seen: list[tuple[str, str, str | None]]

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        self.seen.append((self.command, self.path, self.headers.get("Authorization")))
        step = self.script.pop(0)
        if step == "hang up":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        status, headers, body = step
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on standard error."""


@contextmanager
def scripted(*script: Any) -> Iterator[tuple[str, list[tuple[str, str, str | None]]]]:
    handler = type("Handler", (_Scripted,), {"script": list(script), "seen": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler.seen
        finally:
            server.shutdown()
            thread.join(10)


VERSION = (200, {"Content-Type": "application/json"}, json.dumps({"version": "1"}).encode())


class TestMisbehavingServers:
    def test_a_read_is_repeated_after_a_broken_connection(self) -> None:
        with scripted("hang up", "hang up", VERSION) as (url, seen), Client(url) as client:
            assert client.get_version() == {"version": "1"}
        assert len(seen) == 3

    def test_repeating_ends(self) -> None:
        with scripted(*["hang up"] * 3) as (url, seen), Client(url) as client, pytest.raises(ServerUnreachable):
            client.get_version()
        assert len(seen) == 3

    def test_a_change_is_not_repeated(self) -> None:
        with scripted("hang up", VERSION) as (url, seen), Client(url) as client, pytest.raises(ServerUnreachable):
            client.cancel_study("a" * 12)
        assert len(seen) == 1

    def test_nobody_listens(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # bound, and nobody accepts
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            with Client(url, timeout=2) as client, pytest.raises(ServerUnreachable, match="does not answer"):
                client.get_version()

    def test_a_silent_server_is_given_up_in_time(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            with Client(url, timeout=0.2) as client, pytest.raises(ServerUnreachable, match="ReadTimeout"):
                client.cancel_study("a" * 12)

    def test_a_redirect_is_not_followed_with_the_token(self) -> None:
        with scripted(VERSION) as (elsewhere, elsewhere_seen):
            moved = (307, {"Location": f"{elsewhere}/version"}, b"")
            with (
                scripted(moved) as (url, _),
                Client(url, "secret") as client,
                pytest.raises(UnexpectedAnswer, match="redirects to") as told,
            ):
                client.get_version()
        assert elsewhere_seen == []
        assert "secret" not in str(told.value)

    def test_another_program_on_the_port_is_named_as_such(self) -> None:
        page = (404, {"Content-Type": "text/html"}, b"<h1>not here</h1>")
        refused = pytest.raises(UnexpectedAnswer, match="perhaps no VitScale server")
        with scripted(page) as (url, _), Client(url) as client, refused:
            client.get_version()

    def test_an_answer_of_another_version_is_named_as_such(self) -> None:
        refused = pytest.raises(UnexpectedAnswer, match="same version")
        with scripted((200, {}, b'{"id": 3}')) as (url, _), Client(url) as client, refused:
            client.get_study("a" * 12)

    def test_probes_carry_no_token(self) -> None:
        with scripted(VERSION, VERSION) as (url, seen), Client(url, "secret") as client:
            assert client.healthy()
            client.get_version()
        assert [token for _, _, token in seen] == [None, "Bearer secret"]


class TestDiscovery:
    def test_the_local_server_and_its_token_are_found(self, server: Served) -> None:
        target = find_server(Settings(_env_file=None, data_dir=server.settings.data_dir, api_token=TOKEN))
        assert (target.url, target.token, target.is_local) == (server.url, TOKEN, True)
        assert TOKEN not in repr(target)

    def test_without_a_server_it_says_how_to_start_one(self, tmp_path: Path) -> None:
        with pytest.raises(ServerNotFound, match=r"vitscale serve.*make serve"):
            find_server(Settings(_env_file=None, data_dir=tmp_path))

    def test_what_a_killed_server_left_is_no_server(self, tmp_path: Path) -> None:
        write_record(tmp_path, "http://127.0.0.1:9", "0")
        text = record_path(tmp_path).read_text()
        record_path(tmp_path).write_text(text.replace(f'"pid":{os.getpid()}', '"pid":4194304'))
        with pytest.raises(ServerNotFound):
            find_server(Settings(_env_file=None, data_dir=tmp_path))

    def test_the_token_of_the_data_directory_goes_to_its_own_server_only(self, tmp_path: Path) -> None:
        (tmp_path / "api_token").write_text("local-token\n")
        write_record(tmp_path, "http://127.0.0.1:4321", "0")
        asked = {"_env_file": None, "data_dir": tmp_path}
        assert find_server(Settings(**asked)).token == "local-token"
        assert find_server(Settings(**asked, url="http://localhost:4321/")).token == "local-token"
        assert find_server(Settings(**asked, url="http://127.0.0.1:4322")).token is None
        assert find_server(Settings(**asked, url="https://127.0.0.1:4321")).token is None
        assert find_server(Settings(**asked, url="http://vit.example")).token is None
        assert find_server(Settings(**asked, url="http://vit.example", api_token="meant")).token == "meant"

    @pytest.mark.parametrize("url", ["", "vit.example", "ftp://vit.example", "http://", "http://a:99999", "http://a b"])
    def test_what_is_no_address_is_refused(self, url: str) -> None:
        with pytest.raises(AddressInvalid):
            checked_url(url)

    def test_a_password_in_the_address_is_refused_and_not_repeated(self) -> None:
        with pytest.raises(AddressInvalid) as refused:
            Client("http://me:hidden@vit.example")
        assert "hidden" not in str(refused.value)

    def test_proxies_of_the_environment_do_not_see_what_is_for_this_machine(
        self, server: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with scripted() as (proxy, seen):
            monkeypatch.setenv("HTTP_PROXY", proxy)
            monkeypatch.setenv("ALL_PROXY", proxy)
            with server.client() as client:
                assert client.get_version()["version"]
        assert seen == []
        assert httpx.Client().trust_env  # what it would be by default
