import json
import multiprocessing
import socket
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.trainers import meeting
from tests.trainers.meeting import Way
from trainers.preflight import LOOK_SECONDS, Facts, Place, why_workers_disagree

AMPLE_SECONDS = 200.0
BOUND_SECONDS = 3.0  # where one does not do its part


def worker(rank: int, node: str, local_rank: int, local_world_size: int, **changes: Any) -> Facts:
    """One of three workers that agree."""
    place = Place(rank=rank, world_size=3, local_rank=local_rank)
    values: dict[str, Any] = {
        "rank": rank,
        "node": node,
        "node_ip": {"a": "10.0.0.1", "b": "10.0.0.2"}[node],
        "node_rank": {"a": 0, "b": 1}[node],
        "local_world_size": local_world_size,
        "launcher": place,
        "torch": place.model_copy(update={"local_rank": None}),
        "deepspeed": place,
        "device": "a processor",
        "device_uuid": None,
        "versions": {"python": "3.11.9", "torch": "2.14.1", "deepspeed": "0.19.8", "timm": "1.0.31", "ray": "2.60.0"},
        "missing_op": None,
    }
    return Facts.model_validate(values | changes)


def group(**changes_of_last: Any) -> list[Facts]:
    """Two workers on node a, one on node b."""
    return [worker(0, "a", 0, 2), worker(1, "a", 1, 2), worker(2, "b", 0, 1, **changes_of_last)]


class TestComparingFacts:
    def test_workers_that_agree_have_nothing_to_complain_of(self) -> None:
        assert why_workers_disagree(group()) is None

    def test_two_ray_nodes_on_one_machine_each_count_their_own_local_ranks(self) -> None:
        ours = [worker(0, "a", 0, 2), worker(1, "a", 1, 2), worker(2, "a", 0, 1, node_rank=1)]
        assert why_workers_disagree(ours) is None

    def test_another_version_is_told_with_the_nodes_of_each(self) -> None:
        versions = group()[2].versions
        assert why_workers_disagree(group(versions=versions | {"torch": "2.13.0"})) == (
            "torch must be the same on all nodes: 2.14.1 on node a (10.0.0.1; ranks 0, 1), "
            "2.13.0 on node b (10.0.0.2; rank 2)"
        )

    def test_a_package_that_one_node_lacks_is_another_version(self) -> None:
        versions = {package: number for package, number in group()[2].versions.items() if package != "ray"}
        complaint = why_workers_disagree(group(versions=versions))
        assert complaint is not None
        assert "ray must be the same on all nodes" in complaint
        assert "not installed on node b (10.0.0.2; rank 2)" in complaint

    @pytest.mark.parametrize("kind", ["torch", "deepspeed"])
    @pytest.mark.parametrize("changes", [{"rank": 1}, {"world_size": 1}, {"local_rank": 1}])
    def test_another_idea_of_the_world_is_told_with_all_ideas(self, kind: str, changes: dict[str, int]) -> None:
        place = Place(rank=2, world_size=3, local_rank=0)
        complaint = why_workers_disagree(group(**{kind: place.model_copy(update=changes)}))
        assert complaint is not None
        assert complaint.startswith("on node b (10.0.0.2) the launcher says rank 2 of 3, local rank 0, torch says rank")
        assert "DeepSpeed says rank" in complaint

    def test_a_local_rank_that_two_workers_of_a_node_have_is_wrong(self) -> None:
        ours = [worker(0, "a", 0, 2), worker(1, "a", 0, 2), worker(2, "b", 0, 1)]
        assert why_workers_disagree(ours) == (
            "the local ranks on node a (10.0.0.1) must count from 0 to 1, one for each of its workers "
            "(LOCAL_RANK, LOCAL_WORLD_SIZE): rank 0 has 0 of 2, rank 1 has 0 of 2"
        )

    @pytest.mark.parametrize(("local_rank", "local_world_size"), [(1, 1), (0, 2)])
    def test_local_ranks_that_do_not_count_the_workers_of_a_node_are_wrong(
        self, local_rank: int, local_world_size: int
    ) -> None:
        ours = [*group()[:2], worker(2, "b", local_rank, local_world_size)]
        complaint = why_workers_disagree(ours)
        assert complaint is not None
        assert complaint.startswith("the local ranks on node b (10.0.0.2) must count from 0 to 0")
        assert complaint.endswith(f"rank 2 has {local_rank} of {local_world_size}")

    def test_a_missing_compiled_op_is_told_with_its_nodes_and_what_to_run(self) -> None:
        complaint = why_workers_disagree(group(missing_op="not compiled: run `python -m trainers.compiled_ops`"))
        assert complaint == "on node b (10.0.0.2; rank 2): not compiled: run `python -m trainers.compiled_ops`"

    def test_all_that_is_wrong_is_told_at_once(self) -> None:
        versions = group()[2].versions | {"torch": "2.13.0", "timm": "1.0.30"}
        complaint = why_workers_disagree(group(versions=versions, missing_op="not compiled"))
        assert complaint is not None
        assert [part in complaint for part in ("torch must", "timm must", "not compiled")] == [True] * 3


