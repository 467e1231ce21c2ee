"""Hosts on one machine, as a network of their own: namespaces joined by a switch, with a quota of CPU and a rate each.

A host is a shell in namespaces of its own (network, host name, mounts, processes), which holds the other end of a pipe:
when it ends, or the process that built it, the kernel ends all that runs there, and the namespaces with their network
cards go with it. What is left by then, a control group for each host and one folder, `remove_stale` finds.

In a host its own folder lies at the same path as in every other, its /dev/shm is empty, the name of the host is that of
a loopback address (as on Debian), and of VitScale there is nothing.
"""

import errno
import fcntl
import os
import random
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import psutil

PREFIX: Final = "vslab-"
_CPU: Final = Path("/sys/fs/cgroup/cpu")
_PERIOD_MICROSECONDS: Final = 10_000  # of the quota; the kernel's 100 ms would be felt in single steps
_BURST: Final = "64kb"
_LATENCY: Final = "50ms"
_END_SECONDS: Final = 20.0
_TOOLS: Final = ("ip", "tc", "unshare", "nsenter", "mount")
_TRY: Final = """
set -e
ip link add name switch type bridge
ip link add name end0 type veth peer name end1
tc qdisc add dev end0 root tbf rate 100mbit burst 64kb latency 50ms
"""


class LabError(RuntimeError):
    """A command that builds the lab failed; with what it wrote."""


