"""The scaling models fitted together: shrunk towards perfect scaling, averaged by what they leave out well.

With m points and their work per worker y, a model's shares t >= 0 and g its terms (see `scaling_models`):

    ln y_i = a + ln(1 + t g(p_i)) + e_i,   e_i ~ N(0, s^2)
    measured at p_i, where steps were taken apart: communication / compute = t g(p_i) + N(0, s^2)

- a has no prior. Points of one series scatter by several percent from run to run, so s has one: s^2 ~ scaled inverse
  chi-square with 3 degrees of freedom, the least that has a mean, and scale 4 %. "3 to 8 % between runs" (arXiv
  2602.21081, as its logs show) is what two to four runs differ by: the range of three runs is 1.7 s on average.
- Each model's excess at the largest measured size, t g(p_max), has half of a Student t with 3 degrees of freedom and
  the same 4 % as prior (two terms share it): what a single run's noise could feign is shrunk away, and what is larger
  is hardly touched, for the tail is heavy (Gelman, Bayesian Analysis 1, 2006). So four noisy points make no forecast
  explode, and the interval says that it might.
- Priors, models and the point below were settled while looking at the three series of `make bench`, so their errors
  there are those of a fit: the bench also shows other values of the 4 %, and series of known truth. Where a serial part
  of some percent hides in 8 % noise, the shrinking makes forecasts too hopeful, and the interval covers too seldom.
- The posterior is summed over a grid of t, laid where the data leaves it mass, and of s (equal prior mass); a is
  integrated in closed form.
- Models are weighted by their leave-one-out predictive densities (pseudo-BMA; Yao, Vehtari, Simpson and Gelman,
  Bayesian Analysis 13, 2018), each of them equally likely at first.
- The forecast of one more run is the mixture over all of it: its 2.5 and 97.5 % quantiles, and as the point the one
  with the least expected relative error, the median of density / y (Gneiting, J. Am. Stat. Assoc. 106, 2011, beta -1).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chdtri, ndtr

from service.analysis.scaling_models import MODELS, Array, ScalingModel

NOISE: Final = 0.04
NOISE_DEGREES: Final = 3
_TAIL_DEGREES: Final = 3
_NUM_NOISES, _NUM_SHARES, _NUM_SHARES_OF_TWO = 10, 24, 12
_ROOM: Final = 10  # times the noise: what the largest work may lie above the smallest by chance
_RULED_OUT: Final = 12  # in log-likelihood
_NEGLIGIBLE: Final = 1e-6
_PRECISION: Final = 1e-5  # of a quantile, as a share of it


@dataclass(frozen=True)
class WorkForecast:
    """Work per worker of one more run at a size (the unit of the fitted y), with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class FittedModel:
    model: ScalingModel
    shares: dict[str, float]  # posterior means
    one_worker: float  # y(1)
    loo_error: float  # root mean square of relative errors
    weight: float


@dataclass(frozen=True)
class ShrunkFit:
    """A posterior over all models: `shares` and `weights` of each grid point, models one after the other.

    Shapes: K grid points of shares, S of the noise; weights and centres (S, K) and (K,).
    """

    models: list[FittedModel]
    _grid: list[Array]  # shares of each model: (K_model, terms)
    _weights: Array
    _centres: Array
    _noises: Array
    _num_points: int
    _global_batch: bool

    def forecast(self, size: float) -> WorkForecast:
        """One more run at this world size."""
        centre = np.broadcast_to(self._centres + self._log_excess(size), self._weights.shape).ravel()
        spread = np.repeat(self._noises * np.sqrt(1 + 1 / self._num_points), self._weights.shape[1])
        weight = self._weights.ravel()
        kept = weight > _NEGLIGIBLE
        centre, spread, weight = centre[kept], spread[kept], weight[kept] / weight[kept].sum()
        low, high = (_mixture_quantile(weight, centre, spread, share) for share in (0.025, 0.975))
        # The density over y, of a mixture of log-normals, is one again: each tilted and moved down by its variance.
        tilted = weight * np.exp(spread**2 / 2 - (centre - centre.min()))
        value = _mixture_quantile(tilted / tilted.sum(), centre - spread**2, spread, 0.5)
        return WorkForecast(value, low, high)

    def efficiency(self, size: float, baseline: float) -> tuple[float, float, float]:
        """Work per worker at the baseline over that at `size`, of the curve (without a run's noise): median, and 95 %
        interval."""
        ratios = np.exp(self._log_excess(baseline) - self._log_excess(size))
        order = np.argsort(ratios)
        reached = np.cumsum(self._weights.sum(axis=0)[order])
        ends = np.searchsorted(reached, np.array([0.5, 0.025, 0.975]) * reached[-1])
        middle, low, high = ratios[order][np.minimum(ends, len(order) - 1)].tolist()
        return middle, low, high

    def _log_excess(self, size: float) -> Array:
        models = [one.model for one in self.models]
        return _log_excess(models, self._grid, np.array([float(size)]), global_batch=self._global_batch)[:, 0]


