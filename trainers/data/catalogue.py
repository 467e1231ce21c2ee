"""The data sets by name: sizes and classes. Pure, so that the planner knows them without reading an image."""

from dataclasses import dataclass
from typing import Final

from trainers.config import Dataset


@dataclass(frozen=True)
class DatasetInfo:
    """`num_train` and `num_eval` count images; a folder made for a test may hold fewer."""

    num_train: int
    num_eval: int  # held out
    num_classes: int
    image_size: int  # pixels, square, as stored; 0: made at the trial's size
    needs_data_root: bool = False


# synthetic: CIFAR's size, so that a fraction of it means the same amount of work; ImageNet's classes, as in the paper's
# models. digits: every fifth image of each class is held out (see digits.py).
DATASETS: Final[dict[Dataset, DatasetInfo]] = {
    "synthetic": DatasetInfo(num_train=50_000, num_eval=0, num_classes=1000, image_size=0),
    "digits": DatasetInfo(num_train=1442, num_eval=355, num_classes=10, image_size=8),
    "cifar10": DatasetInfo(num_train=50_000, num_eval=10_000, num_classes=10, image_size=32, needs_data_root=True),
    "cifar100": DatasetInfo(num_train=50_000, num_eval=10_000, num_classes=100, image_size=32, needs_data_root=True),
}
