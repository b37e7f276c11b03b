"""Readings with Gaussian noise, y = t + sigma e with a standard normal e; quantiles of mixtures by Newton's method."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from metaprior.likelihoods.base import Broad, Expected, Likelihood, Start
from metaprior.linalg import Array
from metaprior.tasks.scaling import output_scaling
from metaprior.tasks.types import Task

QUANTILE_TOLERANCE = 1e-12  # of normal scores, or of logarithms of probabilities
QUANTILE_MAXIMUM_ITERATIONS = 500  # usually 5; gaps between narrow components need up to about 100
LOG_TWO_PI = float(np.log(2.0 * np.pi))


class Gaussian(Likelihood):
    """y ~ N(t, sigma^2). Its parameter is log sigma."""

    name = "gaussian"
    words = "numbers with Gaussian noise"
    normal = True
    logarithms_of = ("sigma",)

    def initial(self, y: Array, weights: Array) -> tuple[Array, Array]:
        """Expect noise of a third of the standard deviation of all readings, give or take a factor of four or so."""
        return np.array([np.log(np.std(y) or 1.0) - 1.0]), np.array([1.5])

    def start(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Start:
        """Return y with the variance of the noise: exact sites."""
        return Start(y, self.noise(y, parameters))

    def latent(self, y: Array, parameters: Array) -> Array:
        return y

    def broad(self, y: Sequence[Array], offsets: Sequence[Array]) -> Broad:
        """Return the normal distribution of all readings; constant and very large ones have one, too."""
        units = output_scaling([Task(np.zeros((len(each), 0)), each) for each in y])
        return Broad(self, np.asarray(units.y_mean), 0.0, np.log(np.atleast_1d(units.y_std)))

    def expected(self, y: Array, mean: Array, variance: Array, parameters: Array, gradient: bool = False) -> Expected:
        noise = _noise(parameters)
        square = ((y - mean) ** 2 + variance) / noise
        value = -0.5 * (square + LOG_TWO_PI) - parameters[..., 0]
        precision = np.broadcast_to(1.0 / noise, value.shape)
        return Expected(value, (y - mean) / noise, precision, (square - 1.0)[..., None] if gradient else None)

    def log_density(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Array:
        total = variance + _noise(parameters)
        return -0.5 * ((y - mean) ** 2 / total + np.log(total) + LOG_TWO_PI)

    def cdf(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Array:
        return np.asarray(ndtr((y - mean) / np.sqrt(variance + _noise(parameters))))

    def log_far_tail(self, y: Array, mean: Array, variance: Array, parameters: Array, upper: bool) -> Array:
        score = (y - mean) / np.sqrt(variance + _noise(parameters))
        return np.asarray(log_ndtr(-score if upper else score))

    def moments(self, mean: Array, variance: Array, parameters: Array) -> tuple[Array, Array]:
        first, noise = np.broadcast_arrays(mean, _noise(parameters))
        return first, variance + noise

    def draw(self, t: Array, parameters: Array, rng: np.random.Generator) -> Array:
        return t + np.exp(parameters[..., 0]) * rng.standard_normal(t.shape)

    def noise(self, mean: Array, parameters: Array) -> Array:
        return np.broadcast_to(_noise(parameters), np.shape(mean))

    def quantile(self, means: Array, variances: Array, parameters: Array, weights: Array, level: float) -> Array:
        return normal_quantile(means, np.sqrt(variances + _noise(parameters)), weights, level)

    def stretched(self, parameters: Array, factor: float) -> Array:
        """Stretch the noise too."""
        return parameters + np.log(factor)


def _noise(parameters: Array) -> Array:
    return np.exp(2.0 * parameters[..., 0])


def mixture_moments(means: Array, scales: Array, weights: Array) -> tuple[Array, Array]:
    """Return the mean and variance of the mixture, over axis 0."""
    mean = np.sum(weights * means, axis=0)
    # Again about the first sum, whose rounding would show in the variance where scales are far below means.
    mean = np.asarray(mean + np.sum(weights * (means - mean), axis=0))
    return mean, np.asarray(np.sum(weights * (scales**2 + (means - mean) ** 2), axis=0))


def normal_quantile(means: Array, scales: Array, weights: Array, level: float) -> Array:
    """Solve F(y) = level for each column of three (components, points) arrays.

    Newton's method is for normal scores, z(y) = Φ⁻¹(F(y)) against Φ⁻¹(level), dz/dy = p(y) / φ(z), which is a line for
    one Gaussian and nearly one for a mixture, tails included. The root lies between the extreme component quantiles.
    """
    if level > 0.5:  # reflect: a cdf has its relative precision in the lower tail, and 1 - level is exact.
        return -normal_quantile(-means, scales, weights, 1.0 - level)
    target = ndtri(level)
    # Widened a little: a root on the very edge would be approached by bisections alone.
    lower = np.min(means + scales * (target - 1e-6), axis=0, initial=np.inf, where=weights > 0)
    upper = np.max(means + scales * (target + 1e-6), axis=0, initial=-np.inf, where=weights > 0)
    mean, variance = mixture_moments(means, scales, weights)

    def newton(y: Array, means: Array, scales: Array, weights: Array) -> tuple[Array, Array]:
        standardized = (y - means) / scales
        score = ndtri(np.minimum(np.sum(weights * ndtr(standardized), axis=0), 1.0))
        density = np.sum(weights * np.exp(-0.5 * standardized**2) / scales, axis=0)
        return score - target, (score - target) * np.exp(-0.5 * score**2) / density

    start = mean + np.sqrt(variance) * target
    return find_roots(newton, start, lower, upper, (means, scales, weights), f"quantile {level}")


def find_roots(newton: Any, y: Array, lower: Array, upper: Array, arrays: tuple[Array, ...], name: str) -> Array:
    """Return the roots of increasing functions between two ends, by Newton's method with bisections.

    `newton(y, *arrays)` returns the values of the functions and what Newton's method subtracts from y. `arrays` have
    one column for each function. A step that leaves the bracket, or follows one that did not halve the value, is a
    bisection.
    """
    y = np.clip(y, lower, upper)
    previous, pending, roots = np.full(y.shape, np.inf), np.arange(y.size), np.empty(y.size)
    for _ in range(QUANTILE_MAXIMUM_ITERATIONS):
        # Where a density underflows the step is inf or nan, and fails the comparisons below.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value, step = newton(y, *arrays)
            size, resolution = np.abs(value), np.spacing(np.abs(y))
            moved = y - np.copysign(np.maximum(np.abs(step), resolution), value)  # standing still never ends
        lower, upper = np.where(value < 0, y, lower), np.where(value > 0, y, upper)
        finished = (size <= QUANTILE_TOLERANCE) | (upper - lower <= resolution)
        roots[pending[finished]] = y[finished]
        if finished.all():
            return roots
        trusted = (moved > lower) & (moved < upper) & (size <= 0.5 * previous)
        previous = np.where(trusted, size, np.inf)
        y = np.where(trusted, moved, lower + 0.5 * (upper - lower))
        if finished.any():  # the few slow points should not pay for the many that are done.
            y, lower, upper, previous, pending = (x[~finished] for x in (y, lower, upper, previous, pending))
            arrays = tuple(x[:, ~finished] for x in arrays)
    raise RuntimeError(f"{name} not found at {pending.size} points; check means and variances there")
