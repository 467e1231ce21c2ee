"""Real trials under torchrun: two workers on the CPU, the smallest model there is."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainers.config import TrialConfig
from trainers.result import TrialResult

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_SECONDS = 280


def trial(**changes: object) -> TrialConfig:
    values: dict[str, Any] = {
        "model": "vit_tiny_patch16_224",
        "image_size": 32,
        "patch_size": 16,
        "num_classes": 10,
        "dataset": "digits",
        "world_size": 2,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "measurement": {"min_warmup_steps": 1, "min_steps": 10, "max_steps": 10},
    }
    values |= changes
    values["train_batch_size"] = (
        values["train_micro_batch_size_per_gpu"] * values["gradient_accumulation_steps"] * values["world_size"]
    )
    return TrialConfig.model_validate(values)


def start(config: TrialConfig, folder: Path) -> subprocess.CompletedProcess[str]:
    """The trial under torchrun, with a rendezvous of its own on a free port."""
    path = folder / "trial.json"
    path.write_text(config.model_dump_json(), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    return subprocess.run(
        [*torchrun, str(config.world_size), "-m", "trainers.standalone", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )


def run(config: TrialConfig, folder: Path) -> TrialResult:
    done = start(config, folder)
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = done.stdout.splitlines()
    return TrialResult.model_validate(json.loads(line))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> TrialResult:
    """ZeRO 0, no accumulation, fp32, two workers."""
    return run(trial(), tmp_path_factory.mktemp("reference"))


def test_a_result_holds_together(reference: TrialResult) -> None:
    metrics = reference.metrics
    assert metrics.measured_steps == 10
    assert metrics.images_per_second == pytest.approx(8 / metrics.step_seconds_mean)
    assert metrics.images_per_second_per_worker == pytest.approx(metrics.images_per_second / 2)
    assert metrics.epoch_seconds == pytest.approx(1442 / metrics.images_per_second)
    assert metrics.epoch_seconds_source == "derived"
    assert metrics.step_seconds_p50 <= metrics.step_seconds_p95
    assert (reference.hardware.backend, reference.hardware.nodes, reference.hardware.num_threads) == ("gloo", 1, 1)
    assert [(row.rank, row.local_rank) for row in reference.ranks] == [(0, 0), (1, 1)]
    assert len({row.pid for row in reference.ranks}) == 2
    assert metrics.peak_memory_bytes == max(row.peak_memory_bytes for row in reference.ranks) > 0
    assert metrics.model_state_bytes is not None
    assert metrics.estimated_model_state_bytes is not None
    # fp32 at ZeRO 0: all but the 4-byte step counters of AdamW, one for each of 152 tensors.
    assert metrics.model_state_bytes - metrics.estimated_model_state_bytes == 4 * 152
    assert [row.model_states is not None for row in reference.ranks] == [True, True]
    assert reference.quality.state in ("unassessed", "unstable")  # ten steps cannot be called steady
    assert reference.deepspeed_config["train_batch_size"] == 8
    assert reference.deepspeed_config["timers_enabled"] is False
    assert len(reference.loss_history) == 11


@pytest.mark.parametrize(
    "changes",
    [
        {"zero_stage": 1, "gradient_accumulation_steps": 2, "train_micro_batch_size_per_gpu": 2},
        {"zero_stage": 2},
        {"zero_stage": 3, "activation_checkpointing": True},
        {"world_size": 1, "train_micro_batch_size_per_gpu": 8},
        {"zero_stage": 2, "compile": True},
    ],
    ids=["ZeRO 1, accumulation 2", "ZeRO 2", "ZeRO 3, checkpointing", "one worker", "ZeRO 2, compiled"],
)
def test_the_same_seed_and_global_batch_reach_the_same_losses(
    reference: TrialResult, changes: dict[str, object], tmp_path: Path
) -> None:
    assert run(trial(**changes), tmp_path).loss_history == pytest.approx(reference.loss_history, abs=2e-3)


def test_bf16_follows_fp32_closely_and_not_exactly(reference: TrialResult, tmp_path: Path) -> None:
    result = run(trial(precision="bf16", zero_stage=2), tmp_path)
    assert result.loss_history == pytest.approx(reference.loss_history, abs=0.1)
    assert result.loss_history != reference.loss_history
    assert result.deepspeed_config["bf16"]["enabled"] is True


def test_digits_are_learnt_and_told_apart_on_held_out_images(tmp_path: Path) -> None:
    config = trial(
        world_size=1,
        train_micro_batch_size_per_gpu=32,
        learning_rate=1e-3,
        epochs=2,
        measurement={"min_warmup_steps": 0, "min_steps": 1, "max_steps": 1},
    )
    result = run(config, tmp_path)
    first, last = result.epochs
    assert [row.steps for row in result.epochs] == [45, 45]
    assert [row.images_seen for row in result.epochs] == [1440, 1440]
    assert last.train_loss is not None
    assert first.train_loss is not None
    assert last.train_loss < first.train_loss
    assert last.eval_accuracy is not None
    assert last.eval_accuracy > 0.6
    assert result.metrics.epoch_seconds_source == "measured"
    assert result.metrics.epoch_seconds == pytest.approx((first.epoch_seconds + last.epoch_seconds) / 2)
    assert result.metrics.epoch_seconds_without_first == last.epoch_seconds
    assert result.metrics.eval_accuracy == last.eval_accuracy


def test_a_trial_that_does_not_fit_its_worker_ends_with_one_clear_line(tmp_path: Path) -> None:
    done = start(trial(dataset="cifar10", data_root=str(tmp_path / "nowhere")), tmp_path)
    assert done.returncode != 0
    assert done.stdout == ""
    assert f"DataError: data_root {tmp_path / 'nowhere'} is no folder on this worker" in done.stderr
    assert "launcher started" not in done.stderr


def test_two_trials_in_one_process_leave_nothing_behind(tmp_path: Path) -> None:
    """Two in turn in one process, the second with other settings: its own groups, batch and memory."""
    for number, stage in enumerate((2, 0)):
        config = trial(world_size=1, zero_stage=stage, input_pipeline="loader", loader_workers=number)
        (tmp_path / f"{number}.json").write_text(config.model_dump_json(), encoding="utf-8")
    program = (
        "import multiprocessing, sys, torch.distributed as dist\n"
        "from trainers.standalone import main\n"
        "if __name__ == '__main__':\n"
        "    for path in sys.argv[1:]:\n"
        "        assert main(['--config', path]) == 0\n"
        "        assert not dist.is_initialized()\n"
        "        assert not multiprocessing.active_children()\n"
    )
    script = tmp_path / "two.py"
    script.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "0.json"), str(tmp_path / "1.json")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = [TrialResult.model_validate_json(line) for line in done.stdout.splitlines()]
    assert [result.metrics.measured_steps for result in results] == [10, 10]
    assert results[1].loss_history == pytest.approx(results[0].loss_history, abs=2e-3)
