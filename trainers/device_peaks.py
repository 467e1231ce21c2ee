"""Dense peak FLOP/s of known GPUs by precision, for the model FLOPs utilisation. Pure.

From the makers' data sheets, without structured sparsity, at the boost clock, in TFLOP/s with fp32 accumulation where a
sheet tells them apart. fp32 is the plain (non-tensor-core) rate. An unknown device or precision has no entry: the
utilisation is then null rather than a guess.
"""

from typing import Final

from trainers.config import Precision

# Longer names first where one is part of another. Sources: NVIDIA data sheets for T4, P4, V100, A10, A30, A100, A40,
# L4, L40S, H100, H200; the GA102/AD102 white papers for RTX cards.
_TERA: Final[tuple[tuple[str, dict[Precision, float]], ...]] = (
    ("H200", {"fp32": 67.0, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4}),
    ("H100 PCIe", {"fp32": 51.2, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0}),
    ("H100 NVL", {"fp32": 60.0, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5}),
    ("H100 80GB HBM3", {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4}),
    ("A100", {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0}),
    ("A40", {"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7}),
    ("A30", {"fp32": 10.3, "tf32": 82.0, "bf16": 165.0, "fp16": 165.0}),
    ("A10", {"fp32": 31.2, "tf32": 62.5, "bf16": 125.0, "fp16": 125.0}),
    ("L40S", {"fp32": 91.6, "tf32": 183.0, "bf16": 362.0, "fp16": 362.0}),
    ("L4", {"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0}),
    ("V100-PCIE", {"fp32": 14.0, "fp16": 112.0}),
    ("V100-SXM2", {"fp32": 15.7, "fp16": 125.0}),
    ("Tesla T4", {"fp32": 8.1, "fp16": 65.0}),
    ("Tesla P4", {"fp32": 5.5}),
    ("GeForce GTX 1070", {"fp32": 6.5}),
    ("GeForce RTX 3070", {"fp32": 20.3, "tf32": 20.3, "bf16": 40.6, "fp16": 40.6}),
    ("GeForce RTX 3090", {"fp32": 35.6, "tf32": 35.6, "bf16": 71.0, "fp16": 71.0}),
    ("GeForce RTX 4090", {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2}),
)
# Names that contain a known one and are other chips.
_LOOKALIKES: Final = ("3070 Ti", "3090 Ti", "4090 D", "1070 Ti", "Laptop", "Max-Q", "A100X", "L40G")


def dense_peak_flops(device_name: str, precision: Precision) -> float | None:
    """FLOP/s of one device of this name (as CUDA reports it) at this precision, or None where it is not known."""
    if any(name in device_name for name in _LOOKALIKES):
        return None
    words = f" {device_name.replace('NVIDIA', '').strip()} "
    for name, peaks in _TERA:
        # "A10" is not part of "A100", but "A100" is part of "A100-SXM4-80GB".
        if f" {name} " in words or f" {name}-" in words:
            peak = peaks.get(precision)
            return None if peak is None else peak * 1e12
    return None
