"""(c) The reference runs once more, step by step: when would the rule have stopped, and how wrong would it have been?

Each run's logged steps are fed in their order, in the windows that the rule asks for, under the default measurement.
Its mean is compared with the run's own steady state: the mean step of epochs 2 and later. An epoch's first step (it
includes the start-up) and its last one (a partial batch) are left out of both.

Other logs of the same four columns: `python -m tests.benchmarks --only replay --steps FILE.csv.gz`.
"""

import csv
import gzip
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.table import Table

from tests.benchmarks.outcome import Outcome
from trainers.config import MeasurementConfig
from trainers.measure.assessment import Assessment, assess
from trainers.measure.stop_rule import next_window_steps
from trainers.measure.windows import Window, total_seconds

REFERENCE_STEPS = Path(__file__).parent.parent / "data" / "reference_steps.csv.gz"
DRIFT = 0.03  # a run whose first minute is further than this from its steady state has a drift to be waited out
_FIRST_SECONDS = 60.0


@dataclass(frozen=True)
class LoggedRun:
    """Seconds of the full steps of each epoch, in order; `logged_seconds` are those of all steps of all epochs."""

    run_id: str
    epochs: list[list[float]]
    logged_seconds: float

    @property
    def steady_step_seconds(self) -> float:
        """The mean full step of epochs 2 and later, or of the only one."""
        return statistics.fmean(seconds for epoch in self.epochs[1:] or self.epochs for seconds in epoch)

    def steps_from(self, epoch: int) -> list[float]:
        """From the epoch of that index on, from 0."""
        return [seconds for steps in self.epochs[epoch:] for seconds in steps]


@dataclass(frozen=True)
class Replay:
    """One run under the rule. Shares are of the mean step; errors are against the run's own steady state."""

    run_id: str
    steady_step_seconds: float
    first_minute_error: float
    error: float
    noise_half_width: float
    wander_half_width: float
    half_width: float
    state: str
    flags: list[str]
    kept_steps: int
    kept_seconds: float
    seen_seconds: float
    logged_seconds: float

    @property
    def is_covered(self) -> bool:
        return abs(self.error) <= self.half_width

    @property
    def times_fewer_seconds(self) -> float:
        return self.logged_seconds / self.seen_seconds

    @property
    def is_missed_drift(self) -> bool:
        """It drifts, more than half of `DRIFT` is left in the mean, and no flag says so."""
        return abs(self.first_minute_error) > DRIFT and abs(self.error) > DRIFT / 2 and not self.flags


def read_runs(path: Path = REFERENCE_STEPS) -> list[LoggedRun]:
    """The runs of a gzipped CSV with run_id, epoch, step, seconds (and any other columns), in its order."""
    runs = []
    with gzip.open(path, "rt", newline="") as file:
        for run_id, rows in groupby(csv.DictReader(file), key=lambda row: row["run_id"]):
            epochs = [
                [float(row["seconds"]) for row in steps]
                for _, steps in groupby(rows, key=lambda row: int(row["epoch"]))
            ]
            runs.append(LoggedRun(run_id, [steps[1:-1] for steps in epochs], sum(map(sum, epochs))))
    return runs


def measure_series(steps: Sequence[float], config: MeasurementConfig) -> Assessment:
    """What the rule makes of steps that take the given seconds: it asks for windows until it, or the series, ends."""
    at = config.min_warmup_steps
    warmup_seconds = sum(steps[:at])
    windows: list[Window] = []
    while at < len(steps):
        count = next_window_steps(
            config,
            windows,
            warmup_seconds=warmup_seconds,
            seconds_used=warmup_seconds + total_seconds(windows),
            step_seconds_guess=steps[at - 1] if at else None,
        )
        if count == 0:
            break
        window = tuple(steps[at : at + count])
        windows.append(Window(sum(window), window))
        at += count
    return assess(config, windows, warmup_seconds=warmup_seconds)


