"""From rows to runs: what is the same for a whole run, its epochs and its ranks, and all that contradicts itself."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from service.measured_rows.columns import COLUMNS, PARTS, TIMES, Value
from service.measured_rows.errors import Problems, RowsInvalid
from service.measured_rows.table import Row
from service.spec.types import MAX_INTEGER

MAX_RUNS = 10_000  # as many as a planned study may have trials
MAX_WORKERS_OF_ALL = 200_000  # over all runs: each may get a row
MAX_IMAGES_PER_EPOCH = 10**13  # so that the images of a run's epochs together are a whole number of 64 bits
_LONGER = 1.1  # a part that is longer than the whole by this factor is an error of units, not of rounding
_SEVERAL = re.compile(r"([0-9]{1,6}) ?x (.+)")  # "3 x RTX 3070"
_MAX_DEVICE = 200
_OF_RUN = tuple(name for name, column in COLUMNS.items() if column.of_run and name != "run")


class Place(NamedTuple):
    """Which part of a run a row tells of: null is all epochs, or all ranks."""

    epoch: int | None
    rank: int | None


@dataclass(frozen=True)
class Run:
    """One training. `constants` are its columns that do not change from row to row, the batch complete."""

    name: str
    line: int  # its first
    constants: Mapping[str, Value]
    devices: Sequence[str]  # by rank; empty where not all are known
    rank_devices: Mapping[int, str]
    rows: Mapping[Place, Row]
    assumed_accumulation: bool  # it was not given, and is 1

    @property
    def world_size(self) -> int:
        return int(self.constants["world_size"])

    @property
    def steps_per_epoch(self) -> int | None:
        steps = self.constants.get("steps_per_epoch")
        return None if steps is None else int(steps)


def read_runs(rows: Sequence[Row], problems: Problems) -> list[Run]:
    """The runs in the order of their first rows; one with a problem is left out, and one with a field that could not
    be read is not looked at: what is missing there would be told twice.

    Raises:
        RowsInvalid: more runs, or more workers in all of them, than a study may have.
    """
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        if (name := row.text("run")) is not None and "world_size" in row.values:
            by_name.setdefault(name, []).append(row)
    if len(by_name) > MAX_RUNS:
        raise RowsInvalid(f"There are {len(by_name):,} runs; a study has at most {MAX_RUNS:,}")
    workers = sum(int(its_rows[0].values["world_size"]) for its_rows in by_name.values())
    if workers > MAX_WORKERS_OF_ALL:
        raise RowsInvalid(f"The runs have {workers:,} workers together; a study has at most {MAX_WORKERS_OF_ALL:,}")
    runs = []
    for name, its_rows in by_name.items():
        if not all(row.is_whole for row in its_rows):
            continue
        before = len(problems)
        run = _run(name, its_rows, problems)
        if len(problems) == before:
            runs.append(run)
    return runs


def _run(name: str, rows: Sequence[Row], problems: Problems) -> Run:
    constants = _constants(name, rows, problems)
    world_size = int(constants["world_size"])
    nodes = constants.get("nodes")
    if nodes is not None and int(nodes) > world_size:
        problems.add(rows[0].line, "nodes", f"{nodes} nodes for {world_size} workers", f"at most {world_size}")
    placed = _placed(name, rows, world_size, problems)
    assumed = _complete_batch(rows[0].line, constants, problems)
    steps = constants.get("steps_per_epoch")
    for row in rows:
        _check_times(row, None if steps is None else int(steps), problems)
    _check_that_it_has_a_time(name, placed, None if steps is None else int(steps), problems)
    devices, rank_devices = _devices(name, rows, world_size, problems)
    return Run(name, rows[0].line, constants, devices, rank_devices, placed, assumed)


def _constants(name: str, rows: Sequence[Row], problems: Problems) -> dict[str, Value]:
    constants: dict[str, Value] = {}
    line_of: dict[str, int] = {}
    for row in rows:
        for column in _OF_RUN:
            value = row.values.get(column)
            if value is None:
                continue
            if constants.setdefault(column, value) != value:
                problems.add(
                    row.line,
                    column,
                    f"is {value}, and {constants[column]} in line {line_of[column]} of the same run {name}",
                    "one run has one value; name runs that differ differently",
                )
            line_of.setdefault(column, row.line)
    return constants


def _placed(name: str, rows: Sequence[Row], world_size: int, problems: Problems) -> dict[Place, Row]:
    placed: dict[Place, Row] = {}
    for row in rows:
        place = Place(row.whole("epoch"), row.whole("rank"))
        if place.rank is not None and place.rank >= world_size:
            problems.add(
                row.line, "rank", f"is {place.rank}; the world size is {world_size}", f"ranks are 0 to {world_size - 1}"
            )
        if (other := placed.setdefault(place, row)) is not row:
            what = ", ".join(f"{key} {value}" for key, value in place._asdict().items() if value is not None)
            problems.add(
                row.line,
                "epoch" if place.epoch is not None else "run",
                f"run {name}{', ' if what else ''}{what} is in line {other.line} already",
                "one row each; name repeats of a run differently",
            )
        if place.rank is not None and not any(column in row.values for column in (*TIMES, *PARTS)):
            problems.add(row.line, "rank", f"nothing is measured of rank {place.rank} here", "leave the row out")
    with_epoch = [row for place, row in placed.items() if place.epoch is not None]
    without = [row for place, row in placed.items() if place.epoch is None]
    if with_epoch and without:
        problems.add(
            without[0].line,
            "epoch",
            f"is empty, and given in line {with_epoch[0].line} of the same run {name}",
            "a run has one row for all of it, or one for each epoch",
        )
    return placed


def _complete_batch(line: int, constants: dict[str, Value], problems: Problems) -> bool:
    """Fills in what follows from B = b g W. Returns whether the accumulation was taken to be 1."""
    micro, steps, whole = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
    workers = int(constants["world_size"])
    b, g, total = (None if (value := constants.get(key)) is None else int(value) for key in (micro, steps, whole))
    if b is None and total is None:
        problems.add(line, micro, "the batch is not known", f"give {micro} or {whole}")
        return False
    assumed = b is not None and g is None and total is None
    if assumed:
        g = constants[steps] = 1
    if b is not None and g is not None:
        if total is not None and total != b * g * workers:
            problems.add(
                line,
                whole,
                f"is {total}; {micro} x {steps} x world_size = {b} x {g} x {workers} = {b * g * workers}",
                "correct one of the four, or leave one of the three batch columns empty",
            )
        constants[whole] = b * g * workers
    elif total is not None and (b is not None or g is not None):
        given, key, derived = (b, micro, steps) if b is not None else (g, steps, micro)
        share = (given or 1) * workers
        if total % share:
            problems.add(
                line,
                whole,
                f"is {total}, no multiple of {key} x world_size = {given} x {workers} = {share}",
                f"{derived} = {whole} / ({key} x world_size) must be a whole number",
            )
        constants[derived] = total // share
    _bound_batch(line, constants, problems)
    return assumed


def _bound_batch(line: int, constants: Mapping[str, Value], problems: Problems) -> None:
    batch = int(constants["train_batch_size"])
    steps = int(constants.get("steps_per_epoch", 1))
    if batch > MAX_INTEGER:
        problems.add(line, "train_batch_size", f"would be {batch}", f"at most {MAX_INTEGER}")
    elif steps * batch > MAX_IMAGES_PER_EPOCH:
        what = f"{steps} x train_batch_size {batch} are {steps * batch} images in an epoch"
        problems.add(line, "steps_per_epoch", what, f"at most {MAX_IMAGES_PER_EPOCH}")


def _check_times(row: Row, steps: int | None, problems: Problems) -> None:
    epoch, step = row.number("epoch_seconds"), row.number("step_seconds")
    if epoch is not None and step is not None and steps is not None and step * steps > _LONGER * epoch:
        problems.add(
            row.line,
            "step_seconds",
            f"{step:g} s x {steps} steps are more than the epoch's {epoch:g} s",
            "is it in milliseconds?",
        )
    step = step if step is not None or epoch is None or steps is None else epoch / steps
    for part in PARTS:
        seconds = row.number(part)
        if seconds is not None and step is not None and seconds > _LONGER * step:
            problems.add(
                row.line,
                part,
                f"{seconds:g} s are more than the whole step's {step:g} s",
                "seconds per optimizer step are wanted, not milliseconds or seconds per epoch",
            )


def _check_that_it_has_a_time(name: str, placed: Mapping[Place, Row], steps: int | None, problems: Problems) -> None:
    """Every epoch (or the run) has a time in some row; that of an epoch can be told from a step's with the steps."""
    untimed: dict[int | None, int] = {}  # the first line of each
    timed: set[int | None] = set()
    for place, row in placed.items():
        if any(column in row.values for column in TIMES):
            timed.add(place.epoch)
        untimed.setdefault(place.epoch, row.line)
        needs_steps = place.epoch is not None and "epoch_seconds" not in row.values and "step_seconds" in row.values
        if needs_steps and steps is None:
            problems.add(
                row.line,
                "steps_per_epoch",
                f"epoch {place.epoch} has step_seconds only: how long it took is not known",
                "give steps_per_epoch or epoch_seconds",
            )
    for epoch, line in untimed.items():
        if epoch not in timed:
            where = f"run {name}" if epoch is None else f"epoch {epoch} of run {name}"
            problems.add(line, "epoch_seconds", f"no row of {where} has epoch_seconds or step_seconds", "give one")


