"""Makes a picture of what a command printed: `vitscale results latest | terminal_picture.py OUT COMMAND`."""

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text


def main(output: Path, command: str) -> None:
    """Writes `$ command` and what standard input brings as an SVG of a terminal."""
    lines = sys.stdin.read().rstrip("\n")
    width = max(len(line) for line in lines.splitlines())
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(lines))
    output.write_text(console.export_svg(title="VitScale"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