def replay(
    run: LoggedRun, config: MeasurementConfig | None = None, *, first_epoch: int = 0, first_step: int = 0
) -> Replay:
    """Feed the run's steps to the rule, from an epoch and a step in it on (both from 0)."""
    steps, steady = run.steps_from(first_epoch)[first_step:], run.steady_step_seconds
    found = measure_series(steps, config or MeasurementConfig())
    assert found.interval is not None
    return Replay(
        run_id=run.run_id,
        steady_step_seconds=steady,
        first_minute_error=_mean_of_first(steps, _FIRST_SECONDS) / steady - 1,
        error=found.mean / steady - 1,
        noise_half_width=found.interval.noise_half_width / found.mean,
        wander_half_width=found.interval.wander_half_width / found.mean,
        half_width=found.interval.half_width / found.mean,
        state=found.state,
        flags=found.flags,
        kept_steps=sum(window.steps for window in found.kept),
        kept_seconds=total_seconds(found.kept),
        seen_seconds=found.seconds_seen,
        logged_seconds=run.logged_seconds,
    )


def replay_later_starts(runs: Iterable[LoggedRun], config: MeasurementConfig | None = None) -> list[Replay]:
    """Each run from each later epoch on, where as much is left as the rule may want to see."""
    config = config or MeasurementConfig()
    return [
        replay(run, config, first_epoch=epoch)
        for run in runs
        for epoch in range(1, len(run.epochs))
        if sum(run.steps_from(epoch)) > config.max_seconds
    ]


def summarise_replays(replays: Sequence[Replay], later: Sequence[Replay]) -> list[Outcome]:
    """The replays against the bounds; `later` are starts in the middle of the runs, on a warm device."""
    errors, widths = _percent(abs(row.error) for row in replays), _percent(row.half_width for row in replays)
    ratios = [row.times_fewer_seconds for row in replays]
    count = f"of {len(replays)} runs"
    noise_only = sum(abs(row.error) <= row.noise_half_width for row in replays)
    return [
        Outcome("replay: error", statistics.median(errors), "%, median", 0.7, "at_most", errors),
        Outcome("replay: error", max(errors), "%, worst", 2.5, "at_most", errors),
        Outcome(
            f"replay: drift over {DRIFT:.0%} neither waited out nor flagged",
            sum(row.is_missed_drift for row in replays),
            count,
            0,
            "at_most",
            _percent(row.first_minute_error for row in replays),
            f"{sum(abs(row.first_minute_error) > DRIFT for row in replays)} runs drift",
        ),
        Outcome(
            "replay: flagged",
            sum(bool(row.flags) for row in replays),
            count,
            4 / 27 * len(replays),
            "at_most",
            [len(row.flags) for row in replays],
        ),
        Outcome(
            "replay: interval covers the steady state",
            _covered(replays),
            "share of runs",
            0.8,
            "at_least",
            [float(row.is_covered) for row in replays],
            f"the noise alone in {noise_only}",
        ),
        Outcome(
            "replay: interval's half width",
            statistics.median(widths),
            "%, median",
            1.2,
            "at_most",
            widths,
            f"of it noise {statistics.median(_percent(row.noise_half_width for row in replays)):.2f} %",
        ),
        Outcome("replay: times fewer seconds", statistics.median(ratios), "median", 8, "at_least", ratios),
        Outcome(
            "replay from later epochs: interval covers the steady state",
            _covered(later),
            "share of starts",
            0.8,
            "at_least",
            [float(row.is_covered) for row in later],
            f"median error {statistics.median(_percent(abs(row.error) for row in later)):.2f} %",
        ),
    ]


def replay_table(replays: Iterable[Replay]) -> Table:
    """One row per run."""
    columns = (
        "run",
        "step s",
        "first minute %",
        "error %",
        "± noise %",
        "± wander %",
        "± %",
        "state",
        "kept",
        "seen s",
    )
    table = Table(*columns, "logged s", "times fewer")
    for row in replays:
        shares = (row.first_minute_error, row.error)
        widths = (row.noise_half_width, row.wander_half_width, row.half_width)
        table.add_row(
            row.run_id,
            f"{row.steady_step_seconds:.3f}",
            *(f"{100 * share:+.2f}" for share in shares),
            *(f"{100 * width:.2f}" for width in widths),
            row.state,
            str(row.kept_steps),
            f"{row.seen_seconds:.0f}",
            f"{row.logged_seconds:.0f}",
            f"{row.times_fewer_seconds:.1f}",
        )
    return table


def _mean_of_first(steps: Sequence[float], seconds: float) -> float:
    count, spent = 0, 0.0
    while spent < seconds and count < len(steps):
        spent += steps[count]
        count += 1
    return spent / count


def _covered(replays: Sequence[Replay]) -> float:
    return statistics.fmean(row.is_covered for row in replays)


def _percent(shares: Iterable[float]) -> list[float]:
    return [100 * share for share in shares]
