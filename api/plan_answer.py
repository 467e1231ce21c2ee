"""The answer of `POST /studies/plan`, made from the planner's own model."""

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel

if TYPE_CHECKING:
    from service.plan import Plan
    from service.plan.model import PlannedPoint


class PlannedMemory(BaseModel):
    """Bytes of model states on the trial's worst-off worker, by formula; activations come on top.

    `model_state_bytes` is the sum of the parts but `communication_buffer_bytes`, which DeepSpeed holds besides;
    `host_bytes` of it are in host memory (offload).
    """

    model_state_bytes: int
    parameter_bytes: int
    gradient_bytes: int
    master_parameter_bytes: int
    optimizer_state_bytes: int
    communication_buffer_bytes: int
    host_bytes: int


class PlannedTrial(BaseModel):
    """One point of the sweep. A skipped one stays listed, with the reason and without an estimate of memory."""

    trial: int
    repeat: int
    parameters: dict[str, Any]
    state: Literal["pending", "skipped"]
    skip_reason: str | None
    memory: PlannedMemory | None


class LargestMemory(BaseModel):
    """The trial whose model states take the most memory of a worker."""

    trial: int
    model_state_bytes: int
    communication_buffer_bytes: int


class RefusedPoint(BaseModel):
    """A point that cannot be: which key is in the way, why, and what would be right."""

    parameters: dict[str, Any]
    pointer: str
    reason: str
    hint: str | None
    code: str


class PlanAnswer(BaseModel):
    """`order` has the trials' numbers in the order of their start; `device_seconds_bound` is an upper bound.

    `largest_memory` is the trial with the most model states and buffers on one worker; null where none is to run.
    """

    trials: list[PlannedTrial]
    refused: list[RefusedPoint]
    placement: list[dict[str, Any]]
    device_seconds_bound: float
    largest_memory: LargestMemory | None
    order: list[int]
    notes: list[str]

    @classmethod
    def of(cls, plan: "Plan") -> Self:
        trials = [_planned(point) for point in plan.trials]
        return cls(
            trials=trials,
            refused=[
                RefusedPoint(
                    parameters=each.parameters,
                    pointer=each.pointer,
                    reason=each.reason,
                    hint=each.hint,
                    code=each.code,
                )
                for each in plan.refused
            ],
            placement=[each.model_dump(mode="json") for each in plan.placement],
            device_seconds_bound=plan.device_seconds_bound,
            largest_memory=_largest(trials),
            order=plan.order,
            notes=plan.notes,
        )


def _planned(point: "PlannedPoint") -> PlannedTrial:
    memory = point.memory
    return PlannedTrial(
        trial=point.number,
        repeat=point.repeat,
        parameters=point.parameters,
        state=point.state,
        skip_reason=point.skip_reason,
        memory=None if memory is None else PlannedMemory(model_state_bytes=memory.total_bytes, **memory.model_dump()),
    )


def _largest(trials: list[PlannedTrial]) -> LargestMemory | None:
    estimated = [(trial.trial, trial.memory) for trial in trials if trial.memory is not None]
    if not estimated:
        return None
    # The first of the trials that need the most.
    number, memory = max(
        estimated, key=lambda one: (one[1].model_state_bytes + one[1].communication_buffer_bytes, -one[0])
    )
    return LargestMemory(
        trial=number,
        model_state_bytes=memory.model_state_bytes,
        communication_buffer_bytes=memory.communication_buffer_bytes,
    )
