"""`python -m trainers.gpu_check`, for real, on the CPU and at its smallest."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainers.gpu_check import FULL, main
from trainers.result import TrialResult

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_SECONDS = 570


def gpu_check(*arguments: str, address_space_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    def limit_memory() -> None:
        if address_space_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes, address_space_bytes))

    return subprocess.run(
        [sys.executable, "-m", "trainers.gpu_check", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        cwd=REPOSITORY,
        preexec_fn=limit_memory,
        check=False,
    )


def report(path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return told


def kinds(points: list[dict[str, Any]]) -> list[tuple[str, bool, int]]:
    return [(point["precision"], point["compile"], point["micro_batch"]) for point in points]


@pytest.mark.slow
def test_it_measures_every_point_goes_on_after_one_that_has_too_little_memory_and_writes_all_down(
    tmp_path: Path,
) -> None:
    output = tmp_path / "check.json"
    # 40,000 images of ViT-Ti need far more for their activations than the process may have.
    done = gpu_check(
        "--tiny",
        "--output",
        str(output),
        "--micro-batches",
        "40000,2",
        "--seconds",
        "540",
        address_space_bytes=12 << 30,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    told = report(output)
    large, small = told["points"][:4], told["points"][4:]
    assert kinds(small) == [("bf16", False, 2), ("fp32", False, 2), ("bf16", True, 2), ("fp32", True, 2)]
    assert [point["state"] for point in large] == ["out_of_memory"] * 4
    assert "alloc" in large[0]["reason"]
    for point in small:
        assert point["state"] == "measured"
        result = TrialResult.model_validate(point["result"])
        assert result.metrics.images_per_second * result.metrics.step_seconds_mean == pytest.approx(2)
        assert result.metrics.measured_steps + result.metrics.truncated_steps == 10
        assert result.metrics.peak_memory_bytes > 0
        assert (result.overhead.compile_seconds is not None) == point["compile"]
        assert result.deepspeed_config["compiled"] is point["compile"]
        assert not any("more graphs" in note for note in result.quality.notes)
    assert told["seconds"] < told["budget_seconds"] == 540
    assert "out of memory" in done.stdout
    assert "images/s" in done.stdout


@pytest.mark.slow
def test_without_cuda_it_ends_with_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    done = gpu_check("--output", str(tmp_path / "check.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "vitscale: torch finds no CUDA device here; --tiny runs the same on a CPU\n"
    assert not (tmp_path / "check.json").exists()


@pytest.mark.slow
def test_what_does_not_fit_into_the_time_is_listed_as_left_out(tmp_path: Path) -> None:
    output = tmp_path / "check.json"
    done = gpu_check("--tiny", "--output", str(output), "--seconds", "34")
    told = report(output)
    assert done.returncode == 1  # less than what a first point may take is left once the child is up
    assert {point["state"] for point in told["points"]} == {"left_out"}
    assert len(told["points"]) == 8
    assert told["seconds"] < 34
    assert "8 of 8 points were left out" in done.stdout


def test_on_a_gpu_it_tries_what_the_paper_sweeps() -> None:
    assert sorted(FULL.micro_batches) == [16, 32, 64, 128, 256, 512]
    assert sorted(FULL.precisions) == ["bf16", "fp32", "tf32"]


@pytest.mark.parametrize("given", ["16,many", "0"])
def test_a_bad_list_of_micro_batches_is_told(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--micro-batches", given])
    assert ended.value.code == 2
    assert "--micro-batches" in capsys.readouterr().err
