"""Opens the data set of a trial by name."""

from dataclasses import dataclass

from trainers.config import TrialConfig
from trainers.data.image_set import DataError, ImageSet
from trainers.data.sharing import Sharing, share


@dataclass(frozen=True)
class TrialData:
    """The images of a trial and how its workers share the training ones. `held_out`: None where there are none."""

    training: ImageSet
    held_out: ImageSet | None
    sharing: Sharing


def open_data(config: TrialConfig) -> TrialData:
    """Read (or make, or download) the data set on this worker.

    Raises:
        DataError: the data are missing or malformed, or have more classes than the model.
        SharingError: the fraction does not fit.
    """
    training, held_out = _load(config)
    most = int(training.labels.max()) + 1
    if most > config.num_classes:
        raise DataError(f"{config.dataset} has labels up to {most - 1}: num_classes must be at least {most}")
    sharing = share(
        config.dataset,
        len(training),
        scaling_mode=config.scaling_mode,
        dataset_fraction=config.dataset_fraction,
        world_size=config.world_size,
        train_batch_size=config.train_batch_size,
    )
    return TrialData(training, held_out, sharing)


def _load(config: TrialConfig) -> tuple[ImageSet, ImageSet | None]:
    # Imported where used: a trial reads one of them, and starting up is part of what is measured.
    if config.dataset == "synthetic":
        from trainers.data.synthetic import make_synthetic

        return make_synthetic(config.image_size, config.num_classes, config.seed), None
    if config.dataset == "digits":
        from trainers.data.digits import load_digits

        return load_digits()
    from trainers.data.cifar import load_cifar

    return load_cifar(config.dataset, config.data_root, download=config.download)
