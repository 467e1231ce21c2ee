"""Whatever comes in is either a specification or refused with a reason; nothing else."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.errors import BadRequest, NotAvailable, SpecInvalid, VitScaleError
from service.plan import plan
from service.spec import load_spec_text, parse_spec
from tests.service.spec_samples import COMPLETE, MINIMAL

T = TypeVar("T")

quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([2**40, "1", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=6) | st.sampled_from(["value", "values"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def outcome_of(call: Callable[[], T]) -> T | VitScaleError:
    """What the call returns, or the expected error that it raises."""
    try:
        return call()
    except VitScaleError as error:
        return error


def places(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths to everything in the data but the data itself."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*path, key)
        yield from places(value, (*path, key))


@quick
@given(place=st.sampled_from(sorted(places(COMPLETE), key=str)), value=json_values)
def test_any_value_anywhere_is_accepted_and_kept_or_refused_with_pointers(
    place: tuple[str | int, ...], value: object
) -> None:
    data: Any = copy.deepcopy(COMPLETE)
    here = data
    for part in place[:-1]:
        here = here[part]
    here[place[-1]] = value
    outcome = outcome_of(lambda: parse_spec(data))
    if isinstance(outcome, VitScaleError):
        assert isinstance(outcome, SpecInvalid | NotAvailable)
        assert all(item.pointer == "" or item.pointer.startswith("/") for item in outcome.errors)
        assert outcome.errors
        return
    spec, result = outcome, plan(outcome, data_roots=(Path("/data"),))
    stored = json.loads(json.dumps(spec.model_dump(mode="json"), allow_nan=False))
    assert parse_spec(stored) == spec
    json.dumps(result.model_dump(mode="json"), allow_nan=False).encode()


@quick
@given(text=st.text(max_size=40) | st.text("{}[]:,&*!-\"'\n 0123456789aeE.", max_size=40))
def test_any_text_is_read_or_refused_as_a_bad_request(text: str) -> None:
    for media in ("json", "yaml"):
        outcome = outcome_of(lambda media=media: load_spec_text(text, media))  # type: ignore[misc]
        assert isinstance(outcome, BadRequest) or not isinstance(outcome, Exception)


@quick
@given(data=json_values)
def test_json_is_read_as_the_standard_library_reads_it(data: object) -> None:
    try:
        text = json.dumps(data, allow_nan=False)
        expected = json.loads(text)
    except ValueError:
        return
    outcome = outcome_of(lambda: load_spec_text(text, "json"))
    if isinstance(outcome, BadRequest):  # a float may print as a number of more than 64 digits, and text may hold NUL
        assert re.search("number must not be longer|must not hold the character", outcome.detail)
    else:
        assert outcome == expected


def test_yaml_and_json_of_one_spec_are_the_same() -> None:
    for data in (MINIMAL, COMPLETE):
        text = json.dumps(data, indent=1)
        assert load_spec_text(text, "yaml") == load_spec_text(text, "json") == data
