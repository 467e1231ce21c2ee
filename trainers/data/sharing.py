"""Which images belong to which worker, strong and weak. Pure.

Strong scaling (and a plain comparison): the data set is fixed; `dataset_fraction` of it is partitioned over all
workers, anew in each epoch. Weak scaling: the fraction is per worker, each with its own fixed, disjoint shard, so that
the data grow with the world size (arXiv 2602.21081, section on scaling experiments: 10 % each).
"""

from dataclasses import dataclass

from trainers.config import Dataset, ScalingMode


class SharingError(ValueError):
    """The fraction does not fit the data set, the mode or the batch."""


@dataclass(frozen=True)
class Sharing:
    """`images_per_epoch` counts what all workers see together in one epoch before the incomplete batch is dropped."""

    images_per_epoch: int
    images_per_worker: int | None  # weak: the size of each worker's own shard; None: one pool for all
    steps_per_epoch: int  # full global batches


def share(
    dataset: Dataset,
    num_images: int,
    *,
    scaling_mode: ScalingMode,
    dataset_fraction: float,
    world_size: int,
    train_batch_size: int,
) -> Sharing:
    """How `num_images` training images are shared, in images and full global batches per epoch.

    Raises:
        SharingError: a fraction over 1 in all (synthetic images excepted: there are always more), or one too small
            for one full step.
    """
    in_all = dataset_fraction * (world_size if scaling_mode == "weak" else 1)
    if in_all > 1 + 1e-9 and dataset != "synthetic":
        raise SharingError(
            f"{world_size} workers with {dataset_fraction:g} of {dataset} each need {in_all:g} of it: at most 1 in all"
            if scaling_mode == "weak"
            else f"dataset_fraction {dataset_fraction:g} is more than all of {dataset}: at most 1"
        )
    # The small term keeps 0.1 x 30 at 3 where binary fractions would make it 2.999...
    pool = int(num_images * dataset_fraction + 1e-9)
    if scaling_mode == "weak":
        batch_per_worker = train_batch_size // world_size
        sharing = Sharing(pool * world_size, pool, pool // batch_per_worker)
    else:
        sharing = Sharing(pool, None, pool // train_batch_size)
    if sharing.steps_per_epoch < 1:
        raise SharingError(
            f"{sharing.images_per_epoch} images ({dataset_fraction:g} of {dataset}"
            f"{' per worker' if scaling_mode == 'weak' else ''}) do not fill one step of {train_batch_size} images"
        )
    return sharing
