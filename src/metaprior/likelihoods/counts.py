"""Counts with a logarithmic rate t: Poisson, or negative binomial with the variance mean + mean^2 / r.

A negative binomial is a Poisson variable whose rate has been multiplied by a Gamma variable of mean one. Poisson is its
limit of large r. The conditional distribution function is P(Y <= y | t) = P(t <= L) with a random threshold L: for
Poisson L = log G with G ~ Gamma(y + 1), for a negative binomial L = log r - logit(B) with B ~ Beta(r, y + 1).
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import betainc, expit, gammaln, log_ndtr, ndtr, pdtr, polygamma, psi

from metaprior.checks import Argument, Message, counted
from metaprior.likelihoods.base import (
    LARGEST_COUNT,
    NODE_WEIGHTS,
    NODES,
    Broad,
    Expected,
    Integers,
    Likelihood,
    Start,
    averages_over_t,
    nodes_of,
    trapezoid,
)
from metaprior.linalg import Array

EVEN, EVEN_WEIGHTS = trapezoid(7.0)
LARGEST = 600.0  # exponent
NARROW = 0.175  # a threshold this narrow, relative to t, is too narrow for the nodes of t
NEWTON_STEPS = 12
SMALL, WIDE = 2.0, 3.0  # p(y | t) N(t) is lopsided for counts or r of at most SMALL and variances above WIDE
EVENLY, NEGLIGIBLE, BEND = 120, 37.0, 6.0  # nodes; what may be left out; where p(y | t) bends
FAR_STEPS = 40  # of Newton's method, far from the mean
LEAST_VARIANCE = 1e-12  # of t
MAX_COUNT = 1e12
ABSURD = 1000.0  # times the median: users are warned of a larger mean
# A hint needs counts that start at zero and are skewed, or positive ones over a wide range.
SKEWED, COUNT_VALUES = 1.0, 4
WIDE_RANGE, MEDIAN_COUNT, OVER_DISPERSED = 10, 200.0, 3.0


class _Counts(Likelihood):
    """What both kinds of counts share. Their functions of t take log r, which is infinite for Poisson."""

    outputs = "counts"
    discrete = True
    takes_exposure = True
    without_noise = "rate of y"

    def check(self, y: Array, name: str) -> None:
        """Raise unless all are the integers 0, 1, 2, ..., and not too large."""
        given = Argument("likelihood", self.name)
        bad = (y < 0) | (y != np.floor(y)) | (y > MAX_COUNT)
        if (y > MAX_COUNT).any():
            most = f"{name} must hold counts of at most {MAX_COUNT:g} for "
            found = f"; got {y[y > MAX_COUNT][0]:g}. Count in larger units, or use 'gaussian'."
            raise ValueError(Message(most, given, found))
        if bad.any():
            advice = ". Give the exposure as a column of X, not rates" if (y[bad] > 0).all() else ""
            expected = f"{name} must hold counts, the integers 0, 1, 2, ... for "
            raise ValueError(Message(expected, given, f"; got {y[bad][0]:g}{advice}."))

    @abstractmethod
    def _cdf_given(self, y: Array, t: Array, log_r: Array) -> Array:
        """Return P(Y <= y | t)."""

    @abstractmethod
    def _log_density_given(self, y: Array, t: Array, log_r: Array) -> Array:
        """Return log p(y | t)."""

    @abstractmethod
    def _slopes(self, y: Array, t: Array, log_r: Array) -> tuple[Array, Array]:
        """Return the derivative of log p(y | t), and minus the second one."""

    @abstractmethod
    def _half_deviance(self, y: Array, t: Array, log_r: Array) -> Array:
        """Return the largest log p(y | t) of any t, less that of this t; never negative."""

    def _log_r(self, parameters: Array) -> Array:
        return parameters[..., 0] if self.n_parameters else np.full(parameters.shape[:-1], np.inf)

    def initial(self, y: Array, weights: Array) -> tuple[Array, Array]:
        """Expect r around 3, a standard deviation of 60% of the rate, give or take a factor of 3 or so."""
        return np.ones(self.n_parameters), np.ones(self.n_parameters)

    def start(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Start:
        """Return log(y + 1/2), with the variance of a logarithmic count."""
        return Start(self.latent(y, parameters), 1.0 / (y + 0.5) + np.exp(-self._log_r(parameters)))

    def latent(self, y: Array, parameters: Array) -> Array:
        return np.log(y + 0.5)

    def broad(self, y: Sequence[Array], offsets: Sequence[Array]) -> Broad:
        """Return counts of one rate, that vary as all do."""
        counts, exposure = np.concatenate(y), np.exp(np.concatenate(offsets))
        rate = (counts.sum() + 0.5) / exposure.sum()
        expected = rate * exposure
        excess = np.sum((counts - expected) ** 2 - expected) / np.sum(expected**2)  # 1 / r, by the method of moments
        return Broad(NegativeBinomial(), np.log(rate), 0.0, np.array([-np.log(np.clip(excess, 0.05, 20.0))]))

    def moments(self, mean: Array, variance: Array, parameters: Array) -> tuple[Array, Array]:
        """Return those of a log-normal rate, and of counts given it."""
        with np.errstate(over="ignore"):
            first = np.exp(mean + 0.5 * variance)
            # E[rate^2] / E[rate]^2 - 1 + 1 / r
            excess = np.expm1(variance) + np.exp(variance - self._log_r(parameters))
            infinite = np.isinf(first)
            return first, np.where(infinite, np.inf, first + np.where(infinite, 1.0, first) ** 2 * excess)

    def noise(self, mean: Array, parameters: Array) -> Array:
        """Return about the variance of log y given t."""
        return 1.0 / (np.exp(np.minimum(mean, LARGEST)) + 0.5) + np.exp(-self._log_r(parameters))

    def draw(self, t: Array, parameters: Array, rng: np.random.Generator) -> Array:
        rate, log_r = np.exp(np.minimum(t, 40.0)), np.broadcast_to(self._log_r(parameters), t.shape)
        if self.n_parameters:
            rate = rate * rng.gamma(np.exp(log_r)) * np.exp(-log_r)
        return rng.poisson(np.minimum(rate, 1e18)).astype(np.float64)

    def doubtful_mean(self, mean: Array, latent: Any, parameters: Array) -> tuple[Array, str]:
        """Return where the mean is too large for a count, and a warning where it is far from the median."""
        with np.errstate(divide="ignore", invalid="ignore"):
            absurd = (mean > 1.0) & (np.log(mean) - latent.mean() > np.log(ABSURD))
        beyond = mean >= LARGEST_COUNT
        if not np.any(absurd):
            return beyond, ""
        return beyond, (
            f"The predictive mean of counts is more than {ABSURD:g} times their median at "
            f"{counted(int(np.sum(absurd)), 'point')}: the logarithm of the rate is so uncertain, with a standard "
            f"deviation of up to {np.max(latent.std()[absurd]):.3g}, that a tiny chance of huge counts decides it. Use "
            f"the median, quantile(..., 0.5), and interval. Means beyond {LARGEST_COUNT:.1g} are the median, and their "
            "standard deviations may be infinite."
        )

    def cdf(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Array:
        """Use few or many nodes of t, or a normal threshold where that is narrow."""
        y, log_r = np.floor(y), self._log_r(parameters)
        y, mean, variance, log_r = np.broadcast_arrays(y, mean, variance, log_r)
        count = np.maximum(y, 0.0)
        finite = np.isfinite(log_r)
        bounded = np.where(finite, log_r, 0.0)
        middle = psi(count + 1.0) + np.where(finite, bounded - psi(np.exp(bounded)), 0.0)
        width = polygamma(1, count + 1.0) + np.where(finite, polygamma(1, np.exp(bounded)), 0.0)
        found = np.asarray(ndtr((middle - mean) / np.sqrt(variance + width)))
        rules = ((width >= variance, NODES, NODE_WEIGHTS), (width >= NARROW**2 * variance, EVEN, EVEN_WEIGHTS))
        known = np.zeros(found.shape, bool)
        for wide, nodes, weights in rules:
            some = wide & ~known
            t = nodes_of(mean[some], variance[some], nodes)
            found[some] = self._cdf_given(count[some][:, None], t, log_r[some][:, None]) @ weights
            known |= some
        return np.where(y < 0.0, 0.0, np.where(np.isnan(mean), np.nan, np.minimum(found, 1.0)))

    def log_far_tail(self, y: Array, mean: Array, variance: Array, parameters: Array, upper: bool) -> Array:
        """Return the tail of a normal variable at the root of the deviance.

        That is the deviance of y given t and of t, at the t that has the least: it grows the farther out y is.
        """
        log_r, variance = self._log_r(parameters), np.maximum(variance, LEAST_VARIANCE)
        t = self._mode(y, mean, variance, log_r, FAR_STEPS)
        return log_ndtr(-np.sqrt(2.0 * self._half_deviance(y, t, log_r) + (t - mean) ** 2 / variance))

    def _mode(self, y: Array, mean: Array, variance: Array, log_r: Array, n_steps: int) -> Array:
        """Return the mode of p(y | t) N(t), a concave function, by Newton's method from near it."""
        noise = 1.0 / (y + 0.5) + np.exp(-log_r)
        t = (mean * noise + np.log(y + 0.5) * variance) / (noise + variance)
        for _ in range(n_steps):
            slope, curvature = self._slopes(y, t, log_r)
            step = (slope - (t - mean) / variance) / (curvature + 1.0 / variance)
            t = t + np.clip(step, -3.0, 3.0)
        return t

    def log_density(self, y: Array, mean: Array, variance: Array, parameters: Array) -> Array:
        """Use quadrature around the mode of p(y | t) N(t).

        Of small counts or a small r under a wide N(t) that is lopsided: evenly spaced nodes take the place of those of
        Gauss and Hermite.
        """
        y, mean, variance, log_r = np.broadcast_arrays(y, mean, variance, self._log_r(parameters))
        possible = (y >= 0.0) & (y == np.floor(y))
        count, variance = np.where(possible, y, 0.0), np.maximum(variance, LEAST_VARIANCE)
        t = self._mode(count, mean, variance, log_r, NEWTON_STEPS)
        std = 1.0 / np.sqrt(self._slopes(count, t, log_r)[1] + 1.0 / variance)
        at = t[..., None] + std[..., None] * NODES
        of_y = self._log_density_given(count[..., None], at, log_r[..., None])
        total = of_y - 0.5 * (at - mean[..., None]) ** 2 / variance[..., None] + 0.5 * NODES**2
        largest = np.max(total, axis=-1)
        inner = np.exp(total - largest[..., None]) @ NODE_WEIGHTS
        found = np.asarray(largest + np.log(inner) + np.log(std) - 0.5 * np.log(variance))
        lopsided = (np.minimum(np.log(count + 1e-9), log_r) <= np.log(SMALL)) & (variance > WIDE)
        if lopsided.any():
            found[lopsided] = self._evenly(*(each[lopsided] for each in (count, mean, variance, log_r, t)))
        return np.where(possible, found, np.where(np.isnan(y) | np.isnan(mean), np.nan, -np.inf))

    def _evenly(self, y: Array, mean: Array, variance: Array, log_r: Array, mode: Array) -> Array:
        """Return log E[p(y | t)] by the trapezoid rule, between where p(y | t) N(t) is negligible on both sides.

        The logarithm of p(y | t) rises by y per unit of t far to the left, and falls by r far to the right.
        """
        widest, r = NEGLIGIBLE**0.5 * np.sqrt(2.0 * variance), np.exp(np.minimum(log_r, LARGEST))
        bend = np.log(y + 0.5) + np.maximum(-log_r, 0.0)
        left = np.minimum(widest, np.maximum(mode - bend, 0.0) + NEGLIGIBLE / np.maximum(y, 1e-9) + BEND)
        right = np.minimum(widest, np.maximum(bend - mode, 0.0) + NEGLIGIBLE / r + BEND)
        share = (np.arange(EVENLY) + 0.5) / EVENLY
        t = (mode - left)[:, None] + (left + right)[:, None] * share
        total = (
            self._log_density_given(y[:, None], t, log_r[:, None]) - 0.5 * (t - mean[:, None]) ** 2 / variance[:, None]
        )
        largest = total.max(axis=1)
        inner = np.exp(total - largest[:, None]).sum(axis=1)
        return largest + np.log(inner * (left + right) / EVENLY) - 0.5 * np.log(2.0 * np.pi * variance)


