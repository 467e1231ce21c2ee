"""(d) Forecasts: how far off, how sure, and against what a person would do by hand.

Each series of logged epochs is fitted on its sizes 1..k, for each k of at least 4, and tried on all larger ones. Errors
are relative to what was measured; the interval score is Gneiting and Raftery's (J. Am. Stat. Assoc. 102, 2007, eq. 43)
at alpha 0.05, relative to the measured value, too: smaller is better. Other series in a file of the same columns:
`python -m tests.benchmarks --only forecast --epochs FILE.csv`.
"""

import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rich.table import Table

from service.analysis.shrunk_fit import WorkForecast
from tests.benchmarks.outcome import Outcome
from tests.benchmarks.reference_forecasts import FORECASTERS, Forecaster, averaged

REFERENCE_EPOCHS = Path(__file__).parent.parent / "data" / "reference_epochs.csv"
MIN_SIZES = 4
_ALPHA = 0.05
_NOISES = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08)


@dataclass(frozen=True)
class LoggedSeries:
    """Seconds of all epochs at each world size."""

    name: str
    mode: str
    epochs: dict[int, list[float]]

    @property
    def sizes(self) -> list[int]:
        return sorted(self.epochs)

    @property
    def work(self) -> list[float]:
        """Mean epoch seconds as work per worker."""
        growth = [1 if self.mode == "weak" else size for size in self.sizes]
        return [statistics.fmean(self.epochs[size]) * by for size, by in zip(self.sizes, growth, strict=True)]


@dataclass(frozen=True)
class Tried:
    """One forecast and what was measured; shares of the measured value."""

    series: str
    fitted_to: int
    world_size: int
    error: float
    width: float
    score: float
    is_covered: bool


