"""The `deepspeed` key: overrides are checked against the trainers' allow-list, which knows what DeepSpeed reads."""

from collections.abc import Iterator
from typing import Any

from service.errors import ErrorItem
from service.spec.model import PARAMETER_NAMES
from service.spelling import closest
from trainers.deepspeed_config import OverrideProblem, override_problems

# DeepSpeed's keys that are parameters of the study under another name.
_STUDY_PARAMETER = {
    ("zero_optimization", "stage"): "zero_stage",
    ("fp16", "enabled"): "precision",
    ("bf16", "enabled"): "precision",
    ("optimizer",): "optimizer, learning_rate and weight_decay",
    ("activation_checkpointing",): "activation_checkpointing",
    ("data_types",): "precision",
} | {(name,): name for name in PARAMETER_NAMES}


def override_errors(overrides: dict[str, Any]) -> Iterator[ErrorItem]:
    """Keys and values that may not be overridden at any point of the study."""
    for problem in override_problems(overrides):
        yield ErrorItem(f"/deepspeed{problem.pointer}", *_explained(problem, overrides))


def _explained(problem: OverrideProblem, overrides: dict[str, Any]) -> tuple[str, str | None]:
    value: Any = overrides
    for key in problem.path:
        value = value[key]
    if value == "auto" and not problem.candidates:
        return (
            f'"auto" is not a value that DeepSpeed reads: {problem.reason}',
            "write the value itself, or leave the key out for DeepSpeed's default",
        )
    if not problem.candidates:
        return problem.reason, None
    key = problem.path[-1]
    detail = f"unknown key {key[:60]}" if problem.path not in _STUDY_PARAMETER else f"{key} may not be overridden"
    if problem.path in _STUDY_PARAMETER:
        return detail, f"set {_STUDY_PARAMETER[problem.path]} under /parameters"
    if matches := closest(key, problem.candidates):
        return f"{detail}, or one that may not be overridden", f"did you mean {matches[0]}?"
    if matches := closest(key, PARAMETER_NAMES):
        return f"{detail}, or one that may not be overridden", f"did you mean {matches[0]} (under /parameters)?"
    return f"{detail}, or one that may not be overridden", f"allowed here: {', '.join(problem.candidates)}"
