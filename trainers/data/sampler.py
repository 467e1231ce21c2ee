"""In which order a worker sees its images: an endless stream of equally large micro batches. Pure (numpy only).

Under one shared pool, step k of an epoch takes the k-th global batch of that epoch's permutation, whatever the world
size or accumulation: the same seed trains on the same images in the same steps. With own shards (weak scaling) the same
holds per worker. Only full global batches are served; what is left over at the end of an epoch is dropped, and the
next epoch reshuffles.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainers.data.sharing import Sharing

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sampler:
    """Indices into the training images for one rank.

    `num_images` is the size of the whole training set, `micro_batch_size` the images per worker and micro step,
    `accumulation` the micro steps per optimizer step.
    """

    sharing: Sharing
    num_images: int
    rank: int
    world_size: int
    micro_batch_size: int
    accumulation: int
    seed: int

    def micro_batches(self, start: int = 0) -> Iterator[Indices]:
        """Endless: int64 arrays of `micro_batch_size` indices, `accumulation` of them per optimizer step.

        `start` counts the micro batches left out at the beginning; leaving out many costs no more than a few.
        """
        epoch, micro_step = divmod(start, self._micro_steps_per_epoch)
        while True:
            yield from self.epoch(epoch, micro_step)
            epoch, micro_step = epoch + 1, 0

    @property
    def _micro_steps_per_epoch(self) -> int:
        return self.sharing.steps_per_epoch * self.accumulation

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Indices]:
        """The micro batches of one epoch (counted from 0), from its `start`-th on."""
        if self.sharing.images_per_worker is None:
            order = self._pool(self.sharing.images_per_epoch)[self._permutation(self.sharing.images_per_epoch, epoch)]
            workers, position = self.world_size, self.rank
        else:
            size = self.sharing.images_per_worker
            shard = self._pool(size * self.world_size)[self.rank * size : (self.rank + 1) * size]
            order = shard[self._permutation(size, epoch, self.rank)]
            workers, position = 1, 0
        size = self.micro_batch_size
        for micro_step in range(start, self._micro_steps_per_epoch):
            first = (micro_step * workers + position) * size
            yield order[first : first + size]

    def _pool(self, size: int) -> Indices:
        """A fixed choice of `size` images by the seed: an evenly mixed part where the fraction is below 1.

        A size over `num_images` (synthetic only) counts on; the synthetic source repeats its images.
        """
        if size > self.num_images:
            return np.arange(size, dtype=np.int64)
        return np.random.default_rng((self.seed, 0)).permutation(self.num_images)[:size]

    def _permutation(self, size: int, epoch: int, shard: int = 0) -> Indices:
        return np.random.default_rng((self.seed, 1, epoch, shard)).permutation(size)


def evaluation_batches(num_images: int, rank: int, world_size: int, batch_size: int) -> list[tuple[Indices, int]]:
    """This rank's part of the held-out images: (indices, how many of them count) per batch.

    Every rank gets the same number of equally large batches, since under ZeRO 3 a forward pass is a collective one;
    missing places are filled with image 0 and do not count.
    """
    own = np.arange(rank, num_images, world_size, dtype=np.int64)
    per_rank = -(-num_images // world_size)
    batches: list[tuple[Indices, int]] = []
    for start in range(0, per_rank, batch_size):
        part = own[start : start + batch_size]
        size = min(batch_size, per_rank - start)
        batches.append((np.concatenate([part, np.zeros(size - len(part), dtype=np.int64)]), len(part)))
    return batches
