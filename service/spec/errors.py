"""What pydantic found, in sentences for a person: where (JSON pointer), what is there, what would be right."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.canonical import canonical_json
from service.errors import ErrorItem
from service.spec.types import VALUE_TAG, VALUES_TAG
from service.spelling import closest

MAX_ITEMS = 100  # of one answer
_MAX_SHOWN = 60  # characters of a value or key within a sentence
_AXIS_KEYS = {"value", "values"}


def pointer(parts: Iterable[str | int]) -> str:
    """The JSON pointer (RFC 6901) to these keys and list positions."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def summary(items: list[ErrorItem]) -> str:
    """One sentence over all items: the first, and how many more there are."""
    first = items[0]
    more = f" (and {len(items) - 1} more)" if len(items) > 1 else ""
    return f"{first.pointer or 'the specification'}: {first.detail}{more}"


def error_items(error: ValidationError, data: object, schema: Mapping[str, Any]) -> list[ErrorItem]:
    """All errors, in the order of the specification, at most `MAX_ITEMS`.

    Args:
        data: what was validated.
        schema: the model's JSON schema, from which the allowed keys of each place are read.
    """
    items: dict[tuple[str, str], ErrorItem] = {}
    for details in error.errors(include_url=False):
        for item in _items(details, data, _Schema(schema)):
            items.setdefault((item.pointer, item.detail), item)
        if len(items) > MAX_ITEMS:
            break
    return list(items.values())[:MAX_ITEMS]


def _items(details: ErrorDetails, data: object, schema: "_Schema") -> Iterator[ErrorItem]:
    place = _place(details["loc"], data)
    given = details["input"]
    kind = details["type"]
    if kind == "extra_forbidden":
        yield _unknown_key(place, schema)
    elif kind == "union_tag_not_found":
        yield from _no_axis(place, given)
    elif kind == "literal_error" and details["loc"][-1] == "[key]":
        yield _unknown_key(place, schema)
    elif details["loc"] and details["loc"][-1] == "[key]":
        yield ErrorItem(pointer(place), *_name(place[-1]))
    elif kind == "vitscale":
        context = details["ctx"]
        yield ErrorItem(pointer(place), context["message"], context["hint"])
    else:
        what, hint = _sentence(details, place)
        yield ErrorItem(pointer(place), what, hint)


def _place(loc: tuple[int | str, ...], data: object) -> tuple[str | int, ...]:
    """The error's place in the input: pydantic's own marks in `loc` are left out."""
    place: list[str | int] = []
    here: Any = data
    for part in loc:
        known = (isinstance(here, Mapping) and part in here) or (
            isinstance(here, list) and isinstance(part, int) and part < len(here)
        )
        if known:
            here = here[part]
        elif part in {VALUE_TAG, VALUES_TAG, "[key]"}:
            continue
        place.append(part)
    return tuple(place)


# --- keys ------------------------------------------------------------------------------------------------------------


class _Schema:
    """Which keys a place of the specification allows, read off its JSON schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    def allowed_keys(self, place: tuple[str | int, ...]) -> list[str]:
        nodes = list(self._flat(self._schema))
        for part in place:
            nodes = [inner for node in nodes for child in self._children(node, part) for inner in self._flat(child)]
        keys: dict[str, None] = {}
        for node in nodes:
            keys.update(dict.fromkeys(node.get("properties", {})))
            keys.update(dict.fromkeys(node.get("propertyNames", {}).get("enum", [])))
        return list(keys)

    def places_of_keys(self) -> dict[str, str]:
        """Every fixed key of the specification with the pointer of the mapping it belongs into, the outermost first."""
        found: dict[str, str] = {}
        level: list[tuple[str, Mapping[str, Any]]] = [("", self._schema)]
        while level:
            below: list[tuple[str, Mapping[str, Any]]] = []
            for where, node in level:
                for flat in self._flat(node):
                    for key, child in flat.get("properties", {}).items():
                        if key not in _AXIS_KEYS:
                            found.setdefault(key, where)
                        below.append((f"{where}/{key}", child))
            level = below
        return found

    def _flat(self, node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The node with references followed and alternatives side by side."""
        if "$ref" in node:
            yield from self._flat(self._schema["$defs"][node["$ref"].rsplit("/", 1)[1]])
            return
        alternatives = [*node.get("anyOf", []), *node.get("oneOf", []), *node.get("allOf", [])]
        if not alternatives:
            yield node
        for alternative in alternatives:
            yield from self._flat(alternative)

    def _children(self, node: Mapping[str, Any], part: str | int) -> Iterator[Mapping[str, Any]]:
        if isinstance(part, int) and isinstance(node.get("items"), Mapping):
            yield node["items"]
        elif part in node.get("properties", {}):
            yield node["properties"][part]
        else:
            if isinstance(node.get("additionalProperties"), Mapping):
                yield node["additionalProperties"]
            yield from node.get("patternProperties", {}).values()