class Poisson(_Counts):
    """y ~ Poisson(e^t). No parameters."""

    name = "poisson"
    words = "counts (Poisson)"

    def expected(self, y: Array, mean: Array, variance: Array, parameters: Array, gradient: bool = False) -> Expected:
        """Return y E[t] - E[e^t] - log y!, in closed form."""
        rate = np.exp(np.minimum(mean + 0.5 * variance, LARGEST))
        value = y * mean - rate - gammaln(y + 1.0)
        return Expected(value, y - rate, rate, np.zeros((*value.shape, 0)) if gradient else None)

    def _cdf_given(self, y: Array, t: Array, log_r: Array) -> Array:
        return pdtr(y, np.exp(np.minimum(t, LARGEST)))

    def _log_density_given(self, y: Array, t: Array, log_r: Array) -> Array:
        return y * t - np.exp(np.minimum(t, LARGEST)) - gammaln(y + 1.0)

    def _slopes(self, y: Array, t: Array, log_r: Array) -> tuple[Array, Array]:
        rate = np.exp(np.minimum(t, LARGEST))
        return y - rate, rate

    def _half_deviance(self, y: Array, t: Array, log_r: Array) -> Array:
        less = np.log(np.maximum(y, 1.0)) - t  # y log(y / m) - y + m, without the difference of large numbers
        return np.where(y > 0.0, y * np.maximum(less + np.expm1(-less), 0.0), np.exp(np.minimum(t, LARGEST)))


