from itertools import islice

import numpy as np
import pytest

from trainers.data.sampler import Sampler, evaluation_batches
from trainers.data.sharing import share


def samplers(
    world_size: int,
    micro_batch_size: int,
    accumulation: int = 1,
    *,
    mode: str = "strong",
    num_images: int = 100,
    fraction: float = 1.0,
    seed: int = 0,
) -> list[Sampler]:
    sharing = share(
        "cifar10",
        num_images,
        scaling_mode=mode,  # type: ignore[arg-type]
        dataset_fraction=fraction,
        world_size=world_size,
        train_batch_size=world_size * micro_batch_size * accumulation,
    )
    return [
        Sampler(sharing, num_images, rank, world_size, micro_batch_size, accumulation, seed)
        for rank in range(world_size)
    ]


def global_steps(group: list[Sampler], num_steps: int) -> list[set[int]]:
    """The images of each of the first optimizer steps, over all ranks and micro steps."""
    accumulation = group[0].accumulation
    streams = [list(islice(one.micro_batches(), num_steps * accumulation)) for one in group]
    return [
        {int(i) for stream in streams for part in stream[k * accumulation : (k + 1) * accumulation] for i in part}
        for k in range(num_steps)
    ]


@pytest.mark.parametrize(("world_size", "micro", "accumulation"), [(1, 16, 1), (2, 8, 1), (2, 4, 2), (4, 2, 2)])
def test_a_global_step_holds_the_same_images_however_it_is_split(
    world_size: int, micro: int, accumulation: int
) -> None:
    reference = global_steps(samplers(1, 16), 20)
    assert global_steps(samplers(world_size, micro, accumulation), 20) == reference


def test_within_an_epoch_no_image_comes_twice_and_only_the_incomplete_batch_is_dropped() -> None:
    group = samplers(2, 8, num_images=100)
    epoch = np.concatenate([part for one in group for part in one.epoch(0)])
    assert len(epoch) == 96 == len(set(epoch.tolist()))


@pytest.mark.parametrize("mode", ["strong", "weak"])
@pytest.mark.parametrize("start", [0, 1, 11, 12, 30])
def test_the_stream_from_a_place_on_is_the_whole_stream_without_what_comes_before(mode: str, start: int) -> None:
    fraction = 0.5 if mode == "weak" else 1.0  # 12 micro steps an epoch in either mode
    one = samplers(2, 4, 2 if mode == "strong" else 1, mode=mode, fraction=fraction)[1]
    whole = list(islice(one.micro_batches(), start + 15))
    from_there = list(islice(one.micro_batches(start), 15))
    assert [part.tolist() for part in from_there] == [part.tolist() for part in whole[start:]]


def test_every_micro_batch_is_full_also_across_epochs() -> None:
    for one in samplers(2, 8, num_images=100):
        assert {len(part) for part in islice(one.micro_batches(), 50)} == {8}


def test_the_next_epoch_is_shuffled_anew_and_another_seed_differs() -> None:
    (one,) = samplers(1, 10)
    (other,) = samplers(1, 10, seed=1)
    first, second, of_other = (np.concatenate(list(s.epoch(e))) for s, e in ((one, 0), (one, 1), (other, 0)))
    assert sorted(first) == sorted(second) == sorted(of_other) == list(range(100))
    assert first.tolist() != second.tolist()
    assert first.tolist() != of_other.tolist()
    assert first.tolist() == np.concatenate(list(samplers(1, 10)[0].epoch(0))).tolist()


def test_weak_shards_are_disjoint_and_stay_with_their_worker() -> None:
    group = samplers(3, 5, mode="weak", fraction=0.3)
    shards = [[set(np.concatenate(list(one.epoch(epoch))).tolist()) for epoch in range(2)] for one in group]
    assert all(first == second for first, second in shards)
    assert len(set.union(*(first for first, _ in shards))) == 90


def test_a_fraction_is_the_same_part_in_every_epoch() -> None:
    (one,) = samplers(1, 10, fraction=0.5)
    parts = [set(np.concatenate(list(one.epoch(epoch))).tolist()) for epoch in range(2)]
    assert parts[0] == parts[1]
    assert len(parts[0]) == 50


@pytest.mark.parametrize(("num_images", "world_size", "batch"), [(355, 2, 64), (7, 4, 2), (3, 4, 8), (8, 1, 4)])
def test_evaluation_sees_every_image_once_in_equally_many_batches(num_images: int, world_size: int, batch: int) -> None:
    per_rank = [evaluation_batches(num_images, rank, world_size, batch) for rank in range(world_size)]
    seen = [int(i) for batches in per_rank for indices, counted in batches for i in indices[:counted]]
    assert sorted(seen) == list(range(num_images))
    shapes = [[len(indices) for indices, _ in batches] for batches in per_rank]
    assert all(shape == shapes[0] for shape in shapes)