def _unknown_key(place: tuple[str | int, ...], schema: _Schema) -> ErrorItem:
    key, parent = str(place[-1]), place[:-1]
    allowed = schema.allowed_keys(parent)
    if key in _AXIS_KEYS and set(allowed) == _AXIS_KEYS:
        return ErrorItem(
            pointer(place), "give either value or values, not both", "write {value: x} or {values: [x, y]}"
        )
    return ErrorItem(pointer(place), f"unknown key {_shown_text(key)}", _key_hint(key, parent, allowed, schema))


def _key_hint(key: str, parent: tuple[str | int, ...], allowed: list[str], schema: _Schema) -> str:
    if matches := closest(key, allowed):
        return f"did you mean {matches[0]}?"
    everywhere = schema.places_of_keys()
    if key in everywhere and everywhere[key] != pointer(parent):
        return f"{key} belongs {_where(everywhere[key])}"
    if matches := closest(key, everywhere):
        return f"did you mean {matches[0]} ({_where(everywhere[matches[0]])})?"
    return f"allowed here: {', '.join(allowed)}"


def _where(parent: str) -> str:
    return f"under {parent}" if parent else "at the top level"


def _no_axis(place: tuple[str | int, ...], given: object) -> Iterator[ErrorItem]:
    """A parameter that is neither {value: x} nor {values: [..]}."""
    what = f"must be an axis: {{value: x}} or {{values: [x, y]}}, not {_shown(given)}"
    if isinstance(given, Mapping):
        for key in given:
            hint = f"did you mean {(closest(str(key), _AXIS_KEYS) or ['value or values'])[0]}?"
            yield ErrorItem(pointer((*place, key)), f"unknown key {_shown_text(str(key))}", hint)
        if not given:
            yield ErrorItem(pointer(place), what, "write {value: x} or {values: [x, y]}")
    elif isinstance(given, list):
        yield ErrorItem(pointer(place), what, f"write {{values: {_shown(given)}}}")
    elif given is None:
        yield ErrorItem(pointer(place), what, "leave the key out for its default")
    else:
        yield ErrorItem(pointer(place), what, f"write {{value: {_shown(given)}}}")


# --- values ----------------------------------------------------------------------------------------------------------


def _shown_text(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _shown(value: object) -> str:
    """The value as JSON, cut to one short line."""
    try:
        return _shown_text(canonical_json(value))
    except (TypeError, ValueError):  # data that did not come from JSON or YAML
        return _shown_text(repr(value))


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"the text {_shown(value)}"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, Mapping):
        return "a mapping"
    return _shown(value)


_WORDS_FOR_TRUE, _WORDS_FOR_FALSE = {"yes", "on", "y"}, {"no", "off", "n"}


def _number_hint(given: object) -> str | None:
    if isinstance(given, str) and re.fullmatch(r"[-+]?[0-9][0-9_]*(\.[0-9]*)?([eE][-+]?[0-9]+)?", given):
        return f"write {given.replace('_', '')} without quotes and underscores"
    return None


def _whole_number(given: object) -> tuple[str, str | None]:
    if isinstance(given, float) and given.is_integer() and abs(given) < 2**53:
        return f"must be a whole number, not {given!r}", f"write {int(given)}"
    return f"must be a whole number, not {_kind(given)}", _number_hint(given)


