"""Readings with Gaussian noise: y = t + sigma e with a standard normal e. Everything has a closed form.

Quantiles of mixtures of normal distributions, which have none, are found by Newton's method.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from metaprior.likelihoods.base import Broad, Expected, Likelihood, Start
from metaprior.tasks.scaling import output_scaling
from metaprior.tasks.types import Task

QUANTILE_TOLERANCE = 1e-12  # in units of the local scale dy/dz, where z is the normal score of the cdf
QUANTILE_MAXIMUM_ITERATIONS = 500  # usually 5; gaps between narrow components need up to about 100
LOG_TWO_PI = float(np.log(2.0 * np.pi))


class Gaussian(Likelihood):
    """y ~ N(t, sigma^2). Its parameter is log sigma."""

    name = "gaussian"
    words = "numbers with Gaussian noise"
    normal = True

    @property
    def n_parameters(self) -> int:
        """One, log sigma."""
        return 1

    def initial(self, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Expect noise of a third of the standard deviation of all readings, give or take a factor of four or so."""
        return np.array([np.log(np.std(y) or 1.0) - 1.0]), np.array([1.5])

    def start(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> Start:
        """Return y with the variance of the noise: exact sites."""
        return Start(y, self.noise(y, parameters))

    def latent(self, y: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return y."""
        return y

    def broad(self, y: Sequence[np.ndarray], offsets: Sequence[np.ndarray]) -> Broad:
        """Return the normal distribution of all readings; constant and very large ones have one, too."""
        units = output_scaling([Task(np.zeros((len(each), 0)), each) for each in y])
        return Broad(self, np.asarray(units.y_mean), 0.0, np.log(np.atleast_1d(units.y_std)))

    def expected(
        self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray, gradient: bool = False
    ) -> Expected:
        """Return the expected logarithm, in closed form."""
        noise = np.exp(2.0 * parameters[..., 0])
        square = ((y - mean) ** 2 + variance) / noise
        value = -0.5 * (square + LOG_TWO_PI) - parameters[..., 0]
        precision = np.broadcast_to(1.0 / noise, value.shape)
        return Expected(value, (y - mean) / noise, precision, (square - 1.0)[..., None] if gradient else None)

    def log_density(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return log N(y; mean, variance + sigma^2)."""
        total = variance + np.exp(2.0 * parameters[..., 0])
        return -0.5 * ((y - mean) ** 2 / total + np.log(total) + LOG_TWO_PI)

    def cdf(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return the distribution function of N(mean, variance + sigma^2)."""
        return np.asarray(ndtr((y - mean) / np.sqrt(variance + np.exp(2.0 * parameters[..., 0]))))

    def log_far_tail(
        self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray, upper: bool
    ) -> np.ndarray:
        """Return log P(Y >= y), or log P(Y <= y), however small."""
        score = (y - mean) / np.sqrt(variance + np.exp(2.0 * parameters[..., 0]))
        return np.asarray(log_ndtr(-score if upper else score))

    def moments(self, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of y."""
        first, noise = np.broadcast_arrays(mean, np.exp(2.0 * parameters[..., 0]))
        return first, variance + noise

    def draw(self, t: np.ndarray, parameters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw readings given t."""
        return t + np.exp(parameters[..., 0]) * rng.standard_normal(t.shape)

    def noise(self, mean: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return sigma^2."""
        return np.broadcast_to(np.exp(2.0 * parameters[..., 0]), np.shape(mean))

    def quantile(
        self, means: np.ndarray, variances: np.ndarray, parameters: np.ndarray, weights: np.ndarray, level: float
    ) -> np.ndarray:
        """Solve F(y) = level for the mixture at each column."""
        return normal_quantile(means, np.sqrt(variances + np.exp(2.0 * parameters[..., 0])), weights, level)

    def stretched(self, parameters: np.ndarray, factor: float) -> np.ndarray:
        """Stretch the noise too."""
        return parameters + np.log(factor)

    def describe(self, parameters: np.ndarray) -> dict[str, float | list[float]]:
        """Return sigma."""
        return {"sigma": float(np.exp(parameters[0]))}


def mixture_moments(means: np.ndarray, scales: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and variance of the mixture, over axis 0."""
    mean = np.sum(weights * means, axis=0)
    # Again about the first sum, whose rounding would show in the variance where scales are far below means.
    mean = np.asarray(mean + np.sum(weights * (means - mean), axis=0))
    return mean, np.asarray(np.sum(weights * (scales**2 + (means - mean) ** 2), axis=0))


def normal_quantile(means: np.ndarray, scales: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """Solve F(y) = level for each column of three (components, points) arrays.

    Newton's method on normal scores, z(y) = Φ⁻¹(F(y)) against Φ⁻¹(level), dz/dy = p(y) / φ(z), which is a line for one
    Gaussian and nearly one for a mixture, tails included. The root lies between the extreme component quantiles. A step
    that leaves this bracket, or follows one that did not halve the residual, is a bisection.
    """
    if level > 0.5:  # reflect: a cdf has its relative precision in the lower tail, and 1 - level is exact.
        return -normal_quantile(-means, scales, weights, 1.0 - level)
    target = ndtri(level)
    # Widened a little: a root on the very edge would be approached by bisections alone.
    lower = np.min(means + scales * (target - 1e-6), axis=0, initial=np.inf, where=weights > 0)
    upper = np.max(means + scales * (target + 1e-6), axis=0, initial=-np.inf, where=weights > 0)
    mean, variance = mixture_moments(means, scales, weights)
    y = np.clip(mean + np.sqrt(variance) * target, lower, upper)
    previous, pending, roots = np.full(y.shape, np.inf), np.arange(y.size), np.empty(y.size)
    for _ in range(QUANTILE_MAXIMUM_ITERATIONS):
        standardized = (y - means) / scales
        score = ndtri(np.minimum(np.sum(weights * ndtr(standardized), axis=0), 1.0))
        density = np.sum(weights * np.exp(-0.5 * standardized**2) / scales, axis=0)
        residual = score - target
        lower, upper = np.where(residual < 0, y, lower), np.where(residual > 0, y, upper)
        resolution = np.spacing(np.abs(y))
        finished = (np.abs(residual) <= QUANTILE_TOLERANCE) | (upper - lower <= resolution)
        roots[pending[finished]] = y[finished]
        if finished.all():
            return roots
        # Where the density underflows the step is inf or nan, and fails the comparisons below. Elsewhere
        # it is at least the resolution of y, since standing still would not close the bracket.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = np.abs(residual) * np.exp(-0.5 * score**2) / density
            newton = y - np.copysign(np.maximum(step, resolution), residual)
        trusted = (newton > lower) & (newton < upper) & (np.abs(residual) <= 0.5 * previous)
        previous = np.where(trusted, np.abs(residual), np.inf)
        y = np.where(trusted, newton, lower + 0.5 * (upper - lower))
        if finished.any():  # the few slow points should not pay for the many that are done.
            state = (y, lower, upper, previous, pending, means, scales, weights)
            y, lower, upper, previous, pending, means, scales, weights = (x[..., ~finished] for x in state)
    raise RuntimeError(f"quantile {level} not found at {pending.size} points; check means and variances there")
