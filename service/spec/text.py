"""Text to plain data, for specs in YAML and JSON: bounded, unambiguous, and with line and column for every complaint.

YAML is read with the YAML 1.2 core schema (as JSON has it): only `true`/`false` are booleans, so `no`, `on` and `off`
stay text; `1e-4` is a number; `1:30` and `1_000` are text. No tags, no merge keys, no duplicate keys, no NaN.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import yaml

from service.errors import BadRequest

MAX_DEPTH = 32  # nesting; a spec needs 6
MAX_NODES = 100_000  # with aliases expanded: a few anchors in each other ("billion laughs") grow exponentially
MAX_NUMBER_CHARACTERS = 64  # Python converts long integers in quadratic time

# libyaml's parser where PyYAML was built with it: ten times faster, the same events.
_YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_YAML_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_YAML_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_YAML_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_UNPRINTABLE = re.compile("[\x00\ud800-\udfff]")


def load_spec_text(text: str, media: Literal["json", "yaml"]) -> object:
    """The data in `text`: dicts with text keys, lists, text, int, finite float, bool, None.

    Raises:
        BadRequest: the text is malformed or ambiguous, says where (line and column, from 1).
    """
    if media == "json":
        return _load_json(text)
    return _YamlReader(text).read()


def _refuse(detail: str, line: int | None = None, column: int | None = None) -> NoReturn:
    where = f" (line {line}, column {column})" if line is not None else ""
    raise BadRequest(detail + where)


# --- YAML ------------------------------------------------------------------------------------------------------------


@dataclass
class _Anchored:
    value: object
    nodes: int  # in the value, itself included, aliases expanded
    depth: int  # of nesting below and including itself


class _YamlReader:
    """Builds data from the parser's events, so that depth and size are bounded before anything grows."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._anchors: dict[str, _Anchored] = {}
        self._nodes = 0

    def read(self) -> object:
        try:
            self._events: Iterator[Any] = iter(yaml.parse(self._text, Loader=_YAML_LOADER))
            next(self._events)  # the stream's start
            if isinstance(next(self._events), yaml.StreamEndEvent):
                _refuse("The YAML is empty: a mapping with at least name and parameters is expected")
            value = self._value(next(self._events), depth=1).value
            next(self._events)  # the document's end
            event = next(self._events)
            if not isinstance(event, yaml.StreamEndEvent):
                self._refuse_at(event, "The YAML holds more than one document: give one study")
        except yaml.MarkedYAMLError as error:
            self._refuse_malformed(error)
        except yaml.YAMLError as error:  # characters that YAML does not allow, which carry no mark
            _refuse(f"The YAML cannot be read: {_one_line(str(error))}")
        except UnicodeEncodeError as error:
            self._refuse_character(error)
        return value

    def _value(self, event: Any, depth: int) -> _Anchored:
        if depth > MAX_DEPTH:
            self._refuse_at(event, f"The YAML is nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            target = self._anchors.get(str(event.anchor))
            if target is None:
                self._refuse_at(event, f"The alias *{event.anchor} names no anchor that is complete before it")
            if depth + target.depth - 1 > MAX_DEPTH:
                self._refuse_at(event, f"The YAML is nested more than {MAX_DEPTH} levels deep")
            self._count(event, target.nodes)
            return target
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            self._refuse_at(event, f"The YAML tag {tag} is not allowed: write plain values")
        self._count(event, 1)
        if isinstance(event, yaml.MappingStartEvent):
            built = self._mapping(depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            built = self._sequence(depth)
        else:
            built = _Anchored(self._scalar(event), nodes=1, depth=1)
        if event.anchor is not None:
            self._anchors[event.anchor] = built
        return built

    def _count(self, event: Any, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            self._refuse_at(event, f"The YAML holds more than {MAX_NODES} values (aliases expanded)")

    def _mapping(self, depth: int) -> _Anchored:
        values: dict[str, object] = {}
        nodes, below = 1, 0
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            if key in values:
                self._refuse_at(event, f"The key {key!r} is given twice in one mapping")
            item = self._value(next(self._events), depth + 1)
            values[key] = item.value
            nodes, below = nodes + item.nodes, max(below, item.depth)
        return _Anchored(values, nodes, below + 1)

    def _key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent) or (event.tag is not None and event.tag != "!"):
            self._refuse_at(event, "A key must be plain text")
        value = self._scalar(event)
        if not isinstance(value, str):
            self._refuse_at(event, f'The key {event.value} is not text: write it in quotes ("{event.value}")')
        if value == "<<" and event.implicit[0]:
            self._refuse_at(event, "The merge key << is not supported: write the keys out")
        return value

    def _sequence(self, depth: int) -> _Anchored:
        values: list[object] = []
        nodes, below = 1, 0
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            item = self._value(event, depth + 1)
            values.append(item.value)
            nodes, below = nodes + item.nodes, max(below, item.depth)
        return _Anchored(values, nodes, below + 1)

    def _scalar(self, event: Any) -> object:
        text: str = event.value
        if "\x00" in text:
            self._refuse_at(event, "Text must not hold the NUL character")
        plain = event.implicit[0] and event.tag is None
        if not plain:
            return text
        if text in {"", "~", "null", "Null", "NULL"}:
            return None
        if text in {"true", "True", "TRUE"}:
            return True
        if text in {"false", "False", "FALSE"}:
            return False
        if _YAML_NOT_FINITE.fullmatch(text):
            self._refuse_at(event, f"{text} is not a finite number")
        if _YAML_INT.fullmatch(text):
            self._refuse_long_number(event, text)
            return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
        if _YAML_FLOAT.fullmatch(text):
            self._refuse_long_number(event, text)
            number = float(text)
            if not math.isfinite(number):
                self._refuse_at(event, f"{text} is too large for a number")
            return number
        return text

    def _refuse_long_number(self, event: Any, text: str) -> None:
        if len(text) > MAX_NUMBER_CHARACTERS:
            self._refuse_at(event, f"A number must not be longer than {MAX_NUMBER_CHARACTERS} characters")

    def _refuse_at(self, event: Any, detail: str) -> NoReturn:
        _refuse(detail, event.start_mark.line + 1, event.start_mark.column + 1)

    def _refuse_malformed(self, error: yaml.MarkedYAMLError) -> NoReturn:
        parts = [part for part in (error.problem, error.context) if part]
        mark = error.problem_mark or error.context_mark
        detail = f"The YAML is malformed: {_one_line(', '.join(parts))}"
        if mark is None:
            _refuse(detail)
        _refuse(detail, mark.line + 1, mark.column + 1)

    def _refuse_character(self, error: UnicodeEncodeError) -> NoReturn:
        line, column = _line_and_column(self._text, error.start)
        _refuse("The YAML holds a character that is not valid Unicode text", line, column)


# --- JSON ------------------------------------------------------------------------------------------------------------


class _DuplicateKey(Exception):
    pass


class _NumberRefused(Exception):
    """`token` as it stands in the text, and what is wrong with it."""

    def __init__(self, token: str, detail: str) -> None:
        super().__init__(detail)
        self.token, self.detail = token, detail


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def _load_json(text: str) -> object:
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique_pairs,
            parse_int=_json_int,
            parse_float=_json_float,
            parse_constant=_json_constant,
        )
    except json.JSONDecodeError as error:
        _refuse(f"The JSON is malformed: {error.msg}", error.lineno, error.colno)
    except _DuplicateKey:
        key, offset = _first_duplicate_key(text)
        _refuse(f"The key {key!r} is given twice in one object", *_line_and_column(text, offset))
    except _NumberRefused as error:
        offset = next(token.start() for token in _JSON_TOKEN.finditer(text) if token.group() == error.token)
        _refuse(error.detail, *_line_and_column(text, offset))
    except RecursionError:
        _refuse(f"The JSON is nested more than {MAX_DEPTH} levels deep")
    _check_json(value)
    return value


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise _DuplicateKey
    return values


def _json_int(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise _NumberRefused(text, f"A number must not be longer than {MAX_NUMBER_CHARACTERS} characters")
    return int(text)


def _json_float(text: str) -> float:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise _NumberRefused(text, f"A number must not be longer than {MAX_NUMBER_CHARACTERS} characters")
    number = float(text)
    if not math.isfinite(number):
        raise _NumberRefused(text, f"{text} is too large for a number")
    return number


def _json_constant(text: str) -> NoReturn:
    raise _NumberRefused(text, f"{text} is not a finite number, and JSON does not know it")


def _check_json(value: object) -> None:
    """Bounds depth and count, and refuses text that could not be stored. Iterative: depth is what is checked."""
    nodes = 0
    level: list[object] = [value]
    for depth in range(MAX_DEPTH + 1):
        if not level:
            return
        if depth == MAX_DEPTH:
            break
        nodes += len(level)
        if nodes > MAX_NODES:
            _refuse(f"The JSON holds more than {MAX_NODES} values")
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
                _check_json_text(*item)
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, str):
                _check_json_text(item)
        level = below
    _refuse(f"The JSON is nested more than {MAX_DEPTH} levels deep")


def _check_json_text(*texts: str) -> None:
    for text in texts:
        if found := _UNPRINTABLE.search(text):
            _refuse(f"Text must not hold the character \\u{ord(found.group()):04x} alone: {text[:32]!a}")


def _first_duplicate_key(text: str) -> tuple[str, int]:
    """The first key that stands twice in its object, and its offset. `text` is well-formed as far as that."""
    open_objects: list[set[str] | None] = []  # None: an array
    expect_key = False
    for token in _JSON_TOKEN.finditer(text):
        word = token.group()
        if word == "{":
            open_objects.append(set())
            expect_key = True
        elif word == "[":
            open_objects.append(None)
            expect_key = False
        elif word in "}]":
            open_objects.pop()
            expect_key = False
        elif word == ",":
            expect_key = open_objects[-1] is not None
        elif expect_key and word.startswith('"'):
            keys = open_objects[-1]
            key: str = json.loads(word)
            if keys is not None and key in keys:
                return key, token.start()
            if keys is not None:
                keys.add(key)
            expect_key = False
    raise AssertionError("called without a duplicate key")


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    line = text.count("\n", 0, offset) + 1
    return line, offset - (text.rfind("\n", 0, offset) + 1) + 1


def _one_line(text: str) -> str:
    return " ".join(text.split())
