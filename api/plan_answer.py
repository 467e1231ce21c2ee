"""The answer of `POST /studies/plan`, made from the planner's own model."""

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel

if TYPE_CHECKING:
    from service.plan import Plan


class PlannedTrial(BaseModel):
    """One point of the sweep. A skipped one stays listed, with the reason."""

    trial: int
    repeat: int
    parameters: dict[str, Any]
    state: Literal["pending", "skipped"]
    skip_reason: str | None


class RefusedPoint(BaseModel):
    """A point that cannot be: which key is in the way, why, and what would be right."""

    parameters: dict[str, Any]
    pointer: str
    reason: str
    hint: str | None
    code: str


class PlanAnswer(BaseModel):
    """`order` has the trials' numbers in the order of their start; `device_seconds_bound` is an upper bound."""

    trials: list[PlannedTrial]
    refused: list[RefusedPoint]
    placement: list[dict[str, Any]]
    device_seconds_bound: float
    order: list[int]
    notes: list[str]

    @classmethod
    def of(cls, plan: "Plan") -> Self:
        return cls(
            trials=[
                PlannedTrial(
                    trial=point.number,
                    repeat=point.repeat,
                    parameters=point.parameters,
                    state=point.state,
                    skip_reason=point.skip_reason,
                )
                for point in plan.trials
            ],
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
            order=plan.order,
            notes=plan.notes,
        )
