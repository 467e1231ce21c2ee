"""Whether a point's images can be had: the folder they lie in, their classes, and how they are shared out."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from service.errors import ErrorItem
from service.spec.model import Workload
from trainers.config import Dataset, ScalingMode
from trainers.data.catalogue import DATASETS
from trainers.data.sharing import Sharing, SharingError
from trainers.data.sharing import share as share_images


def folder_error(workload: Workload, dataset: Dataset, data_roots: Sequence[Path]) -> ErrorItem | None:
    """What is wrong with `workload.data_root` for this dataset.

    The folder need not be there: it is the workers' folder, and they check it again. Links are resolved as far as this
    machine knows them, so that none leads out of the configured roots.
    """
    if not DATASETS[dataset].needs_data_root:
        return None
    if workload.data_root is None:
        return ErrorItem(
            "/workload/data_root",
            f"{dataset} needs data_root, the folder that holds it"
            + (" or that it is downloaded to" if workload.download else ""),
            _roots_hint(data_roots),
        )
    folder = Path(workload.data_root)
    if "\x00" in workload.data_root or not folder.is_absolute():
        return ErrorItem("/workload/data_root", "data_root must be an absolute path", _roots_hint(data_roots))
    try:
        resolved = folder.resolve()
        below_a_root = any(resolved.is_relative_to(root.resolve()) for root in data_roots)
    except (OSError, RuntimeError):  # links in a circle, a name that is too long
        return ErrorItem("/workload/data_root", "data_root cannot be resolved", _roots_hint(data_roots))
    if not below_a_root:
        return ErrorItem(
            "/workload/data_root",
            f"data_root {workload.data_root} is not below a configured data root",
            _roots_hint(data_roots),
        )
    return None


def _roots_hint(data_roots: Sequence[Path]) -> str:
    if not data_roots:
        return "the server has no data roots: start it with VITSCALE_DATA_ROOTS='[\"/path/to/data\"]'"
    return f"a folder below {' or '.join(str(root) for root in data_roots)}"


def class_count(workload: Workload, dataset: Dataset) -> int:
    """Width of the head: what is asked for, else the dataset's."""
    return DATASETS[dataset].num_classes if workload.num_classes is None else workload.num_classes


def class_count_error(workload: Workload, dataset: Dataset) -> ErrorItem | None:
    """A head that is too narrow for the labels. Synthetic labels are drawn to fit any head."""
    needed = DATASETS[dataset].num_classes
    if dataset == "synthetic" or workload.num_classes is None or workload.num_classes >= needed:
        return None
    return ErrorItem(
        "/workload/num_classes",
        f"num_classes {workload.num_classes} is less than the {needed} classes of {dataset}",
        f"{needed} or more, or null for {needed}",
    )


@lru_cache(maxsize=65_536)
def share(
    dataset: Dataset, mode: ScalingMode, fraction: float, world_size: int, train_batch_size: int
) -> Sharing | tuple[str, str]:
    """How the images are shared, or why they cannot be, as (reason, hint)."""
    num_images = DATASETS[dataset].num_train
    try:
        return share_images(
            dataset,
            num_images,
            scaling_mode=mode,
            dataset_fraction=fraction,
            world_size=world_size,
            train_batch_size=train_batch_size,
        )
    except SharingError as error:
        return str(error), _share_hint(num_images, dataset, mode, fraction, world_size, train_batch_size)


def _share_hint(
    num_images: int, dataset: Dataset, mode: ScalingMode, fraction: float, world_size: int, train_batch_size: int
) -> str:
    workers = world_size if mode == "weak" else 1
    if dataset != "synthetic" and fraction * workers > 1:
        return f"weak scaling takes dataset_fraction per worker: at most {1 / world_size:.4g} for {world_size} workers"
    largest = int(num_images * fraction + 1e-9) * workers
    needed = train_batch_size / workers / num_images
    if needed * workers <= 1 or (dataset == "synthetic" and needed <= 1):
        return f"dataset_fraction from {needed:.4g} up, or a global batch of at most {largest} images"
    return f"a global batch of at most {largest} images"