def read_series(path: Path = REFERENCE_EPOCHS) -> list[LoggedSeries]:
    """Of a CSV with series, mode (strong or weak), world_size, epoch_seconds (and any other columns)."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            sizes = found.setdefault((row["series"], row["mode"]), defaultdict(list))
            sizes[int(row["world_size"])].append(float(row["epoch_seconds"]))
    return [LoggedSeries(name, mode, dict(epochs)) for (name, mode), epochs in found.items()]


def tried(series: str, fitted_to: int, world_size: int, forecast: WorkForecast, measured: float) -> Tried:
    below, above = max(0.0, forecast.low - measured), max(0.0, measured - forecast.high)
    width = forecast.high - forecast.low
    return Tried(
        series,
        fitted_to,
        world_size,
        error=forecast.value / measured - 1,
        width=width / measured,
        score=(width + 2 / _ALPHA * (below + above)) / measured,
        is_covered=below == above == 0,
    )


def try_series(series: LoggedSeries, forecaster: Forecaster) -> list[Tried]:
    """On the k smallest sizes, for each k from 4 on, and all larger ones."""
    sizes, work = series.sizes, series.work
    return [
        tried(series.name, sizes[k - 1], size, forecast, measured)
        for k in range(MIN_SIZES, len(sizes))
        for size, measured, forecast in zip(
            sizes[k:], work[k:], forecaster(sizes[:k], work[:k], sizes[k:]), strict=True
        )
    ]


def try_all(series: Iterable[LoggedSeries], forecaster: Forecaster) -> list[Tried]:
    return [one for each in series for one in try_series(each, forecaster)]


def forecast_table(series: Sequence[LoggedSeries]) -> Table:
    """One row per forecaster: all series pooled, then the median error of each."""
    names = [each.name for each in series]
    table = Table("forecaster", "forecasts", "error %, median", "worst", "interval score %", "covered %", *names)
    for name, forecaster in FORECASTERS.items():
        rows = try_all(series, forecaster)
        each = [f"{_median_error([row for row in rows if row.series == one]):.2f}" for one in names]
        covered = 100 * statistics.fmean(row.is_covered for row in rows)
        figures = [_median_error(rows), _worst_error(rows), _mean_score(rows)]
        table.add_row(name, str(len(rows)), *(f"{figure:.2f}" for figure in figures), f"{covered:.0f}", *each)
    return table


def summarise_forecasts(series: Sequence[LoggedSeries]) -> list[Outcome]:
    """Against the bounds."""
    rows = {name: try_all(series, forecaster) for name, forecaster in FORECASTERS.items()}
    own = rows["VitScale"]
    errors = [100 * abs(row.error) for row in own]
    scores = {name: _mean_score(rows[name]) for name in ("Amdahl", "USL", "perfect, largest point")}
    best = min(scores, key=lambda name: scores[name])
    own_scores = [100 * row.score for row in own]
    return [
        Outcome("forecast: error", _median_error(own), "%, median", 2.7, "at_most", errors),
        Outcome("forecast: error", _worst_error(own), "%, worst", 9.0, "at_most", errors),
        Outcome(
            "forecast: interval score",
            _mean_score(own),
            "%, mean",
            scores[best],
            "at_most",
            own_scores,
            f"bound: {best}",
        ),
    ]


def held_out_table(series: Sequence[LoggedSeries]) -> Table:
    """The one constant, the noise that the priors expect: by interval score on all series but one, tried on that."""
    table = Table("series held out", "noise chosen without it", "error %, median", "worst", "interval score %")
    for held in series:
        others = [one for one in series if one is not held]
        by_noise = {noise: _mean_score(try_all(others, partial(averaged, noise=noise))) for noise in _NOISES}
        chosen = min(by_noise, key=lambda noise: by_noise[noise])
        rows = try_series(held, partial(averaged, noise=chosen))
        figures = (_median_error(rows), _worst_error(rows), _mean_score(rows))
        table.add_row(held.name, f"{chosen:.0%}", *(f"{figure:.2f}" for figure in figures))
    return table


def sensitivity_table(series: Sequence[LoggedSeries]) -> Table:
    """The same constant, at other values than the default."""
    table = Table("noise expected", "error %, median", "worst", "interval score %", "covered %")
    for noise in _NOISES:
        rows = try_all(series, partial(averaged, noise=noise))
        figures = (_median_error(rows), _worst_error(rows), _mean_score(rows))
        covered = 100 * statistics.fmean(row.is_covered for row in rows)
        table.add_row(f"{noise:.0%}", *(f"{figure:.2f}" for figure in figures), f"{covered:.0f}")
    return table


# Series whose truth is known

Truth = Callable[[np.ndarray], np.ndarray]
TRUTHS: dict[str, Truth] = {
    "perfect": lambda p: np.ones_like(p),
    "Amdahl 1 %": lambda p: 1 + 0.01 * (p - 1),
    "Amdahl 3 %": lambda p: 1 + 0.03 * (p - 1),
    "Amdahl 5 %": lambda p: 1 + 0.05 * (p - 1),
    "ring, small": lambda p: 1 + 0.001 * (p - 1) + 0.02 * 2 * (p - 1) / p,
    "ring, slow link": lambda p: 1 + 0.002 * (p - 1) + 0.30 * 2 * (p - 1) / p,
    "ring, long latency": lambda p: 1 + 0.02 * (p - 1) + 0.05 * 2 * (p - 1) / p,
    "tree 3 %": lambda p: 1 + 0.03 * np.log2(p),
}
LAYOUTS = {"1, 2, 4, 8": [1, 2, 4, 8], "1 to 8": list(range(1, 9))}
DISTANCE = 4


def try_truth(
    truth: Truth, noise: float, sizes: Sequence[int], forecaster: Forecaster, *, draws: int, seed: int = 0
) -> list[Tried]:
    """`draws` series of that truth with that noise, fitted and tried on one more run at four times the largest size."""
    generator = np.random.default_rng(seed)
    far = DISTANCE * max(sizes)
    exact = truth(np.array([*sizes, far], dtype=float))
    rows = []
    for _ in range(draws):
        *work, measured = (exact * np.exp(generator.normal(0, noise, len(exact)))).tolist()
        rows.append(tried("", max(sizes), far, forecaster(sizes, work, [far])[0], measured))
    return rows


def truth_table(draws: int = 60) -> tuple[Table, Outcome]:
    """Each truth at 3 and 8 % noise, from four and eight sizes, forecast to four times the largest."""
    names = ("VitScale", "Amdahl", "USL", "perfect, largest point")
    table = Table("truth", "noise", "from", *(f"{name}: error %, covered %" for name in names))
    covered: list[float] = []
    for truth_name, truth in TRUTHS.items():
        for noise in (0.03, 0.08):
            for layout, sizes in LAYOUTS.items():
                cells = []
                for name in names:
                    rows = try_truth(truth, noise, sizes, FORECASTERS[name], draws=draws)
                    share = statistics.fmean(row.is_covered for row in rows)
                    cells.append(f"{_median_error(rows):5.1f} {100 * share:4.0f}")
                    covered += [float(row.is_covered) for row in rows] if name == "VitScale" else []
                table.add_row(truth_name, f"{noise:.0%}", layout, *cells)
    share = statistics.fmean(covered)
    note = f"{len(covered)} drawn series of known truth, four times as far"
    return table, Outcome("forecast: 95 % interval covers", share, "share", 0.90, "at_least", covered, note)


def _median_error(rows: Sequence[Tried]) -> float:
    return 100 * statistics.median(abs(row.error) for row in rows)


def _worst_error(rows: Sequence[Tried]) -> float:
    return 100 * max(abs(row.error) for row in rows)


def _mean_score(rows: Sequence[Tried]) -> float:
    return 100 * statistics.fmean(row.score for row in rows)
