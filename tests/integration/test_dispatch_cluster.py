"""Cluster mode: studies on a head that VitScale did not start, with the cluster's own token."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cluster import describe
from service.dispatch import Dispatcher
from service.errors import RayRefused
from service.ray_connection import RemoteHead
from service.settings import Settings
from service.states import StudyState, TrialState
from tests.integration.foreign_head import ForeignHead, foreign_head
from tests.integration.running_server import running_server
from tests.integration.scripted_job import package
from tests.service.factories import spec


@pytest.fixture(scope="module")
def cluster() -> Iterator[ForeignHead]:
    with foreign_head(labels="gpu_kind=none,rack=r1") as head:
        yield head


def settings(cluster: ForeignHead, token: str) -> Settings:
    return Settings(_env_file=None, ray_dashboard_url=cluster.dashboard_url, ray_auth_token=token)


def test_its_labels_are_told_as_they_are(cluster: ForeignHead) -> None:
    node = describe(RemoteHead(settings(cluster, cluster.token)).connection).nodes[0]
    assert (node.labels["gpu_kind"], node.labels["rack"]) == ("none", "r1")


def test_a_wrong_token_is_told(cluster: ForeignHead) -> None:
    with pytest.raises(RayRefused, match="answered 403 to the one from VITSCALE_RAY_AUTH_TOKEN"):
        describe(RemoteHead(settings(cluster, "wrong")).connection)


def test_a_study_runs_there(tmp_path: Path, cluster: ForeignHead) -> None:
    with running_server(tmp_path, RemoteHead(settings(cluster, cluster.token)), package({})) as server:
        study, _ = server.studies.create(spec())
        done = server.finished(study.id)
        assert done.status == StudyState.SUCCEEDED
        assert done.ray.dashboard_url == cluster.dashboard_url


def test_a_job_that_went_on_while_the_server_was_down_is_caught_up_with(tmp_path: Path, cluster: ForeignHead) -> None:
    head = RemoteHead(settings(cluster, cluster.token))
    with running_server(tmp_path, head, package({}, trial_seconds=4)) as server:
        study, _ = server.studies.create(spec(micro_batches=(1, 2, 4)))
        server.running_trial(study.id, 1)
        server.dispatcher.stop(5.0)
        again = Dispatcher(server.database, settings(cluster, cluster.token), head, package({}))
        again.start()
        try:
            assert server.finished(study.id).status == StudyState.SUCCEEDED
        finally:
            again.stop(5.0)
        assert server.attempts_of(study.id) == {trial: [(1, TrialState.SUCCEEDED, None)] for trial in (1, 2, 3)}
