"""The command that holds two studies against each other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from api.cli.console import Grid, printable, write, write_json
from api.cli.outcome import BAD_INPUT, FAILED, GOOD, Complaint, bad_input, complain
from api.cli.tables import differing_keys, label, number, parameters_line, shown_value
from api.cli.target import connect, find_study
from service.analysis.scaling import GLOBAL_BATCH
from service.tolerance import HINT, parse_tolerance

if TYPE_CHECKING:
    from service.study_comparison import StudyComparison

_MAX_LISTED = 8
_STYLES = {"slower": "red", "faster": "green"}


def compare(asked_a: str, asked_b: str, tolerance: str, *, as_json: bool) -> int:
    """Prints the comparison. Exit code 1: a regression; 2: there is nothing to say it from (yet)."""
    try:
        share = parse_tolerance(tolerance)
    except ValueError as error:
        raise bad_input("--tolerance", str(error), HINT) from None
    with connect() as client:
        a, b = (find_study(client, asked).id for asked in (asked_a, asked_b))
        found = client.compare_studies(a, b, tolerance=share)
    if as_json:
        write_json(found)
    else:
        _write(found)
    if found.is_regression:
        return FAILED
    if not found.is_complete:
        raise Complaint(BAD_INPUT, *found.missing, "no regression so far; compare again when both are over")
    if not found.points:
        raise bad_input("", "the studies have no measured point in common", "vitscale results shows their points")
    for said in found.missing:
        complain(said)
    return GOOD


def _write(found: "StudyComparison") -> None:
    for name, side in (("A", found.a), ("B", found.b)):
        write(f"{name}  {side.id}  {side.status}  {printable(side.name)}")
    for difference in found.differences:
        write(f"differs: {difference.what}: {_values(difference.a)} -> {_values(difference.b)}")
    keys = differing_keys([*_all_parameters(found)], frozenset({GLOBAL_BATCH}))
    if found.points:
        write()
        _write_points(found, keys)
    for failed in found.failed:
        where = {"a": "A", "b": "B", "both": "both"}[failed.without_result_in]
        why = ", ".join(failed.reasons) or "not run to its end"
        write(f"no result in {where}: {_point(failed.parameters, keys)}: {why}")
    for name, only in (("A", found.only_in_a), ("B", found.only_in_b)):
        for point in only[:_MAX_LISTED]:
            write(f"only in {name}: {_point(point.parameters, keys)}")
        if len(only) > _MAX_LISTED:
            write(f"only in {name}: ... and {len(only) - _MAX_LISTED} more")
    for note in found.notes:
        write(note)
    write(_conclusion(found))


def _write_points(found: "StudyComparison", keys: Sequence[str]) -> None:
    texts = {key for key in keys if any(isinstance(point.parameters.get(key), str) for point in found.points)}
    headers = [*map(label, keys), "A\nseconds", "B\nseconds", "B / A", "95 %", "verdict"]
    grid = Grid(*headers, numeric=[key not in texts for key in keys] + [True] * 4 + [False])
    for point in found.points:
        other = "" if point.a_hardware == point.b_hardware else f" ({point.a_hardware} -> {point.b_hardware})"
        grid.add(
            *(shown_value(point.parameters.get(key)) for key in keys),
            number(point.a_seconds),
            number(point.b_seconds),
            f"{point.ratio:.3f}",
            f"{point.ratio_ci95_low:.3f}-{point.ratio_ci95_high:.3f}",
            f"{point.verdict}{other}",
            style=_STYLES.get(point.verdict),
        )
    grid.write()
    kinds = " and ".join(sorted({point.quantity.replace("_", " ") for point in found.points}))
    write(f"Seconds are {kinds}; B / A above 1: B is slower.")


def _conclusion(found: "StudyComparison") -> str:
    slower = sum(point.verdict == "slower" for point in found.points)
    faster = sum(point.verdict == "faster" for point in found.points)
    broken = sum(point.is_regression for point in found.failed)
    counts = f"{slower} slower, {faster} faster of {len(found.points)} points"
    counts += f", beyond noise and {100 * found.tolerance:.3g} %"
    overall = "" if found.overall_ratio is None else f"; over all points B / A is {found.overall_ratio:.3f}"
    if not found.points and not broken:
        return "Nothing was compared: the studies have no measured point in common."
    lost = f"; {broken} failed in B that ran in A" if broken else ""
    return f"{'REGRESSION' if found.is_regression else 'No regression'}: {counts}{lost}{overall}."


def _all_parameters(found: "StudyComparison") -> list[dict[str, Any]]:
    compared = [point.parameters for point in found.points] + [point.parameters for point in found.failed]
    return compared + [point.parameters for point in [*found.only_in_a, *found.only_in_b]]


def _point(parameters: dict[str, Any], keys: Sequence[str]) -> str:
    return parameters_line(parameters, keys)


def _values(values: Sequence[str]) -> str:
    return printable(", ".join(values))