class NegativeBinomial(_Counts):
    """y with the mean e^t and the variance e^t + e^2t / r. Its parameter is log r."""

    name = "negative-binomial"
    words = "counts (negative binomial)"
    logarithms_of = ("r",)

    @classmethod
    def suggested(cls, given: Integers) -> Message | None:
        """Suggest it for skewed integers from zero, and for over-dispersed positive ones over a wide range.

        Ages, heart rates and scores have a narrower range, or are less skewed; amounts of money are larger.
        """
        y, seen, argument = given.y, given.seen, Argument("likelihood", cls.name)
        if not given.skewness > SKEWED:
            return None
        if seen[0] == 0 and len(seen) >= COUNT_VALUES:
            return Message(f"y holds counts from 0 to {seen[-1]:.0f}: try ", argument)
        wide = seen[-1] >= WIDE_RANGE * seen[0] and len(seen) >= WIDE_RANGE and np.median(y) <= MEDIAN_COUNT
        if seen[0] > 0 and wide and np.var(y) > OVER_DISPERSED * np.mean(y):
            counts_from = f"y holds integers from {seen[0]:.0f} to {seen[-1]:.0f}. If they are counts, try "
            return Message(counts_from, argument)
        return None

    def expected(self, y: Array, mean: Array, variance: Array, parameters: Array, gradient: bool = False) -> Expected:
        log_r = self._log_r(parameters)
        r = np.exp(log_r)
        total, of_share, bend = averages_over_t(_of_log_odds, mean - log_r, variance)
        value = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0) + y * (mean - log_r) - (y + r) * total
        by_r = None
        if gradient:
            by_r = (r * (psi(y + r) - psi(r) - total) - y + (y + r) * of_share)[..., None]
        return Expected(value, y - (y + r) * of_share, (y + r) * bend, by_r)

    def _cdf_given(self, y: Array, t: Array, log_r: Array) -> Array:
        return betainc(np.exp(log_r), y + 1.0, expit(log_r - t))

    def _log_density_given(self, y: Array, t: Array, log_r: Array) -> Array:
        r, u = np.exp(log_r), t - log_r
        return gammaln(y + r) - gammaln(r) - gammaln(y + 1.0) + y * u - (y + r) * np.logaddexp(0.0, u)

    def _slopes(self, y: Array, t: Array, log_r: Array) -> tuple[Array, Array]:
        share, total = expit(t - log_r), y + np.exp(log_r)
        return y - total * share, total * share * (1.0 - share)

    def _half_deviance(self, y: Array, t: Array, log_r: Array) -> Array:
        r, count, share = np.exp(log_r), np.maximum(y, 1.0), np.logaddexp(0.0, log_r - t)  # log(1 + r / m)
        of_many = (y + r) * (share - np.log1p(r / count)) - r * (np.log(count) - t)
        return np.maximum(np.where(y > 0.0, of_many, r * np.logaddexp(0.0, t - log_r)), 0.0)


def _of_log_odds(u: Array) -> tuple[Array, Array, Array]:
    """Return log(1 + exp(u)) and two derivatives."""
    share = expit(u)
    return np.logaddexp(0.0, u), share, share * (1.0 - share)
