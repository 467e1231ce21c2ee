import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.config import Dataset, ScalingMode
from trainers.data.sharing import Sharing, SharingError, share


def shared(
    dataset: Dataset = "cifar10",
    num_images: int = 50_000,
    *,
    mode: ScalingMode = "strong",
    fraction: float = 1.0,
    world_size: int = 2,
    batch: int = 128,
) -> Sharing:
    return share(
        dataset,
        num_images,
        scaling_mode=mode,
        dataset_fraction=fraction,
        world_size=world_size,
        train_batch_size=batch,
    )


def test_strong_scaling_keeps_the_data_set_whatever_the_world_size() -> None:
    assert shared(world_size=1, batch=64) == Sharing(50_000, None, 781)
    assert shared(world_size=8, batch=512) == Sharing(50_000, None, 97)


def test_weak_scaling_gives_each_worker_its_fraction_so_that_steps_stay() -> None:
    one = shared(mode="weak", fraction=0.1, world_size=1, batch=64)
    eight = shared(mode="weak", fraction=0.1, world_size=8, batch=512)
    assert one == Sharing(5_000, 5_000, 78)
    assert eight == Sharing(40_000, 5_000, 78)


def test_a_fraction_that_binary_numbers_cannot_hold_counts_whole_images() -> None:
    assert shared(num_images=30, fraction=0.1, world_size=1, batch=3).images_per_epoch == 3


def test_a_weak_fraction_over_1_in_all_is_refused_with_both_numbers() -> None:
    with pytest.raises(SharingError, match=r"11 workers with 0\.1 of cifar10 each need 1\.1 of it"):
        shared(mode="weak", fraction=0.1, world_size=11, batch=11)
    assert shared(mode="weak", fraction=0.1, world_size=10, batch=10).images_per_epoch == 50_000


def test_a_strong_fraction_over_1_is_refused() -> None:
    with pytest.raises(SharingError, match="more than all of cifar10"):
        shared(fraction=1.5)


def test_of_synthetic_images_there_are_always_more() -> None:
    assert shared("synthetic", mode="weak", fraction=1.0, world_size=4, batch=4).images_per_epoch == 200_000


def test_a_fraction_too_small_for_one_full_step_is_refused() -> None:
    with pytest.raises(SharingError, match=r"50 images .* do not fill one step of 64 images"):
        shared(fraction=0.001, batch=64)
    with pytest.raises(SharingError, match="do not fill one step"):
        shared(mode="weak", fraction=0.001, world_size=2, batch=128)


@given(
    num_images=st.integers(1, 5000),
    fraction=st.floats(0.01, 1),
    world_size=st.integers(1, 9),
    per_worker=st.integers(1, 40),
    mode=st.sampled_from(["none", "strong", "weak"]),
)
def test_an_epoch_never_needs_more_images_than_there_are(
    num_images: int, fraction: float, world_size: int, per_worker: int, mode: ScalingMode
) -> None:
    batch = per_worker * world_size
    try:
        sharing = shared(num_images=num_images, mode=mode, fraction=fraction, world_size=world_size, batch=batch)
    except SharingError:
        return
    assert sharing.steps_per_epoch >= 1
    assert sharing.steps_per_epoch * batch <= sharing.images_per_epoch <= num_images
