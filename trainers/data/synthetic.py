"""Random images with random labels: the work of training without any data. The same by seed on every machine."""

import numpy as np

from trainers.data.catalogue import DATASETS
from trainers.data.image_set import ImageSet

# So many distinct images are held; the set of catalogue size repeats them. Enough that a batch is not one image over
# and over, few enough that they fit beside any model (512 at 224 pixels: 77 MB).
_MAX_DISTINCT = 512


def make_synthetic(image_size: int, num_classes: int, seed: int) -> ImageSet:
    """Uniform noise, uint8 [N, 3, S, S], and uniform labels."""
    generator = np.random.default_rng((seed, 2))
    images = generator.integers(0, 256, size=(_MAX_DISTINCT, 3, image_size, image_size), dtype=np.uint8)
    labels = generator.integers(0, num_classes, size=_MAX_DISTINCT, dtype=np.int64)
    return ImageSet(images, labels, virtual_length=DATASETS["synthetic"].num_train)
