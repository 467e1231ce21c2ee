"""Where a step's time goes, on hosts and links of which it is known: measured by VitScale itself, in cluster mode.

Bounds are of the measurement's promise, not of this machine: a slow host is told from a slow link, and both are told
right. The hosts share this machine's cores, so nothing else should use them while this runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pytest

from service.analysis.finding import FindingCode
from service.views import TrialView
from tests.lab.cluster import Cluster, Measured, cluster
from tests.lab.link_rate import link_rate
from trainers.parts.rows import LinkRow, StepParts

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]

NORTH, SOUTH, WEST = "north", "south", "west"
BLAMES: Final = (
    FindingCode.STRAGGLER,
    FindingCode.SLOW_LINK,
    FindingCode.COMMUNICATION_BOUND,
    FindingCode.DATA_BOUND,
)
# Of a core, for three hosts on two: what is left is for Ray's own processes.
THIRD_OF_TWO_CORES: Final = 0.6
RATES: Final = (100, 200, 400)  # Mbit/s


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster([NORTH, SOUTH, WEST], tmp_path_factory.mktemp("lab")) as started:
        yield started
    assert started.lab.remains() == []


def spec(name: str, *, on: Mapping[str, Sequence[str]], micro_batch: int, patch_size: int, **measurement: Any) -> Any:
    """A study with one point for each set of hosts, one worker on each host."""
    return {
        "name": name,
        "workload": {"dataset": "synthetic", "image_size": 32, "num_classes": 10},
        "parameters": {
            "model": {"value": "vit_tiny_patch16_224"},
            "patch_size": {"value": patch_size},
            "train_micro_batch_size_per_gpu": {"value": micro_batch},
            "world_size": {"values": sorted({len(hosts) for hosts in on.values()})},
            "placement": {"values": list(on)},
        },
        "placements": {
            key: {"strategy": "STRICT_SPREAD", "workers": [{"label_selector": {"host": host}} for host in hosts]}
            for key, hosts in on.items()
        },
        "exclude": [
            {"placement": key, "world_size": size}
            for key, hosts in on.items()
            for size in {len(others) for others in on.values()} - {len(hosts)}
        ],
        "measurement": {
            "communication": True,
            "min_warmup_steps": 2,
            "min_steps": 10,
            "max_steps": 10,
            "max_seconds": 40,
            **measurement,
        },
        "execution": {"contended_retries": 0},
    }


@dataclass(frozen=True)
class Seen:
    """One trial's step, taken apart."""

    trial: TrialView

    @property
    def parts(self) -> StepParts:
        parts = self.trial.attempts[-1].parts
        assert parts is not None
        return parts

    @property
    def communication(self) -> float:
        assert self.parts.communication is not None
        return self.parts.communication.value

    def compute_on(self, host: str) -> float:
        (seconds,) = (rank.compute_seconds for rank in self.trial.ranks if rank.node == host)
        assert seconds is not None
        return seconds

    @property
    def links(self) -> list[LinkRow]:
        return self.trial.attempts[-1].links


def point(measured: Measured, world_size: int) -> Seen:
    (trial,) = (trial for trial in measured.trials if trial.parameters["world_size"] == world_size)
    return Seen(trial)


# ---- two hosts; a step short enough that the exchange is a good part of it ----


def on_two(running: Cluster, name: str, **more: Any) -> Measured:
    on = {"both": [NORTH, SOUTH], **more.pop("also", {})}
    return running.run(spec(name, on=on, micro_batch=8, patch_size=8, **more))


@pytest.fixture(scope="module")
def unlimited(running: Cluster) -> Seen:
    running.equalise()
    return point(on_two(running, "equal hosts"), 2)


@pytest.fixture(scope="module")
def with_a_slow_host(running: Cluster) -> Measured:
    running.equalise()
    running.host(SOUTH).set_quota(0.5)
    return on_two(running, "half a core", also={"alone": [SOUTH]})


class TestASlowHost:
    def test_it_is_named(self, with_a_slow_host: Measured) -> None:
        (finding,) = with_a_slow_host.findings(FindingCode.STRAGGLER)
        assert (finding.evidence["kind"], finding.evidence["node"]) == ("compute", SOUTH)
        assert with_a_slow_host.findings(FindingCode.SLOW_LINK) == []

    def test_it_computes_as_long_as_alone(self, with_a_slow_host: Measured) -> None:
        alone = point(with_a_slow_host, 1).compute_on(SOUTH)
        assert point(with_a_slow_host, 2).compute_on(SOUTH) == pytest.approx(alone, rel=0.15)

    def test_the_exchange_takes_as_long_as_among_equal_hosts(self, with_a_slow_host: Measured, unlimited: Seen) -> None:
        assert point(with_a_slow_host, 2).communication == pytest.approx(unlimited.communication, rel=0.25)


