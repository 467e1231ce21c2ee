"""scikit-learn's bundled digits: 1,797 real 8x8 grey images, so that training is real without a network.

Source: UCI "Optical Recognition of Handwritten Digits". Read straight from the package's file: importing scikit-learn
takes longer than the whole of the reading.
"""

import importlib.util
from pathlib import Path

import numpy as np

from trainers.data.image_set import DataError, ImageSet

_HELD_OUT_EVERY = 5  # of each class, in the file's order


def load_digits() -> tuple[ImageSet, ImageSet]:
    """(training, held-out) images: every fifth image of each class is held out, whatever the trial's seed.

    Raises:
        DataError: scikit-learn is not installed or its file is not there.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("the digits come with scikit-learn, which is not installed on this worker: pip install it")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise DataError(f"scikit-learn's digits are not at {path}")
    rows = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    # Grey levels are 0 to 16.
    images = np.minimum(rows[:, :64].reshape(-1, 1, 8, 8).astype(np.uint16) * 16, 255).astype(np.uint8)
    labels = rows[:, 64].astype(np.int64)
    held_out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        held_out[of_class[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY]] = True
    return ImageSet(images[~held_out], labels[~held_out]), ImageSet(images[held_out], labels[held_out])
