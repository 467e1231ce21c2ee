"""plan.json: everything a Ray job needs to run (what is left of) a study. Holds no secret, knows no database."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trainers.config import TrialConfig


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkerGroup(_Strict):
    """`count` workers that need a node with these labels."""

    label_selector: dict[str, str] = Field(default_factory=dict)
    count: int = Field(ge=1)


class Placement(_Strict):
    """Where a trial's workers go. A world size of W takes the first W workers of the list; no list: anywhere."""

    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    workers: list[WorkerGroup] = Field(default_factory=list)

    def label_selectors(self, world_size: int) -> list[dict[str, str]] | None:
        """One selector per worker for the first `world_size` workers, or None where none is asked for."""
        if not self.workers:
            return None
        selectors = [dict(group.label_selector) for group in self.workers for _ in range(group.count)]
        return selectors[:world_size]


class Resources(_Strict):
    """Per worker. `num_gpus` "auto" is resolved when the study starts: 1 where the cluster has GPUs, else 0."""

    num_cpus: int = Field(default=1, ge=1)
    num_gpus: int | Literal["auto"] = "auto"


class Execution(_Strict):
    isolation: Literal["exclusive", "shared"] = "exclusive"
    max_concurrent_trials: int | None = None
    trial_timeout_seconds: float = 900
    queue_timeout_seconds: float = 600
    retries: int = 1
    contended_retries: int = 1
    max_failed_trials: int | None = None


class PlannedTrial(_Strict):
    """One trial of the job. `number` counts from 1 within the study; `attempt` is the trial's own next attempt.

    `contended_attempts`: how many attempts have measured it already and were to be measured once more.
    """

    number: int = Field(ge=1)
    repeat: int = Field(default=0, ge=0)
    attempt: int = Field(default=1, ge=1)
    contended_attempts: int = Field(default=0, ge=0)
    placement: Placement = Placement()
    config: TrialConfig


class JobPlan(_Strict):
    """`trials` is in the order in which they are to start. `attempt` is the study's (the job's) attempt."""

    study: str
    attempt: int = Field(ge=1)
    resources: Resources = Resources()
    execution: Execution = Execution()
    trials: list[PlannedTrial]
