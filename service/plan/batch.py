"""B = b g W: the global batch (images per optimizer step) is micro batch x accumulation x world size.

Two are given, the third follows or the point cannot be. DeepSpeed derives it by floor division before it checks, so it
is derived here, and always all three are passed on.
"""

from dataclasses import dataclass
from typing import Literal

from service.spec.types import MAX_INTEGER


@dataclass(frozen=True)
class Batch:
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    train_batch_size: int


@dataclass(frozen=True)
class Indivisible:
    """`key` is the parameter to change."""

    key: Literal["train_batch_size", "train_micro_batch_size_per_gpu"]
    reason: str
    hint: str


def hold_micro_batch(world_size: int, micro_batch: int, accumulation: int) -> Batch | Indivisible:
    """The global batch follows, and grows with the world size."""
    train_batch_size = micro_batch * accumulation * world_size
    if train_batch_size > MAX_INTEGER:
        return Indivisible(
            "train_micro_batch_size_per_gpu",
            f"the global batch would be {micro_batch} x {accumulation} x {world_size} = {train_batch_size} images",
            f"at most {MAX_INTEGER}",
        )
    return Batch(micro_batch, accumulation, train_batch_size)


def hold_global_batch(
    world_size: int, train_batch_size: int, micro_batch: int | None, accumulation: int | None
) -> Batch | Indivisible:
    """Exactly one of `micro_batch` and `accumulation` is given; the other follows."""
    if micro_batch is not None:
        given, name, derived = micro_batch, "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    else:
        assert accumulation is not None
        given, name, derived = accumulation, "gradient_accumulation_steps", "train_micro_batch_size_per_gpu"
    share = given * world_size
    other, rest = divmod(train_batch_size, share)
    if rest:
        return Indivisible(
            "train_batch_size",
            f"train_batch_size {train_batch_size} is no multiple of {name} x world_size = {given} x {world_size} "
            f"= {share}, so {derived} would be no whole number",
            _nearest_multiples(train_batch_size, share),
        )
    if micro_batch is not None:
        return Batch(micro_batch, other, train_batch_size)
    return Batch(other, given, train_batch_size)


def _nearest_multiples(value: int, unit: int) -> str:
    below = value // unit * unit
    if below == 0:
        return f"the smallest train_batch_size that fits is {unit}"
    return f"the nearest train_batch_size values that fit are {below} and {below + unit}"
