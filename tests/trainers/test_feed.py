import multiprocessing
from itertools import islice

import numpy as np
import pytest
import torch

from trainers.config import TrialConfig
from trainers.data.feed import DeviceImages, EvaluationFeed, InputSeconds, TrainingFeed, normalise, resize
from trainers.data.image_set import DataError, ImageSet
from trainers.data.sampler import Sampler
from trainers.data.sharing import share
from trainers.data.source import open_data

CPU = torch.device("cpu")


def trial(**changes: object) -> TrialConfig:
    values: dict[str, object] = {
        "model": "vit_tiny_patch16_224",
        "image_size": 16,
        "patch_size": 4,
        "num_classes": 10,
        "dataset": "digits",
        "world_size": 1,
        "train_micro_batch_size_per_gpu": 4,
        "train_batch_size": 4,
    }
    return TrialConfig.model_validate(values | changes)


def images(number: int = 20, size: int = 8, channels: int = 1) -> ImageSet:
    generator = np.random.default_rng(0)
    return ImageSet(generator.integers(0, 256, (number, channels, size, size), dtype=np.uint8), np.arange(number) % 10)


def feed(config: TrialConfig, data: ImageSet) -> TrainingFeed:
    sharing = share("digits", len(data), scaling_mode="none", dataset_fraction=1, world_size=1, train_batch_size=4)
    return TrainingFeed(config, data, Sampler(sharing, len(data), 0, 1, 4, 1, 0), CPU, torch.float32)


def test_grey_images_become_three_channels_between_minus_1_and_1() -> None:
    batch = normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), torch.bfloat16)
    assert batch.shape == (1, 3, 1, 2)
    assert batch.dtype == torch.bfloat16
    assert batch[0].tolist() == [[[-1, 1]]] * 3


def test_resizing_keeps_an_even_image_even_and_the_right_size_untouched() -> None:
    even = torch.full((1, 3, 8, 8), 7, dtype=torch.uint8)
    assert resize(even, 32).shape == (1, 3, 32, 32)
    assert resize(even, 32).unique().tolist() == [7]
    assert torch.equal(resize(even, 8), even.float())


@pytest.mark.slow
@pytest.mark.parametrize("loader_workers", [0, 1])
def test_loader_and_device_serve_the_same_images_in_the_same_order_and_leave_no_process(loader_workers: int) -> None:
    data = images()
    on_device = feed(trial(), data)
    loader = feed(trial(input_pipeline="loader", loader_workers=loader_workers), data)
    try:
        for _ in range(7):  # over an epoch's end: 5 steps an epoch
            (ours, labels), (theirs, their_labels) = on_device.next(), loader.next()
            assert torch.equal(labels, their_labels)
            # The loader rounds to whole grey levels to copy a quarter of the bytes.
            assert torch.allclose(ours, theirs, atol=0.51 / 127.5)
            assert ours.shape == theirs.shape == (4, 3, 16, 16)
        assert len(multiprocessing.active_children()) == loader_workers
    finally:
        loader.close()
    assert multiprocessing.active_children() == []


