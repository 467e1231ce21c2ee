"""`vitscale analyse`: what a study's rows say together, drawn at a terminal and plain where it is piped."""

from collections.abc import Mapping
from typing import Any

from api.cli.console import Grid, on_one_line, printable, screen, write, write_json
from api.cli.drawing import bar, sparkline
from api.cli.findings import write_findings
from api.cli.outcome import bad_input
from api.cli.tables import label, number, shown_value
from api.cli.target import connect, find_study
from service.analysis.answer import (
    AnalysisPoint,
    AnalysisSeries,
    BatchSizes,
    Cost,
    CostChoice,
    Difference,
    SideBySide,
    StudyAnalysis,
)

_NONE = "-"
_BAR_WIDTH = 10
_MAX_SHOWN = 12  # series, batch sweeps and comparisons each: --json has all
_GIB = 2**30


def analyse(
    asked: str, forecast: str | None, sweet_spot_ratio: float | None, efficiency: float | None, *, as_json: bool
) -> None:
    sizes = _sizes(forecast)
    with connect() as client:
        study = find_study(client, asked)
        found = client.get_analysis(study.id, forecast=sizes, sweet_spot_ratio=sweet_spot_ratio, efficiency=efficiency)
    if as_json:
        write_json(found)
    else:
        write_analysis(found)


def _sizes(text: str | None) -> list[int]:
    parts = [part.strip() for part in text.split(",")] if text is not None else []
    wrong = [part for part in parts if not (part.isascii() and part.isdigit() and int(part) >= 1)]
    if wrong:
        raise bad_input("--forecast", f"{wrong[0]!r} is no world size", "whole numbers with commas between: 16,32")
    return [int(part) for part in parts]


def write_analysis(found: StudyAnalysis) -> None:
    is_drawn = screen().is_terminal
    for note in found.notes:
        write(note)
    # One world size alone is no scaling: the batch sweep below has it, or the table of results.
    scaled = [one for one in found.series if len({point.world_size for point in one.points}) > 1]
    for series in scaled[:_MAX_SHOWN]:
        _write_series(series, is_drawn=is_drawn)
    _write_rest(len(scaled), "series")
    if found.series and not scaled:
        write("No scaling: no series has more than one world size.\n")
    for table in found.side_by_side[:_MAX_SHOWN]:
        _write_side_by_side(table)
    _write_rest(len(found.side_by_side), "comparisons of series")
    for batches in found.batch_size[:_MAX_SHOWN]:
        _write_batch_sizes(batches, is_drawn=is_drawn)
    _write_rest(len(found.batch_size), "batch sweeps")
    for cost in found.costs:
        _write_cost(cost)
    write_findings(found.findings)


def _write_rest(count: int, what: str) -> None:
    if count > _MAX_SHOWN:
        write(f"... and {count - _MAX_SHOWN} more {what}: --json has all\n")


def _write_series(series: AnalysisSeries, *, is_drawn: bool) -> None:
    mode = "plain comparison" if series.mode == "none" else f"{series.mode} scaling"
    write(f"Series {series.series_id}{_told(series.distinguished_by)}: {mode} against {series.baseline_world_size}")
    efficiency = "effi\N{SOFT HYPHEN}\nciency" if series.mode != "none" else "images/s\nper worker\nvs. baseline"
    headers = ["world\nsize", "hardware", "runs", "images/s", "epoch\ns", "speed-\nup", "95 %\nof it", efficiency]
    numeric = [True, False, *[True] * 6]
    grid = Grid(
        *headers,
        *([""] if is_drawn else []),
        "vs. size\nbefore",
        numeric=[*numeric, *([False] if is_drawn else []), False],
    )
    for point in series.points:
        value = point.efficiency if series.mode != "none" else point.throughput_efficiency
        grid.add(
            str(point.world_size),
            point.hardware,
            str(point.runs),
            number(point.images_per_second),
            number(point.epoch_seconds),
            _ratio(point.speedup),
            _between(point.speedup_ci95_low, point.speedup_ci95_high),
            _ratio(value),
            *([bar(value, _BAR_WIDTH)] if is_drawn else []),
            point.reason if point.images_per_second is None and point.reason else _before(point),
        )
    grid.write()
    _write_forecasts(series, is_drawn=is_drawn)
    for note in series.notes:
        write(note)
    write()


def _before(point: AnalysisPoint) -> str:
    against = point.against_previous
    if against is None:
        return _NONE
    return f"{_signed(against.ratio)}{' (within the noise)' if against.verdict == 'equal' else ''}"


