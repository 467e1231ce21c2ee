"""A tolerance as a person writes it: `5%` or `0.05`."""

import re
from typing import Final

HINT: Final = "write 5% or 0.05; at least 0, and less than 100%"
_FORM: Final = re.compile(r"(\d{1,6}(?:\.\d{0,12})?|\.\d{1,12})\s*(%?)", re.ASCII)


def parse_tolerance(text: str) -> float:
    """The share that `text` means. Raises ValueError (a sentence for a person) where it is none from 0 to below 1."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:40]!r} is no share")
    value = float(found[1]) / (100 if found[2] else 1)
    if value >= 1:
        raise ValueError(f"{text[:40]!r} would let times double and more")
    return value
