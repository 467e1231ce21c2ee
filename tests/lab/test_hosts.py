"""The lab itself: hosts are apart, quotas and rates are what they say, and nothing is left of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.hosts import Lab, LabError, lab, remains_of, remove_stale
from tests.lab.link_rate import link_rate

pytestmark = pytest.mark.lab

KILLED_RUN = """
import sys
from tests.lab.hosts import lab

with lab(["left"]) as built:
    built["left"].start(["sleep", "1000"], log=-3)
    print(built.name, flush=True)
    sys.stdin.read()
"""
BUSY = """
import time
wall, own = time.monotonic(), time.process_time()
while time.monotonic() - wall < 1.0:
    pass
print((time.process_time() - own) / (time.monotonic() - wall))
"""


@pytest.fixture(scope="module")
def built() -> Iterator[Lab]:
    with lab(["north", "south"]) as hosts:
        yield hosts


class TestHosts:
    def test_each_has_its_own_name_address_and_folder(self, built: Lab) -> None:
        for name, host in built.hosts.items():
            (host.folder / name).touch()
            assert host.run(["hostname"]).stdout == f"{name}\n"
            assert f" {host.address}/24 " in host.run(["ip", "-4", "address", "show", "eth0"]).stdout
        assert built["north"].home == built["south"].home
        names = set(built["north"].run(["ls"]).stdout.split())
        assert "north" in names
        assert "south" not in names

    def test_they_reach_each_other_and_this_machine_and_nobody_else(self, built: Lab) -> None:
        north = built["north"]
        connect = "import socket, sys; socket.create_connection((sys.argv[1], 9), timeout=2)"
        for reached in (built["south"].address, built.gateway, "127.0.0.1"):
            assert "ConnectionRefused" in north.run([sys.executable, "-c", connect, reached], check=False).stderr
        assert "unreachable" in north.run([sys.executable, "-c", connect, "192.0.2.1"], check=False).stderr

    def test_the_name_of_a_host_is_a_loopback_address_there(self, built: Lab) -> None:
        assert built["north"].run(["getent", "hosts", "north"]).stdout.split() == ["127.0.1.1", "north"]

    def test_there_is_nothing_of_vitscale_there(self, built: Lab) -> None:
        for package in ("trainers.config", "service.settings", "api.client"):
            failed = built["north"].run([sys.executable, "-c", f"import {package}"], check=False)
            assert "ModuleNotFoundError" in failed.stderr

    def test_a_command_that_fails_is_told_with_what_it_wrote(self, built: Lab) -> None:
        with pytest.raises(LabError, match=r"north: sh .* ended with 3: no luck"):
            built["north"].run(["sh", "-c", "echo no luck >&2; exit 3"])


def test_a_quota_holds_for_all_of_a_hosts_processes_together(built: Lab) -> None:
    north = built["north"]
    north.set_quota(0.4)
    both = north.run(["sh", "-c", f"{sys.executable} -c '{BUSY}' & {sys.executable} -c '{BUSY}'; wait"]).stdout
    north.set_quota(None)
    assert 0.1 < sum(float(line) for line in both.split()) < 0.44  # a busy machine gives less


@pytest.mark.parametrize("mbit", [100, 200, 400])
def test_a_rate_holds_in_both_directions(built: Lab, mbit: int) -> None:
    north, south = built["north"], built["south"]
    north.set_rate(mbit)
    there, back = link_rate(north, south), link_rate(south, north)
    north.set_rate(None)
    # Of 1,514 bytes on the wire, 1,448 are payload (TCP with time stamps over IPv4 over Ethernet).
    assert there == pytest.approx(mbit * 1448 / 1514, rel=0.05)
    assert back == pytest.approx(mbit * 1448 / 1514, rel=0.05)


def test_without_a_rate_a_link_is_far_faster(built: Lab) -> None:
    assert link_rate(built["north"], built["south"]) > 2_000


class TestTakingDown:
    def test_nothing_is_left(self) -> None:
        with lab(["gone"]) as built:
            built["gone"].start(["sleep", "1000"], log=subprocess.DEVNULL)
            assert built.remains() != []
        assert built.remains() == []

    def test_nothing_is_left_after_an_error(self) -> None:
        seen: list[Lab] = []

        def fails() -> None:
            with lab(["gone"]) as built:
                seen.append(built)
                built["gone"].start(["sleep", "1000"], log=subprocess.DEVNULL)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails()
        assert seen[0].remains() == []

    def test_of_a_killed_run_no_process_stays_and_the_next_removes_the_rest(self) -> None:
        killed = subprocess.Popen(
            [sys.executable, "-c", KILLED_RUN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert killed.stdout is not None
        name = killed.stdout.readline().strip()
        assert any(found.startswith("process") for found in remains_of(name))
        assert remove_stale() == []  # it is in use
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        deadline = time.monotonic() + 10
        while any(found.startswith(("process", "network")) for found in remains_of(name)):
            assert time.monotonic() < deadline, remains_of(name)
            time.sleep(0.05)
        assert remains_of(name) != []
        assert remove_stale() == [name]
        assert remains_of(name) == []