def _write_forecasts(series: AnalysisSeries, *, is_drawn: bool) -> None:
    if series.forecast_refused is not None:
        write(f"No forecast: {series.forecast_refused}.")
        return
    best = next(fit for fit in series.fits if fit.model == series.chosen_fit)
    write(f"Best single fit: {best.model}, left-out sizes missed by {best.loo_error:.1%}. Forecasts average all fits:")
    headers = ["world\nsize", "epoch\ns", "95 % of a run", "effi\N{SOFT HYPHEN}\nciency", "95 %\nof it"]
    grid = Grid(*headers, *([""] if is_drawn else []), "", numeric=[True] * 5)
    for one in series.forecasts:
        grid.add(
            str(one.world_size),
            number(one.epoch_seconds),
            _NONE if one.epoch_seconds_low is None else _between(one.epoch_seconds_low, one.epoch_seconds_high),
            _ratio(one.efficiency),
            _between(one.efficiency_low, one.efficiency_high),
            *([bar(one.efficiency, _BAR_WIDTH)] if is_drawn else []),
            one.note or "",
        )
    grid.write()
    useful = series.largest_useful_size
    if useful is not None:
        size = str(useful.world_size) if useful.is_bounded else f"{useful.world_size} or more"
        write(
            f"Efficiency of at least {useful.efficiency:.0%}: to world size {size} (sure to {useful.world_size_sure})."
        )


def _write_side_by_side(table: SideBySide) -> None:
    name = on_one_line(label(table.key))
    write(f"Throughput by {name}, against the best at each world size (= is within the noise):")
    columns = [
        f"{series_id}\n{shown_value(value)}" for series_id, value in zip(table.series_ids, table.values, strict=True)
    ]
    grid = Grid("world\nsize", *columns, numeric=[True] * (1 + len(columns)))
    for row in table.rows:
        grid.add(str(row.world_size), *(_against_best(one) for one in row.against_best))
    grid.write()
    write()


def _against_best(one: Difference | None) -> str:
    if one is None:
        return _NONE
    return f"{one.ratio:.2f}{' =' if one.verdict == 'equal' else ''}"


def _write_batch_sizes(batches: BatchSizes, *, is_drawn: bool) -> None:
    rates = [point.images_per_second for point in batches.points]
    drawn = f"  {sparkline(rates)}" if is_drawn else ""
    write(f"Micro batch{_told(batches.distinguished_by)} on {printable(batches.hardware)}{drawn}")
    grid = Grid("micro\nbatch", "images/s", "of the\nbest", "peak\nGiB", "", numeric=[True] * 4)
    for point in batches.points:
        grid.add(
            str(point.train_micro_batch_size_per_gpu),
            number(point.images_per_second),
            _NONE if point.against_best is None else f"{point.against_best.ratio:.1%}",
            _NONE if point.peak_memory_bytes is None else f"{point.peak_memory_bytes / _GIB:.2f}",
            point.reason or "",
        )
    grid.write()
    spot = batches.sweet_spot
    write(f"Sweet spot: {spot.reason}." if spot is not None else f"No sweet spot: {batches.sweet_spot_refused}.")
    if batches.memory.smallest_out_of_memory is not None:
        ran = batches.memory.largest_that_ran
        write(f"Memory ends at {batches.memory.smallest_out_of_memory}; {ran if ran is not None else 'none'} ran.")
    write()


def _write_cost(cost: Cost) -> None:
    fastest, cheapest = cost.fastest, cost.cheapest
    where = _told({key: value for key, value in cost.fixed.items() if value is not None})
    if fastest == cheapest:
        write(f"Fastest and cheapest epoch{where}: {_choice(fastest)}.")
        return
    write(
        f"Fastest epoch{where}: {_choice(fastest)}, {cost.fastest_costs:.2f} times the device-seconds of the cheapest: "
        f"{_choice(cheapest)}."
    )


def _choice(one: CostChoice) -> str:
    seconds, spent = number(one.epoch_seconds), number(one.device_seconds_per_epoch)
    return f"{seconds} s (series {one.series_id}, world size {one.world_size}; {spent} device-seconds)"


def _told(parameters: Mapping[str, Any]) -> str:
    told = ", ".join(f"{on_one_line(label(key))} {shown_value(value)}" for key, value in parameters.items())
    return f" ({told})" if told else ""


def _ratio(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f}"


def _between(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return _NONE
    return f"{_end(low)} to {_end(high)}"


def _end(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else number(value)


def _signed(ratio: float) -> str:
    return f"{ratio - 1:+.0%}"