def fit(
    sizes: Sequence[int],
    work: Sequence[float],
    communication: Sequence[float | None] | None = None,
    *,
    global_batch: bool = False,
    models: Sequence[ScalingModel] = MODELS,
    noise: float = NOISE,
) -> ShrunkFit:
    """All models on one series.

    Args:
        sizes: world sizes, at least 3 (so that one can be left out and two are left).
        work: y of each, above 0, in any unit.
        communication: measured at each: seconds of a step that are not compute, as a share of compute; None: not known.
        noise: the scale of both priors, as a share.
    """
    at, logs = np.asarray(sizes, dtype=float), np.log(np.asarray(work, dtype=float))
    noises = noise * _noise_grid()
    series = _Series(at, logs, noises, communication, noise, global_batch)
    grid, priors = map(list, zip(*(_share_grid(model, series) for model in models), strict=True))
    excess = _log_excess(models, grid, at, global_batch=global_batch)  # (K, m)
    residual = logs - excess
    centres = residual.mean(axis=1)
    squares = ((residual - centres[:, None]) ** 2).sum(axis=1)
    parts = _parts_log_likelihood(excess, noises, communication)  # (S, K, m)
    known = parts.sum(axis=2) + np.concatenate(priors)  # (S, K)
    spans = _spans(grid)

    # With one left out, mean and squares follow in closed form from those of all.
    count = len(at)
    away = residual - centres[:, None]
    centres_without = centres[:, None] - away / (count - 1)
    squares_without = squares[:, None] - away**2 * count / (count - 1)
    likelihood = _log_likelihood(squares, count, noises) + known  # (S, K)
    without = _log_likelihood(squares_without, count - 1, noises) + known[:, :, None] - parts  # (S, K, m)
    one_more = noises[:, None, None] * np.sqrt(1 + 1 / (count - 1))
    misses = (residual - centres_without) / one_more
    densities = np.exp(parts - misses**2 / 2) / one_more  # the root of 2 pi is the same for all

    fitted, weights, log_scores = [], np.zeros_like(likelihood), []
    for model, (begin, end), shares in zip(models, spans, grid, strict=True):
        posterior = _normalised(likelihood[:, begin:end])
        weights[:, begin:end] = posterior
        left = np.stack([_normalised(without[:, begin:end, one]) for one in range(count)], axis=2)
        log_scores.append(float(np.log((left * densities[:, begin:end]).sum(axis=(0, 1))).sum()))
        forecast = (left * (centres_without + excess)[None, begin:end]).sum(axis=(0, 1))
        by_share = posterior.sum(axis=0)
        fitted.append(
            FittedModel(
                model=model,
                shares=dict(zip(model.terms, map(float, by_share @ shares), strict=True)),
                one_worker=float(np.exp(by_share @ centres[begin:end])),
                loo_error=float(np.sqrt(np.mean((np.exp(forecast - logs) - 1) ** 2))),
                weight=0.0,
            )
        )
    by_model = np.exp(np.array(log_scores) - max(log_scores))
    by_model /= by_model.sum()
    for (begin, end), weight in zip(spans, by_model, strict=True):
        weights[:, begin:end] *= weight
    named = [
        FittedModel(one.model, one.shares, one.one_worker, one.loo_error, float(weight))
        for one, weight in zip(fitted, by_model, strict=True)
    ]
    return ShrunkFit(named, grid, weights, centres, noises, count, global_batch)


def _log_likelihood(squares: Array, count: int, noises: Array) -> Array:
    """Of residuals whose mean is integrated out; shape (S, *squares.shape)."""
    spread = noises.reshape(-1, *[1] * squares.ndim)
    found: Array = -(count - 1) * np.log(spread) - squares / (2 * spread**2)
    return found


def _parts_log_likelihood(excess: Array, noises: Array, communication: Sequence[float | None] | None) -> Array:
    """Of what was measured apart at each size, 0 where nothing was; shape (S, K, m)."""
    found = np.zeros((len(noises), *excess.shape))
    for place, value in enumerate(communication or ()):
        if value is not None:
            misses = (np.expm1(excess[:, place]) - value) / noises[:, None]
            found[:, :, place] = -np.log(noises)[:, None] - misses**2 / 2
    return found


def _normalised(log_weights: Array) -> Array:
    weights: Array = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    return weights


def _mixture_quantile(weight: Array, centre: Array, spread: Array, share: float) -> float:
    """exp of the quantile of a mixture of normals."""

    def missing(at: float) -> float:
        return float(weight @ ndtr((at - centre) / spread)) - share

    low, high = float((centre - 6 * spread).min()), float((centre + 6 * spread).max())
    return float(np.exp(brentq(missing, low, high, xtol=_PRECISION)))


