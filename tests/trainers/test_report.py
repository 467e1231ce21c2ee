import math

import pytest

from tests.trainers.telemetry.samples import rank as readings
from tests.trainers.telemetry.samples import window as read_window
from trainers.config import TrialConfig
from trainers.measure.windows import Window
from trainers.memory import ModelStates
from trainers.report import Observations, OverheadSeconds, RankReport, build_result
from trainers.result import EpochRow, RankRow
from trainers.world import LaunchError


def trial(world_size: int = 2) -> TrialConfig:
    return TrialConfig(
        model="vit_base_patch16_224",
        image_size=224,
        patch_size=16,
        num_classes=1000,
        dataset="synthetic",
        world_size=world_size,
        train_micro_batch_size_per_gpu=32,
        train_batch_size=32 * world_size,
        precision="fp16",
    )


def rank(number: int, device: str = "Tesla T4", uuid: str | None = None, node: str = "a") -> RankReport:
    row = RankRow(
        rank=number,
        local_rank=number,
        node=node,
        node_ip="10.0.0.1",
        pid=100 + number,
        device=device,
        device_uuid=uuid or f"GPU-{number}",
        peak_memory_bytes=1000 * (number + 1),
        model_states=ModelStates(
            parameter_bytes=2 * 86_567_656,
            gradient_bytes=number,
            master_parameter_bytes=0,
            optimizer_state_bytes=0,
            communication_buffer_bytes=10**9,
        ),
    )
    return RankReport(row, cpu_count=8, threads=1)


def epoch(number: int, seconds: float) -> EpochRow:
    return EpochRow(
        epoch=number,
        epoch_seconds=seconds,
        steps=10,
        images_seen=640,
        train_loss=1.0 / number,
        train_accuracy=0.5,
        eval_loss=None,
        eval_accuracy=None,
    )


def seen(**changes: object) -> Observations:
    values: dict[str, object] = {
        "windows": [Window(5.0, (0.5,) * 10), Window(5.0, (0.5,) * 10)],
        "epochs": [],
        "loss_history": [3.0, 2.0],
        "images_per_epoch": 50_000,
        "flops_per_image": 35.1e9,
        "tensor_sizes": [(86_567_656, 1)],
        "overhead": OverheadSeconds(startup_seconds=1.0, compile_seconds=None, warmup_seconds=2.0),
        "backend": "nccl",
        "deepspeed_config": {},
    }
    return Observations(**(values | changes))  # type: ignore[arg-type]


def test_a_compilation_in_the_middle_of_the_measurement_is_told() -> None:
    without = build_result(trial(), [rank(0), rank(1)], seen()).quality.notes
    notes = build_result(trial(), [rank(0), rank(1)], seen(graphs_while_measured=2)).quality.notes
    assert notes == [*without, "torch.compile made 2 more graphs while the steps were timed"]


def test_rates_flops_and_utilisation_follow_from_one_another() -> None:
    metrics = build_result(trial(), [rank(0), rank(1)], seen()).metrics
    assert metrics.images_per_second == pytest.approx(64 * 20 / 10)
    assert metrics.images_per_second_per_worker == pytest.approx(64)
    assert metrics.epoch_seconds == pytest.approx(50_000 / 128)
    assert metrics.achieved_flops_per_second == pytest.approx(3 * 35.1e9 * 128)
    assert metrics.mfu == pytest.approx(3 * 35.1e9 * 128 / (2 * 65e12))
    assert metrics.peak_flops_per_device == 65e12
    assert metrics.peak_flops_source == "NVIDIA T4 data sheet"
    assert metrics.peak_memory_bytes == 2000
    assert metrics.model_state_bytes == 2 * 86_567_656 + 1  # of the worst-off worker
    assert metrics.estimated_model_state_bytes == 16 * 86_567_656
    assert metrics.images_seen == 20 * 64
    assert metrics.train_loss == 2.5


def test_utilisation_over_unlike_gpus_is_over_the_sum_of_their_peaks_and_null_with_an_unknown_one() -> None:
    mixed = build_result(trial(), [rank(0), rank(1, "NVIDIA A100-SXM4-40GB")], seen()).metrics
    assert mixed.mfu == pytest.approx(3 * 35.1e9 * 128 / (65e12 + 312e12))
    assert build_result(trial(), [rank(0), rank(1, "Future GPU")], seen()).metrics.mfu is None


def test_measured_epochs_take_the_place_of_the_derived_one() -> None:
    epochs = [epoch(1, 12.0), epoch(2, 10.0), epoch(3, 8.0)]
    metrics = build_result(trial(), [rank(0), rank(1)], seen(epochs=epochs)).metrics
    assert (metrics.epoch_seconds, metrics.epoch_seconds_source) == (10.0, "measured")
    assert metrics.epoch_seconds_without_first == 9.0
    assert metrics.images_seen == 3 * 640 + 20 * 64
    assert metrics.train_loss == pytest.approx(1 / 3)
    one = build_result(trial(), [rank(0), rank(1)], seen(epochs=epochs[:1])).metrics
    assert one.epoch_seconds_without_first is None


