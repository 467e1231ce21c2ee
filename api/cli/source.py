"""Where a specification comes from: a file, standard input or a preset."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from api.cli.outcome import bad_input, of_error
from api.limits import MAX_BODY_BYTES
from service.errors import VitScaleError

_PRESET = "preset:"
_LOOKS_LIKE_JSON = re.compile(r'\s*\{\s*["}]')  # else YAML, which a mapping in braces without quotes is too


@dataclass(frozen=True)
class SpecSource:
    """A specification as it was written. `name` is what errors call it."""

    name: str
    text: str
    media: Literal["json", "yaml"]

    @property
    def content_type(self) -> str:
        return f"application/{self.media}"

    def parsed(self) -> object:
        """The data in it (Complaint, where it is not JSON or YAML)."""
        from service.spec import load_spec_text

        try:
            return load_spec_text(self.text, self.media)
        except VitScaleError as error:
            raise of_error(self.name, error) from error

    def as_mapping(self) -> dict[str, Any]:
        """The data in it, which must be a mapping (Complaint, where it is not)."""
        data = self.parsed()
        if not isinstance(data, Mapping):
            raise bad_input(self.name, "a specification is a mapping", "name: ..., parameters: ...")
        return dict(data)

    def named(self, name: str) -> dict[str, Any]:
        """The data in it, with another `name`."""
        return {**self.as_mapping(), "name": name}


def read_spec(given: str) -> SpecSource:
    """The specification that SPEC names: `-`, `preset:NAME` or a file.

    Raises:
        Complaint: it cannot be read, is not UTF-8, is empty or larger than the server takes.
    """
    if given.startswith(_PRESET):
        return _preset(given.removeprefix(_PRESET))
    name, text = read_text(given, MAX_BODY_BYTES, "a specification is YAML or JSON")
    if not text.strip():
        raise bad_input(name, "is empty", "vitscale presets demo prints an example")
    is_json = given.endswith(".json") or _LOOKS_LIKE_JSON.match(text) is not None
    return SpecSource(name, text, "json" if is_json else "yaml")


def read_text(given: str, max_bytes: int, what_it_is: str) -> tuple[str, str]:
    """What errors call a file (or `-`, standard input), and the text in it.

    Raises:
        Complaint: it cannot be read, is not UTF-8, or is larger than the server takes.
    """
    name = "standard input" if given == "-" else given
    content = _bytes_of(given, max_bytes)
    if len(content) > max_bytes:
        raise bad_input(name, f"is larger than {max_bytes:,} bytes")
    try:
        return name, content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad_input(name, f"is not UTF-8 at byte {error.start}", what_it_is) from error


def _preset(name: str) -> SpecSource:
    from service.presets import preset_names, preset_text

    try:
        return SpecSource(f"{_PRESET}{name}", preset_text(name), "yaml")
    except VitScaleError as error:
        raise bad_input(
            f"{_PRESET}{name}", "there is no such preset", f"there is {', '.join(preset_names())}"
        ) from error


def _bytes_of(given: str, max_bytes: int) -> bytes:
    if given == "-":
        return sys.stdin.buffer.read(max_bytes + 1)
    try:
        with Path(given).open("rb") as file:
            return file.read(max_bytes + 1)
    except FileNotFoundError as error:
        hint = "preset:demo names a preset, - is standard input"
        raise bad_input(given, "there is no such file", hint) from error
    except IsADirectoryError as error:
        raise bad_input(given, "is a directory") from error
    except (OSError, ValueError) as error:
        raise bad_input(given, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
