"""Where and how output is written: for a person at a terminal, plain where it is piped, JSON for a program."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

# ECMA-48 control sequences and the strings that start with ESC, then any other control character but the tab.
_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.|[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def screen() -> Console:
    """Standard output. NO_COLOR, COLUMNS and TERM are respected; markup in what users wrote is not."""
    return Console(file=sys.stdout, markup=False, highlight=False, emoji=False)


def printable(text: str) -> str:
    """One line without control sequences: names and logs are not ours, and must not steer the terminal."""
    return _CONTROLS.sub("", text)


def write(text: str = "") -> None:
    """One line on standard output, at once."""
    print(text, flush=True)


def write_json(value: BaseModel | Mapping[str, Any] | Sequence[Any]) -> None:
    """Indented JSON on standard output; never NaN or infinity."""
    write(json_text(value))


def json_text(value: BaseModel | Mapping[str, Any] | Sequence[Any]) -> str:
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)


class Grid:
    """A table. Columns of numbers stand right and are never cut; it is as wide as it must be where it is piped.

    A header may have line breaks, which a terminal shows, and soft hyphens before them.
    """

    def __init__(self, *headers: str, numeric: Sequence[bool] = ()) -> None:
        self._console = screen()
        on_terminal = self._console.is_terminal
        self._table = Table(
            box=box.SIMPLE_HEAD if on_terminal else None,
            show_edge=False,
            padding=(0, 1, 0, 0) if on_terminal else (0, 2, 0, 0),  # the box has a space of its own between columns
            pad_edge=False,
        )
        for position, header in enumerate(headers):
            is_number = position < len(numeric) and numeric[position]
            text = _on_lines(header) if on_terminal else on_one_line(header)
            self._table.add_column(
                Text(text), justify="right" if is_number else "left", no_wrap=is_number, overflow="fold"
            )

    def add(self, *cells: str, style: str | None = None) -> None:
        self._table.add_row(*(Text(printable(cell)) for cell in cells), style=style)

    def write(self) -> None:
        console = self._console
        need = Measurement.get(console, console.options.update(max_width=10_000), self._table)
        console.width = max(console.width, need.minimum) if console.is_terminal else need.maximum
        console.print(self._table, crop=False)


def _on_lines(header: str) -> str:
    return header.replace("\N{SOFT HYPHEN}", "-")


def on_one_line(header: str) -> str:
    """A header without its line breaks and soft hyphens."""
    return header.replace("\N{SOFT HYPHEN}\n", "").replace("-\n", "-").replace("\n", " ")
