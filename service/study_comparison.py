"""Two stored studies side by side: what `GET /studies/compare` and `vitscale compare` say."""

from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, Field

from service.analysis.comparison import ComparedPoints, compare_points
from service.analysis_input import observations
from service.states import StudyState, TrialState
from service.views import ResultRow


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ComparedStudy(_Frozen):
    id: str
    name: str
    status: StudyState


class Difference(_Frozen):
    """What was not the same in both: the values that each study has, in order."""

    what: str
    a: list[str]
    b: list[str]


class StudyComparison(ComparedPoints):
    """Study b against study a. Not `is_complete`: one of them is not over, and `missing` says what is to come."""

    a: ComparedStudy
    b: ComparedStudy
    is_complete: bool
    missing: list[str] = Field(default_factory=list)
    differences: list[Difference] = Field(default_factory=list)


class StoredStudy(_Frozen):
    """One study as it was read: all its rows, and the versions of what its trials ran with."""

    study: ComparedStudy
    rows: list[ResultRow]
    versions: dict[str, list[str]]


def compare_studies(a: StoredStudy, b: StoredStudy, tolerance: float) -> StudyComparison:
    """b against a. `tolerance`: a share of the time, from 0."""
    points = compare_points(observations(a.rows, {}, {}), observations(b.rows, {}, {}), tolerance=tolerance)
    missing = [said for side in (a, b) if (said := _missing(side)) is not None]
    return StudyComparison(
        **dict(points),
        a=a.study,
        b=b.study,
        is_complete=all(side.study.status.is_final for side in (a, b)),
        missing=missing,
        differences=_differences(a, b),
    )


def _missing(side: StoredStudy) -> str | None:
    left = sum(not row.state.is_final for row in side.rows)
    unrun = sum(row.state is TrialState.CANCELLED for row in side.rows)
    if not side.study.status.is_final:
        return f"study {side.study.id} is {side.study.status}: {left} of {len(side.rows)} trials are not over"
    if left + unrun:
        return f"study {side.study.id} is {side.study.status}: {left + unrun} of {len(side.rows)} trials were never run"
    return None


_HARDWARE: Mapping[str, Callable[[ResultRow], object]] = {
    "devices": lambda row: ", ".join(sorted(set(row.hardware.devices))) or None,
    "nodes": lambda row: row.hardware.nodes,
    "backend": lambda row: row.hardware.backend,
    "threads per worker": lambda row: row.hardware.num_threads,
}


def _differences(a: StoredStudy, b: StoredStudy) -> list[Difference]:
    """Hardware first, then versions. What one side does not tell (imported rows) is not called different."""
    found = [Difference(what=what, a=_values(a, read), b=_values(b, read)) for what, read in _HARDWARE.items()]
    packages = sorted(a.versions.keys() & b.versions.keys())
    found += [Difference(what=name, a=a.versions[name], b=b.versions[name]) for name in packages]
    return [one for one in found if one.a and one.b and one.a != one.b]


def _values(side: StoredStudy, read: Callable[[ResultRow], object]) -> list[str]:
    values = {value for row in side.rows if row.state is TrialState.SUCCEEDED and (value := read(row)) is not None}
    return sorted(map(str, values))
