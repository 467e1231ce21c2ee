"""What the forecasts are held against: Amdahl's law and the USL by least squares, and perfect scaling.

All take and give work per worker (see `service.analysis.scaling_models`). Least squares of relative errors, signs kept
(scipy's nnls); their intervals are the textbook's for one more observation: t of the residuals' degrees of freedom
(parameters at 0 count as none), residual standard deviation, and leverage (delta method).
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats
from scipy.optimize import nnls

from service.analysis.scaling_models import AMDAHL, PERFECT, USL, Array, ScalingModel
from service.analysis.shrunk_fit import NOISE, WorkForecast, fit

Forecaster = Callable[[Sequence[int], Sequence[float], Sequence[int]], list[WorkForecast]]


def averaged(
    sizes: Sequence[int], work: Sequence[float], asked: Sequence[int], *, noise: float = NOISE
) -> list[WorkForecast]:
    """What VitScale forecasts."""
    fitted = fit(sizes, work, noise=noise)
    return [fitted.forecast(size) for size in asked]


def least_squares(model: ScalingModel) -> Forecaster:
    def forecast(sizes: Sequence[int], work: Sequence[float], asked: Sequence[int]) -> list[WorkForecast]:
        seconds = np.asarray(work, dtype=float)
        design = _design(model, sizes) / seconds[:, None]
        parameters, _ = nnls(design, np.ones(len(seconds)))
        free = parameters > 0
        degrees = max(1, len(seconds) - int(free.sum()))
        residual = 1 - design @ parameters
        deviation = np.sqrt((residual**2).sum() / degrees)
        spread = np.linalg.pinv(design[:, free].T @ design[:, free])
        at = _design(model, asked)
        values = at @ parameters
        relative = at[:, free] / values[:, None]
        leverage = np.einsum("ij,jk,ik->i", relative, spread, relative)
        half = stats.t.ppf(0.975, degrees) * deviation * np.sqrt(1 + leverage)
        return [WorkForecast(v, v * (1 - h), v * (1 + h)) for v, h in zip(values, half, strict=True)]

    return forecast


def _design(model: ScalingModel, sizes: Sequence[int]) -> Array:
    at = np.asarray(sizes, dtype=float)
    return np.concatenate([np.ones((len(at), 1)), model.columns(at, global_batch=False)], axis=1)


def perfect_from_largest(sizes: Sequence[int], work: Sequence[float], asked: Sequence[int]) -> list[WorkForecast]:
    """The largest measured point scaled on; the interval by how far the others lie from its line."""
    ordered = [value for _, value in sorted(zip(sizes, work, strict=True))]
    last, others = ordered[-1], np.array(ordered[:-1])
    half = float(stats.t.ppf(0.975, len(others)) * np.sqrt(np.mean((others / last - 1) ** 2)))
    return [WorkForecast(last, last * (1 - half), last * (1 + half)) for _ in asked]


FORECASTERS: dict[str, Forecaster] = {
    "VitScale": averaged,
    "Amdahl": least_squares(AMDAHL),
    "USL": least_squares(USL),
    "perfect, largest point": perfect_from_largest,
    "perfect, pooled points": least_squares(PERFECT),
}
