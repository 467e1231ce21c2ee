"""A lower bound of the time that training takes, so low that no device beats it: only what cannot work is refused.

Two floors, of which the larger holds, per worker:
- arithmetic: every weight of the blocks is multiplied and added once per patch, forward and twice backward: at least
  3 x 1.8 FLOP x weights x patches per image (1.8 for 2: norms and pooling heads count less; attention comes on top),
  at a peak above any device's;
- launches: a forward and backward pass through one block is at least 20 kernels or calls of a microsecond each,
  however small the batch is (DeepSpeed runs eagerly; what is measured here is no captured graph).
"""

from service.models import ModelFacts
from trainers.config import Precision

# Dense FLOP/s per device: several times what the fastest of 2025 have (B300, MI355X: 2.5e15 in half precision,
# 1.3e15 in TF32, 1.6e14 in fp32).
_UNREACHED_FLOPS_PER_SECOND: dict[Precision, float] = {"fp32": 5e14, "tf32": 5e15, "bf16": 1e16, "fp16": 1e16}
_CALLS_PER_BLOCK = 20
_SECONDS_PER_CALL = 1e-6


def least_epoch_seconds(
    facts: ModelFacts,
    *,
    image_size: int,
    patch_size: int,
    precision: Precision,
    micro_batch: int,
    micro_steps_per_epoch: int,
) -> float:
    """Seconds that one epoch takes at the very least. `micro_steps_per_epoch` = steps per epoch x accumulation."""
    patches = (image_size // patch_size) ** 2
    flops_per_image = 3 * 1.8 * facts.parameters.constant * patches
    arithmetic = flops_per_image * micro_batch / _UNREACHED_FLOPS_PER_SECOND[precision]
    launches = facts.depth * _CALLS_PER_BLOCK * _SECONDS_PER_CALL
    return micro_steps_per_epoch * max(arithmetic, launches)