def meet(folder: Path, seconds: float, *ways: Way) -> list[dict[str, Any] | None]:
    """One process for each way, over gloo: what each that ends by itself wrote down. The others are killed then."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Forked from a process that has imported torch and DeepSpeed already.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["deepspeed", meeting.__name__])
    answers = [folder / f"{rank}.json" for rank in range(len(ways))]
    with ExitStack() as cleaning:
        processes = []
        for rank, way in enumerate(ways):
            numbers = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": len(ways), "LOCAL_WORLD_SIZE": 1, "NODE_RANK": rank}
            variables = {name: str(number) for name, number in (numbers | {"MASTER_PORT": port}).items()}
            variables |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
            process = context.Process(target=meeting.take_part, args=(way, seconds, variables, answers[rank]))
            process.start()
            cleaning.callback(process.join)
            cleaning.callback(process.kill)
            processes.append(process)
        for way, process in zip(ways, processes, strict=True):
            if way in ("comes", "other-torch"):
                process.join(AMPLE_SECONDS)
                assert process.exitcode == 0
    return [json.loads(answer.read_text("utf-8")) if answer.exists() else None for answer in answers]


@pytest.mark.slow
class TestRealProcesses:
    @pytest.mark.parametrize("world_size", [1, 3])
    def test_workers_that_fit_meet(self, tmp_path: Path, world_size: int) -> None:
        for told in meet(tmp_path, AMPLE_SECONDS, *["comes"] * world_size):
            assert told is not None
            assert told["type"] is None, told

    def test_another_torch_on_one_node_is_found_by_every_rank(self, tmp_path: Path) -> None:
        for told in meet(tmp_path, AMPLE_SECONDS, "comes", "other-torch", "comes"):
            assert told is not None
            assert told["type"] == "WorkersDisagree"
            ours = f"{version('torch')} on node host-0 (127.0.0.1; rank 0) and node host-2 (127.0.0.1; rank 2)"
            other = "2.9.0 on node host-1 (127.0.0.1; rank 1)"
            assert told["message"] == f"torch must be the same on all nodes: {ours}, {other}"

    def test_a_rank_that_never_comes_is_named_by_those_that_came(self, tmp_path: Path) -> None:
        first, second, nothing = meet(tmp_path, BOUND_SECONDS, "comes", "comes", "never-comes")
        assert nothing is None
        for told in (first, second):
            assert told is not None
            assert told["type"] == "WorkersDidNotMeet"
            assert "rank 2 did not come; here: rank 0 on node host-0 (127.0.0.1), rank 1" in told["message"]
            assert told["seconds"] >= BOUND_SECONDS

    def test_a_rank_that_came_and_tells_nothing_is_named_with_its_node(self, tmp_path: Path) -> None:
        told, _ = meet(tmp_path, BOUND_SECONDS, "comes", "tells-nothing")
        assert told is not None
        assert told["type"] == "WorkersDidNotMeet"
        assert "rank 1 on node host-1 (127.0.0.1) told nothing of itself; here: rank 0 on node" in told["message"]

    def test_a_rank_that_is_stopped_before_the_all_reduce_is_named_with_its_node(self, tmp_path: Path) -> None:
        first, second, _ = meet(tmp_path, BOUND_SECONDS, "comes", "comes", "stops")
        for told in (first, second):
            assert told is not None
            assert told["type"] == "WorkersDidNotMeet"
            assert told["message"] == (
                f"an all-reduce of one number did not end within {BOUND_SECONDS:g} s: "
                "rank 2 on node host-2 (127.0.0.1) did not begin it"
            )
            assert told["seconds"] >= BOUND_SECONDS + LOOK_SECONDS

    def test_a_stopped_rank_0_takes_the_store_with_it_and_the_others_still_end(self, tmp_path: Path) -> None:
        _, told = meet(tmp_path, BOUND_SECONDS, "stops", "comes")
        assert told is not None
        assert told["type"] == "WorkersDidNotMeet"
        assert "does not answer: rank 0, which keeps it, or its node has stopped" in told["message"]

    def test_a_rank_that_dies_leaves_the_cause_to_whoever_saw_it_die(self, tmp_path: Path) -> None:
        """A broken connection is what torch says it is: why the worker is gone, its launcher knows."""
        told, _ = meet(tmp_path, AMPLE_SECONDS, "comes", "dies")
        assert told is not None
        assert told["type"] == "RuntimeError"
        assert "losed by peer" in told["message"] or "reset by peer" in told["message"]
        assert told["seconds"] < AMPLE_SECONDS
