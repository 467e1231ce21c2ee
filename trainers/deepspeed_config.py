"""The exact DeepSpeed configuration of a trial. Pure: neither torch nor DeepSpeed is imported.

DeepSpeed drops unknown top-level keys without a word and fills in defaults that distort a measurement (its throughput
timer synchronises every step; gradient clipping is 1.0 unless it is set), so every key that matters is written out and
what a user may add is an allow-list. Keys: https://www.deepspeed.ai/docs/config-json/
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from trainers.config import Precision, TrialConfig


@dataclass(frozen=True)
class Allowed:
    """What a key of the overrides may hold. `precision`: the one precision at which DeepSpeed reads the key."""

    kind: Literal["bool", "int", "float", "choice"]
    minimum: float | None = None
    choices: tuple[str, ...] = ()
    precision: Precision | None = None
    min_stage: int = 0  # ZeRO stage from which on the key means something

    def problem(self, value: object) -> str | None:
        """What is wrong with `value`, as "must be ...", or None."""
        if self.kind == "choice":
            return None if value in self.choices else f"must be one of {', '.join(self.choices)}"
        if self.kind == "bool":
            return None if isinstance(value, bool) else "must be true or false"
        what = "a whole number" if self.kind == "int" else "a number"
        wanted = f"must be {what}" + ("" if self.minimum is None else f" of at least {self.minimum:g}")
        if isinstance(value, bool) or not isinstance(value, int if self.kind == "int" else (int, float)):
            return wanted
        if not math.isfinite(value) or (self.minimum is not None and value < self.minimum):
            return wanted
        return None


Allowance: TypeAlias = "Allowed | Mapping[str, Allowance]"

_BOOL = Allowed("bool")
_COUNT = Allowed("int", minimum=1)
_ZERO_COUNT = Allowed("int", minimum=1, min_stage=1)
_ZERO_BOOL = Allowed("bool", min_stage=1)
_STAGE3_COUNT = Allowed("int", minimum=0, min_stage=3)

# Left out on purpose: batch keys, precision switches, stage and clipping (parameters of the study), timers, loggers and
# profilers (they distort), paths (a worker's files are not the study's), NVMe offload (needs a path), and whatever
# needs an op compiled in the middle of a trial.
ALLOWED_OVERRIDES: Final[Mapping[str, Allowance]] = {
    "zero_optimization": {
        "contiguous_gradients": _ZERO_BOOL,
        "reduce_scatter": _ZERO_BOOL,
        "reduce_bucket_size": _ZERO_COUNT,
        "use_multi_rank_bucket_allreduce": _ZERO_BOOL,
        "allgather_partitions": _ZERO_BOOL,
        "allgather_bucket_size": _ZERO_COUNT,
        "overlap_comm": _ZERO_BOOL,
        "round_robin_gradients": _ZERO_BOOL,
        "sub_group_size": Allowed("int", minimum=1, min_stage=3),
        "stage3_prefetch_bucket_size": _STAGE3_COUNT,
        "stage3_param_persistence_threshold": _STAGE3_COUNT,
        "stage3_max_live_parameters": _STAGE3_COUNT,
        "stage3_max_reuse_distance": _STAGE3_COUNT,
        "stage3_module_granularity_threshold": _STAGE3_COUNT,
        "offload_optimizer": {
            "device": Allowed("choice", choices=("none", "cpu"), min_stage=1),
            "pin_memory": _ZERO_BOOL,
        },
        "offload_param": {
            "device": Allowed("choice", choices=("none", "cpu"), min_stage=3),
            "pin_memory": Allowed("bool", min_stage=3),
        },
    },
    "fp16": {
        "loss_scale": Allowed("float", minimum=0, precision="fp16"),
        "initial_scale_power": Allowed("int", minimum=0, precision="fp16"),
        "loss_scale_window": Allowed("int", minimum=1, precision="fp16"),
        "hysteresis": Allowed("int", minimum=1, precision="fp16"),
        "consecutive_hysteresis": Allowed("bool", precision="fp16"),
        "min_loss_scale": Allowed("int", minimum=1, precision="fp16"),
    },
    "bf16": {
        "immediate_grad_update": Allowed("bool", precision="bf16"),
        "check_grad_overflow": Allowed("bool", precision="bf16"),
    },
    # At stage 0 DeepSpeed raises for any type but the model's own.
    "data_types": {"grad_accum_dtype": Allowed("choice", choices=("fp32", "bf16", "fp16"), min_stage=1)},
    "communication_data_type": Allowed("choice", choices=("fp32", "bf16", "fp16")),
    "prescale_gradients": _BOOL,
    "gradient_predivide_factor": Allowed("float", minimum=1e-6),
}


@dataclass(frozen=True)
class OverrideProblem:
    """One thing wrong with the overrides. `path`: the keys from their root to the place."""

    path: tuple[str, ...]
    reason: str
    candidates: tuple[str, ...] = ()  # the keys that are allowed at this place, where the key is not

    @property
    def pointer(self) -> str:
        """JSON pointer (RFC 6901) relative to the overrides."""
        return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in self.path)


class OverridesInvalid(ValueError):
    """Overrides that DeepSpeed would refuse, drop, or that would distort the measurement."""

    def __init__(self, problems: list[OverrideProblem]) -> None:
        super().__init__("; ".join(f"deepspeed{problem.pointer}: {problem.reason}" for problem in problems))
        self.problems = problems


def override_problems(
    overrides: Mapping[str, Any], *, zero_stage: int | None = None, precision: Precision | None = None
) -> list[OverrideProblem]:
    """Everything wrong with the overrides.

    Args:
        overrides: the keys to add, nested as in DeepSpeed's own configuration.
        zero_stage, precision: of one point; where given, keys that DeepSpeed would not read at it are problems too.
    """
    return list(_problems(overrides, ALLOWED_OVERRIDES, (), zero_stage, precision))


def _problems(
    given: Mapping[str, Any],
    allowances: Mapping[str, Allowance],
    path: tuple[str, ...],
    zero_stage: int | None,
    precision: Precision | None,
) -> Iterator[OverrideProblem]:
    for key, value in given.items():
        here = (*path, str(key))
        allowance = allowances.get(key)
        if allowance is None:
            yield OverrideProblem(here, "this key may not be set here", tuple(allowances))
        elif isinstance(allowance, Allowed):
            reason = allowance.problem(value) or _unread(allowance, zero_stage, precision)
            if reason is not None:
                yield OverrideProblem(here, reason)
        elif isinstance(value, Mapping):
            yield from _problems(value, allowance, here, zero_stage, precision)
        else:
            yield OverrideProblem(here, f"must be an object with any of: {', '.join(allowance)}")


def _unread(allowance: Allowed, zero_stage: int | None, precision: Precision | None) -> str | None:
    if zero_stage is not None and zero_stage < allowance.min_stage:
        return f"DeepSpeed reads this from ZeRO stage {allowance.min_stage} on only, and the stage is {zero_stage}"
    if precision is not None and allowance.precision not in (None, precision):
        return f"DeepSpeed reads this with precision {allowance.precision} only, and the precision is {precision}"
    return None


def why_not_compiled(zero_stage: int) -> str | None:
    """Why torch.compile is not offered at this ZeRO stage, or None where it is."""
    if zero_stage < 3:
        return None
    # Tried with DeepSpeed 0.19.8 and torch 2.14 on a ViT of 12 blocks: it trains, as 21 graphs with 95 breaks. Its own
    # DeepCompile is for stage 3 with torch up to 2.8 only (deepspeedai/DeepSpeed pull request 7755).
    return (
        "torch.compile is not offered at ZeRO stage 3: DeepSpeed gathers the parameters of each module in hooks that "
        "break the graph into pieces, and what would be measured is no compiled model"
    )


def deepspeed_config(trial: TrialConfig) -> dict[str, Any]:
    """The configuration handed to `deepspeed.initialize`, every key known to DeepSpeed, none derived by it.

    Raises:
        OverridesInvalid: `trial.deepspeed_overrides` holds something outside the allow-list, or unread at this point.
        ValueError: the three batch keys do not agree with the world size, or the stage cannot be compiled.
    """
    expected = trial.train_micro_batch_size_per_gpu * trial.gradient_accumulation_steps * trial.world_size
    if trial.train_batch_size != expected:
        raise ValueError(
            f"train_batch_size {trial.train_batch_size} is not micro batch {trial.train_micro_batch_size_per_gpu} x "
            f"accumulation {trial.gradient_accumulation_steps} x world size {trial.world_size} = {expected}"
        )
    if trial.compile and (reason := why_not_compiled(trial.zero_stage)) is not None:
        raise ValueError(reason)
    problems = override_problems(trial.deepspeed_overrides, zero_stage=trial.zero_stage, precision=trial.precision)
    if problems:
        raise OverridesInvalid(problems)
    config: dict[str, Any] = {
        "train_batch_size": trial.train_batch_size,
        "train_micro_batch_size_per_gpu": trial.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": trial.gradient_accumulation_steps,
        "gradient_clipping": trial.gradient_clipping,
        "zero_optimization": {"stage": trial.zero_stage},
        # torch's own optimizers are handed in: no op is compiled for them. SGD is "untested" with ZeRO, and with
        # offload DeepSpeed would insist on its compiled CPUAdam.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "timers": {"throughput": {"enabled": False, "synchronized": False}},
        "comms_logger": {"enabled": False},
        "wall_clock_breakdown": False,
        "memory_breakdown": False,
        "dump_state": False,
    }
    if trial.precision == "fp16":
        # DeepSpeed's documented defaults, written out: dynamic scaling from 2^16.
        config["fp16"] = {
            "enabled": True,
            "loss_scale": 0,
            "initial_scale_power": 16,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "min_loss_scale": 1,
        }
    elif trial.precision == "bf16":
        config["bf16"] = {"enabled": True}
    return _merged(config, trial.deepspeed_overrides)


def _merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in extra.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = dict(value) if isinstance(value, Mapping) else value
    return merged
