"""From CSV text to typed rows: the header, renamed and checked, and every field read."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.errors import BadRequest, ErrorItem
from service.measured_rows.columns import COLUMNS, FieldWrong, Value
from service.measured_rows.errors import Problems, RowsInvalid
from service.spelling import closest

MAX_ROWS = 50_000
MAX_COLUMNS = 500  # known ones are a few; each other one is looked up, to say what may be meant
_IGNORED = ""  # what a column is renamed to that is passed over


@dataclass(frozen=True)
class Row:
    """One line: the known columns that are not empty. `line` counts from 1, the header's.

    `is_whole`: every field of it could be read.
    """

    line: int
    values: Mapping[str, Value]
    is_whole: bool

    def text(self, column: str) -> str | None:
        value = self.values.get(column)
        return None if value is None else str(value)

    def whole(self, column: str) -> int | None:
        value = self.values.get(column)
        return None if value is None else int(value)

    def number(self, column: str) -> float | None:
        value = self.values.get(column)
        return None if value is None else float(value)


@dataclass(frozen=True)
class Table:
    columns: Sequence[str]  # the known ones that the text has, by our names
    rows: Sequence[Row]


def parse_renames(given: Sequence[str]) -> dict[str, str]:
    """`theirs=ours` of each; `theirs=` passes a column over.

    Raises:
        BadRequest: one is not of this form, or one column is named twice.
    """
    renames: dict[str, str] = {}
    for text in given:
        theirs, equals, ours = (part.strip() for part in text.rpartition("="))
        if not equals or not theirs:
            raise _bad_rename(f"{text[:100]!r} is not theirs=ours", "gpus=world_size, or notes= to pass notes over")
        if theirs in renames:
            raise _bad_rename(f"the column {theirs!r} is renamed twice", "name it once")
        if ours != _IGNORED and ours not in COLUMNS:
            near = closest(ours, COLUMNS)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(COLUMNS)}"
            raise _bad_rename(f"there is no column {ours[:100]!r} to rename {theirs[:100]!r} to", hint)
        renames[theirs] = ours
    return renames


def _bad_rename(detail: str, hint: str) -> BadRequest:
    return BadRequest(f"map: {detail}", [ErrorItem("/query/map", detail, hint)])


def read_table(text: str, renames: Mapping[str, str], problems: Problems) -> Table:
    """The rows of the text; what is wrong with single fields goes to `problems`, and those fields are left out.

    Raises:
        RowsInvalid: the text is no such table: no header, unknown columns, no rows or too many.
    """
    lines = _lines(text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}"))
    header = next(lines, None)
    if header is None:
        raise RowsInvalid("The text is empty: a header and rows belong there")
    line, names = header
    columns = _columns(line, names, renames)
    rows: list[Row] = []
    for line, fields in lines:
        if len(rows) == MAX_ROWS:
            raise RowsInvalid(f"There are more than {MAX_ROWS:,} rows: import fewer at a time")
        if len(fields) != len(columns):
            problems.add(
                line,
                None,
                f"has {len(fields)} fields; the header has {len(columns)}",
                'fields are separated by ","; one that holds a comma is quoted',
            )
        else:
            rows.append(_row(line, columns, fields, problems))
    if not rows and not len(problems):
        raise RowsInvalid("There are no rows below the header")
    return Table([name for name in columns if name], rows)


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of every line that is not empty; a quoted field may span lines, the first counts."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise RowsInvalid(
                f"Line {line} is not CSV: {error}", [ErrorItem(f"/line/{line}", str(error), "see RFC 4180")]
            ) from None
        if fields is None:
            return
        fields = [field.strip() for field in fields]
        if any(fields):
            yield line, fields


def _row(line: int, columns: Sequence[str], fields: Sequence[str], problems: Problems) -> Row:
    values: dict[str, Value] = {}
    before = len(problems)
    for name, field in zip(columns, fields, strict=True):
        if name == _IGNORED:
            continue
        if field:
            try:
                values[name] = COLUMNS[name].parse(field)
            except FieldWrong as wrong:
                problems.add(line, name, wrong.detail, wrong.hint)
        elif COLUMNS[name].needed:
            problems.add(line, name, "is empty", "every row needs it")
    return Row(line, values, len(problems) == before)


def _columns(line: int, names: Sequence[str], renames: Mapping[str, str]) -> list[str]:
    """Our name of each column, empty for one that is passed over. Raises RowsInvalid."""
    if len(names) > MAX_COLUMNS:
        raise RowsInvalid(f"The header has {len(names):,} fields: at most {MAX_COLUMNS}, and rows below it")
    problems = Problems()
    columns: list[str] = []
    for name in names:
        ours = renames.get(name, name)
        if ours != _IGNORED and ours not in COLUMNS:
            problems.add(line, name, "unknown column", _column_hint(name, len(names)))
        elif ours != _IGNORED and ours in columns:
            hint = f"pass one over: map {name}=" if names.count(name) == 1 else "give one of the two another name"
            problems.add(line, name, f"the column {ours} is there twice", hint)
        columns.append(ours)
    for theirs in renames.keys() - set(names):
        near = closest(theirs, names)
        problems.add(line, theirs, "is renamed and not in the header", f"did you mean {near[0]}?" if near else None)
    known = set(columns)
    for needed in (column.name for column in COLUMNS.values() if column.needed and column.name not in known):
        problems.add(line, needed, "the column is missing", f"rename the one that holds it: map THEIRS={needed}")
    problems.raise_any()
    return columns


def _column_hint(name: str, num_columns: int) -> str:
    if num_columns == 1 and any(mark in name for mark in ";\t|"):
        return 'fields are separated by ","'
    near = closest(name, COLUMNS)
    if near:
        return f"did you mean {near[0]}? map {name}={near[0]} renames it, map {name}= passes it over"
    return f"map {name}=OURS renames it, map {name}= passes it over; known are {', '.join(COLUMNS)}"
