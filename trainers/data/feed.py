"""Brings a rank's images to its device, micro batch by micro batch, all of one shape.

Two ways. `device`: the images sit on the device as stored (uint8), and each micro batch is picked, resized and
normalised there. `loader`: a DataLoader's worker processes pick and resize, the batch is copied (from pinned memory on
CUDA) and normalised on the device: the usual way of feeding, with its cost.
"""

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from trainers.config import TrialConfig
from trainers.data.image_set import ImageSet
from trainers.data.sampler import Indices, Sampler, evaluation_batches

Batch: TypeAlias = tuple[Tensor, Tensor]  # images [b, 3, S, S] in the training type, labels [b] int64, on the device
_MEAN, _DEVIATION = 127.5, 127.5  # uint8 to [-1, 1], timm's "Inception" normalisation, for every data set


def resize(images: Tensor, image_size: int) -> Tensor:
    """uint8 or float [b, C, H, W] to float32 [b, C, S, S], bilinear, smoothed where it shrinks."""
    images = images.to(torch.float32)
    if images.shape[-1] == image_size and images.shape[-2] == image_size:
        return images
    return functional.interpolate(images, size=(image_size, image_size), mode="bilinear", antialias=True)


def normalise(images: Tensor, dtype: torch.dtype) -> Tensor:
    """[b, C, S, S] of 0 to 255 to [b, 3, S, S] of -1 to 1 in `dtype`; one grey channel becomes three."""
    images = images.to(torch.float32).sub(_MEAN).div(_DEVIATION).to(dtype)
    return images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images


class DeviceImages:
    """A data set on the device as stored."""

    def __init__(self, images: ImageSet, device: torch.device, image_size: int, dtype: torch.dtype) -> None:
        self._images = torch.from_numpy(images.images).to(device)
        self._labels = torch.from_numpy(images.labels).to(device)
        self._device, self._image_size, self._dtype = device, image_size, dtype

    def batch(self, indices: Indices) -> Batch:
        # Synthetic images are fewer than they stand for, and repeat.
        picked = torch.from_numpy(indices).remainder(len(self._labels)).to(self._device, non_blocking=True)
        images = self._images.index_select(0, picked)
        return normalise(resize(images, self._image_size), self._dtype), self._labels.index_select(0, picked)


@dataclass(frozen=True)
class _LoaderDataset(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """What a loader's worker process holds. An item is a whole micro batch, resized: uint8 again, a quarter to copy."""

    images: ImageSet
    image_size: int

    def __getitem__(self, indices: Indices) -> tuple[Tensor, Tensor]:
        picked = indices % len(self.images.images)
        images = resize(torch.from_numpy(self.images.images[picked]), self.image_size)
        return images.round_().clamp_(0, 255).to(torch.uint8), torch.from_numpy(self.images.labels[picked])


class _MicroBatches(torch.utils.data.Sampler[Indices]):
    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Indices]:
        return self._sampler.micro_batches()


class TrainingFeed:
    """An endless stream of micro batches for one rank. Close it: the loader's processes end then."""

    def __init__(
        self, config: TrialConfig, images: ImageSet, sampler: Sampler, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._shape = (config.train_micro_batch_size_per_gpu, 3, config.image_size, config.image_size)
        self._stored_channels, self._device, self._dtype = images.images.shape[1], device, dtype
        self._loader: Iterator[Batch] | None = None
        if config.input_pipeline == "loader":
            self._batches = self._through_loader(config, images, sampler, device, dtype)
        else:
            on_device = DeviceImages(images, device, config.image_size, dtype)
            self._batches = map(on_device.batch, sampler.micro_batches())

    def _through_loader(
        self, config: TrialConfig, images: ImageSet, sampler: Sampler, device: torch.device, dtype: torch.dtype
    ) -> Iterator[Batch]:
        is_cuda = device.type == "cuda"
        # Never a plain fork: the process has threads (gloo, OpenMP, Ray) that a fork would leave in mid-air. The server
        # imports what a worker needs once, and forks.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        loader = torch.utils.data.DataLoader(
            _LoaderDataset(images, config.image_size),
            sampler=_MicroBatches(sampler),
            batch_size=None,  # an item is a batch already
            num_workers=config.loader_workers,
            multiprocessing_context=context if config.loader_workers else None,
            persistent_workers=config.loader_workers > 0,
            pin_memory=is_cuda,
        )
        self._loader = iter(loader)
        for images_uint8, labels in self._loader:
            on_device = images_uint8.to(device, non_blocking=is_cuda)
            yield normalise(on_device, dtype), labels.to(device, non_blocking=is_cuda)

    def next(self) -> Batch:
        """The next micro batch: always of the one shape (an assertion, not a hope)."""
        batch = next(self._batches)
        assert batch[0].shape == self._shape, f"a micro batch of {tuple(batch[0].shape)} instead of {self._shape}"
        return batch

    def blank(self) -> Batch:
        """A micro batch of grey images laid out in memory like all others (torch.compile tells them apart by it)."""
        num_images, _, height, width = self._shape
        stored = torch.zeros(num_images, self._stored_channels, height, width, dtype=torch.uint8, device=self._device)
        return normalise(stored, self._dtype), torch.zeros(num_images, dtype=torch.int64, device=self._device)

    def close(self) -> None:
        """End the loader's worker processes, if there are any."""
        loader, self._loader = self._loader, None
        self._batches = iter(())
        shutdown = getattr(loader, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()


class EvaluationFeed:
    """This rank's share of the held-out images, from the device, in equally many batches on every rank."""

    def __init__(
        self,
        config: TrialConfig,
        held_out: ImageSet,
        rank: int,
        world_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._images = DeviceImages(held_out, device, config.image_size, dtype)
        self._batches = evaluation_batches(len(held_out), rank, world_size, config.train_micro_batch_size_per_gpu)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        """(images, labels, how many of them count, from the first)."""
        for indices, counted in self._batches:
            images, labels = self._images.batch(indices)
            yield images, labels, counted
