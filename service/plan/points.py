"""The product of the axes, with what follows from the given values filled in."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from service.models import model_table
from service.plan.batch import Batch, Indivisible, hold_global_batch, hold_micro_batch
from service.spec.model import PARAMETER_NAMES, WORKLOAD_AXES, StudySpec


@dataclass(frozen=True)
class Candidate:
    """A point of the product. `parameters` has every name of PARAMETER_NAMES; what cannot be derived is null."""

    parameters: dict[str, Any]
    indivisible: Indivisible | None


def axis_values(spec: StudySpec) -> dict[str, list[Any]]:
    """The values each parameter takes, in the order of PARAMETER_NAMES; [None] where it follows from others."""
    values: dict[str, list[Any]] = {}
    for name in PARAMETER_NAMES:
        axis = spec.parameters.axis(name)
        if axis is not None:
            values[name] = axis.all
        else:
            values[name] = [getattr(spec.workload, name) if name in WORKLOAD_AXES else None]
    return values


def count_candidates(spec: StudySpec) -> int:
    """How many points the product has, from the lengths of the axes alone."""
    return math.prod(len(values) for values in axis_values(spec).values())


def candidates(spec: StudySpec) -> Iterator[Candidate]:
    """All points of the product, the last parameter varying fastest; nothing is left out or checked."""
    values = axis_values(spec)
    for combination in itertools.product(*values.values()):
        parameters = dict(zip(values, combination, strict=True))
        facts = model_table().get(parameters["model"])
        if parameters["patch_size"] is None and facts is not None:
            parameters["patch_size"] = facts.patch_size
        batch = _batch(spec, parameters)
        if isinstance(batch, Batch):
            parameters.update(vars(batch))
            yield Candidate(parameters, None)
        else:
            yield Candidate(parameters, batch)


def _batch(spec: StudySpec, parameters: dict[str, Any]) -> Batch | Indivisible:
    world_size, micro_batch = parameters["world_size"], parameters["train_micro_batch_size_per_gpu"]
    accumulation = parameters["gradient_accumulation_steps"]
    if spec.scaling.hold == "micro_batch":
        return hold_micro_batch(world_size, micro_batch, 1 if accumulation is None else accumulation)
    return hold_global_batch(world_size, parameters["train_batch_size"], micro_batch, accumulation)
