"""The processor quota that this process's control group has, and what the group has used of it (cgroups(7))."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainers.telemetry.readings import CoreCounters

_MOUNT: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class CgroupQuota:
    """`cores`: processor seconds allowed per second. `usage_file` counts `units_per_second` of use."""

    cores: float
    identity: str
    usage_file: Path
    units_per_second: float

    @classmethod
    def find(cls, mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> "CgroupQuota | None":
        """The quota of the process's own group, version 2 or 1; None where there is none, or it cannot be read."""
        groups = _groups(membership)
        for folder in _places(mount, groups.get("")):
            numbers = _words(folder / "cpu.max")
            if len(numbers) == 2 and numbers[0].isdecimal():
                return cls(int(numbers[0]) / int(numbers[1]), _identity(folder), folder / "cpu.stat", 1e6)
        # Version 1 has two hierarchies; what counts the use must be the group that has the quota.
        if groups.get("cpu") != groups.get("cpuacct"):
            return None
        for folder in _places(mount / "cpu", groups.get("cpu")):
            quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
            usage = mount / "cpuacct" / folder.relative_to(mount / "cpu") / "cpuacct.usage"
            if quota and quota[0].isdecimal() and period:
                return cls(int(quota[0]) / int(period[0]), _identity(folder), usage, 1e9)
        return None

    def counters(self) -> CoreCounters | None:
        """What the group has used so far; None where it does not tell."""
        words = _words(self.usage_file)
        if words[:1] == ["usage_usec"]:
            words = words[1:]
        return CoreCounters(int(words[0]) / self.units_per_second) if words and words[0].isdecimal() else None


def _groups(membership: Path) -> dict[str, str]:
    """The process's group for each controller; version 2 has the empty name."""
    groups = {}
    for word in _words(membership):
        _, controllers, path = word.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _places(root: Path, group: str | None) -> list[Path]:
    """Where the group's files are: below the root, or in a container, whose own group is mounted as the root, there."""
    return [] if group is None else list(dict.fromkeys([root / group.lstrip("/"), root]))


def _identity(folder: Path) -> str:
    return f"cgroup {folder.stat().st_ino}"


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split()
    except OSError:
        return []
