"""A GPU's training throughput at a glance, without Ray and without network: `make gpu-check`.

ViT-B/16 at 224 pixels in fp32, tf32 and bf16, micro batches of 16 to 512, compiled and not, on the first GPU; as a
table and as JSON. Each point is a trial as in a study (`trainers.trial.run_trial`), with a short measurement. It ends
within its budget of eight minutes in any case: a point that would not fit into what is left is left out and listed so.

The points run in a child process that is kept from one to the next (`trainers.trial_server`): importing torch,
DeepSpeed and timm anew would take a third of the time. It is replaced when it may not be clean, and ended when its time
is up; a point that runs out of memory is a finding, and larger ones of its kind are not tried.

What the machine needs: an NVIDIA driver, a C++ compiler for the compiled points, and a virtual environment with the
packages of `pyproject.toml`, of which torch (with its CUDA libraries), torchvision, triton, deepspeed, timm, pydantic,
numpy, psutil, nvidia-ml-py and rich are used. Where it has no network, carry their wheels:
`pip download -d wheels -c constraints.txt .` here, `pip install --no-index --find-links wheels vitscale` there.
`--tiny` runs the same on a CPU in a minute or two, at sizes that say nothing about a GPU.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from trainers.config import MeasurementConfig, Precision, TrialConfig
from trainers.trial_child import ChildGone, TrialChild

BUDGET_SECONDS: Final = 450.0  # under eight minutes, with the start of Python and the report
_RESERVE_SECONDS: Final = 10.0  # for ending the child and the report
# What a point of its kind takes before one has been seen: not compiled, compiled.
_FIRST_GUESS_SECONDS: Final = {False: 25.0, True: 75.0}
_ONWARD: Final = 1.25  # what a point may take longer than the longest of its kind so far

State = Literal["measured", "out_of_memory", "failed", "left_out"]


@dataclass(frozen=True)
class Scale:
    """What is tried: ViT-B/16 on a GPU, or the same at a size for a CPU. Micro batches in order of interest."""

    model: str
    image_size: int
    micro_batches: tuple[int, ...]
    precisions: tuple[Precision, ...]
    measurement: MeasurementConfig


FULL: Final = Scale(
    model="vit_base_patch16_224",
    image_size=224,
    micro_batches=(64, 256, 16, 128, 512, 32),
    precisions=("bf16", "tf32", "fp32"),
    measurement=MeasurementConfig(min_warmup_steps=3, min_steps=20, max_steps=100, max_seconds=6.0, relative_ci=0.02),
)
TINY: Final = Scale(
    model="vit_tiny_patch16_224",
    image_size=32,
    micro_batches=(4, 2),
    precisions=("bf16", "fp32"),
    measurement=MeasurementConfig(min_warmup_steps=1, min_steps=10, max_steps=10, max_seconds=20.0, relative_ci=0.02),
)


@dataclass(frozen=True)
class Point:
    """One line of the table. `reason`: why there are no numbers; `result`: the whole report of the trial."""

    precision: Precision
    compile: bool
    micro_batch: int
    state: State
    reason: str | None = None
    seconds: float | None = None  # all in all: building, compiling, measuring
    result: dict[str, Any] | None = None


def trial(scale: Scale, precision: Precision, *, compile: bool, micro_batch: int) -> TrialConfig:
    return TrialConfig(
        model=scale.model,
        image_size=scale.image_size,
        patch_size=16,
        num_classes=1000,
        dataset="synthetic",
        world_size=1,
        train_micro_batch_size_per_gpu=micro_batch,
        train_batch_size=micro_batch,
        precision=precision,
        compile=compile,
        measurement=scale.measurement,
    )


class Check:
    """The points in order, as long as there is time; `clock` gives seconds."""

    def __init__(self, scale: Scale, budget_seconds: float, child: Callable[[float], TrialChild]) -> None:
        """`child`: starts one that must be up within so many seconds; one is running when the first point begins."""
        self.scale, self._start_child = scale, child
        self._deadline = time.monotonic() + budget_seconds - _RESERVE_SECONDS
        self._longest: dict[bool, float] = {}
        self._too_large: dict[tuple[Precision, bool], int] = {}  # the smallest micro batch that ran out of memory
        self._child = child(self._left())

    @property
    def hello(self) -> dict[str, Any]:
        return self._child.hello

    def points(self) -> Iterator[Point]:
        for micro_batch in self.scale.micro_batches:
            for compile in (False, True):
                for precision in self.scale.precisions:
                    yield self._point(precision, compile, micro_batch)

    def close(self) -> None:
        self._child.close()

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _point(self, precision: Precision, compile: bool, micro_batch: int) -> Point:
        begun = time.monotonic()
        too_large = self._too_large.get((precision, compile))
        if too_large is not None and micro_batch >= too_large:
            reason = f"not tried: micro batch {too_large} ran out of memory"
            return Point(precision, compile, micro_batch, "out_of_memory", reason)
        needed = self._longest.get(compile, 0.0) * _ONWARD or _FIRST_GUESS_SECONDS[compile]
        if needed > self._left():
            reason = f"{max(self._left(), 0):.0f} s were left, and it may take {needed:.0f} s"
            return Point(precision, compile, micro_batch, "left_out", reason)
        try:
            if not self._child.is_running:
                self._child.close()
                self._child = self._start_child(self._left())
            config = trial(self.scale, precision, compile=compile, micro_batch=micro_batch)
            outcome = self._child.run(config, self._left())
        except ChildGone as gone:
            return Point(precision, compile, micro_batch, "failed", str(gone), time.monotonic() - begun)
        seconds = time.monotonic() - begun
        self._longest[compile] = max(self._longest.get(compile, 0.0), seconds)
        if "result" in outcome:
            return Point(precision, compile, micro_batch, "measured", None, seconds, outcome["result"])
        told = f"{outcome['error']['type']}: {outcome['error']['message']}"
        if outcome["is_out_of_memory"]:
            self._too_large[precision, compile] = min(too_large or micro_batch, micro_batch)
            return Point(precision, compile, micro_batch, "out_of_memory", told, seconds)
        return Point(precision, compile, micro_batch, "failed", told, seconds)


def table(points: Sequence[Point], title: str) -> Table:
    """Every point, measured or not, in the order of its kind."""
    shown = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("type", "com-\npiled", "micro\nbatch", "images/s", "step ms\n±95 %", "MFU", "peak\nGiB", ""):
        is_text = heading in ("type", "com-\npiled", "")
        shown.add_column(heading, justify="left" if is_text else "right", no_wrap=heading != "")
    for point in sorted(points, key=lambda one: (one.precision, one.compile, one.micro_batch)):
        name = (point.precision, "yes" if point.compile else "no", str(point.micro_batch))
        if point.result is None:
            shown.add_row(*name, "-", "-", "-", "-", f"{point.state.replace('_', ' ')}: {point.reason}")
            continue
        metrics, quality = point.result["metrics"], point.result["quality"]
        remarks = [*([] if quality["state"] == "steady" else [quality["state"]]), *quality["flags"]]
        shown.add_row(
            *name,
            f"{metrics['images_per_second']:.1f}",
            _step(metrics),
            "-" if metrics["mfu"] is None else f"{metrics['mfu']:.1%}",
            f"{metrics['peak_memory_bytes'] / 2**30:.2f}",
            ", ".join(dict.fromkeys(remarks)),
        )
    return shown


def _step(metrics: dict[str, Any]) -> str:
    mean, low, high = (metrics[f"step_seconds_{name}"] for name in ("mean", "ci95_low", "ci95_high"))
    margin = "" if low is None or high is None else f" ±{max(high - mean, mean - low) * 1e3:.2g}"
    return f"{mean * 1e3:.4g}{margin}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainers.gpu_check", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--output", type=Path, default=Path("gpu_check.json"), help="where the JSON goes")
    parser.add_argument("--tiny", action="store_true", help="the same on a CPU, at sizes that say nothing about a GPU")
    parser.add_argument("--seconds", type=float, default=BUDGET_SECONDS, help="ends within this time")
    parser.add_argument("--micro-batches", type=_counts, help="others than those it has, as 16,32; the first first")
    options = parser.parse_args(arguments)
    scale: Scale = TINY if options.tiny else FULL
    if options.micro_batches:
        scale = Scale(**{**vars(scale), "micro_batches": options.micro_batches})
    started, begun = datetime.now(UTC), time.monotonic()
    try:
        check = Check(scale, options.seconds, lambda left: TrialChild(on_cpu=options.tiny, timeout_seconds=left))
    except ChildGone as gone:
        print(f"vitscale: gpu-check could not start: {gone}", file=sys.stderr)
        return 2
    try:
        if not options.tiny and not check.hello["cuda"]:
            print("vitscale: torch finds no CUDA device here; --tiny runs the same on a CPU", file=sys.stderr)
            return 2
        device, console, points = check.hello["device"] or "CPU", Console(), list[Point]()
        for point in check.points():
            points.append(point)
            what = "measured" if point.result else f"{point.state}: {point.reason}"
            kind = "compiled" if point.compile else "eager"
            console.print(f"{point.precision} {kind} {point.micro_batch}: {what}", highlight=False, soft_wrap=True)
    finally:
        check.close()
    seconds = time.monotonic() - begun
    report = {
        "started_at": started.isoformat(),
        "seconds": seconds,
        "budget_seconds": options.seconds,
        "device": device,
        "model": scale.model,
        "image_size": scale.image_size,
        "points": [asdict(point) for point in points],
    }
    options.output.write_text(json.dumps(report, indent=1), encoding="utf-8")
    console.print(table(points, f"{scale.model} at {scale.image_size} px on one {device}, {seconds:.0f} s"))
    left_out = sum(point.state == "left_out" for point in points)
    if left_out:
        console.print(f"{left_out} of {len(points)} points were left out: the time was up (--seconds)")
    console.print(f"All numbers: {options.output}", soft_wrap=True)
    return 0 if any(point.result for point in points) else 1


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers, as 16,32") from None
    if min(counts) < 1:
        raise argparse.ArgumentTypeError("a micro batch is at least 1")
    return counts


if __name__ == "__main__":
    sys.exit(main())
