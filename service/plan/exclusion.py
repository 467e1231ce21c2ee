"""The points that `exclude` leaves out."""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from service.plan.points import axis_values
from service.spec.model import ParameterName, StudySpec


class Exclusions:
    """Finds the entries of `exclude` that a point equals in all the entry's keys; remembers which were ever found.

    Entries with the same keys are looked up together, so that a long list stays fast.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._found: set[int] = set()
        entries: dict[tuple[str, ...], dict[object, list[int]]] = {}
        for position, entry in enumerate(spec.exclude):
            keys = tuple(sorted(entry))
            values = itemgetter(*keys)(_typed(entry))  # bare where there is one key, as in the look-up
            entries.setdefault(keys, {}).setdefault(values, []).append(position)
        self._entries = [(itemgetter(*keys), by_values) for keys, by_values in entries.items()]

    def exclude(self, parameters: Mapping[str, Any]) -> bool:
        """Whether the point is left out."""
        if not self._entries:
            return False
        typed = _typed(parameters)
        excluded = False
        for values_of, by_values in self._entries:
            positions = by_values.get(values_of(typed))
            if positions is not None:
                self._found.update(positions)
                excluded = True
        return excluded

    def notes(self) -> list[str]:
        """One sentence for each entry that left out no point: allowed, as a list may be kept for several sweeps, but it
        may as well be a typo, which would run what was not wanted."""
        values = axis_values(self._spec)
        return [
            f"/exclude/{position} matches no point: {_why_unused(entry, values)}"
            for position, entry in enumerate(self._spec.exclude)
            if position not in self._found
        ]


def _typed(values: Mapping[Any, Any]) -> dict[str, Any]:
    """The same with booleans marked: True equals 1 in Python, and must not here."""
    return {key: ("boolean", value) if isinstance(value, bool) else value for key, value in values.items()}


def _why_unused(entry: Mapping[ParameterName, Any], values: dict[str, list[Any]]) -> str:
    for key, value in entry.items():
        taken = values[key]
        if taken != [None] and not any(
            value == other and isinstance(value, bool) == isinstance(other, bool) for other in taken
        ):
            listed = ", ".join(str(other) for other in taken[:10]) + (", ..." if len(taken) > 10 else "")
            return f"{key} is never {value} in this study but {listed}"
    return "no point has all of these values together"