def _devices(name: str, rows: Sequence[Row], world_size: int, problems: Problems) -> tuple[list[str], dict[int, str]]:
    """The devices by rank: of all ranks where they are known, and of the ranks that have rows of their own.

    The first contradiction is told; each text is read once, as lists may be long and rows many.
    """
    whole: list[str] | None = None
    by_rank: dict[int, str] = {}
    first_lines: dict[tuple[int | None, str], int] = {}
    for row in rows:
        if (field := row.text("device")) is not None:
            first_lines.setdefault((row.whole("rank"), field), row.line)
    for (rank, field), line in first_lines.items():
        try:
            devices = parse_devices(field, world_size if rank is None else 1)
        except ValueError as error:
            problems.add(line, "device", str(error), '"NAME" for all ranks, or one for each: "3 x NAME; OTHER"')
            continue
        is_other = False
        if rank is None:
            is_other = whole is not None and whole != devices
            is_other = is_other or any(devices[known] != device for known, device in by_rank.items())
            whole = devices
        elif rank < world_size:
            before = by_rank.get(rank, devices[0] if whole is None else whole[rank])
            is_other = before != devices[0]
            by_rank[rank] = devices[0]
        if is_other:
            what = f"is {field!r}, and another in an earlier line of run {name}"
            problems.add(line, "device", what, "a rank has one device; name runs that differ differently")
            break
    if whole is None and len(by_rank) == world_size:
        whole = [by_rank[rank] for rank in range(world_size)]
    return whole or [], by_rank if whole is None else dict(enumerate(whole))


def parse_devices(field: str, num_ranks: int) -> list[str]:
    """One name per rank from `NAME`, `NAME; OTHER` or `3 x NAME; OTHER`; a single name is every rank's.

    Raises:
        ValueError: the names do not come to `num_ranks`, or one is empty or too long.
    """
    parts = [part.strip() for part in field.split(";")]
    counted: list[tuple[int, str]] = []
    for part in parts:
        several = _SEVERAL.fullmatch(part)
        count, device = (int(several[1]), several[2].strip()) if several else (1, part)
        if not device or len(device) > _MAX_DEVICE or not device.isprintable():
            raise ValueError(f"a device's name has 1 to {_MAX_DEVICE} printable characters")
        counted.append((count, device))
    if counted == [(1, field.strip())]:
        return [field.strip()] * num_ranks
    total = sum(count for count, _ in counted)
    if total != num_ranks:
        raise ValueError(f"names {total} devices for {num_ranks} rank{'s' if num_ranks > 1 else ''}")
    return [device for count, device in counted for _ in range(count)]
