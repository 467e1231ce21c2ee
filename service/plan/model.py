"""What a plan is: the trials to run, in which order, what was refused, and what it may cost."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.job_plan import Placement, WorkerGroup
from trainers.config import TrialConfig
from trainers.memory import ModelStates


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PlannedPoint(_Frozen):
    """One trial: a point of the sweep, in one of its repeats."""

    number: int = Field(
        ge=1
    )  # unique in the study: all points of repeat 0 in product order, then those of repeat 1, ...
    repeat: int = Field(ge=0)
    parameters: dict[str, Any]  # resolved, flat, in the order of PARAMETER_NAMES; null only what a skipped point lacks
    placement_name: str
    placement: Placement
    config: TrialConfig | None  # null for a skipped point only
    memory: ModelStates | None  # of its worst-off worker, by formula; informs, and refuses nothing. null: skipped
    state: Literal["pending", "skipped"]
    skip_reason: str | None
    point_hash: str  # of the parameters: the same for all repeats of a point, and in every study


class Refusal(_Frozen):
    """A point that cannot be, or a part of the specification that no point makes sense of (then without parameters)."""

    parameters: dict[str, Any]
    pointer: str  # to the key of the specification to change
    reason: str
    hint: str | None
    code: str


class PlacementNeed(_Frozen):
    """What the trials of one placement and world size ask of the cluster at once."""

    placement: str
    world_size: int
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
    workers: list[WorkerGroup]  # the counts add up to the world size
    num_cpus_per_worker: int
    num_gpus_per_worker: int | Literal["auto"]
    trials: int  # how many there are


class Plan(_Frozen):
    """`order`: the numbers of the pending trials in the order in which they start.

    `device_seconds_bound`: the sum over pending trials of world size x trial_timeout_seconds x (1 + retries +
    contended_retries). No trial holds its workers longer; a job that is lost and taken up again may run an unfinished
    trial once more.

    `notes`: what is allowed but may not be meant, such as an entry of `exclude` that matches no point.
    """

    trials: list[PlannedPoint]
    refused: list[Refusal]
    order: list[int]
    placement: list[PlacementNeed]
    device_seconds_bound: float
    notes: list[str] = Field(default_factory=list)
