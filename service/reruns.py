"""Whether a trial is run once more after an attempt, by its driver function itself. Pure."""

from dataclasses import dataclass

from service.job_plan import Execution, PlannedTrial
from service.trial_attempt import Outcome
from trainers.telemetry.verdict import CONTENDED


@dataclass
class Reruns:
    """How many more runs a trial may have: after failures that may pass, and of a measurement that was contended."""

    after_failure: int
    after_contention: int

    @classmethod
    def of(cls, planned: PlannedTrial, execution: Execution) -> "Reruns":
        return cls(execution.retries, max(0, execution.contended_retries - planned.contended_attempts))

    def take_one(self, outcome: Outcome) -> bool:
        """Whether there is one more run after this outcome; it is then used up."""
        if outcome.failure is not None:
            taken = outcome.failure.reason.is_retried and self.after_failure > 0
            self.after_failure -= taken
            return taken
        taken = outcome.result is not None and CONTENDED in outcome.result.quality.flags and self.after_contention > 0
        self.after_contention -= taken
        return taken
