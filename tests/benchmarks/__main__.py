"""Runs the benchmarks, prints a table and writes JSON. Exit code 1 where a bound does not hold."""

import argparse
import json
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from tests.benchmarks.agreement import measure_agreement
from tests.benchmarks.forecast import (
    REFERENCE_EPOCHS,
    forecast_table,
    held_out_table,
    read_series,
    sensitivity_table,
    summarise_forecasts,
    truth_table,
)
from tests.benchmarks.outcome import Outcome
from tests.benchmarks.replay import (
    REFERENCE_STEPS,
    Replay,
    read_runs,
    replay,
    replay_later_starts,
    replay_table,
    summarise_replays,
)
from tests.benchmarks.server import measure_import_seconds, measure_server
from tests.benchmarks.trial import measure_trials


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("bench.json"))
    parser.add_argument("--rounds", type=int, default=10, help="interleaved rounds of two trials on each side")
    parser.add_argument("--only", choices=["agreement", "forecast", "replay", "server", "trial"])
    parser.add_argument("--steps", type=Path, default=REFERENCE_STEPS, help="the step logs to replay, as gzipped CSV")
    parser.add_argument("--epochs", type=Path, default=REFERENCE_EPOCHS, help="the epochs to forecast, as CSV")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 180)
    outcomes: list[Outcome] = []
    replays: list[Replay] = []
    if arguments.only in (None, "replay"):
        console.print("Logged runs under the stop rule ...")
        runs = read_runs(arguments.steps)
        replays = [replay(run) for run in runs]
        console.print(replay_table(replays))
        outcomes += summarise_replays(replays, replay_later_starts(runs))
    if arguments.only in (None, "forecast"):
        console.print("Logged series, fitted on their smaller sizes and tried on the larger ones ...")
        series = read_series(arguments.epochs)
        console.print(forecast_table(series))
        outcomes += summarise_forecasts(series)
        console.print(sensitivity_table(series))
        if len(series) > 1:
            console.print(held_out_table(series))
        truths, coverage = truth_table()
        console.print(truths)
        outcomes.append(coverage)
    if arguments.only in (None, "server"):
        console.print("The server ...")
        with tempfile.TemporaryDirectory() as folder:
            outcomes += [measure_import_seconds(), *measure_server(Path(folder))]
    if arguments.only in (None, "trial"):
        console.print("A small trial, under VitScale and under torchrun ...")
        outcomes += measure_trials(rounds=arguments.rounds, say=console.print)
    if arguments.only in (None, "agreement"):
        console.print("One study, twice ...")
        outcomes += measure_agreement(say=console.print)
    console.print(_table(outcomes))
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": psutil.cpu_count(),
        "python": sys.version,
    }
    report = {
        "machine": machine,
        "outcomes": [outcome.as_json() for outcome in outcomes],
        "replays": [asdict(row) for row in replays],
    }
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    console.print(f"Written to {arguments.output}")
    return 0 if all(outcome.holds for outcome in outcomes) else 1


def _table(outcomes: list[Outcome]) -> Table:
    table = Table("what", "measured", "unit", "bound", "holds", "samples", "note")
    for outcome in outcomes:
        bound = f"{'≤' if outcome.sense == 'at_most' else '≥'} {outcome.bound:g}"
        holds = "yes" if outcome.holds else "NO"
        figure, count = f"{outcome.value:.3g}", str(len(outcome.samples))
        table.add_row(outcome.name, figure, outcome.unit, bound, holds, count, outcome.note)
    return table


if __name__ == "__main__":
    sys.exit(main())
