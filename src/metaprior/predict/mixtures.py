"""Predictive distributions: Gaussian predictions averaged over hyper-posterior particles.

Particle k predicts N(m_k, v_k) at a point; averaged with weights w_k: p(y) = Σ_k w_k N(y; m_k, v_k).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from metaprior.checks import counted, is_number
from metaprior.float_errors import own_float_errors

VARIANCE_FLOOR = 1e-30  # of the largest variance: a known value becomes a Gaussian too narrow to matter
BLOCK = 256  # rows of a covariance
QUANTILE_TOLERANCE = 1e-12  # in units of the local scale dy/dz, where z is the normal score of the cdf
QUANTILE_MAXIMUM_ITERATIONS = 500  # usually 5; gaps between narrow components need up to about 100


@own_float_errors
@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """A weighted mixture of Gaussians at every point: p(y) = Σ_k w_k N(y; m_k, v_k).

    Results have the shape `points`, and are NaN at points with a NaN in any component.

    Parameters
    ----------
    means, variances : ndarray of shape (components, *points)
        Moments of the components.
    log_weights : ndarray, optional
        Log weights, normalized here. Their axes are the leading axes of `means`: (components,) for all points,
        (components, tasks) for points (tasks, queries). Default: equal weights.
    """

    means: np.ndarray
    variances: np.ndarray
    log_weights: np.ndarray | None = None

    def __post_init__(self):
        object.__setattr__(self, "means", np.asarray(self.means, dtype=np.float64))
        object.__setattr__(self, "variances", np.asarray(self.variances, dtype=np.float64))
        if self.means.ndim == 0 or self.means.shape[0] == 0:
            raise ValueError(f"means must have shape (components, *points); got {self.means.shape}")
        _require_shape("variances", self.variances, self.means.shape)
        if (self.variances < 0).any():
            raise ValueError(f"variances must be >= 0; got {np.nanmin(self.variances)}")
        _ = self._log_weights  # bad weights should fail here, not where they are used

    def __repr__(self) -> str:
        components, *points = self.means.shape
        return f"GaussianMixture({counted(components, 'component')} at points of shape {tuple(points)})"

    @cached_property
    def _log_weights(self) -> np.ndarray:
        """Normalized over components, with trailing axes of length one up to the rank of the means."""
        given = np.asarray(np.zeros(len(self.means)) if self.log_weights is None else self.log_weights, np.float64)
        _require_shape("log_weights", given, self.means.shape[: max(given.ndim, 1)])
        if not (given < np.inf).all() or not np.isfinite(given).any(axis=0).all():
            raise ValueError("log_weights must be finite or -inf, one of them finite; got nan, inf or all -inf")
        normalized = given - np.logaddexp.reduce(given, axis=0, keepdims=True)
        return normalized.reshape(given.shape + (1,) * (self.means.ndim - given.ndim))

    @cached_property
    def _weights(self) -> np.ndarray:
        return np.exp(self._log_weights)

    @cached_property
    def _scales(self) -> np.ndarray:
        """Standard deviations, with a floor of 1e-15 of the largest at the same point: others must not change it."""
        largest = np.max(self.variances, axis=0, initial=0.0, where=np.isfinite(self.variances))
        everywhere = np.max(largest, initial=0.0)
        known = VARIANCE_FLOOR * (everywhere if everywhere > 0 else 1.0)  # where no component has any variance
        return np.sqrt(np.maximum(self.variances, np.where(largest > 0, VARIANCE_FLOOR * largest, known)))

    def _standardize(self, y: np.ndarray | float | int) -> np.ndarray:
        y = np.asarray(y, dtype=np.float64)
        _require_shape("y", y, self.means.shape[1:] if y.ndim else ())  # a scalar stands for every point
        return (y - self.means) / self._scales

    def mean(self) -> np.ndarray:
        """Return E[y] = Σ_k w_k m_k."""
        return mixture_moments(self.means, self._scales, self._weights)[0]

    def variance(self) -> np.ndarray:
        """Return Σ_k w_k (v_k + (m_k − E[y])²), by the law of total variance."""
        return mixture_moments(self.means, self._scales, self._weights)[1]

    def std(self) -> np.ndarray:
        """Return the square root of `variance`."""
        return np.asarray(np.sqrt(self.variance()))

    def log_density(self, y: np.ndarray | float | int) -> np.ndarray:
        """Return log p(y), finite far in the tails.

        Parameters
        ----------
        y : float or ndarray of shape `points`

        Returns
        -------
        ndarray of shape `points`
        """
        log_normal = -0.5 * self._standardize(y) ** 2 - np.log(self._scales) - 0.5 * np.log(2.0 * np.pi)
        return np.asarray(logsumexp(self._log_weights + log_normal, axis=0))

    def cdf(self, y: np.ndarray | float | int) -> np.ndarray:
        """Return P(Y <= y) = Σ_k w_k Φ((y − m_k) / √v_k).

        Parameters
        ----------
        y : float or ndarray of shape `points`

        Returns
        -------
        ndarray of shape `points`
        """
        return np.asarray(np.minimum(np.sum(self._weights * ndtr(self._standardize(y)), axis=0), 1.0))

    def quantile(self, probability: Any) -> np.ndarray:
        """Return the y with cdf(y) = probability.

        Parameters
        ----------
        probability : float or sequence of float
            Strictly between 0 and 1.

        Returns
        -------
        ndarray of shape points, or (len(probability), *points) for a sequence
        """
        levels = as_levels(probability)
        arrays = (self.means, self._scales, np.broadcast_to(self._weights, self.means.shape))
        valid = np.isfinite(self.means).all(axis=0) & np.isfinite(self._scales).all(axis=0)
        means, scales, weights = (array[:, valid] for array in arrays)  # (components, valid points)
        quantiles = np.full((levels.size, *valid.shape), np.nan)
        for row, level in enumerate(levels.ravel().tolist()):  # the work arrays of one level are large already
            quantiles[row, valid] = solve_quantile(means, scales, weights, level)
        return quantiles.reshape(levels.shape + valid.shape)

    def interval(self, coverage: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the central interval: the quantiles at (1 − coverage) / 2 and (1 + coverage) / 2.

        Parameters
        ----------
        coverage : float
            Strictly between 0 and 1.

        Returns
        -------
        lower, upper : ndarray of shape `points`
        """
        if not (is_number(coverage) and 0 < coverage < 1):
            raise ValueError(f"coverage must lie strictly between 0 and 1; got {coverage!r}")
        return self.quantile(0.5 - 0.5 * coverage), self.quantile(0.5 + 0.5 * coverage)


