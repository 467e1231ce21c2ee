"""The bytes that a worker exchanges in one optimizer step, by formula. Pure: no torch.

Rajbhandari et al., "ZeRO", arXiv 1910.02054, section 7, gives the volume of each stage: 2 x the parameters up to stage
2, 3 x at stage 3. What DeepSpeed 0.19 really sends differs from it, and is what counts here, read from its source:

- stage 0 (engine.py, `allreduce_gradients`): one all-reduce of the gradients at the accumulation boundary;
- stages 1 and 2 (stage_1_and_2.py, `average_tensor`, `step`): with `use_multi_rank_bucket_allreduce`, the default, the
  gradients are all-reduced and not scattered, else reduced to their owners one by one: stage 1 at the boundary, stage
  2 in every micro step. After the update all parameters, flat and padded, are gathered;
- stage 1 with bf16 and fp32 accumulation (bf16_optimizer.py): the same with the flat, padded gradient;
- stage 3 (stage3.py, partitioned_param_coordinator.py): in every micro step a reduce-scatter of the gradients, each
  tensor padded for itself, and a gathering of the parameters, which stay for the backward pass unless it is further
  away than `stage3_max_reuse_distance`. Tensors of at most `stage3_param_persistence_threshold` elements are gathered
  once, after the update.

Besides: a number or a flag for the gradient's norm and for overflow. What DeepSpeed exchanges at stage 3 while it still
learns the order of the modules (the first two micro steps) is not in it.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from trainers.config import TrialConfig
from trainers.deepspeed_config import deepspeed_config
from trainers.memory import BYTES_PER_ELEMENT, PERSISTENCE_THRESHOLD, REDUCE_BUCKET_SIZE, TensorSizes
from trainers.parts.rows import Collective

Operation: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "all_to_all"]

# DeepSpeed's own defaults (runtime/zero/config.py), and the engine's bucket at stage 0 (MEMORY_OPT_ALLREDUCE_SIZE).
_ENGINE_BUCKET_SIZE: Final = 500_000_000
_PREFETCH_BUCKET_SIZE: Final = 50_000_000
_MAX_REUSE_DISTANCE: Final = 1_000_000_000
_SUB_GROUP_SIZE: Final = 1_000_000_000
_FLAG_BYTES: Final = 1
_NORM_BYTES: Final = 4
_STAGE3_NORM_BYTES: Final = 8  # summed in fp64, but for offload


def wire_bytes(operation: Operation, payload_bytes: float, group_size: int) -> float:
    """What one worker of `group_size` sends, in the best algorithm; of a reduce or broadcast the mean over workers.

    nccl-tests, PERFORMANCE.md: an all-reduce sends 2 (p - 1) / p of its size, a reduce-scatter or an all-gather half of
    that. A reduce or a broadcast has p - 1 workers send the size once.
    """
    passes = 2 if operation == "all_reduce" else 1
    return passes * (group_size - 1) / group_size * payload_bytes


def total_wire_bytes(collectives: Sequence[Collective]) -> float:
    """What one worker sends in all of them."""
    return sum(collective.wire_bytes for collective in collectives)


def step_traffic(trial: TrialConfig, tensors: TensorSizes) -> list[Collective]:
    """The collectives of one optimizer step, a row for each operation; none at world size 1.

    Bytes are exact, for tensors that are all trained, but for one case: at stage 3 a model whose parameters twice over
    exceed `stage3_max_reuse_distance` (from half a billion parameters on) gathers some of them a second time in the
    backward pass. How many depends on prefetching, too: with it they are taken to be none (3 % were seen), without it
    a share by size. Calls are exact where the gradients fit in one bucket; of the gatherings at stage 3, whose calls
    follow the order of the modules, there are at least so many.

    Raises:
        OverridesInvalid: as `deepspeed_config`.
    """
    if trial.world_size == 1:
        return []
    step = _Step(trial, deepspeed_config(trial), tensors)
    if trial.zero_stage == 0:
        step.replicated()
    elif trial.zero_stage == 3:
        step.all_partitioned()
    else:
        step.flat_partitioned()
    return step.collectives()


class _Step:
    """The exchange of one step, added up by operation."""

    def __init__(self, trial: TrialConfig, config: dict[str, Any], tensors: TensorSizes) -> None:
        self.zero: dict[str, Any] = config["zero_optimization"]
        self.world_size, self.stage, self.tensors = trial.world_size, trial.zero_stage, tensors
        self.micro_steps = trial.gradient_accumulation_steps
        self.model_type = "fp32" if trial.precision == "tf32" else trial.precision
        self.gradient_type = config.get("data_types", {}).get("grad_accum_dtype") or self.model_type
        self.model_bytes = BYTES_PER_ELEMENT[self.model_type]
        self.sent_bytes = BYTES_PER_ELEMENT[config.get("communication_data_type") or self.model_type]
        self.clips = trial.gradient_clipping > 0
        self.checks_bf16_overflow = bool(config.get("bf16", {}).get("check_grad_overflow", True))
        self.offloads_optimizer = self.zero.get("offload_optimizer", {}).get("device", "none") != "none"
        self.elements = sum(size * count for size, count in tensors)
        self._calls: dict[Operation, int] = {}
        self._payload: dict[Operation, int] = {}

    def replicated(self) -> None:
        """Stage 0."""
        self.add("all_reduce", self.elements * self.sent_bytes, calls=_parts(self.elements, _ENGINE_BUCKET_SIZE))
        if self.clips and self.model_type == "fp32":
            self.add("all_reduce", _NORM_BYTES)

    def flat_partitioned(self) -> None:
        """Stages 1 and 2."""
        unit = 2 * self.world_size
        padded = _parts(self.elements, unit) * unit
        has_bf16_optimizer = (
            self.stage == 1
            and (self.model_type, self.gradient_type) == ("bf16", "fp32")
            and not self.offloads_optimizer
        )
        if has_bf16_optimizer:
            self.add("all_reduce", padded * self.sent_bytes)
        else:
            for _ in range(self.micro_steps if self.stage == 2 else 1):
                self.reduce_buckets()
            self.add("all_reduce", _NORM_BYTES)
            if self.model_type == "fp16" or (self.model_type == "bf16" and self.checks_bf16_overflow):
                self.add("all_reduce", _FLAG_BYTES)
        self.add("all_gather", padded * self.model_bytes)

    def reduce_buckets(self) -> None:
        """The gradients at stages 1 and 2."""
        is_flat = bool(self.zero.get("contiguous_gradients", True)) or self.offloads_optimizer
        goes_to_owners = (
            is_flat
            and bool(self.zero.get("reduce_scatter", True))
            and not self.zero.get("use_multi_rank_bucket_allreduce", True)
        )
        buckets = _parts(self.elements, self.bucket_elements)
        if goes_to_owners:
            self.add("reduce", self.elements * self.sent_bytes, calls=buckets * self.world_size)
        else:
            self.add("all_reduce", self.elements * self.sent_bytes, calls=buckets)

    def all_partitioned(self) -> None:
        """Stage 3."""
        threshold = int(self.zero.get("stage3_param_persistence_threshold", PERSISTENCE_THRESHOLD))
        kept = [(size, count) for size, count in self.tensors if size <= threshold]
        shared = [(size, count) for size, count in self.tensors if size > threshold]
        is_flat, scatters = bool(self.zero.get("contiguous_gradients", True)), self.zero.get("reduce_scatter", True)
        gathers = self.gathers_in_a_micro_step(shared)
        for _ in range(self.micro_steps):
            buckets = _parts(self.elements, self.bucket_elements)
            if is_flat and not scatters:
                self.add("all_reduce", self.elements * self.sent_bytes, calls=buckets)
            else:
                self.add("reduce_scatter", self.padded(self.tensors) * self.sent_bytes, calls=buckets)
            if shared:
                self.add("all_gather", round(self.padded(shared) * gathers) * self.model_bytes)
        if kept:
            self.add("all_gather", self.padded(kept) * self.model_bytes, calls=sum(count for _, count in kept))
        part = self.padded(self.tensors) // self.world_size
        for _ in range(_parts(part, int(self.zero.get("sub_group_size", _SUB_GROUP_SIZE)))):
            self.add("all_reduce", _NORM_BYTES if self.offloads_optimizer else _STAGE3_NORM_BYTES)
        if self.model_type == "fp16":
            self.add("all_reduce", _FLAG_BYTES)

    def gathers_in_a_micro_step(self, shared: TensorSizes) -> float:
        """How often a shared-out parameter is gathered: 1 where it stays for the backward pass, 2 where it does not.

        A parameter after x of all N elements is used again after 2 (N - x) more of them.
        """
        reach = int(self.zero.get("stage3_max_reuse_distance", _MAX_REUSE_DISTANCE))
        prefetched = int(self.zero.get("stage3_prefetch_bucket_size", _PREFETCH_BUCKET_SIZE))
        if not shared or prefetched > 0:
            return 1.0
        return 2.0 - min(1.0, reach / (2 * self.elements))

    @property
    def bucket_elements(self) -> int:
        return int(self.zero.get("reduce_bucket_size", REDUCE_BUCKET_SIZE))

    def padded(self, tensors: TensorSizes) -> int:
        """Elements, each tensor filled up to a multiple of the world size."""
        return sum(_parts(size, self.world_size) * self.world_size * count for size, count in tensors)

    def add(self, operation: Operation, payload_bytes: int, calls: int = 1) -> None:
        self._calls[operation] = self._calls.get(operation, 0) + calls
        self._payload[operation] = self._payload.get(operation, 0) + payload_bytes

    def collectives(self) -> list[Collective]:
        """A row for each operation, by name."""
        return [
            Collective(
                operation=operation,
                calls=self._calls[operation],
                payload_bytes=self._payload[operation],
                wire_bytes=wire_bytes(operation, self._payload[operation], self.world_size),
            )
            for operation in sorted(self._payload)
        ]


def _parts(whole: int, size: int) -> int:
    """How many pieces of at most `size` make the whole."""
    return -(-whole // size)
