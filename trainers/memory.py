"""The bytes of a trial's model states per worker, by formula. Pure: no torch.

Model states are parameters, gradients and optimizer state with its fp32 master copy: Rajbhandari et al., "ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models", arXiv 1910.02054, section 3.1 (16 bytes per
parameter in mixed precision with Adam) and figure 1 (what each stage shares out). Activations, and what a step copies
for its own time, are not counted. What DeepSpeed 0.19 really keeps differs from the paper, and is what counts here:

- stage 0: torch's optimizer (fp32) or `FP16_UnfusedOptimizer` (bf16, fp16), which adds an fp32 master copy;
- stages 1 and 2: `DeepSpeedZeroOptimizer` (stage_1_and_2.py). The parameters are one flat tensor, padded to a multiple
  of twice the world size. Each worker has a master copy of its part, in fp32 training too: 20 bytes per parameter at
  world size 1. Stage 1 keeps whole gradients from one micro step to the next, stage 2 its part only;
- stage 1 with bf16 and fp32 accumulation: `BF16_Optimizer` (bf16_optimizer.py), with whole fp32 gradients;
- stage 3: `DeepSpeedZeroOptimizer_Stage3` (stage3.py). Every tensor is shared out and padded for itself; those of at
  most `stage3_param_persistence_threshold` elements are kept whole beside their part.

Not in the sum: the communication buckets of `reduce_bucket_size` elements (half a billion unless it is set: 2 GB in
fp32). Stages 1 and 2 hold theirs during each backward pass, stage 3 all the time.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict

from trainers.config import SGD_MOMENTUM, TrialConfig
from trainers.deepspeed_config import deepspeed_config

BYTES_PER_ELEMENT: Final = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_MASTER_BYTES: Final = 4
# DeepSpeed's own defaults (runtime/zero/config.py).
REDUCE_BUCKET_SIZE: Final = 500_000_000
PERSISTENCE_THRESHOLD: Final = 100_000

TensorSizes: TypeAlias = Sequence[tuple[int, int]]
"""A model's tensors as (elements, how many tensors of that size)."""


class ModelStates(BaseModel):
    """Bytes that one worker holds when a backward pass has ended; by formula, or as read back from the engine.

    `host_bytes` of them are in host memory (offload) where the worker trains on a GPU.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    parameter_bytes: int
    gradient_bytes: int
    master_parameter_bytes: int
    optimizer_state_bytes: int
    communication_buffer_bytes: int
    host_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All model states; communication buffers are none."""
        return self.parameter_bytes + self.gradient_bytes + self.master_parameter_bytes + self.optimizer_state_bytes


def model_states(trial: TrialConfig, tensors: TensorSizes) -> ModelStates:
    """What the trial's worst-off worker holds.

    Exact up to: the step counters of torch's optimizers (4 bytes per tensor), and at stages 1 and 2 without fp32
    accumulation the tensors that lie across the border of a worker's part, which it keeps whole (at most twice the
    largest tensor). With offload, DeepSpeed's staging copies in host memory come on top.

    Raises:
        OverridesInvalid: as `deepspeed_config`.
    """
    settings = _Settings(trial, deepspeed_config(trial))
    elements = sum(size * count for size, count in tensors)
    if trial.zero_stage == 0:
        return settings.replicated(elements)
    if trial.zero_stage == 3:
        return settings.all_partitioned(tensors)
    return settings.flat_partitioned(elements)


