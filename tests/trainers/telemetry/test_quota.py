from pathlib import Path

import pytest

from trainers.telemetry.quota import CgroupQuota


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def found(tmp_path: Path, membership: str) -> CgroupQuota | None:
    (tmp_path / "membership").write_text(membership)
    return CgroupQuota.find(tmp_path / "cgroup", tmp_path / "membership")


@pytest.mark.parametrize("group", ["/", "/kubepods/pod7"])
def test_version_2_in_a_container_or_below_its_root(tmp_path: Path, group: str) -> None:
    folder = tmp_path / "cgroup" / group.lstrip("/")
    write(folder, cpu__max="150000 100000\n", cpu__stat="usage_usec 2500000\nuser_usec 1\n")
    quota = found(tmp_path, f"0::{group}\n")
    assert quota is not None
    assert quota.cores == 1.5
    counters = quota.counters()
    assert counters is not None
    assert (counters.busy_seconds, counters.steal_seconds) == (2.5, None)


def test_version_1_with_its_two_hierarchies(tmp_path: Path) -> None:
    write(tmp_path / "cgroup/cpu/slow", cpu__cfs_quota_us="50000\n", cpu__cfs_period_us="100000\n")
    write(tmp_path / "cgroup/cpuacct/slow", cpuacct__usage="3000000000\n")
    quota = found(tmp_path, "2:cpuacct:/slow\n1:cpu:/slow\n0::/\n")
    assert quota is not None
    assert quota.cores == 0.5
    counters = quota.counters()
    assert counters is not None
    assert counters.busy_seconds == 3.0


def test_a_quota_whose_use_is_counted_elsewhere_is_none(tmp_path: Path) -> None:
    write(tmp_path / "cgroup/cpu/slow", cpu__cfs_quota_us="50000\n", cpu__cfs_period_us="100000\n")
    write(tmp_path / "cgroup/cpuacct", cpuacct__usage="3000000000\n")
    assert found(tmp_path, "2:cpuacct:/\n1:cpu:/slow\n") is None


@pytest.mark.parametrize(
    ("files", "membership"),
    [({"cpu__max": "max 100000\n"}, "0::/\n"), ({"cpu__cfs_quota_us": "-1\n"}, "1:cpu,cpuacct:/\n"), ({}, "0::/\n")],
)
def test_no_quota_is_none(tmp_path: Path, files: dict[str, str], membership: str) -> None:
    write(tmp_path / "cgroup", **files)
    write(tmp_path / "cgroup/cpu", **files)
    assert found(tmp_path, membership) is None
