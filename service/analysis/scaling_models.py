"""How work per worker grows with the world size: the models that are fitted.

With y(p) = p T(p) for a fixed data set (y = T where the data grows with p), perfect scaling is a constant y. Each model
is y(p) = y(1) (1 + sum of share x term(p)), with shares that physics keeps at 0 or above:

    amdahl     s (p - 1)                                 Amdahl, AFIPS 1967: T = T(1) (s + (1 - s) / p)
    usl        s (p - 1) + k p (p - 1)                   Gunther, "Guerrilla Capacity Planning", 2007
    step_ring  a (p - 1) + b 2 (p - 1) / p               T = N / (p b) x (compute + communication(p)); ring all-reduce:
               latency of each hop, and bytes over the   Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009
               link; shares of the compute seconds
    step_tree  h log2 p                                  as before, a tree: Thakur et al., IJHPCA 19, 2005

Under hold: global_batch a step's compute shrinks as 1 / p and its communication does not, so that the step models'
terms are multiplied by p.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ScalingModel:
    """`terms` by the name of the share in front; `is_step`: communication per step against compute per step."""

    name: str
    equation: str
    terms: Mapping[str, Callable[[Array], Array]]
    is_step: bool = False

    def columns(self, sizes: Array, *, global_batch: bool) -> Array:
        """The terms at each world size; shape (sizes, terms)."""
        factor = sizes if self.is_step and global_batch else np.ones_like(sizes)
        columns = [term(sizes) * factor for term in self.terms.values()]
        return np.stack(columns, axis=1) if columns else np.zeros((len(sizes), 0))


def _hops(sizes: Array) -> Array:
    return sizes - 1


def _pairs(sizes: Array) -> Array:
    return sizes * (sizes - 1)


def _ring_bytes(sizes: Array) -> Array:
    return 2 * (sizes - 1) / sizes


def _tree_depth(sizes: Array) -> Array:
    return np.log2(sizes)


PERFECT: Final = ScalingModel("perfect", "y = y(1)", {})
AMDAHL: Final = ScalingModel("amdahl", "y = y(1) (1 + s (p - 1))", {"serial_fraction": _hops})
USL: Final = ScalingModel("usl", "y = y(1) (1 + s (p - 1) + k p (p - 1))", {"contention": _hops, "coherency": _pairs})
STEP_RING: Final = ScalingModel(
    "step_ring",
    "y = y(1) (1 + a (p - 1) + b 2 (p - 1) / p)",
    {"latency_share": _hops, "bandwidth_share": _ring_bytes},
    is_step=True,
)
STEP_TREE: Final = ScalingModel("step_tree", "y = y(1) (1 + h log2 p)", {"hop_share": _tree_depth}, is_step=True)
MODELS: Final = (PERFECT, AMDAHL, USL, STEP_RING, STEP_TREE)
