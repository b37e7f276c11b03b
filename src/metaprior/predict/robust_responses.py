"""Readings with outliers: y = t + sigma T, where T has Student's t distribution with nu degrees of freedom.

Predictions average over the precision w ~ Gamma(nu / 2, nu / 2) of T (`student_averages.py`). For fits E[log p(y | t)]
is computed by quadrature over t, or in closed form but for one integral where t is wide. Its curvature is negative at
outliers, where the posterior would be wider than the prior: the precision of a site is at least a small share of
E[w] / sigma^2 there. A bound that treats w as independent of t keeps precisions positive, too, but finds posteriors
that are a third too narrow and noise that is too large (10% of the readings off by 2: RMSE 3 to 9% larger, on
validation draws).
"""

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp, psi

from metaprior.predict import student_averages
from metaprior.predict.responses import NODE_WEIGHTS, Expected, Response, Start, nodes_of
from metaprior.predict.student_averages import FAR

MAD = 1.4826  # standard deviation of a normal variable, in median absolute deviations
LEAST_SHARE = 0.02  # of E[w] / sigma^2 that the precision of a reading has at least
WIDE = 0.7  # standard deviation of t, in units of sigma sqrt(nu), from which on its nodes are too few
RATE_STEP = 0.6
LOG_RATES = np.arange(-28.0, 3.7, RATE_STEP)  # exp(-pi^2 / 0.6) is 7e-8
CLIPPED = 4.0  # standard deviations at which readings are clipped to start from