class _Settings:
    """What of the effective DeepSpeed configuration decides about memory."""

    def __init__(self, trial: TrialConfig, config: dict[str, Any]) -> None:
        zero, data_types = config["zero_optimization"], config.get("data_types", {})
        self.world_size, self.stage = trial.world_size, trial.zero_stage
        self.model_type = "fp32" if trial.precision == "tf32" else trial.precision
        self.gradient_type = data_types.get("grad_accum_dtype") or self.model_type
        self.communication_type = config.get("communication_data_type") or self.model_type
        self.accumulates = trial.gradient_accumulation_steps > 1
        self.moments = 2 if trial.optimizer == "adamw" else int(SGD_MOMENTUM != 0)
        self.keeps_low_precision_gradients = not config.get("bf16", {}).get("immediate_grad_update", False)
        self.bucket_elements = int(zero.get("reduce_bucket_size", REDUCE_BUCKET_SIZE))
        self.has_flat_buckets = bool(zero.get("contiguous_gradients", True))
        self.num_buckets = 2 if zero.get("overlap_comm", False) else 1
        self.persistence_threshold = int(zero.get("stage3_param_persistence_threshold", PERSISTENCE_THRESHOLD))
        self.offloads_optimizer = zero.get("offload_optimizer", {}).get("device", "none") != "none"
        self.offloads_parameters = zero.get("offload_param", {}).get("device", "none") != "none"

    @property
    def model_bytes(self) -> int:
        return BYTES_PER_ELEMENT[self.model_type]

    @property
    def gradient_bytes(self) -> int:
        return BYTES_PER_ELEMENT[self.gradient_type]

    def replicated(self, elements: int) -> ModelStates:
        """Stage 0: everything on every worker."""
        has_master = self.model_type != "fp32"
        return ModelStates(
            parameter_bytes=self.model_bytes * elements,
            gradient_bytes=self.model_bytes * elements,
            master_parameter_bytes=_MASTER_BYTES * elements if has_master else 0,
            optimizer_state_bytes=self.moments * _MASTER_BYTES * elements,
            communication_buffer_bytes=0,
        )

    def flat_partitioned(self, elements: int) -> ModelStates:
        """Stages 1 and 2."""
        unit = 2 * self.world_size
        padded = -(-elements // unit) * unit
        part = padded // self.world_size
        if (
            self.stage == 1
            and (self.model_type, self.gradient_type) == ("bf16", "fp32")
            and not self.offloads_optimizer
        ):
            # BF16_Optimizer: a flat fp32 gradient of everything, and the bf16 one until it has been added to it.
            low = self.model_bytes * elements if self.keeps_low_precision_gradients else 0
            gradients, bucket_bytes = _MASTER_BYTES * padded + low, 0
        else:
            is_whole = self.stage == 1 and self.accumulates
            gradients = self.gradient_bytes * (elements if is_whole else part)
            element_bytes = self.gradient_bytes if self.stage == 1 else self.model_bytes
            bucket_bytes = self.bucket_elements * element_bytes * self.num_buckets if self.has_flat_buckets else 0
        return self._shared_out(self.model_bytes * padded, gradients, part, bucket_bytes)

    def all_partitioned(self, tensors: TensorSizes) -> ModelStates:
        """Stage 3."""
        part = sum(-(-size // self.world_size) * count for size, count in tensors)
        kept_whole = 0
        if self.world_size > 1:
            kept_whole = sum(size * count for size, count in tensors if size <= self.persistence_threshold)
        bucket_bytes = self.bucket_elements * BYTES_PER_ELEMENT[self.communication_type] if self.has_flat_buckets else 0
        return self._shared_out(
            self.model_bytes * (part + kept_whole),
            self.gradient_bytes * part,
            part,
            bucket_bytes,
            host_parameters=self.model_bytes * part if self.offloads_parameters else 0,
        )

    def _shared_out(
        self, parameters: int, gradients: int, part: int, bucket_bytes: int, host_parameters: int = 0
    ) -> ModelStates:
        master, moments = _MASTER_BYTES * part, self.moments * _MASTER_BYTES * part
        host = host_parameters
        if self.offloads_optimizer:
            # The fp32 gradients of the part wait beside the optimizer's state; at stage 3 the others stay as they are.
            waiting = _MASTER_BYTES * part
            gradients = gradients + waiting if self.stage == 3 or self.accumulates else waiting
            host += master + moments + waiting
        return ModelStates(
            parameter_bytes=parameters,
            gradient_bytes=gradients,
            master_parameter_bytes=master,
            optimizer_state_bytes=moments,
            communication_buffer_bytes=bucket_bytes,
            host_bytes=host,
        )