def _switch(given: object) -> tuple[str, str | None]:
    word = given.lower() if isinstance(given, str) else None
    hint = "write true or false"
    if word in _WORDS_FOR_TRUE or word == "true":
        hint = "write true, without quotes"
    elif word in _WORDS_FOR_FALSE or word == "false":
        hint = "write false, without quotes"
    return f"must be true or false, not {_kind(given)}", hint


def _text(given: object) -> tuple[str, str | None]:
    quoted = isinstance(given, int | float)
    return f"must be text, not {_kind(given)}", f'write it in quotes: "{_shown(given)}"' if quoted else None


def _name(given: object) -> tuple[str, str | None]:
    hint = "1 to 63 letters, digits, dots, dashes or underscores, beginning with a letter or digit"
    return f"the name {_shown(given)} is not valid", hint


def _choice(given: object, context: Mapping[str, Any]) -> tuple[str, str | None]:
    choices = re.findall(r"'([^']*)'", context["expected"])
    matches = closest(given, choices) if isinstance(given, str) else []
    hint = f"did you mean {matches[0]}?" if matches else None
    return f"must be one of {', '.join(choices)}, not {_kind(given)}", hint


def _bound(word: str, key: str) -> Callable[[object, Mapping[str, Any]], tuple[str, str | None]]:
    def sentence(given: object, context: Mapping[str, Any]) -> tuple[str, str | None]:
        return f"must be {word} {context[key]:.10g}, not {_shown(given)}", None

    return sentence


def _length(
    word: str, key: str, unit: str, units: str
) -> Callable[[object, Mapping[str, Any]], tuple[str, str | None]]:
    def sentence(_given: object, context: Mapping[str, Any]) -> tuple[str, str | None]:
        return f"must have at {word} {context[key]} {unit if context[key] == 1 else units}", None

    return sentence


_SENTENCES: dict[str, Callable[[object, Mapping[str, Any]], tuple[str, str | None]]] = {
    "int_type": lambda given, _: _whole_number(given),
    "int_from_float": lambda given, _: _whole_number(given),
    "float_type": lambda given, _: (f"must be a number, not {_kind(given)}", _number_hint(given)),
    "finite_number": lambda given, _: (f"must be a finite number, not {given}", None),
    "bool_type": lambda given, _: _switch(given),
    "string_type": lambda given, _: _text(given),
    "string_pattern_mismatch": lambda given, _: _name(given),
    "literal_error": _choice,
    "greater_than": _bound("more than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("less than", "lt"),
    "less_than_equal": _bound("at most", "le"),
    "too_short": _length("least", "min_length", "entry", "entries"),
    "too_long": _length("most", "max_length", "entry", "entries"),
    "string_too_short": _length("least", "min_length", "character", "characters"),
    "string_too_long": _length("most", "max_length", "character", "characters"),
    "list_type": lambda given, _: (f"must be a list, not {_kind(given)}", f"write [{_shown(given)}]"),
    "dict_type": lambda given, _: (f"must be a mapping, not {_kind(given)}", None),
    "model_type": lambda given, _: (f"must be a mapping, not {_kind(given)}", None),
    "invalid_key": lambda given, _: (f"a key must be text, not {_kind(given)}", "write it in quotes"),
    "string_unicode": lambda _given, _: ("must be valid Unicode text", None),
}


def _sentence(details: ErrorDetails, place: tuple[str | int, ...]) -> tuple[str, str | None]:
    kind, given = details["type"], details["input"]
    if kind == "missing":
        return f"the key {place[-1]} is required", _MISSING_HINTS.get(str(place[-1]))
    if kind in {"model_type", "dict_type"} and given is None:
        return "must be a mapping, not null", "leave the key out for its defaults"
    if kind in _SENTENCES:
        return _SENTENCES[kind](given, details.get("ctx", {}))
    return details["msg"], None


_MISSING_HINTS = {
    "name": "name: my-study",
    "parameters": "parameters: {model: {value: vit_base_patch16_224}, train_micro_batch_size_per_gpu: {value: 64}}",
    "model": "model: {value: vit_base_patch16_224}",
    "values": "values: [x, y]",
}