def why_not() -> str | None:
    """Why no lab can be built here, or None."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "the lab needs root (network namespaces, traffic control, control groups)"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"the lab needs {', '.join(missing)} (Debian: apt-get install iproute2 util-linux mount)"
    if not (_CPU / "cpu.cfs_quota_us").parent.is_dir() or not (_CPU / "cgroup.procs").exists():
        return f"the lab needs the cpu controller of cgroup v1 at {_CPU}"
    try:
        _run("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "sh", "-c", _TRY)
        probe = _CPU / f"{PREFIX}probe-{secrets.token_hex(4)}"
        probe.mkdir()
        try:
            (probe / "cpu.cfs_quota_us").write_text("50000")
        finally:
            probe.rmdir()
    except (LabError, OSError) as error:
        return f"the lab cannot be built here: {error}"
    return None


@dataclass(frozen=True)
class Host:
    """One host of a lab. Commands run in it as root, with its own folder as their working directory and home."""

    name: str  # of the host, as its processes and its results see it
    address: str
    folder: Path  # where it lies outside of the hosts
    home: Path  # where the same folder lies within
    group: Path  # control group
    _init: int  # process that holds the namespaces
    _switch: int
    _port: str  # its network card's other end, in the switch
    _started: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def run(
        self,
        command: Sequence[str],
        *,
        seconds: float = 60.0,
        environment: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command to its end.

        Raises:
            LabError: `check`, and it failed or took longer than `seconds`.
        """
        words, variables = self._entered(command), self._environment(environment)
        try:
            done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{self.name}: {shlex.join(command)} took over {seconds:.0f} s") from error
        if check and done.returncode:
            raise LabError(f"{self.name}: {shlex.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done

    def start(
        self, command: Sequence[str], *, log: IO[bytes] | int, environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Starts a command and leaves it running; what it writes goes to `log`. It ends with the host at the latest."""
        process = subprocess.Popen(
            self._entered(command),
            env=self._environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self._started.append(process)
        return process

    def set_quota(self, cores: float | None) -> None:
        """What all processes of this host may use together, in cores; None: as much as there is."""
        quota = -1 if cores is None else int(cores * _PERIOD_MICROSECONDS)
        (self.group / "cpu.cfs_quota_us").write_text(str(quota))

    def set_rate(self, mbit: float | None) -> None:
        """Limits what the host sends, and what it is sent, to `mbit` Mbit/s each; None: as fast as it goes."""
        for process, device in ((self._init, "eth0"), (self._switch, self._port)):
            words = ["nsenter", f"--net=/proc/{process}/ns/net", "tc", "qdisc"]
            if mbit is None:
                subprocess.run([*words, "del", "dev", device, "root"], capture_output=True, check=False)
            else:
                rate = [f"{mbit:g}mbit", "burst", _BURST, "latency", _LATENCY]
                _run(*words, "replace", "dev", device, "root", "tbf", "rate", *rate)

    def _entered(self, command: Sequence[str]) -> list[str]:
        # Into the control group first: it is inherited by whatever comes of it.
        enter = f'echo $$ > {shlex.quote(str(self.group))}/cgroup.procs && exec "$@"'
        inside = f'cd {shlex.quote(str(self.home))} && exec "$@"'
        namespaces = ["nsenter", f"--target={self._init}", "--net", "--uts", "--mount", "--pid"]
        return ["sh", "-c", enter, "sh", *namespaces, "sh", "-c", inside, "sh", *command]

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        own = {
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            # What was compiled at set-up is part of what is installed, as Python's packages are.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        }
        return own | dict(more or {})


@dataclass(frozen=True)
class Lab:
    """Hosts that reach each other, and this machine at `gateway`."""

    name: str
    folder: Path
    gateway: str
    hosts: Mapping[str, Host]

    def __getitem__(self, host: str) -> Host:
        return self.hosts[host]

    def remains(self) -> list[str]:
        """What of this lab can be found on the machine: processes, control groups, network cards, folders."""
        return remains_of(self.name)


@contextmanager
def lab(names: Sequence[str]) -> Iterator[Lab]:
    """Builds a host for each name, and takes all down again whatever happens.

    Raises:
        LabError: a command that builds it failed.
    """
    remove_stale()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))  # short: Ray's sockets lie below it
    name = folder.name
    with ExitStack() as undo:
        undo.callback(_take_down, name)
        owner = undo.enter_context((folder / "owner.new").open("w"))
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees it however this process ends
        (folder / "owner.new").rename(folder / "owner")  # never there without its lock
        net = _free_network()
        switch = _namespaces(undo, ["--net"], "ip link set lo up; ip link add name switch type bridge; "
                             "ip link set switch up")  # fmt: skip
        gateway = f"{net}.1"
        uplink = _uplink(name)
        _run("ip", "link", "add", "name", uplink, "type", "veth", "peer", "name", "gateway", "netns", str(switch))
        _run("ip", "address", "add", f"{gateway}/24", "dev", uplink)
        _run("ip", "link", "set", uplink, "up")
        _plug_in(switch, "gateway")
        hosts: dict[str, Host] = {}
        undo.callback(_wait_for_all, hosts)
        for number, each in enumerate(names):
            hosts[each] = _host(undo, name, each, f"{net}.{number + 2}", switch, f"port{number}")
        yield Lab(name, folder, gateway, hosts)


def remove_stale() -> list[str]:
    """Takes down what labs of killed runs have left, and says which they were. Labs in use are left alone."""
    removed = []
    for name in _found_names():
        owner = Path("/tmp") / name / "owner"
        try:
            with owner.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except FileNotFoundError:
            if owner.parent.is_dir() and time.time() - owner.parent.stat().st_mtime < _END_SECONDS:
                continue  # being built
        _take_down(name)
        removed.append(name)
    return removed


def remains_of(name: str) -> list[str]:
    """What of a lab can be found on the machine."""
    found = [f"process {pid}" for group in _groups(name) for pid in _members(group)]
    found += [f"process {process.pid}" for process in psutil.process_iter() if name in " ".join(_words(process))]
    found += [f"control group {group}" for group in _groups(name)]
    found += [f"network card {_uplink(name)}"] if Path("/sys/class/net", _uplink(name)).exists() else []
    found += [f"folder {folder}" for folder in Path("/tmp").glob(name)]
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    return found + [f"mount {line.split()[1]}" for line in mounts.splitlines() if name in line]


# ---- building ----


def _host(undo: ExitStack, lab_name: str, name: str, address: str, switch: int, port: str) -> Host:
    folder = Path("/tmp") / lab_name / name
    home = Path("/tmp") / lab_name / "home"
    for each in (home, folder, folder / "tmp", folder / "nothing"):
        each.mkdir(exist_ok=True)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
    group = _CPU / f"{lab_name}-{name}"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
    (folder / "hosts").chmod(0o644)
    script = [
        f"hostname {shlex.quote(name)}",
        "ip link set lo up",
        "mount --make-rprivate /",
        "mount -t tmpfs tmpfs /dev/shm",
        f"mount --bind {folder}/hosts /etc/hosts",
        *(f"mount --bind {folder}/nothing {shlex.quote(str(each))}" for each in _packages()),
        f"mount --bind {folder} {home}",
    ]
    init = _namespaces(undo, ["--net", "--uts", "--mount", "--pid", "--mount-proc"], "; ".join(script))
    _run("ip", "link", "add", "name", port, "netns", str(switch), "type", "veth",
         "peer", "name", "eth0", "netns", str(init))  # fmt: skip
    _plug_in(switch, port)
    _run(*_in_network(init), "ip", "address", "add", f"{address}/24", "dev", "eth0")
    _run(*_in_network(init), "ip", "link", "set", "eth0", "up")
    return Host(name, address, folder, home, group, init, switch, port)


def _packages() -> list[Path]:
    """Where Python finds VitScale's packages here: a checkout, and what is installed from one."""
    places = {Path(entry).resolve() / name for entry in sys.path for name in ("api", "service", "trainers")}
    return sorted(place for place in places if (place / "__init__.py").is_file())


def _namespaces(undo: ExitStack, kinds: Sequence[str], script: str) -> int:
    """New namespaces, made ready by a script, and the id of the process that holds them: until this one ends."""
    # `cat` inherits that children are not waited for: as the first process of a host it is given every orphan.
    program = f"set -e; {script}; echo ready; trap '' CHLD; exec cat > /dev/null"
    holder = subprocess.Popen(
        ["unshare", *kinds, "--fork", "sh", "-c", program.replace("; ", "\n")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    undo.callback(_end, holder)
    assert holder.stdout is not None
    assert holder.stderr is not None
    if holder.stdout.readline() != b"ready\n":
        raise LabError(f"{shlex.join(kinds)}: {holder.stderr.read().decode(errors='replace')}")
    return int(psutil.Process(holder.pid).children()[0].pid)


def _plug_in(switch: int, port: str) -> None:
    _run(*_in_network(switch), "ip", "link", "set", port, "master", "switch")
    _run(*_in_network(switch), "ip", "link", "set", port, "up")


def _in_network(process: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{process}/ns/net"]


def _free_network() -> str:
    """The first three numbers of a network that no route of this machine leads to."""
    routes = _run("ip", "-4", "route")
    while True:
        net = f"10.{random.randint(64, 250)}.{random.randint(0, 255)}"
        if f"{net}." not in routes:
            return net


def _uplink(name: str) -> str:
    """The card in this machine's own network; the kernel allows 15 characters."""
    return f"vsl{name.removeprefix(PREFIX)}"[:15]


# ---- taking down ----


def _end(holder: "subprocess.Popen[bytes]") -> None:
    for stream in (holder.stdin, holder.stdout, holder.stderr):
        if stream is not None:
            stream.close()  # the end of its input is the end of the host
    try:
        holder.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        for process in (*psutil.Process(holder.pid).children(recursive=True), psutil.Process(holder.pid)):
            process.kill()
        holder.wait()


def _wait_for_all(hosts: Mapping[str, Host]) -> None:
    """For what was started in hosts that have ended: the kernel has killed it, or is about to."""
    for process in (process for host in hosts.values() for process in host._started):
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _take_down(name: str) -> None:
    """Everything that carries the lab's name. Its hosts have been ended, or have ended with the run that built them."""
    deadline = time.monotonic() + _END_SECONDS
    for group in _groups(name):
        while not _removed(group):
            if time.monotonic() > deadline:
                raise LabError(f"{group} cannot be removed: processes {_members(group)} do not end")
            time.sleep(0.05)
    if Path("/sys/class/net", _uplink(name)).exists():
        subprocess.run(["ip", "link", "del", _uplink(name)], capture_output=True, check=False)
    shutil.rmtree(Path("/tmp") / name, ignore_errors=True)


def _removed(group: Path) -> bool:
    """Ends what is in a control group, and removes it once the kernel is done with all of that."""
    for pid in _members(group):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        group.rmdir()
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def _groups(name: str) -> list[Path]:
    return sorted(_CPU.glob(f"{name}-*"))


def _members(group: Path) -> list[int]:
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text().split()]
    except OSError:  # removed meanwhile
        return []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if process.pid != os.getpid() else []
    except psutil.Error:
        return []


def _found_names() -> list[str]:
    folders = {path.name for path in Path("/tmp").glob(f"{PREFIX}*") if path.is_dir()}
    groups = {"-".join(path.name.split("-")[:2]) for path in _CPU.glob(f"{PREFIX}*-*")}
    return sorted(folders | groups)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_END_SECONDS, check=False)
    if done.returncode:
        raise LabError(f"{shlex.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
