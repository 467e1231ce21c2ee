"""Ray's rules for label selectors, checked before a job is refused for them (Ray's own check lies behind an import of
all of Ray). Names and values are Kubernetes labels; a value may be negated or a set: `!x`, `in(x, y)`, `!in(x, y)`."""

import re
from collections.abc import Iterator

from service.errors import ErrorItem
from service.spec.errors import pointer
from service.spec.model import StudySpec

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:[A-Za-z0-9.-]{{1,253}}/)?{_NAME}")
_VALUE = re.compile(rf"!?{_NAME}|!?in\({_NAME}(?:, ?{_NAME})*\)")


def label_errors(spec: StudySpec) -> Iterator[ErrorItem]:
    """Label selectors that Ray would refuse."""
    for name, placement in spec.placements.items():
        for position, group in enumerate(placement.workers):
            for key, value in group.label_selector.items():
                where = pointer(("placements", name, "workers", position, "label_selector", key))
                if not _KEY.fullmatch(key):
                    yield ErrorItem(
                        where,
                        "the label's name is not valid",
                        "up to 63 letters, digits, dots, dashes, underscores; before them a prefix like example.com/",
                    )
                if len(value) > 4096 or not _VALUE.fullmatch(value):
                    yield ErrorItem(
                        where,
                        "the label's value is not valid",
                        "a, !a, in(a, b) or !in(a, b), each up to 63 letters, digits, dots, dashes and underscores",
                    )