@dataclass(frozen=True)
class _Series:
    """What is fitted: shapes (m,), and (S,) of the noises."""

    sizes: Array
    logs: Array
    noises: Array
    communication: Sequence[float | None] | None
    noise: float
    global_batch: bool

    def excess(self, model: ScalingModel, shares: Array) -> Array:
        """ln(1 + t g) at the measured sizes; shape (K, m)."""
        return _log_excess([model], [shares], self.sizes, global_batch=self.global_batch)


def _share_grid(model: ScalingModel, series: _Series) -> tuple[Array, Array]:
    """Shares where the posterior has its mass, shape (K, terms), and their log prior mass, (K,).

    First over all that the data could mean, then over the part of it that counts.
    """
    reach = model.columns(np.array([series.sizes.max()]), global_batch=series.global_batch)[0]
    if len(reach) == 0:
        return np.zeros((1, 0)), np.zeros(1)
    scale = series.noise / len(reach)
    count = _NUM_SHARES if len(reach) == 1 else _NUM_SHARES_OF_TWO
    ends = [(0.0, end) for end in _largest_excess(model, reach, series)]
    for is_last in (False, True):
        axes = [_axis(low, high, count) for low, high in ends]
        excess = np.stack(
            [axis.ravel() for axis in np.meshgrid(*(points for points, _ in axes), indexing="ij")], axis=1
        )
        widths = np.stack([axis.ravel() for axis in np.meshgrid(*(width for _, width in axes), indexing="ij")], axis=1)
        prior = (np.log(widths) - (_TAIL_DEGREES + 1) / 2 * np.log1p((excess / scale) ** 2 / _TAIL_DEGREES)).sum(axis=1)
        prior -= len(reach) * np.log(scale)
        if not is_last:
            kept = excess[_counts(model, excess / reach, series)]
            steps = [points[1:] - points[:-1] for points, _ in axes]
            ends = [_around(kept[:, one], axes[one][0], steps[one]) for one in range(len(reach))]
    return excess / reach, prior


def _largest_excess(model: ScalingModel, reach: Array, series: _Series) -> list[float]:
    """The most that each term could be at the largest size: all that the work grows by, with room for noise, measured
    from a smallest size that may have some of it already."""
    growth = float(np.exp(series.logs.max() - series.logs.min() + _ROOM * series.noise))
    least = model.columns(np.array([series.sizes.min()]), global_batch=series.global_batch)[0] / reach
    apart = max((value for value in series.communication or () if value is not None), default=0.0)
    return [max(2 * apart, (growth - 1) / max(1 - growth * float(share), 0.02)) for share in least]


def _counts(model: ScalingModel, shares: Array, series: _Series) -> NDArray[np.bool_]:
    """Which are not ruled out, even by half of the data's evidence."""
    excess = series.excess(model, shares)
    residual = series.logs - excess
    squares = ((residual - residual.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    likelihood = _log_likelihood(squares, len(series.logs), series.noises)
    evidence = (likelihood + _parts_log_likelihood(excess, series.noises, series.communication).sum(axis=2)).max(axis=0)
    found: NDArray[np.bool_] = evidence > evidence.max() - 2 * _RULED_OUT
    return found


def _axis(low: float, high: float, count: int) -> tuple[Array, Array]:
    """Points and their cells' widths; denser towards 0 where it begins there, for there the prior is steep."""
    edges = np.linspace(0, 1, count + 1)
    at = low + (high - low) * (edges**2 if low == 0 else edges)
    return (at[1:] + at[:-1]) / 2, np.diff(at)


def _around(kept: Array, points: Array, steps: Array) -> tuple[float, float]:
    """The ends of the kept part, and a point more on both sides; 0 where that is near."""
    first, last = np.searchsorted(points, [kept.min(), kept.max()])
    low = 0.0 if first <= 1 else float(points[first - 1])
    high = float(points[last] + steps[min(last, len(steps) - 1)])
    return low, high


def _log_excess(models: Iterable[ScalingModel], grid: Sequence[Array], sizes: Array, *, global_batch: bool) -> Array:
    """ln(1 + t g) at the grid's points, model after model; shape (K, sizes)."""
    columns = [model.columns(sizes, global_batch=global_batch) for model in models]
    found: Array = np.log1p(np.concatenate([shares @ at.T for shares, at in zip(grid, columns, strict=True)]))
    return found


def _spans(grid: Sequence[Array]) -> list[tuple[int, int]]:
    ends = np.cumsum([len(shares) for shares in grid]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


@cache
def _noise_grid() -> Array:
    """As a multiple of the prior's scale."""
    mass = (np.arange(_NUM_NOISES) + 0.5) / _NUM_NOISES
    found: Array = np.sqrt(NOISE_DEGREES / chdtri(NOISE_DEGREES, mass))
    return found
