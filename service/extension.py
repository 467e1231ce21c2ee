"""More points for a study that is over: whether the new rows may stand beside the old ones, and which points are new.

An extension is a whole specification. Its points are added to the study's; a point the study has already (the same
resolved parameters, the same repeat) is not run again, and none is taken away, so the study's own file with more values
on an axis, or with more `measurement.repeats`, is an extension of it.

Points differ in their parameters and in nothing else. What is no parameter but has a part in what is measured
(`scaling`, the rest of `workload`, `resources`, `measurement`, `execution.isolation`, `deepspeed`, a placement of the
same name) must be as it was, or rows of one series would not be comparable. Free are: name, description and tags (the
study keeps its own), `exclude` and `on_indivisible` (of the new points), `measurement.repeats` and `order`, where the
data lies (`data_root`, `download`), and how trials are waited for and retried (the rest of `execution`: the last
extension's holds for every trial that runs from then on).
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from service.canonical import canonical_json
from service.errors import ErrorItem
from service.plan import Plan, PlannedPoint
from service.plan.planner import BASELINE_NOT_IN_STUDY
from service.spec import StudySpec
from service.spec.model import WORKLOAD_AXES, SpecPlacement

_FREE = {
    "workload": {"data_root", "download", *WORKLOAD_AXES},  # an axis is a parameter, wherever it stands
    "measurement": {"repeats", "order"},
    "scaling": set[str](),
    "resources": set[str](),
}
_FIXED_EXECUTION = ("isolation", "max_concurrent_trials")  # what else ran meanwhile
_BATCH_KEYS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")


def incomparable(before: Sequence[StudySpec], extra: StudySpec) -> list[ErrorItem]:
    """Everything in `extra` that would make its rows unlike those of the study.

    Args:
        before: the study's specification and those that extended it since, in order.
    """
    return [*_sections(before[0], extra), *_batch_keys(before[0], extra), *_placements(before, extra)]


def _sections(first: StudySpec, extra: StudySpec) -> Iterator[ErrorItem]:
    ours, theirs = first.model_dump(mode="json"), extra.model_dump(mode="json")
    for section, free in _FREE.items():
        for key in ours[section]:
            if key not in free:
                yield from _difference(f"/{section}/{key}", key, ours[section][key], theirs[section][key])
    for key in _FIXED_EXECUTION:
        yield from _difference(f"/execution/{key}", key, ours["execution"][key], theirs["execution"][key])
    yield from _difference("/deepspeed", "deepspeed", ours["deepspeed"], theirs["deepspeed"])


def _batch_keys(first: StudySpec, extra: StudySpec) -> Iterator[ErrorItem]:
    """Which of the batch keys is derived decides which rows make a series."""
    if first.scaling.hold == "micro_batch":
        return
    for key in _BATCH_KEYS:
        was_given, is_given = (spec.parameters.axis(key) is not None for spec in (first, extra))
        if was_given != is_given:
            what = f"{key} is {'given' if is_given else 'derived'} here and {'given' if was_given else 'derived'}"
            hint = f"{'give' if was_given else 'leave out'} {key}, or post a study of its own"
            yield ErrorItem(f"/parameters/{key}", f"{what} in the study", hint)


def _placements(before: Sequence[StudySpec], extra: StudySpec) -> Iterator[ErrorItem]:
    known: dict[str, Any] = {}
    for spec in before:
        known = {**_used_placements(spec), **known}
    for name, placement in _used_placements(extra).items():
        if name in known:
            yield from _difference(f"/placements/{name}", f"the placement {name}", known[name], placement)


def _used_placements(spec: StudySpec) -> dict[str, Any]:
    return {
        name: spec.placements.get(name, SpecPlacement()).model_dump(mode="json")
        for name in spec.parameters.placement.all
    }


def _difference(pointer: str, what: str, ours: object, theirs: object) -> Iterator[ErrorItem]:
    if (expected := canonical_json(ours)) != (given := canonical_json(theirs)):
        yield ErrorItem(
            pointer,
            f"{what} is {given}, and {expected} in the study: its rows would not be comparable",
            f"write {expected}, or post a study of its own",
        )


def without_known_baseline(planned: Plan, before: Sequence[StudySpec]) -> Plan:
    """The plan without the refusal of a baseline that the study has, if not the extension."""
    sizes = {size for spec in before for size in spec.parameters.world_size.all}
    if before[0].scaling.baseline_world_size not in sizes:
        return planned
    kept = [refusal for refusal in planned.refused if refusal.code != BASELINE_NOT_IN_STUDY]
    return planned.model_copy(update={"refused": kept})


def new_points(
    planned: Plan, known: Collection[tuple[str, int]], last_number: int
) -> tuple[list[PlannedPoint], list[int]]:
    """The planned points that are not `known` (as point hash and repeat), numbered on from `last_number`, and the
    numbers of the pending ones in the order of starting."""
    numbers: dict[int, int] = {}
    points: list[PlannedPoint] = []
    for point in planned.trials:
        if (point.point_hash, point.repeat) not in known:
            numbers[point.number] = last_number + len(points) + 1
            points.append(point.model_copy(update={"number": numbers[point.number]}))
    return points, [numbers[number] for number in planned.order if number in numbers]