@dataclass(frozen=True)
class Limited:
    """A step over a limited link, and the Mbit/s of payload that one connection carries over it."""

    rate: float
    seen: Seen

    @property
    def wire_seconds(self) -> float:
        wire_bytes = self.seen.parts.wire_bytes
        assert wire_bytes is not None
        return wire_bytes * 8e-6 / self.rate


@pytest.fixture(scope="module")
def limited_to(running: Cluster) -> Callable[[int], Limited]:
    """The study at a rate, run once: tests come in any order."""

    @cache
    def study(rate: int) -> Limited:
        running.equalise()
        running.host(SOUTH).set_rate(rate)
        carried = link_rate(running.host(NORTH), running.host(SOUTH))
        return Limited(carried, point(on_two(running, f"{rate} Mbit/s", max_seconds=16), 2))

    return study


@pytest.fixture(params=RATES)
def limited(request: pytest.FixtureRequest, limited_to: Callable[[int], Limited]) -> Limited:
    return limited_to(request.param)


class TestALimitedLink:
    def test_beta_is_its_rate(self, limited: Limited) -> None:
        assert [link.kind for link in limited.seen.links] == ["all", "pair"]
        for link in limited.seen.links:
            assert link.beta_bytes_per_second is not None
            assert link.beta_bytes_per_second.value * 8e-6 == pytest.approx(limited.rate, rel=0.10)

    def test_the_exchange_takes_longer_by_what_the_wire_takes(self, limited: Limited, unlimited: Seen) -> None:
        longer = limited.seen.communication - unlimited.communication
        assert longer == pytest.approx(limited.wire_seconds, rel=0.15)

    def test_computing_takes_no_longer(self, limited: Limited, unlimited: Seen) -> None:
        assert limited.seen.parts.compute.value == pytest.approx(unlimited.parts.compute.value, rel=0.10)

    def test_the_profiler_agrees(self, limited: Limited) -> None:
        profiled = limited.seen.parts.profiled_communication
        assert profiled is not None
        assert profiled.value == pytest.approx(limited.seen.communication, rel=0.20)


# ---- three hosts ----


def on_three(running: Cluster, name: str) -> Measured:
    on = {"all": [NORTH, SOUTH, WEST]}
    return running.run(spec(name, on=on, micro_batch=8, patch_size=8, max_seconds=16))


def blamed(measured: Measured) -> dict[str, list[str]]:
    """The nodes that findings name: slow themselves, or at a slow link."""
    stragglers = measured.findings(FindingCode.STRAGGLER)
    links = measured.findings(FindingCode.SLOW_LINK)
    return {
        "slow": sorted(finding.evidence["node"] for finding in stragglers),
        "slow link": sorted(node for finding in links for node in finding.evidence["nodes"]),
    }


def test_a_slow_host_and_another_ones_slow_link_are_both_named_rightly(running: Cluster) -> None:
    running.equalise(THIRD_OF_TWO_CORES)
    running.host(NORTH).set_quota(THIRD_OF_TWO_CORES / 2)
    running.host(WEST).set_rate(200)
    assert blamed(on_three(running, "a slow host, a slow link")) == {"slow": [NORTH], "slow link": [WEST]}


def test_of_three_hosts_the_one_with_the_slow_link_is_named(running: Cluster) -> None:
    running.equalise(THIRD_OF_TWO_CORES)
    running.host(SOUTH).set_rate(200)
    assert blamed(on_three(running, "a slow link")) == {"slow": [], "slow link": [SOUTH]}


# ---- nothing wrong: a batch that keeps the exchange's share small ----


def test_nothing_is_flagged_in_five_of_five_runs_where_nothing_is_wrong(running: Cluster) -> None:
    running.equalise()
    on = {"both": [NORTH, SOUTH]}
    measured = running.run(
        spec("nothing wrong", on=on, micro_batch=32, patch_size=8, max_seconds=16, repeats=5), seconds=600.0
    )
    assert len(measured.trials) == 5
    assert [finding.message for finding in measured.findings(*BLAMES)] == []
