"""The findings of a study, for a person to read."""

import textwrap
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from api.cli.console import printable, screen
from service.analysis.finding import Finding, Severity

_STYLES: Final[dict[Severity, str]] = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


def write_findings(findings: Sequence[Finding]) -> None:
    """A block per finding, the most severe first as they come: its code, and its message wrapped on a terminal."""
    console = screen()
    console.print("Findings:" if findings else "Findings: none.")
    for finding in findings:
        head = f"{finding.severity:<8} {finding.code}"
        message = printable(finding.message)
        if not console.is_terminal:
            console.print(f"{head}: {message}", soft_wrap=True)
            continue
        console.print(Text(head, style=_STYLES[finding.severity]))
        for line in textwrap.wrap(message, max(40, console.width - 2)):
            console.print(f"  {line}")
