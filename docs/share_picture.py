"""Draws communication's share of a step: `vitscale results ID --format json | share_picture.py OUT.svg`.

A line for each gradient accumulation, over the micro batch; a point is one run, its bar the 95 % interval.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ValidationError

from service.views import ResultRow, ResultsPage

WIDTH, HEIGHT = 690, 300  # of the plot, in pixels; about 760 with axis and margins
# Wong (2011), "Color blindness", Nature Methods 8: told apart by everybody, on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
MAX_LINES = len(COLOURS)


@dataclass(frozen=True)
class SharePoint:
    """One run: shares in percent of a step."""

    micro_batch: int
    accumulation: int
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Shares:
    points: Sequence[SharePoint]
    what: str  # was trained: model, images, ZeRO stage and precision
    where: str  # it was trained: workers and their devices


def shares_of(rows: Sequence[ResultRow]) -> Shares:
    """The runs whose share was measured.

    Raises:
        ValueError: none was, or they differ in more than micro batch and accumulation.
    """
    seen = [row for row in rows if row.metrics.communication_share_ci95_high is not None]
    if not seen:
        raise ValueError(
            "no row has a communication_share with an interval: take a study with measurement: {communication: true} "
            "and two workers or more"
        )
    unlike = sorted(name for name in seen[0].parameters if len({str(row.parameters[name]) for row in seen}) > 1)
    unlike = [name for name in unlike if name not in _DRAWN]
    if unlike:
        raise ValueError(
            f"the rows differ in {', '.join(unlike)}: take a study where only micro batch and accumulation do"
        )
    machines = sorted({_devices(row) for row in seen})
    if len(machines) > 1:
        raise ValueError(f"the rows ran on unlike devices ({'; '.join(machines)}): take a study of one kind of machine")
    points = sorted((_point(row) for row in seen), key=lambda point: (point.accumulation, point.micro_batch))
    if len({point.accumulation for point in points}) > MAX_LINES:
        raise ValueError(f"more than {MAX_LINES} values of gradient_accumulation_steps: no more can be told apart")
    fixed = seen[0].parameters
    what = (
        f"{fixed['model']}, patch {fixed['patch_size']}, {fixed['dataset']} at {fixed['image_size']} px, "
        f"{fixed['precision']}, ZeRO {fixed['zero_stage']}"
    )
    nodes = seen[0].hardware.nodes
    on_nodes = f" on {nodes} nodes" if nodes is not None and nodes > 1 else ""
    return Shares(points, what, f"{fixed['world_size']} workers{on_nodes}: {machines[0]}")


_DRAWN = {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"}


def _point(row: ResultRow) -> SharePoint:
    metrics = row.metrics
    assert metrics.communication_share is not None
    assert metrics.communication_share_ci95_low is not None
    assert metrics.communication_share_ci95_high is not None
    return SharePoint(
        micro_batch=row.parameters["train_micro_batch_size_per_gpu"],
        accumulation=row.parameters["gradient_accumulation_steps"],
        share=100 * metrics.communication_share,
        low=100 * metrics.communication_share_ci95_low,
        high=100 * metrics.communication_share_ci95_high,
    )


def _devices(row: ResultRow) -> str:
    """`2 x NVIDIA H200`, or of unlike ones each with its number."""
    threads = row.hardware.num_threads
    each = f" ({threads} thread{'s' if threads != 1 else ''} each)" if row.hardware.backend == "gloo" else ""
    return ", ".join(f"{count} x {name}" for name, count in sorted(Counter(row.hardware.devices).items())) + each


def draw(shares: Shares, output: Path) -> None:
    """Writes the SVG, on white, so that a dark page does not swallow it."""
    import altair as alt  # takes most of a second, which the data part does without

    lines = sorted({point.accumulation for point in shares.points})
    batches = sorted({point.micro_batch for point in shares.points})
    x = alt.X("micro_batch:Q").scale(type="log", base=2, domain=[batches[0] / 1.15, batches[-1] * 1.15], nice=False)
    x = x.axis(values=batches, format="d", grid=False, title="micro batch (images per worker and micro step)")
    y_title = "exposed communication (% of a step)"
    accumulation = {"title": "gradient accumulation", "orient": "top-right"}
    colour = alt.Color("accumulation:O").scale(domain=lines, range=COLOURS[: len(lines)]).legend(**accumulation)
    shape = alt.Shape("accumulation:O").scale(domain=lines, range=SHAPES[: len(lines)]).legend(**accumulation)
    # Altair's frame of records, so that pandas is not needed.
    base = alt.Chart(alt.Data(values=[asdict(point) for point in shares.points]))
    line = base.mark_line(strokeWidth=2).encode(x, alt.Y("mean(share):Q"), colour)
    interval = base.mark_rule(strokeWidth=2).encode(x, alt.Y("low:Q").title(y_title), alt.Y2("high:Q"), colour)
    run = base.mark_point(filled=True, size=70, opacity=1).encode(x, alt.Y("share:Q"), colour, shape)
    title = alt.TitleParams(
        "What part of a training step does communication take?",
        subtitle=[f"{shares.what}; bars: 95 % intervals", shares.where],
        anchor="start",
    )
    chart = alt.layer(line, interval, run, title=title, width=WIDTH, height=HEIGHT, background="white", padding=15)
    chart.configure(font="sans-serif").configure_axis(labelFontSize=13, titleFontSize=13).configure_legend(
        labelFontSize=13, titleFontSize=13
    ).configure_title(fontSize=17, subtitleFontSize=12, offset=12).configure_view(stroke=None).save(
        output, format="svg"
    )


def main(output: Path) -> int:
    try:
        shares = shares_of(ResultsPage.model_validate_json(sys.stdin.read()).results)
    except ValidationError as error:
        print(
            f"share_picture: standard input is not what `vitscale results ID --format json` prints: {error}",
            file=sys.stderr,
        )
        return 2
    except ValueError as error:
        print(f"share_picture: {error}", file=sys.stderr)
        return 2
    draw(shares, output)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
