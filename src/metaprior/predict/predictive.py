"""Predictive distributions of y, averaged over the components of a prior.

Component k has a Gaussian latent function t ~ N(m_k, v_k) and its own parameters of the likelihood:
p(y) = Σ_k w_k E[p(y | t; parameters_k)].
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtri_exp

from metaprior.checks import counted, is_number, warn_caller
from metaprior.float_errors import own_float_errors
from metaprior.likelihoods.base import LARGEST_COUNT, Likelihood
from metaprior.likelihoods.gaussian import mixture_moments
from metaprior.predict.mixtures import GaussianMixture, as_levels, check_shape

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
