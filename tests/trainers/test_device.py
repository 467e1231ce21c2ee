import subprocess
import sys

import pytest
import torch

from trainers.device import (
    HostStopwatch,
    TrainingDevice,
    choose_device,
    cpu_model,
    set_matmul_precision,
    set_threads,
)
from trainers.device_peaks import dense_peak


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("Tesla T4", "fp16", 65.0),
        ("Tesla T4", "fp32", 8.1),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312.0),
        ("NVIDIA A10", "bf16", 125.0),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7),
        ("NVIDIA H200", "fp16", 989.4),
        ("NVIDIA H200 NVL", "bf16", 835.5),  # another rate than the SXM part of that name
        ("NVIDIA GeForce RTX 3070", "fp32", 20.3),
        ("NVIDIA L4", "fp32", 30.3),
        ("NVIDIA L40S", "bf16", 362.0),
    ],
)
def test_the_peak_of_a_known_gpu_is_the_dense_one_for_the_precision(name: str, precision: str, tera: float) -> None:
    peak = dense_peak(name, precision)  # type: ignore[arg-type]
    assert peak is not None
    assert peak.flops_per_second == tera * 1e12
    assert "data sheet" in peak.source or "white paper" in peak.source


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("Tesla T4", "bf16"),  # the chip has no bf16 units
        ("NVIDIA A10G", "bf16"),  # no A10, and no data sheet of its own
        ("NVIDIA GeForce RTX 3070 Ti", "fp32"),
        ("NVIDIA GeForce RTX 3070 Laptop GPU", "fp32"),
        ("AMD EPYC", "fp32"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bf16"),  # a slice of one
        ("Some future GPU", "bf16"),
    ],
)
def test_an_unknown_device_or_precision_has_no_peak(name: str, precision: str) -> None:
    assert dense_peak(name, precision) is None  # type: ignore[arg-type]


def test_the_stopwatch_gives_one_difference_per_step_and_starts_anew() -> None:
    watch = HostStopwatch()
    for _ in range(4):
        watch.mark()
    assert len(watch.seconds()) == 3
    assert watch.seconds() == []


def test_tf32_is_off_unless_asked_for() -> None:
    set_matmul_precision("tf32")
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    set_matmul_precision("fp32")
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_training_is_on_the_cpu_whatever_the_local_rank() -> None:
    assert choose_device(3) == torch.device("cpu")
    device = TrainingDevice(torch.device("cpu"))
    assert device.name == cpu_model() != ""
    assert device.uuid is None
    assert device.reserved_memory_bytes() is None


def test_peak_memory_is_what_was_used_above_the_start() -> None:
    device = TrainingDevice(torch.device("cpu"))
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])  # touch every page
    device.sample_memory()
    del block
    assert device.peak_memory_bytes() >= 60 << 20


def test_threads_hold_for_torch_and_for_what_starts_later() -> None:
    before = torch.get_num_threads()
    try:
        set_threads(1)
        assert torch.get_num_threads() == 1
        child = subprocess.run(
            [sys.executable, "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert child.stdout == "1\n"
    finally:
        set_threads(before)
