"""What holds for every specification, shown on many."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from service.plan import plan
from service.spec import PARAMETER_NAMES, WORKLOAD_AXES, parse_spec
from tests.service.spec_samples import COMPLETE, refused

# The places of a specification where any name is allowed: placements have names of their own, labels too.
_FREE_NAMES = {
    "/placements",
    "/placements/mixed/workers/0/label_selector",
    "/placements/mixed/workers/1/label_selector",
}

quick = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def mappings(data: object, pointer: str = "") -> Iterator[str]:
    """Pointers to all mappings in the data."""
    if isinstance(data, dict):
        if pointer not in _FREE_NAMES:
            yield pointer
        for key, value in data.items():
            yield from mappings(value, f"{pointer}/{key}")
    elif isinstance(data, list):
        for position, value in enumerate(data):
            yield from mappings(value, f"{pointer}/{position}")


def at(data: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data


ALL_KEYS = sorted({key for pointer in mappings(COMPLETE) for key in at(COMPLETE, pointer)})
keys = (
    st.text(min_size=1, max_size=20) | st.sampled_from(ALL_KEYS) | st.sampled_from(ALL_KEYS).map(lambda key: f"{key}s")
)


def is_allowed(where: str, key: str) -> bool:
    return (
        key in at(COMPLETE, where)
        or key in {"value", "values", *WORKLOAD_AXES}
        or (where.startswith("/exclude") and key in PARAMETER_NAMES)
    )


@quick
@given(where=st.sampled_from(sorted(mappings(COMPLETE))), key=keys, value=st.none() | st.integers() | st.text())
def test_an_unknown_key_at_any_depth_is_refused_with_its_pointer(where: str, key: str, value: object) -> None:
    assume(not is_allowed(where, key))
    data = copy.deepcopy(COMPLETE)
    at(data, where)[key] = value
    _, items = refused(data)
    escaped = key.replace("~", "~0").replace("/", "~1")
    assert f"{where}/{escaped}" in [item.pointer for item in items]


def test_every_depth_is_tried() -> None:
    assert {pointer.count("/") for pointer in mappings(COMPLETE)} == {0, 1, 2, 4}
    assert len(list(mappings(COMPLETE))) > 25


@st.composite
def sweeps(draw: st.DrawFn) -> dict[str, Any]:
    """Small studies with random axes, both ways to hold the batch, and exclusions."""

    def axis(values: list[Any]) -> dict[str, Any]:
        return {"values": draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))}

    parameters: dict[str, Any] = {
        "model": axis(["vit_tiny_patch16_224", "vit_small_patch32_224"]),
        "world_size": axis([1, 2, 3, 4]),
        "zero_stage": axis([0, 1, 2, 3]),
        "activation_checkpointing": axis([False, True]),
        "compile": axis([False, True]),
    }
    hold = draw(st.sampled_from(["micro_batch", "global_batch"]))
    if hold == "micro_batch":
        parameters["train_micro_batch_size_per_gpu"] = axis([1, 2, 8])
        parameters["gradient_accumulation_steps"] = axis([1, 2, 3])
    else:
        parameters["train_batch_size"] = axis([4, 12, 16])
        derived = ["train_micro_batch_size_per_gpu", "gradient_accumulation_steps"]
        parameters[draw(st.sampled_from(derived))] = axis([1, 2])
    data: dict[str, Any] = {
        "name": "sweep",
        "scaling": {"hold": hold},
        "workload": {"image_size": 64, "seed": draw(st.integers(0, 9))},
        "parameters": parameters,
        "on_indivisible": draw(st.sampled_from(["error", "skip"])),
        "measurement": {"repeats": draw(st.integers(1, 2)), "order": draw(st.sampled_from(["random", "given"]))},
    }
    entries = []
    for _ in range(draw(st.integers(0, 2))):
        chosen = draw(st.lists(st.sampled_from(sorted(parameters)), min_size=1, max_size=3, unique=True))
        entries.append({key: draw(st.sampled_from(parameters[key]["values"])) for key in chosen})
    return {**data, "exclude": entries} if entries else data


def expected_points(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The product less exclusions, counted without the planner."""
    parameters = data["parameters"]
    points = [
        dict(zip(parameters, values, strict=True))
        for values in itertools.product(*(axis["values"] for axis in parameters.values()))
    ]
    return [point for point in points if not any(entry.items() <= point.items() for entry in data.get("exclude", []))]


def as_set(points: list[dict[str, Any]], axes: list[str]) -> set[tuple[Any, ...]]:
    return {tuple(point[axis] for axis in axes) for point in points}


@quick
@given(data=sweeps())
def test_planned_skipped_and_refused_points_are_exactly_the_product_less_exclusions(data: dict[str, Any]) -> None:
    result = plan(parse_spec(data))
    axes = list(data["parameters"])
    first = [trial.parameters for trial in result.trials if trial.repeat == 0]
    codes = {"INDIVISIBLE_BATCH", "COMPILE_NOT_SUPPORTED"}
    refused_points = [refusal.parameters for refusal in result.refused if refusal.code in codes]
    assert as_set(first + refused_points, axes) == as_set(expected_points(data), axes)
    assert len(first) + len(refused_points) == len(expected_points(data))


@quick
@given(data=sweeps())
def test_the_batch_is_micro_batch_times_accumulation_times_world_size(data: dict[str, Any]) -> None:
    result = plan(parse_spec(data))
    for trial in result.trials:
        if trial.state == "pending":
            point, config = trial.parameters, trial.config
            assert point["train_batch_size"] == (
                point["train_micro_batch_size_per_gpu"] * point["gradient_accumulation_steps"] * point["world_size"]
            )
            assert config is not None
            assert config.model_dump().items() >= {k: v for k, v in point.items() if k != "placement"}.items()
    indivisible = [r.parameters for r in result.refused if r.code == "INDIVISIBLE_BATCH"]
    indivisible += [trial.parameters for trial in result.trials if trial.state == "skipped"]
    for point in indivisible:
        share = (point["train_micro_batch_size_per_gpu"] or point["gradient_accumulation_steps"]) * point["world_size"]
        assert point["train_batch_size"] % share


@quick
@given(data=sweeps())
def test_numbers_hashes_and_order_are_unique_complete_and_the_same_every_time(data: dict[str, Any]) -> None:
    result = plan(parse_spec(data))
    repeats = data["measurement"]["repeats"]
    assert [trial.number for trial in result.trials] == list(range(1, len(result.trials) + 1))
    assert len({(trial.point_hash, trial.repeat) for trial in result.trials}) == len(result.trials)
    assert len({trial.point_hash for trial in result.trials}) * repeats == len(result.trials)
    assert sorted(result.order) == [trial.number for trial in result.trials if trial.state == "pending"]
    assert plan(parse_spec(data)) == result