def test_skipped_steps_are_counted_and_flagged() -> None:
    skipping = Window(5.0, (0.5,) * 10, skipped_steps=3)
    result = build_result(trial(), [rank(0), rank(1)], seen(windows=[Window(5.0, (0.5,) * 10), skipping]))
    assert result.metrics.skipped_steps == 3
    assert result.quality.flags == ["skipped_steps"]
    assert "3 of 20 measured steps were skipped for an overflow" in result.quality.notes


def test_what_the_machine_says_is_flagged_after_what_the_training_does_and_explained() -> None:
    busy = RankReport(rank(0).row, cpu_count=2, threads=1, readings=readings(0, read_window(own=0.5, busy=2.0)))
    skipping = Window(5.0, (0.5,) * 10, skipped_steps=3)
    result = build_result(trial(1), [busy], seen(windows=[Window(5.0, (0.5,) * 10), skipping]))
    assert result.quality.flags == ["skipped_steps", "contended"]
    assert any(note.startswith("contended: others used 1.50 of 2 cores") for note in result.quality.notes)
    assert result.telemetry is not None
    assert result.telemetry.cores[0].others_cores == pytest.approx(1.5)


def test_a_loss_that_is_not_finite_is_null_with_a_reason() -> None:
    result = build_result(trial(), [rank(0), rank(1)], seen(loss_history=[2.0, math.nan, 1.0]))
    assert result.metrics.train_loss is None
    assert result.loss_history == [2.0]
    assert "the loss was not finite from step 2 on: it is not reported" in result.quality.notes


def test_the_interval_is_reported_in_its_parts() -> None:
    metrics = build_result(trial(), [rank(0), rank(1)], seen()).metrics
    assert (metrics.interval_kind, metrics.wander_source) == ("within_run", "reference_logs")
    assert metrics.step_seconds_noise_half_width == pytest.approx(0)
    assert metrics.step_seconds_wander_half_width == pytest.approx(0.007 * 0.5)
    assert metrics.step_seconds_ci95_low == pytest.approx(0.4965)
    assert metrics.step_seconds_ci95_high == pytest.approx(0.5035)
    assert metrics.correlation_steps == 1


def test_a_settling_start_is_warm_up_and_not_measured() -> None:
    result = build_result(
        trial(), [rank(0), rank(1)], seen(windows=[Window(8.0, (0.8,) * 10), *[Window(5.0, (0.5,) * 10)] * 5])
    )
    assert (result.metrics.truncated_steps, result.metrics.measured_steps) == (10, 50)
    assert result.metrics.images_per_second == pytest.approx(128)
    assert (result.overhead.warmup_seconds, result.overhead.measure_seconds) == (10.0, 25.0)
    assert result.quality.state == "steady"


def test_a_drift_and_noise_are_flagged() -> None:
    slowing = [Window(10 * seconds, (seconds,) * 10) for seconds in (0.5, 0.52, 0.54, 0.56)]
    quality = build_result(trial(), [rank(0), rank(1)], seen(windows=slowing)).quality
    assert (quality.state, quality.flags) == ("drifting", ["drifting", "unstable"])


def test_too_few_steps_are_not_called_steady() -> None:
    result = build_result(trial(), [rank(0), rank(1)], seen(windows=[Window(1.5, (0.5,) * 3)]))
    assert result.quality.state == "unassessed"
    assert result.metrics.interval_kind is None
    assert result.metrics.step_seconds_wander_half_width is None
    assert any("3 steps are too few" in note for note in result.quality.notes)


def test_two_ranks_on_one_gpu_fail_the_trial() -> None:
    with pytest.raises(LaunchError, match=r"ranks \[0, 1\] trained on one GPU \(GPU-x\)"):
        build_result(trial(), [rank(0, uuid="GPU-x"), rank(1, uuid="GPU-x")], seen())


def test_the_points_of_a_series_share_their_fingerprint_and_other_hardware_does_not() -> None:
    one = build_result(trial(1), [rank(0)], seen()).hardware
    two = build_result(trial(2), [rank(0), rank(1, node="b")], seen()).hardware
    other = build_result(trial(2), [rank(0), rank(1, "Tesla P4")], seen()).hardware
    assert one.fingerprint == two.fingerprint != other.fingerprint
    assert (one.nodes, two.nodes) == (1, 2)
    assert other.devices == ["Tesla T4", "Tesla P4"]
