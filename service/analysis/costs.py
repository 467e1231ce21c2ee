"""The fastest epoch beside the cheapest one, over all points that train the same model on the same data."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from service.analysis.answer import Cost, CostChoice
from service.analysis.points import Key, StudyPoint, parameters_key
from service.analysis.scaling import Mode
from service.analysis.series import PointGroup

_WORKLOAD: Final = ("model", "dataset", "dataset_fraction", "image_size", "patch_size")


def costs(groups: Sequence[PointGroup], mode: Mode) -> list[Cost]:
    """By workload, in the order of the first point; none where the data grows with the world size."""
    if mode == "weak":
        return []
    by_workload: dict[Key, list[tuple[str, StudyPoint]]] = defaultdict(list)
    for group in groups:
        for point in group.measured:
            if point.epoch_seconds is not None:
                by_workload[parameters_key(_workload(point), ())].append((group.series_id, point))
    return [_cost(points) for points in by_workload.values() if len(points) > 1]


def _workload(point: StudyPoint) -> dict[str, Any]:
    return {key: point.parameters[key] for key in _WORKLOAD if key in point.parameters}


def _cost(points: Sequence[tuple[str, StudyPoint]]) -> Cost:
    choices = [
        CostChoice(
            series_id=series_id,
            world_size=point.world_size,
            epoch_seconds=point.epoch_seconds.value,
            device_seconds_per_epoch=point.epoch_seconds.value * point.world_size,
        )
        for series_id, point in points
        if point.epoch_seconds is not None
    ]
    fastest = min(choices, key=lambda one: one.epoch_seconds)
    cheapest = min(choices, key=lambda one: one.device_seconds_per_epoch)
    return Cost(
        fixed=_workload(points[0][1]),
        fastest=fastest,
        cheapest=cheapest,
        fastest_costs=fastest.device_seconds_per_epoch / cheapest.device_seconds_per_epoch,
        cheapest_takes=cheapest.epoch_seconds / fastest.epoch_seconds,
    )
