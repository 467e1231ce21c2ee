"""Dense peak FLOP/s of known GPUs by precision, for the model FLOPs utilisation. Pure.

From the makers' data sheets, without structured sparsity (where a sheet gives the sparse rate only: half of it), at the
boost clock, with fp32 accumulation where a sheet tells them apart. fp32 is the plain (non-tensor-core) rate. An unknown
device or precision has no entry: the utilisation is then null rather than a guess. Every number was looked up in two
places or in a quotation of its sheet; what could not be confirmed is not here.
"""

from dataclasses import dataclass
from typing import Final

from trainers.config import Precision


@dataclass(frozen=True)
class Peak:
    """`flops_per_second` of one device, dense, and the data sheet that says so."""

    flops_per_second: float
    source: str


@dataclass(frozen=True)
class _Sheet:
    """A device by a part of its CUDA name, and what its data sheet gives in TFLOP/s."""

    name: str
    source: str
    tera: dict[Precision, float]


# Longer names first where one is part of another.
_SHEETS: Final = (
    _Sheet("H200 NVL", "NVIDIA H200 data sheet (NVL; half of the sparse rate)", {"bf16": 835.5, "fp16": 835.5}),
    _Sheet(
        "H200",
        "NVIDIA H100 architecture white paper (GH100 SXM5); H200 data sheet",
        {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4},
    ),
    _Sheet(
        "H100 PCIe",
        "NVIDIA H100 PCIe data sheet (half of the sparse rates)",
        {"fp32": 51.2, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0},
    ),
    _Sheet("H100 NVL", "NVIDIA H100 data sheet (NVL; half of the sparse rate)", {"bf16": 835.5, "fp16": 835.5}),
    _Sheet(
        "H100 80GB HBM3",
        "NVIDIA H100 architecture white paper (SXM5)",
        {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4},
    ),
    _Sheet("A100", "NVIDIA A100 data sheet", {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0}),
    _Sheet("A40", "NVIDIA A40 data sheet", {"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7}),
    _Sheet("A30", "NVIDIA A30 data sheet", {"tf32": 82.0, "bf16": 165.0, "fp16": 165.0}),
    _Sheet("A10", "NVIDIA A10 data sheet", {"fp32": 31.2, "tf32": 62.5, "bf16": 125.0, "fp16": 125.0}),
    _Sheet("L40S", "NVIDIA L40S data sheet", {"fp32": 91.6, "tf32": 183.0, "bf16": 362.0, "fp16": 362.0}),
    _Sheet("L4", "NVIDIA L4 data sheet", {"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0}),
    _Sheet("V100-PCIE", "NVIDIA Tesla V100 data sheet (PCIe)", {"fp32": 14.0, "fp16": 112.0}),
    _Sheet("V100-SXM2", "NVIDIA Tesla V100 data sheet (SXM2)", {"fp32": 15.7, "fp16": 125.0}),
    _Sheet("Tesla T4", "NVIDIA T4 data sheet", {"fp32": 8.1, "fp16": 65.0}),
    _Sheet("Tesla P4", "NVIDIA Tesla P4 data sheet", {"fp32": 5.5}),
    _Sheet("GeForce GTX 1070", "NVIDIA GeForce GTX 1070 specifications", {"fp32": 6.5}),
    _Sheet("GeForce RTX 3070", "NVIDIA Ampere GA102 white paper, appendix A", {"fp32": 20.3}),
    _Sheet(
        "GeForce RTX 3090",
        "NVIDIA Ampere GA102 white paper, appendix A",
        {"fp32": 35.6, "bf16": 71.0, "fp16": 71.0},
    ),
    _Sheet(
        "GeForce RTX 4090",
        "NVIDIA Ada GPU architecture white paper, appendix A",
        {"fp32": 82.6, "bf16": 165.2, "fp16": 165.2},
    ),
)
# Names that contain a known one and are other chips, or a slice of one.
_LOOKALIKES: Final = ("1070 Ti", "3070 Ti", "3090 Ti", "4090 D", "Laptop", "Max-Q", "A100X", "L40G", "GH200", "MIG")


def dense_peak(device_name: str, precision: Precision) -> Peak | None:
    """The peak of one device of this name (as CUDA reports it) at this precision, or None where it is not known."""
    if any(name in device_name for name in _LOOKALIKES):
        return None
    words = f" {device_name.replace('NVIDIA', '').strip()} "
    for sheet in _SHEETS:
        # "A10" is not part of "A100", but "A100" is part of "A100-SXM4-80GB".
        if f" {sheet.name} " in words or f" {sheet.name}-" in words:
            tera = sheet.tera.get(precision)
            return None if tera is None else Peak(tera * 1e12, sheet.source)
    return None
