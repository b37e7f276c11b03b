"""Predictive distributions: Gaussian predictions averaged over hyper-posterior particles.

Particle k predicts N(m_k, v_k) at a point; averaged with weights w_k: p(y) = Σ_k w_k N(y; m_k, v_k).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtr

from metaprior.checks import counted, is_number
from metaprior.float_errors import own_float_errors
from metaprior.likelihoods.gaussian import mixture_moments, normal_quantile
from metaprior.memory import blocks

VARIANCE_FLOOR = 1e-30  # of the largest variance: a known value becomes a Gaussian too narrow to matter


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
        check_shape("variances", self.variances, self.means.shape)
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
        check_shape("log_weights", given, self.means.shape[: max(given.ndim, 1)])
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
        check_shape("y", y, self.means.shape[1:] if y.ndim else ())  # a scalar stands for every point
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
            quantiles[row, valid] = normal_quantile(means, scales, weights, level)
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


def check_shape(name: str, array: np.ndarray, expected: tuple[int, ...]) -> None:
    """Raise unless an array has the expected shape."""
    if array.shape != expected:
        raise ValueError(f"{name} must have shape {expected}; got {array.shape}")
