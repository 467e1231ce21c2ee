"""CIFAR-10 and CIFAR-100 in torchvision's on-disk layout, below a trial's data root."""

import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from trainers.data.catalogue import DATASETS
from trainers.data.image_set import DataError, ImageSet
from trainers.data.restricted_pickle import UnsafePickle, load_plain_pickle

DOWNLOAD_WAIT_SECONDS = 1200  # 170 MB over a slow line; below the process group's own timeout
_LOCK_POLL_SECONDS = 0.5

Name = Literal["cifar10", "cifar100"]


@dataclass(frozen=True)
class _Layout:
    folder: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    label_key: str


_LAYOUTS: Final[dict[Name, _Layout]] = {
    "cifar10": _Layout(
        "cifar-10-batches-py", tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",), "labels"
    ),
    "cifar100": _Layout("cifar-100-python", ("train",), ("test",), "fine_labels"),
}


def load_cifar(name: Name, data_root: str | None, *, download: bool) -> tuple[ImageSet, ImageSet]:
    """(training, test) images of the data set below `data_root`.

    With `download` the first process of a node to come fetches them, the others wait for it.

    Raises:
        DataError: the root or a file is not there, leads out of the root, or does not hold what it should.
    """
    root = resolved_root(name, data_root)
    layout = _LAYOUTS[name]
    if download and not _is_complete(root, layout):
        with _download_lock(root):
            if not _is_complete(root, layout):
                _download(name, root, layout)
    return _read(name, root, layout, layout.train_files), _read(name, root, layout, layout.test_files)


def resolved_root(name: Name, data_root: str | None) -> Path:
    """The data root with its links resolved.

    Raises:
        DataError: none is given, or it is no folder on this worker.
    """
    if data_root is None:
        raise DataError(f"{name} needs data_root: the folder that holds {_LAYOUTS[name].folder}/ on every worker")
    root = Path(data_root).resolve()
    if not root.is_dir():
        raise DataError(f"data_root {data_root} is no folder on this worker: mount it there, or name one that is")
    return root


def _is_complete(root: Path, layout: _Layout) -> bool:
    return all((root / layout.folder / name).is_file() for name in layout.train_files + layout.test_files)


def _read(name: Name, root: Path, layout: _Layout, files: tuple[str, ...]) -> ImageSet:
    parts = [_read_file(name, root, layout, root / layout.folder / file) for file in files]
    return ImageSet(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))


def _read_file(name: Name, root: Path, layout: _Layout, path: Path) -> ImageSet:
    resolved = path.resolve()
    if not resolved.is_relative_to(root):
        raise DataError(f"{path} leads out of the data root (to {resolved}): put the file itself there")
    if not resolved.is_file():
        raise DataError(
            f"{path} is missing: put {name} there in torchvision's layout ({layout.folder}/"
            f"{', '.join(layout.train_files + layout.test_files)}), or set download: true"
        )
    try:
        content = load_plain_pickle(resolved)
    except UnsafePickle as error:
        raise DataError(f"{name}: {error}") from error
    data = content.get("data") if isinstance(content, dict) else None
    labels = content.get(layout.label_key) if isinstance(content, dict) else None
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * 32 * 32:
        raise DataError(f"{path}: `data` must be an array of uint8 [N, 3072]")
    if not isinstance(labels, list) or len(labels) != len(data):
        raise DataError(f"{path}: `{layout.label_key}` must be a list of {len(data)} labels, one per image")
    num_classes = DATASETS[name].num_classes
    if not all(isinstance(label, int) and 0 <= label < num_classes for label in labels):
        raise DataError(f"{path}: every label must be a whole number from 0 to {num_classes - 1}")
    return ImageSet(data.reshape(-1, 3, 32, 32), np.asarray(labels, dtype=np.int64))


@contextmanager
def _download_lock(root: Path) -> Iterator[None]:
    """One process of a node at a time; the kernel lets go of it when its holder dies."""
    with (root / ".vitscale-download.lock").open("w") as file:
        deadline = time.monotonic() + DOWNLOAD_WAIT_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DataError(
                        f"another process has been downloading to {root} for over {DOWNLOAD_WAIT_SECONDS} s"
                    ) from None
                time.sleep(_LOCK_POLL_SECONDS)
        yield


def _download(name: Name, root: Path, layout: _Layout) -> None:
    """Fetch, check (torchvision knows the archive's checksum) and put in place in one move: never half a data set."""
    from torchvision.datasets import CIFAR10, CIFAR100
    from torchvision.datasets.utils import download_and_extract_archive

    source = CIFAR10 if name == "cifar10" else CIFAR100
    with tempfile.TemporaryDirectory(prefix=".vitscale-download-", dir=root) as scratch:
        try:
            download_and_extract_archive(source.url, scratch, filename=source.filename, md5=source.tgz_md5)
        except (OSError, RuntimeError) as error:
            raise DataError(f"{name} could not be downloaded from {source.url} to {root}: {error}") from error
        target = root / layout.folder
        if target.exists():
            shutil.rmtree(target)  # incomplete: that is why it is fetched
        (Path(scratch) / layout.folder).rename(target)
