"""A data set in memory, as read from its source, and the few errors its sources share."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


class DataError(ValueError):
    """The data of a trial are missing or not what they should be; says what would be right."""


@dataclass(frozen=True)
class ImageSet:
    """Images as stored: uint8 [N, C, H, W] with C 1 or 3, and int64 labels [N].

    `virtual_length`: how many images the set stands for (synthetic ones repeat); None: as many as there are.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    virtual_length: int | None = None

    def __post_init__(self) -> None:
        assert self.images.dtype == np.uint8, self.images.dtype
        assert self.images.ndim == 4, self.images.shape
        assert self.labels.dtype == np.int64, self.labels.dtype
        assert self.labels.shape == self.images.shape[:1], self.labels.shape

    def __len__(self) -> int:
        return len(self.images) if self.virtual_length is None else self.virtual_length

    def first(self, num_images: int) -> "ImageSet":
        return ImageSet(self.images[:num_images], self.labels[:num_images])
