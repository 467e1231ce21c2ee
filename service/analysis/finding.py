"""What a finding is: a code, one sentence that a person can act on, and the evidence that it rests on."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Severity = Literal["info", "warning", "critical"]


class FindingCode(StrEnum):
    """What was found. The rules are in `service.analysis.findings`."""

    SWEET_SPOT = "SWEET_SPOT"  # the micro batch to take
    NEAR_IDEAL = "NEAR_IDEAL"  # more workers pay off in full, as far as was measured
    COMMUNICATION_BOUND = "COMMUNICATION_BOUND"
    DATA_BOUND = "DATA_BOUND"
    STRAGGLER = "STRAGGLER"
    SLOW_LINK = "SLOW_LINK"  # of a node, or between two
    SLOWDOWN = "SLOWDOWN"  # more workers train slower
    MEMORY_FRONTIER = "MEMORY_FRONTIER"
    MIXED_HARDWARE = "MIXED_HARDWARE"
    BASELINE_SUSPECT = "BASELINE_SUSPECT"  # more than perfect scaling
    DRIFT = "DRIFT"
    NOISE_TOO_HIGH = "NOISE_TOO_HIGH"
    ACCURACY_DROP = "ACCURACY_DROP"
    PRECISION = "PRECISION"


class Finding(BaseModel):
    """`evidence` has the numbers behind the message, and the trials' numbers under `trials`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    code: FindingCode
    severity: Severity
    message: str
    evidence: dict[str, Any]
