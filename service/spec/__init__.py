"""The study specification: from text to plain data (`load_spec_text`) to a checked `StudySpec` (`parse_spec`)."""

from functools import cache
from typing import Any

from pydantic import ValidationError

from service.errors import NotAvailable, SpecInvalid
from service.spec.checks import contradictions, not_available
from service.spec.errors import error_items, summary
from service.spec.model import PARAMETER_NAMES, WORKLOAD_AXES, StudySpec
from service.spec.text import load_spec_text
from service.spec.types import Description, StudyName, StudyTags

__all__ = [
    "PARAMETER_NAMES",
    "WORKLOAD_AXES",
    "Description",
    "StudyName",
    "StudySpec",
    "StudyTags",
    "load_spec_text",
    "parse_spec",
]


@cache
def _schema() -> dict[str, Any]:
    return StudySpec.model_json_schema()


def parse_spec(data: object) -> StudySpec:
    """The specification in `data`, complete with defaults and free of contradictions.

    Raises:
        SpecInvalid: what does not fit, all of it, each with JSON pointer and hint.
        NotAvailable: it fits, but asks for something that this version does not do yet.
    """
    try:
        spec = StudySpec.model_validate(data)
    except ValidationError as error:
        items = error_items(error, data, _schema())
        raise SpecInvalid(summary(items), items) from None
    if items := contradictions(spec):
        raise SpecInvalid(summary(items), items)
    if items := not_available(spec):
        raise NotAvailable(summary(items), items)
    return spec
