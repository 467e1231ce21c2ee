"""Made-up series of step seconds with a known mean, for tests of the stop rule."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEP_SECONDS = 0.1


@dataclass(frozen=True)
class StepSeries:
    """`mean` is that of the state it settles in, None where it never does. Seconds."""

    seconds: list[float]
    mean: float | None


def _noise(generator: np.random.Generator, count: int, spread: float, phi: float = 0.0) -> NDArray[np.float64]:
    """A stationary AR(1) of standard deviation `spread` with a correlation time of (1 + phi) / (1 - phi) steps."""
    shocks = generator.standard_normal(count) * spread * np.sqrt(1 - phi**2)
    values = np.empty(count)
    values[0] = generator.standard_normal() * spread
    for at in range(1, count):
        values[at] = phi * values[at - 1] + shocks[at]
    return values


def _series(relative: NDArray[np.float64], mean: float | None = 1.0) -> StepSeries:
    seconds = STEP_SECONDS * np.maximum(relative, 0.02)
    return StepSeries(seconds.tolist(), None if mean is None else STEP_SECONDS * mean)


def independent(generator: np.random.Generator, count: int, spread: float) -> StepSeries:
    return _series(1 + _noise(generator, count, spread))


def autocorrelated(phi: float) -> Callable[[np.random.Generator, int, float], StepSeries]:
    return lambda generator, count, spread: _series(1 + _noise(generator, count, spread, phi))


def slowing_then_level(generator: np.random.Generator, count: int, spread: float) -> StepSeries:
    """Up to 15 % faster at first, slowing evenly over up to a quarter of the series."""
    level_from = generator.uniform(0.05, 0.25) * count
    lack = generator.uniform(0.02, 0.15) * np.clip(1 - np.arange(count) / level_from, 0, 1)
    return _series(1 + _noise(generator, count, spread) - lack)


def slowing_for_ever(generator: np.random.Generator, count: int, spread: float) -> StepSeries:
    """By 15 % from begin to end."""
    return _series(1 + _noise(generator, count, spread) + 0.15 * np.arange(count) / count, None)


def shifted_level(generator: np.random.Generator, count: int, spread: float) -> StepSeries:
    """Up to half slower or a fifth faster in the first steps, up to an eighth of the series."""
    values = 1 + _noise(generator, count, spread)
    values[: int(generator.uniform(0.02, 0.12) * count)] *= generator.choice([0.8, 0.9, 1.1, 1.2, 1.5])
    return _series(values)


def spiky(generator: np.random.Generator, count: int, spread: float) -> StepSeries:
    """One step in twenty, at random, takes twice as long."""
    values = 1 + _noise(generator, count, spread)
    values[generator.random(count) < 0.05] += 1
    return _series(values, 1.05)


def stalling(generator: np.random.Generator, count: int, spread: float) -> StepSeries:
    """Every so many steps (5 to 25) one takes twice as long."""
    period = int(generator.integers(5, 25))
    values = 1 + _noise(generator, count, spread)
    values[int(generator.integers(period)) :: period] += 1
    return _series(values, 1 + 1 / period)


def like_a_warming_gpu(generator: np.random.Generator) -> StepSeries:
    """50 minutes of a T4 as in the reference logs: 2 to 2.6 s a step, 0 to 19 % faster until it is warm (160 to 250 s),
    0.2 % of noise, flicker noise with an Allan deviation of 0.1 to 0.4 %, and a stall now and then."""
    step_seconds = generator.uniform(2.0, 2.6)
    count = int(3000 / step_seconds)
    at = np.arange(count) * step_seconds
    warm_after, lack = generator.uniform(160, 250), generator.uniform(0, 0.19)
    approach = np.exp(-3 * at / warm_after) if generator.random() < 0.5 else np.clip(1 - at / warm_after, 0, 1)
    relative = 1 - lack * approach + 0.002 * generator.standard_normal(count)
    relative += generator.uniform(0.001, 0.004) * _flicker(generator, count)
    relative[generator.random(count) < 0.001] *= 2
    seconds = step_seconds * relative
    return StepSeries(seconds.tolist(), float(seconds[at > 300].mean()))


def _flicker(generator: np.random.Generator, count: int) -> NDArray[np.float64]:
    """1/f noise with an Allan deviation of 1: its spectrum is h/f with 2 ln 2 h = 1 (IEEE Std 1139)."""
    frequencies = np.fft.rfftfreq(count)[1:]
    amplitudes = np.sqrt(count / (8 * np.log(2) * frequencies))
    waves = amplitudes * (
        generator.standard_normal(len(frequencies)) + 1j * generator.standard_normal(len(frequencies))
    )
    return np.fft.irfft(np.concatenate([[0], waves]), count)
