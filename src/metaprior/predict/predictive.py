"""Predictive distributions: Gaussian predictions averaged over hyper-posterior particles.

Particle k predicts N(m_k, v_k) at a point; averaged with weights w_k: p(y) = Σ_k w_k N(y; m_k, v_k).

Predictive distributions of y, averaged over the components of a prior.

Component k has a Gaussian latent function t ~ N(m_k, v_k) and its own parameters of the likelihood:
p(y) = Σ_k w_k E[p(y | t; parameters_k)].
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri_exp

from metaprior.checks import counted, is_number, warn_caller
from metaprior.conventions import own_float_errors
from metaprior.likelihoods.base import LARGEST_COUNT, Likelihood
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


FAR = 1e-8  # a probability of a component from which on it is computed from logarithms: 1 - cdf has lost its digits
AT_ONCE = 2**21  # numbers of one quadrature
DOUBLINGS, HALVINGS = 30, 60  # of a bracket around a quantile


class HeavyTailWarning(UserWarning):
    """Given when a mean says little: of readings without a variance, in place of which the median is given, and of
    counts whose logarithmic rate is so uncertain that the mean is a thousand times the median.
    """


@own_float_errors
@dataclass(frozen=True, eq=False)
class Predictive:
    """A weighted mixture over components of what a likelihood makes of Gaussian latent functions, at every point.

    Results have the shape `points`, and are NaN at points with a NaN in any component. Of counts and ranks, quantiles
    and the ends of intervals are integers, and `log_density` is the logarithm of a probability.

    Parameters
    ----------
    likelihood : Likelihood
        The likelihood p(y | t).
    means, variances : ndarray of shape (components, *points)
        Moments of t, with the logarithm of the exposure added to those of counts.
    parameters : ndarray of shape (components, ..., n_parameters)
        Parameters of the likelihood; the axes but the last are the leading axes of `means`.
    log_weights : ndarray, optional
        As for `GaussianMixture`.
    """

    likelihood: Likelihood
    means: np.ndarray
    variances: np.ndarray
    parameters: np.ndarray
    log_weights: np.ndarray | None = None

    def __repr__(self) -> str:
        components, *points = self.means.shape
        counted_components = counted(components, "component")
        return f"Predictive({self.likelihood.name}, {counted_components} at points of shape {tuple(points)})"

    @cached_property
    def latent(self) -> GaussianMixture:
        """The mixture of t."""
        return GaussianMixture(self.means, self.variances, self.log_weights)

    @cached_property
    def _weights(self) -> np.ndarray:
        return np.exp(self.latent._log_weights)

    @cached_property
    def _parameters(self) -> np.ndarray:
        """With the axes of the means, of length one where they are the same."""
        *leading, n = self.parameters.shape
        return self.parameters.reshape(*leading, *(1,) * (self.means.ndim - len(leading)), n)

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        means, variances = self.likelihood.moments(self.means, self.variances, self._parameters)
        counts = self._weights > 0.0
        with np.errstate(invalid="ignore", over="ignore"):  # a mean may be infinite, which the variance then is, too
            means, scales = np.where(counts, means, 0.0), np.where(counts, np.sqrt(variances), 0.0)
            mean, variance = mixture_moments(means, scales, self._weights)
            infinite = np.isinf(means).any(axis=0)
        return np.where(infinite, np.inf, mean), np.where(infinite, np.inf, variance)

    @property
    def is_discrete(self) -> bool:
        """Whether y are integers."""
        return self.likelihood.discrete

    def mean(self) -> np.ndarray:
        """Return E[y], or the median where the mean says nothing; a warning tells so."""
        mean = self._moments[0]
        replaced, why = self.likelihood.doubtful_mean(mean, self.latent, self.parameters)
        if why:
            warn_caller(why, HeavyTailWarning)
        if np.any(replaced):
            mean = mean.copy()
            mean[replaced] = self._at(np.asarray(replaced)).quantile(0.5)
        return mean

    def variance(self) -> np.ndarray:
        """Return the variance of y, by the law of total variance."""
        return self._moments[1]

    def std(self) -> np.ndarray:
        """Return the square root of `variance`."""
        return np.asarray(np.sqrt(self.variance()))

    def log_density(self, y: np.ndarray | float | int) -> np.ndarray:
        """Return log p(y), of counts and ranks the log probability; minus infinity for y that cannot be."""
        with np.errstate(divide="ignore", invalid="ignore"):  # NaN, where there is no query
            of_each = self.likelihood.log_density(self._values(y), self.means, self.variances, self._parameters)
            return np.asarray(logsumexp(of_each + self.latent._log_weights, axis=0))

    def cdf(self, y: np.ndarray | float | int) -> np.ndarray:
        """Return P(Y <= y)."""
        with np.errstate(invalid="ignore"):
            of_each = self.likelihood.cdf(self._values(y), self.means, self.variances, self._parameters)
        return np.asarray(np.clip(np.sum(self._weights * of_each, axis=0), 0.0, 1.0))

    def below(self, y: np.ndarray) -> np.ndarray:
        """Return P(Y < y), which is less than `cdf` where y has a probability."""
        return self.cdf(y - 1.0) if self.likelihood.discrete else self.cdf(y)

    def log_tail(self, y: np.ndarray, upper: bool) -> np.ndarray:
        """Return log P(Y >= y), or log P(Y <= y), however small."""
        y = np.broadcast_to(y, self.means.shape)
        parameters = np.broadcast_to(self._parameters, (*y.shape, self.likelihood.n_parameters))
        tail = self.likelihood.cdf(y - 1.0 if upper and self.is_discrete else y, self.means, self.variances, parameters)
        tail = 1.0 - tail if upper else tail
        is_far = tail < FAR
        log_tail = np.log(np.where(is_far, FAR, tail))
        if is_far.any():
            moments = self.means[is_far], self.variances[is_far]
            of_far = self.likelihood.log_far_tail(y[is_far], *moments, parameters[is_far], upper)
            log_tail[is_far] = np.minimum(of_far, log_tail[is_far])  # a tail never grows where its formula changes
        return np.minimum(np.asarray(logsumexp(log_tail + self.latent._log_weights, axis=0)), 0.0)

    def scores(self, y: np.ndarray) -> np.ndarray:
        """Return how many standard deviations from its mean a normal variable has tails as small as those beyond y."""
        return -np.asarray(ndtri_exp(np.minimum(self.log_tail(y, False), self.log_tail(y, True))))

    def quantile(self, probability: Any) -> np.ndarray:
        """Return the smallest y with cdf(y) >= probability: an integer for counts and ranks.

        Parameters
        ----------
        probability : float or sequence of float
            Strictly between 0 and 1.

        Returns
        -------
        ndarray of shape points, or (len(probability), *points) for a sequence
        """
        levels = as_levels(probability)
        valid = np.asarray(np.isfinite(self.means).all(axis=0) & np.isfinite(self.variances).all(axis=0))
        found = np.full((levels.size, *valid.shape), np.nan)
        some = self._at(valid)
        for row, level in enumerate(levels.ravel().tolist()):  # the work arrays of one level are large already
            found[row, valid] = some._quantiles(level)
        return found.reshape(levels.shape + valid.shape)

    def interval(self, coverage: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the central interval; of counts and ranks integers that hold at least this probability.

        Tails of equal size would hold more than they should where one is empty, as below a count of zero. One end is
        therefore the central interval's, and the other no farther than necessary, whichever makes it shorter.

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
        lower, upper = self.quantile([0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage])
        if not self.likelihood.discrete:
            return lower, upper
        valid = np.isfinite(lower)
        some = self._at(valid)
        ends = some._shortened(lower[valid], upper[valid], float(coverage))
        for whole, part in zip((lower, upper), ends, strict=True):
            whole[valid] = part
        return lower, upper

    def _values(self, y: np.ndarray | float | int) -> np.ndarray:
        y = np.asarray(y, np.float64)
        check_shape("y", y, self.means.shape[1:] if y.ndim else ())  # a scalar stands for every point
        return np.broadcast_to(y, self.means.shape[1:])

    def _at(self, valid: np.ndarray) -> "Predictive":
        """Return the mixture at some points, (components, points)."""
        log_weights = np.broadcast_to(self.latent._log_weights, self.means.shape)[:, valid]
        parameters = np.broadcast_to(self._parameters, (*self.means.shape, self.likelihood.n_parameters))[:, valid]
        return Predictive(self.likelihood, self.means[:, valid], self.variances[:, valid], parameters, log_weights)

    def _shortened(self, lower: np.ndarray, upper: np.ndarray, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """Move one end of intervals inward as far as they hold their probability, the one that can be moved farther."""
        below, up_to = self.below(lower), self.cdf(upper)
        least, beyond = lower - 1.0, upper.copy()  # of upper ends: cdf(least) < below + coverage <= cdf(beyond)
        inner, most = lower.copy(), upper + 1.0  # the largest lower end: below(inner) <= up_to - coverage < below(most)
        while (np.maximum(beyond - least, most - inner) > 1.0).any():
            middle = np.floor(0.5 * (least + beyond))
            enough = self.cdf(middle) >= below + coverage
            beyond, least = np.where(enough, middle, beyond), np.where(enough, least, middle)
            middle = np.ceil(0.5 * (inner + most))
            allowed = self.below(middle) <= up_to - coverage
            inner, most = np.where(allowed, middle, inner), np.where(allowed, most, middle)
        from_below = beyond - lower <= upper - inner
        return np.where(from_below, lower, inner), np.where(from_below, beyond, upper)

    def _quantiles(self, level: float) -> np.ndarray:
        weights = np.broadcast_to(self._weights, self.means.shape)
        found = self.likelihood.quantile(self.means, self.variances, self._parameters, weights, level)
        if found is not None:
            return found
        return self._integers(level) if self.likelihood.discrete else self._reals(level)

    def _reals(self, level: float) -> np.ndarray:
        """Find the quantile of a real number by bisection, from brackets that grow from its mean."""
        mean, variance = self._moments
        step = np.sqrt(variance)
        lower, upper = mean - step, mean + step
        for _ in range(DOUBLINGS):
            step = 2.0 * step
            lower = np.where(self.cdf(lower) >= level, lower - step, lower)
            upper = np.where(self.cdf(upper) < level, upper + step, upper)
        for _ in range(HALVINGS):
            middle = 0.5 * (lower + upper)
            reached = self.cdf(middle) >= level
            upper, lower = np.where(reached, middle, upper), np.where(reached, lower, middle)
        return upper

    def _integers(self, level: float) -> np.ndarray:
        """Find the smallest integer by bisection, from brackets that grow from the quantile of a log-normal count."""
        n_at_once = max(AT_ONCE // (64 * len(self.means)), 1)
        n_points = self.means.shape[1]
        parts = []
        for first in range(0, n_points, n_at_once):
            chosen = np.zeros(n_points, bool)
            chosen[first : first + n_at_once] = True
            parts.append(self._at(chosen)._bisect(level))
        return np.concatenate(parts) if parts else np.empty(0)

    def noisy(self) -> GaussianMixture:
        """Return the mixture of t with noise: about that of y as readings of t."""
        noise = self.likelihood.noise(self.means, self._parameters)
        return GaussianMixture(self.means, self.variances + noise, self.log_weights)

    def _bisect(self, level: float) -> np.ndarray:
        guess = np.floor(np.minimum(np.exp(np.minimum(self.noisy().quantile(level), 36.0)), LARGEST_COUNT))
        lower, upper = guess - 1.0, guess  # cdf(lower) < level <= cdf(upper)
        step = np.ones_like(guess)
        for _ in range(60):
            high, low = self.cdf(upper) < level, self.cdf(lower) >= level
            if not (high.any() or low.any()):
                break
            lower, upper = np.where(high, upper, lower), np.where(low, lower, upper)
            upper = np.where(high, np.minimum(upper + step, LARGEST_COUNT), upper)
            lower = np.where(low, np.maximum(lower - step, -1.0), lower)
            high &= upper < LARGEST_COUNT
            step = step * 2.0
        while ((upper - lower) > 1.0).any():
            middle = np.floor(0.5 * (lower + upper))
            reached = self.cdf(middle) >= level
            upper, lower = np.where(reached, middle, upper), np.where(reached, lower, middle)
        return upper
