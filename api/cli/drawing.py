"""Numbers as pictures of text: bars and sparklines. For terminals only; what is piped stays plain."""

from collections.abc import Sequence
from typing import Final

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_LEVELS: Final = "▁▂▃▄▅▆▇█"


def bar(share: float | None, width: int) -> str:
    """`share` (0 to 1, cut off beyond) of `width` characters, to an eighth of one; always as wide."""
    if share is None:
        return " " * width
    eighths = round(8 * width * min(1.0, max(0.0, share)))
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)


def sparkline(values: Sequence[float | None]) -> str:
    """One character for each value, from 0 up to the largest; a dot where there is none."""
    largest = max((value for value in values if value is not None), default=0.0)
    if largest <= 0:
        return "·" * len(values)
    top = len(_LEVELS) - 1
    return "".join("·" if value is None else _LEVELS[round(top * max(0.0, value) / largest)] for value in values)
