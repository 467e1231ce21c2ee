"""Planning: a specification becomes trials, and every point that cannot be is named.

Pure: no torch, no Ray, no store.
"""

from service.plan.model import PlacementNeed, Plan, PlannedPoint, Refusal
from service.plan.planner import MAX_TRIALS, plan

__all__ = ["MAX_TRIALS", "PlacementNeed", "Plan", "PlannedPoint", "Refusal", "plan"]