class StudentT(Response):
    """y = t + sigma T_nu. Parameters are log sigma and log nu."""

    name = "student-t"
    discrete = False

    @property
    def n_parameters(self) -> int:
        """Two, log sigma and log nu."""
        return 2

    def initial(self, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Expect noise as without outliers, and nu around 8: more than 2 unless the data say otherwise."""
        return np.array([np.log(robust_std(y)) - 1.0, 2.0]), np.array([1.5, 0.8])

    def start(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> Start:
        """Return y, with a larger variance the farther it is from what is expected."""
        nu, unit = np.exp(parameters[..., 1]), np.exp(2.0 * parameters[..., 0])
        return Start(y, (nu * unit + (y - mean) ** 2 + variance) / (nu + 1.0))

    def latent(self, y: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return y, clipped where it is far from all others."""
        middle, spread = float(np.median(y)), CLIPPED * robust_std(y)
        return np.clip(y, middle - spread, middle + spread)

    def expected(
        self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray, gradient: bool = False
    ) -> Expected:
        """Return the expected logarithm, by Gauss-Hermite quadrature; where t is wide, over `LOG_RATES`."""
        log_sigma, nu = parameters[..., 0], np.exp(parameters[..., 1])
        error, own, unit = np.broadcast_arrays(y - mean, variance, nu * np.exp(2.0 * log_sigma))
        found = _averages_over_t(error, own, unit)
        wide = own > WIDE**2 * unit
        if wide.any():
            at_wide = (each[wide] for each in (error, own, unit))
            for part, of_wide in zip(found, _averages_over_rates(*at_wide), strict=True):
                part[wide] = of_wide
        log_ratio, inverse, slope, curvature = found
        precision = (nu + 1.0) * np.maximum(curvature, LEAST_SHARE * inverse)
        constant = gammaln(0.5 * (nu + 1.0)) - gammaln(0.5 * nu) - 0.5 * np.log(np.pi * nu) - log_sigma
        by_parameters = None
        if gradient:
            pulled = (nu + 1.0) * (1.0 - unit * inverse)
            by_nu = 0.5 * nu * (psi(0.5 * (nu + 1.0)) - psi(0.5 * nu) - 1.0 / nu - log_ratio + pulled / nu)
            by_parameters = np.stack([pulled - 1.0, by_nu], axis=-1)
        value = constant - 0.5 * (nu + 1.0) * log_ratio
        return Expected(value, (nu + 1.0) * slope, precision, by_parameters)

    def log_density(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return log E[p(y | t)], over nodes of the precision of T; far out over nodes of t."""
        arrays = np.broadcast_arrays(y - mean, variance, parameters[..., 0], parameters[..., 1])
        found = np.asarray(student_averages.log_density(*arrays))
        far = np.abs(arrays[0]) > FAR * np.sqrt(arrays[1] + np.exp(2.0 * arrays[2]))
        if not far.any():
            return found
        deviation, variance, log_sigma, log_nu = (each[far] for each in arrays)
        at = nodes_of(deviation, variance) / np.exp(log_sigma)[:, None]
        from scipy.stats import t as student  # which takes long to import

        density = student.logpdf(at, np.exp(log_nu)[:, None]) - log_sigma[:, None]
        found[far] = logsumexp(density, axis=-1, b=NODE_WEIGHTS)
        return found

    def cdf(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return E[P(Y <= y | t)], over nodes of the precision of T."""
        return student_averages.cdf(y - mean, variance, parameters[..., 0], parameters[..., 1])

    def log_far_tail(
        self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray, upper: bool
    ) -> np.ndarray:
        """Return log P(Y >= y), or log P(Y <= y), down to 1e-17."""
        return np.log(student_averages.cdf(-np.abs(y - mean), variance, parameters[..., 0], parameters[..., 1]))

    def moments(self, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of y; the variance is infinite for nu <= 2."""
        nu = np.exp(parameters[..., 1])
        factor = np.where(nu > 2.0, nu / np.where(nu > 2.0, nu - 2.0, 1.0), np.inf)
        first, noise = np.broadcast_arrays(mean, np.exp(2.0 * parameters[..., 0]) * factor)
        return first, variance + noise

    def draw(self, t: np.ndarray, parameters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw readings given t."""
        nu = np.broadcast_to(np.exp(parameters[..., 1]), t.shape)
        return t + np.exp(parameters[..., 0]) * rng.standard_t(nu)

    def noise(self, mean: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return sigma^2."""
        return np.broadcast_to(np.exp(2.0 * parameters[..., 0]), mean.shape)

    def stretched(self, parameters: np.ndarray, factor: float) -> np.ndarray:
        """Stretch the noise too."""
        return parameters + np.array([np.log(factor), 0.0])

    def describe(self, parameters: np.ndarray) -> dict[str, float | list[float]]:
        """Return sigma and nu."""
        return {"sigma": float(np.exp(parameters[0])), "nu": float(np.exp(parameters[1]))}


def robust_std(y: np.ndarray) -> float:
    """Return a standard deviation that outliers do not change; that of all readings if most are equal."""
    if not y.size:
        return 1.0
    spread = MAD * float(np.median(np.abs(y - np.median(y))))
    return spread or float(np.std(y)) or 1.0


class Averages(NamedTuple):
    """Averages over e ~ N(error, variance)."""

    log_ratio: np.ndarray  # of log(1 + e^2 / unit)
    inverse: np.ndarray  # of 1 / (unit + e^2)
    slope: np.ndarray  # of e / (unit + e^2)
    curvature: np.ndarray  # of the derivative of that by e


def _averages_over_t(error: np.ndarray, variance: np.ndarray, unit: np.ndarray) -> Averages:
    """Return averages by Gauss-Hermite quadrature."""
    at = nodes_of(error, variance)
    square, unit = at**2, unit[..., None]
    inverse = 1.0 / (unit + square)
    curvature = (inverse - 2.0 * inverse**2 * square) @ NODE_WEIGHTS
    log_ratio = np.log1p(square / unit) @ NODE_WEIGHTS
    return Averages(log_ratio, inverse @ NODE_WEIGHTS, (inverse * at) @ NODE_WEIGHTS, curvature)


def _averages_over_rates(error: np.ndarray, variance: np.ndarray, unit: np.ndarray) -> Averages:
    """Return averages by log(1 + q) = int (1 - exp(-r q)) exp(-r) / r dr, where that of exp(-r q) has a closed form.

    Gauss-Hermite nodes are too far from each other for a peak much narrower than N(error, variance).
    """
    r, step = np.exp(LOG_RATES), RATE_STEP * np.exp(-np.exp(LOG_RATES))
    total = unit[:, None] + 2.0 * r * variance[:, None]
    left = np.exp(-r * error[:, None] ** 2 / total) * np.sqrt(unit[:, None] / total)  # E[exp(-r e^2 / unit)]
    pull = left * r / total
    curvature = (pull * (1.0 - 2.0 * r * error[:, None] ** 2 / total)) @ step
    return Averages((1.0 - left) @ step, (left * r) @ step / unit, error * (pull @ step), curvature)