class JointMixture(NamedTuple):
    """A mixture of joint Gaussians over points: Σ_k w_k N(y; m_k, C_k)."""

    means: np.ndarray  # (components, points)
    covariance_of: Callable[[np.ndarray], np.ndarray]  # shares (components,) -> a new array Σ_k shares_k C_k
    weights: np.ndarray  # (components,), of sum one
    observe: "Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray] | None" = None  # see `sample`

    def mean(self) -> np.ndarray:
        """Return E[y] = Σ_k w_k m_k."""
        return mixture_moments(self.means, np.zeros_like(self.means), self.weights[:, None])[0]

    def covariance(self) -> np.ndarray:
        """Return Σ_k w_k (C_k + (m_k − E[y])(m_k − E[y])ᵀ), by the law of total covariance."""
        deviations = self.means - self.mean()
        covariance = self.covariance_of(self.weights)
        for rows in blocks(len(covariance)):
            covariance[rows] += (self.weights[:, None] * deviations[:, rows]).T @ deviations
        return covariance

    def sample(self, n_samples: int, rng: np.random.Generator) -> np.ndarray:
        """Draw (n_samples, points): k ~ w, then m_k + V_k Λ_k^½ ε with C_k = V_k Λ_k V_kᵀ.

        What is observed of these draws, and of the components that they are from, is up to `observe`, if given.
        """
        drawn = rng.choice(self.weights.size, size=n_samples, p=self.weights)
        samples = rng.standard_normal((n_samples, self.means.shape[1]))
        for k in np.unique(drawn).tolist():  # one after another: each has a covariance of its own
            # A singular covariance has eigenvalues a little below zero: clipped here, where Cholesky would fail.
            eigenvalues, vectors = np.linalg.eigh(self.covariance_of(np.arange(self.weights.size) == k))
            vectors *= np.sqrt(np.maximum(eigenvalues, 0.0))
            samples[drawn == k] = self.means[k] + samples[drawn == k] @ vectors.T
        return samples if self.observe is None else self.observe(samples, drawn, rng)


def blocks(n: int, size: int = BLOCK) -> Iterator[slice]:
    """Yield slices of up to `size` of n rows: work on a large matrix that way needs little memory beside it."""
    return (slice(first, min(first + size, n)) for first in range(0, n, size))


def as_levels(probability: Any) -> np.ndarray:
    """Return checked levels of quantiles, a number or a vector."""
    try:
        levels = np.asarray(probability, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"probability must be a number or a vector of numbers; got {probability!r}") from None
    if levels.ndim > 1:
        raise ValueError(f"probability must be a scalar or a vector; got shape {levels.shape}")
    if not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"probability must lie strictly between 0 and 1; got {probability}")
    return levels


def stretch(
    means: np.ndarray, variances: np.ndarray, log_weights: np.ndarray, factor: float
) -> tuple[np.ndarray, np.ndarray]:
    """Stretch a mixture about its mean: m_k -> m + factor (m_k - m), v_k -> factor^2 v_k.

    Axes of the log weights are the leading axes of the means.
    """
    weights = np.exp(log_weights).reshape(log_weights.shape + (1,) * (means.ndim - log_weights.ndim))
    center = np.sum(weights * means, axis=0)
    return center + factor * (means - center), factor**2 * variances


def _require_shape(name: str, array: np.ndarray, expected: tuple[int, ...]) -> None:
    if array.shape != expected:
        raise ValueError(f"{name} must have shape {expected}; got {array.shape}")


def mixture_moments(means: np.ndarray, scales: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and variance of the mixture, over axis 0."""
    mean = np.sum(weights * means, axis=0)
    # Again about the first sum, whose rounding would show in the variance where scales are far below means.
    mean = np.asarray(mean + np.sum(weights * (means - mean), axis=0))
    return mean, np.asarray(np.sum(weights * (scales**2 + (means - mean) ** 2), axis=0))


def solve_quantile(means: np.ndarray, scales: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """Solve F(y) = level for each column of three (components, points) arrays.

    Newton's method on normal scores, z(y) = Φ⁻¹(F(y)) against Φ⁻¹(level), dz/dy = p(y) / φ(z), which is a line for one
    Gaussian and nearly one for a mixture, tails included. The root lies between the extreme component quantiles. A step
    that leaves this bracket, or follows one that did not halve the residual, is a bisection.
    """
    if level > 0.5:  # reflect: a cdf has its relative precision in the lower tail, and 1 - level is exact.
        return -solve_quantile(-means, scales, weights, 1.0 - level)
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
