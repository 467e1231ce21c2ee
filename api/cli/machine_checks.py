"""What can be told of this machine without asking anyone: packages, compiler, memory for Ray, disks, files."""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from api.data_dir import TOKEN_FILE
from service.settings import Settings
from trainers.compiled_ops import missing_compiled_op, missing_compiler

PYTHON_FROM, PYTHON_BELOW = (3, 11), (3, 14)
PACKAGES = ("ray", "torch", "torchvision", "deepspeed", "timm")
_GIB = 1024**3
_DISK_NEEDED, _DISK_WISHED = 1 * _GIB, 5 * _GIB
_SHM_WISHED = 256 * 1024**2  # the local head's object store
_RAY_DISK_LIMIT = 0.95  # above it Ray refuses to write objects


@dataclass(frozen=True)
class Check:
    """`missing`: needed, and not there. `warn`: works, but not as well as it should."""

    state: Literal["ok", "warn", "missing"]
    name: str
    detail: str
    hint: str | None = None


def package_checks() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    fits = PYTHON_FROM <= sys.version_info[:2] < PYTHON_BELOW
    yield Check("ok" if fits else "missing", "Python", version, None if fits else "3.11 to 3.13 is needed")
    versions = {name: _version(name) for name in PACKAGES}
    for name, found in versions.items():
        if found is None:
            yield Check("missing", name, "is not installed", "make setup, or pip install vitscale")
        else:
            yield Check("ok", name, found)
    torch, torchvision = versions["torch"], versions["torchvision"]
    if torch and torchvision and not _are_a_pair(torch, torchvision):
        yield Check("warn", "torchvision", f"{torchvision} was not made for torch {torch}", "install a matching pair")


def machine_checks(settings: Settings) -> Iterator[Check]:
    yield _compiled_op(settings)
    if settings.ray_dashboard_url:
        return
    shm = Path("/dev/shm")
    if shm.is_dir():
        free = shutil.disk_usage(shm).free
        is_enough = free >= _SHM_WISHED
        hint = None if is_enough else "Ray falls back to the disk; in a container give --shm-size=1g"
        yield Check("ok" if is_enough else "warn", "/dev/shm", f"{_size(free)} free", hint)
    temp = Path(tempfile.gettempdir())
    usage = shutil.disk_usage(temp)
    if not os.access(temp, os.W_OK):
        yield Check("missing", "temporary directory", f"{temp} cannot be written", "Ray needs it: set TMPDIR")
    elif usage.used / usage.total > _RAY_DISK_LIMIT:
        full = f"{temp} is {usage.used / usage.total:.0%} full"
        yield Check("warn", "temporary directory", full, "Ray stops at 95 %")


def data_checks(settings: Settings) -> Iterator[Check]:
    yield _data_dir(settings.data_dir)
    yield _disk(settings.data_dir)
    yield _token(settings)
    if not settings.data_roots:
        yield Check("ok", "data roots", "none; synthetic and digits need none (VITSCALE_DATA_ROOTS)")
    for root in settings.data_roots:
        if not root.is_dir():
            yield Check("missing", "data root", f"{root} is no directory", "make it, or set VITSCALE_DATA_ROOTS")
        elif not os.access(root, os.R_OK | os.X_OK):
            yield Check("missing", "data root", f"{root} cannot be read", "let this user read it")
        else:
            yield Check("ok", "data root", str(root))


def _compiled_op(settings: Settings) -> Check:
    """A cluster's nodes compile for themselves; here it matters in local mode."""
    name = "compiled DeepSpeed op"
    problem = missing_compiled_op()
    if problem is None:
        return Check("ok", name, "there, or not needed on this machine")
    if settings.ray_dashboard_url:
        return Check("ok", name, "not needed here: trials run on the cluster")
    detail, _, hint = problem.partition(": ")
    return Check("missing" if missing_compiler() else "warn", name, detail, hint or None)


def _data_dir(path: Path) -> Check:
    if not path.exists():
        parent = _nearest_existing(path)
        if os.access(parent, os.W_OK | os.X_OK):
            return Check("ok", "data directory", f"{path} (made at the first start)")
        return Check("missing", "data directory", f"{path} cannot be made in {parent}", "set VITSCALE_DATA_DIR")
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        return Check("missing", "data directory", f"{path} cannot be written", "set VITSCALE_DATA_DIR")
    return Check("ok", "data directory", str(path))


def _disk(path: Path) -> Check:
    free = shutil.disk_usage(_nearest_existing(path)).free
    if free < _DISK_NEEDED:
        return Check("missing", "disk", f"{_size(free)} free for {path}", "at least 1 GiB is needed")
    if free < _DISK_WISHED:
        return Check("warn", "disk", f"{_size(free)} free for {path}", "logs and data sets want 5 GiB")
    return Check("ok", "disk", f"{_size(free)} free")


def _token(settings: Settings) -> Check:
    if settings.api_token is not None:
        return Check("ok", "token", "from VITSCALE_API_TOKEN")
    path = settings.data_dir / TOKEN_FILE
    try:
        status = path.stat()
    except FileNotFoundError:
        return Check("ok", "token", "made at the first start")
    except OSError as error:
        return Check("missing", "token", f"{path}: {error.strerror}", "let this user read it")
    if not os.access(path, os.R_OK):
        return Check("missing", "token", f"{path} cannot be read", "let this user read it")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        return Check("warn", "token", f"{path} is open to other users ({mode})", f"delete it, or chmod 600 {path}")
    return Check("ok", "token", f"in {path}")


def _nearest_existing(path: Path) -> Path:
    return next(one for one in (path, *path.absolute().parents) if one.exists())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _are_a_pair(torch: str, torchvision: str) -> bool:
    """torch 2.x goes with torchvision 0.(x + 15)."""
    return int(torchvision.split(".")[1]) == int(torch.split(".")[1]) + 15


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB"