def taken(stream: TrainingFeed, number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [stream.next() for _ in range(number)]


def assert_goes_on_as_before(config: TrialConfig, data: ImageSet) -> None:
    """Back to a place within an epoch, and again; then on over the epoch's end (5 micro batches)."""
    stream = feed(config, data)
    try:
        assert stream.position == 0
        whole = taken(stream, 9)
        for back, number in ((3, 2), (3, 1), (0, 9)):
            stream.rewind(back)
            assert stream.position == back
            for (images_now, labels_now), (images, labels) in zip(taken(stream, number), whole[back:], strict=False):
                assert torch.equal(images_now, images)
                assert torch.equal(labels_now, labels)
        assert stream.position == 9
    finally:
        stream.close()


def test_after_a_rewind_the_same_batches_follow_from_the_device() -> None:
    assert_goes_on_as_before(trial(), images())


@pytest.mark.slow
@pytest.mark.parametrize("loader_workers", [0, 2])
def test_after_a_rewind_the_same_batches_follow_from_the_loader_and_no_process_is_left(loader_workers: int) -> None:
    assert_goes_on_as_before(trial(input_pipeline="loader", loader_workers=loader_workers), images())
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_rewind_keeps_the_loaders_processes() -> None:
    stream = feed(trial(input_pipeline="loader", loader_workers=2), images())
    try:
        taken(stream, 3)
        before = {child.pid for child in multiprocessing.active_children()}
        stream.rewind(1)
        taken(stream, 3)
        assert {child.pid for child in multiprocessing.active_children()} == before
        assert len(before) == 2
    finally:
        stream.close()


def test_a_loader_draws_nothing_from_the_generator_that_the_training_uses() -> None:
    before = torch.get_rng_state()
    stream = feed(trial(input_pipeline="loader", loader_workers=0), images())
    taken(stream, 2)
    stream.rewind(1)
    taken(stream, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_stream_goes_back_and_not_forward() -> None:
    stream = feed(trial(), images())
    stream.next()
    with pytest.raises(AssertionError, match="cannot rewind from 1 to 2"):
        stream.rewind(2)


def test_the_device_pipeline_has_no_input_times() -> None:
    stream = feed(trial(), images())
    stream.next()
    assert stream.take_input_seconds() == InputSeconds(decode=None, copy=None)


def decode_seconds(batch_size: int, loader_workers: int, data: ImageSet) -> list[float]:
    """Of 20 micro batches, resized from 64 to 224 pixels."""
    config = trial(
        input_pipeline="loader",
        loader_workers=loader_workers,
        image_size=224,
        train_micro_batch_size_per_gpu=batch_size,
        train_batch_size=batch_size,
    )
    sharing = share(
        "digits", len(data), scaling_mode="none", dataset_fraction=1, world_size=1, train_batch_size=batch_size
    )
    sampler = Sampler(sharing, len(data), 0, 1, batch_size, 1, 0)
    stream = TrainingFeed(config, data, sampler, CPU, torch.float32)
    try:
        taken(stream, 20)
        seconds = stream.take_input_seconds()
        assert seconds.decode is not None
        assert seconds.copy is not None
        assert len(seconds.copy) == len(seconds.decode) == 20
        assert all(copied > 0 for copied in seconds.copy)
        assert stream.take_input_seconds() == InputSeconds(decode=[], copy=[])
        return seconds.decode
    finally:
        stream.close()


@pytest.mark.slow
@pytest.mark.parametrize("loader_workers", [0, 1])
def test_decoding_is_timed_where_it_happens_and_takes_longer_for_a_larger_batch(loader_workers: int) -> None:
    data = images(40, size=64, channels=3)
    of_two, of_twenty = decode_seconds(2, loader_workers, data), decode_seconds(20, loader_workers, data)
    assert min(of_two) > 0
    # Ten times the work. The fastest of each: what else the machine does only adds.
    assert min(of_twenty) > 3 * min(of_two)


def test_a_batch_of_another_shape_is_an_error() -> None:
    stream = feed(trial(train_micro_batch_size_per_gpu=3, train_batch_size=3), images())
    with pytest.raises(AssertionError, match="instead of"):
        stream.next()


def test_synthetic_images_repeat_beyond_those_that_are_held() -> None:
    held = DeviceImages(images(5), CPU, 8, torch.float32)
    first, again = held.batch(np.array([1, 2])), held.batch(np.array([6, 7]))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


def test_evaluation_counts_every_held_out_image_once_over_the_ranks() -> None:
    counted = [
        count
        for rank in range(2)
        for _, _, count in islice(EvaluationFeed(trial(), images(11), rank, 2, CPU, torch.float32), 10)
    ]
    assert sum(counted) == 11


def test_too_few_classes_for_the_labels_are_refused() -> None:
    with pytest.raises(DataError, match="labels up to 9: num_classes must be at least 10"):
        open_data(trial(num_classes=4))


def test_synthetic_labels_fit_the_model() -> None:
    data = open_data(trial(dataset="synthetic", num_classes=3))
    assert data.held_out is None
    assert set(data.training.labels.tolist()) == {0, 1, 2}
    assert data.training.images.shape[1:] == (3, 16, 16)
