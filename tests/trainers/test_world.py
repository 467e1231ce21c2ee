import socket

import pytest
import torch
import torch.distributed as dist

from trainers import network
from trainers.network import choose_interfaces, interface_of, own_address_towards
from trainers.world import LaunchEnvironment, LaunchError, World


def environment(**changes: str) -> dict[str, str]:
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    } | changes


@pytest.fixture
def free_port(monkeypatch: pytest.MonkeyPatch) -> str:
    """A port to meet at, named in the environment as a launcher would."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    for name, value in environment(MASTER_PORT=port).items():
        monkeypatch.setenv(name, value)
    return port


@pytest.fixture
def no_interface_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "restored afterwards")
        monkeypatch.delenv(name)


class TestLaunchEnvironment:
    def test_reads_what_torchrun_sets(self) -> None:
        launch = LaunchEnvironment.read(environment(RANK="3", LOCAL_RANK="1", WORLD_SIZE="4", LOCAL_WORLD_SIZE="2"))
        assert launch == LaunchEnvironment(3, 1, 4, 2, "127.0.0.1", 29500)

    def test_names_every_missing_variable_instead_of_looking_for_mpi(self) -> None:
        incomplete = environment()
        del incomplete["LOCAL_RANK"], incomplete["MASTER_PORT"]
        with pytest.raises(LaunchError, match="LOCAL_RANK, MASTER_PORT not set"):
            LaunchEnvironment.read(incomplete)

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [({"RANK": "zero"}, "RANK is 'zero'"), ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK 2 must be below WORLD_SIZE 2")],
    )
    def test_refuses_what_cannot_be(self, changes: dict[str, str], complaint: str) -> None:
        with pytest.raises(LaunchError, match=complaint):
            LaunchEnvironment.read(environment(**changes))


@pytest.mark.usefixtures("no_interface_named")
class TestWorld:
    def join(self, port: str, expected_size: int = 1) -> World:
        launch = LaunchEnvironment.read(environment(MASTER_PORT=port))
        return World.join(launch, torch.device("cpu"), expected_size)

    def test_joins_over_gloo_on_a_cpu_and_leaves_no_group(self, free_port: str) -> None:
        world = self.join(free_port)
        assert (world.rank, world.size, world.backend) == (0, 1, "gloo")
        assert world.from_rank_0(2.5) == 2.5
        assert world.gather({"rank": 0}) == [{"rank": 0}]
        world.leave()
        assert not dist.is_initialized()

    def test_a_group_that_stands_already_is_used_and_left_standing(self, free_port: str) -> None:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port}", rank=0, world_size=1)
        try:
            world = self.join(free_port)
            world.leave()
            assert dist.is_initialized()
        finally:
            dist.destroy_process_group()

    def test_a_trial_for_another_number_of_workers_fails_with_both_numbers(self, free_port: str) -> None:
        with pytest.raises(LaunchError, match=r"for 2 workers, the launcher started 1"):
            self.join(free_port, expected_size=2)
        assert not dist.is_initialized()


@pytest.mark.usefixtures("no_interface_named")
class TestNetwork:
    def test_the_loopback_address_is_carried_by_the_loopback_interface(self) -> None:
        assert own_address_towards("127.0.0.1", 29500) == "127.0.0.1"
        assert interface_of("127.0.0.1") == "lo"
        assert interface_of("203.0.113.7") is None

    def test_the_interface_of_the_own_address_is_named_to_gloo_and_nccl(self) -> None:
        assert choose_interfaces("localhost", 29500) in ("127.0.0.1", "::1")
        assert network.os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert network.os.environ["NCCL_SOCKET_IFNAME"] == "=lo"

    def test_what_the_user_named_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
        choose_interfaces("127.0.0.1", 29500)
        assert network.os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
