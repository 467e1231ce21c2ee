"""Brings a rank's images to its device, micro batch by micro batch, all of one shape.

Two ways. `device`: the images sit on the device as stored (uint8), and each micro batch is picked, resized and
normalised there. `loader`: a DataLoader's worker processes pick and resize, the batch is copied (from pinned memory on
CUDA) and normalised on the device: the usual way of feeding, with its cost.
"""

import multiprocessing
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from trainers.config import TrialConfig
from trainers.data.image_set import ImageSet
from trainers.data.sampler import Indices, Sampler, evaluation_batches
from trainers.device import Stopwatch, stopwatch_of

Batch: TypeAlias = tuple[Tensor, Tensor]  # images [b, 3, S, S] in the training type, labels [b] int64, on the device
INPUT_SECONDS_KEPT = 4096  # micro batches whose input times are kept until they are taken
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
class InputSeconds:
    """Where a loader's time goes, one value per micro batch in the order they were handed out.

    decode: making the micro batch in the loader's worker process (pick, resize, round), by the wall clock there: beside
        the training, for a later micro batch than the one being trained on. With no worker processes, within it.
    copy: bringing it to the device, in the device's own stream.
    Both None where there is no loader: nothing is decoded ahead or copied.
    """

    decode: list[float] | None = None
    copy: list[float] | None = None


class _Stream(Protocol):
    """A rank's micro batches by one way of feeding."""

    def batches(self, start: int) -> Iterator[Batch]:
        """Endless, from the `start`-th on; ends what was asked for before."""
        ...

    def take_seconds(self) -> InputSeconds: ...

    def close(self) -> None: ...


class _DeviceStream:
    def __init__(self, images: DeviceImages, sampler: Sampler) -> None:
        self._images, self._sampler = images, sampler

    def batches(self, start: int) -> Iterator[Batch]:
        return map(self._images.batch, self._sampler.micro_batches(start))

    def take_seconds(self) -> InputSeconds:
        return InputSeconds()

    def close(self) -> None: ...


class _Item(NamedTuple):
    images: Tensor  # uint8 [b, C, S, S]
    labels: Tensor  # int64 [b]
    decode_seconds: float


@dataclass(frozen=True)
class _LoaderDataset(torch.utils.data.Dataset[_Item]):
    """What a loader's worker process holds. An item is a whole micro batch, resized: uint8 again, a quarter to copy."""

    images: ImageSet
    image_size: int

    def __getitem__(self, indices: Indices) -> _Item:
        began = time.perf_counter()
        picked = indices % len(self.images.images)
        images = resize(torch.from_numpy(self.images.images[picked]), self.image_size)
        images, labels = images.round_().clamp_(0, 255).to(torch.uint8), torch.from_numpy(self.images.labels[picked])
        return _Item(images, labels, time.perf_counter() - began)


class _MicroBatches(torch.utils.data.Sampler[Indices]):
    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.start = 0

    def __iter__(self) -> Iterator[Indices]:
        return self._sampler.micro_batches(self.start)


class _LoaderStream:
    def __init__(
        self, config: TrialConfig, images: ImageSet, sampler: Sampler, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._device, self._dtype, self._is_cuda = device, dtype, device.type == "cuda"
        # Never a plain fork: the process has threads (gloo, OpenMP, Ray) that a fork would leave in mid-air. The server
        # imports what a worker needs once, and forks.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._order = _MicroBatches(sampler)
        self._loader = torch.utils.data.DataLoader(
            _LoaderDataset(images, config.image_size),
            sampler=self._order,
            batch_size=None,  # an item is a batch already
            num_workers=config.loader_workers,
            multiprocessing_context=context if config.loader_workers else None,
            # Iterated anew, the same processes go on: what they have fetched ahead is dropped.
            persistent_workers=config.loader_workers > 0,
            pin_memory=self._is_cuda,
            generator=torch.Generator(),  # of its own: each start draws a seed, which is not to move the training's
        )
        self._items: Iterator[_Item] = iter(())
        self._decode: deque[float] = deque(maxlen=INPUT_SECONDS_KEPT)
        self._copy: deque[Stopwatch] = deque(maxlen=INPUT_SECONDS_KEPT)

    def batches(self, start: int) -> Iterator[Batch]:
        self._order.start = start
        self._items = iter(self._loader)
        return map(self._on_device, self._items)

    def _on_device(self, item: _Item) -> Batch:
        watch = stopwatch_of(self._device)
        watch.mark()
        images = item.images.to(self._device, non_blocking=self._is_cuda)
        labels = item.labels.to(self._device, non_blocking=self._is_cuda)
        watch.mark()
        self._decode.append(item.decode_seconds)
        self._copy.append(watch)
        return normalise(images, self._dtype), labels

    def take_seconds(self) -> InputSeconds:
        seconds = InputSeconds(list(self._decode), [copied for watch in self._copy for copied in watch.seconds()])
        self._decode.clear()
        self._copy.clear()
        return seconds

    def close(self) -> None:
        shutdown = getattr(self._items, "_shutdown_workers", None)
        self._items = iter(())
        if shutdown is not None:
            shutdown()


class TrainingFeed:
    """An endless stream of micro batches for one rank. Close it: the loader's processes end then."""

    def __init__(
        self, config: TrialConfig, images: ImageSet, sampler: Sampler, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._shape = (config.train_micro_batch_size_per_gpu, 3, config.image_size, config.image_size)
        self._stored_channels, self._device, self._dtype = images.images.shape[1], device, dtype
        self._stream: _Stream
        if config.input_pipeline == "loader":
            self._stream = _LoaderStream(config, images, sampler, device, dtype)
        else:
            self._stream = _DeviceStream(DeviceImages(images, device, config.image_size, dtype), sampler)
        self._position = 0
        self._batches: Iterator[Batch] | None = None  # begun with the first: a loader starts its processes then

    @property
    def position(self) -> int:
        """The number of micro batches handed out so far."""
        return self._position

    def next(self) -> Batch:
        """The next micro batch: always of the one shape (an assertion, not a hope)."""
        if self._batches is None:
            self._batches = self._stream.batches(self._position)
        batch = next(self._batches)
        assert batch[0].shape == self._shape, f"a micro batch of {tuple(batch[0].shape)} instead of {self._shape}"
        self._position += 1
        return batch

    def rewind(self, position: int) -> None:
        """Go back: what follows is as it was when `position` micro batches had been handed out.

        A loader drops what it has fetched ahead and begins to fetch anew, in the same processes.
        """
        assert 0 <= position <= self._position, f"cannot rewind from {self._position} to {position}"
        if self._batches is not None and position != self._position:
            self._batches = self._stream.batches(position)
        self._position = position

    def take_input_seconds(self) -> InputSeconds:
        """Of the micro batches handed out since the last call (of the last `INPUT_SECONDS_KEPT`, if they were more).

        Waits on CUDA until the last of them has been copied: to be called between what is timed.
        """
        return self._stream.take_seconds()

    def blank(self) -> Batch:
        """A micro batch of grey images laid out in memory like all others (torch.compile tells them apart by it)."""
        num_images, _, height, width = self._shape
        stored = torch.zeros(num_images, self._stored_channels, height, width, dtype=torch.uint8, device=self._device)
        return normalise(stored, self._dtype), torch.zeros(num_images, dtype=torch.int64, device=self._device)

    def close(self) -> None:
        """End the loader's worker processes, if there are any."""
        self._batches = iter(())
        self._stream.close()


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
