"""Student's t noise added to a Gaussian: y = t + sigma T, t ~ N(mean, variance), T with nu degrees of freedom.

T is normal given its precision w ~ Gamma(nu / 2, nu / 2), so that densities and distribution functions of y are
averages of normal ones over w. The trapezoid rule over log w converges exponentially: all these functions are analytic
for |arg w| < pi / 2. Its ends depend on nu, whose tail reaches far for small nu, and on how far out y may be.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import gammainc, gammaln, ndtr, ndtri, stdtrit

FAR = 15.0  # standard deviations, up to which densities are relatively exact
NEGLIGIBLE = 37.0  # minus the logarithm of what may be left out
STEP, STEP_IN_STDS = 0.4, 0.65  # of log w: exp(-pi^2 / 0.4) is 2e-11
WIDTH_CLASS = 3.0  # logarithms of variances that share a rule
LEAST_LOG = -690.0  # of w
AT_ONCE = 2**20  # numbers of one average
TOLERANCE = 1e-12  # of the logarithm of a probability
MAX_ITERATIONS = 300  # usually 8; gaps between narrow components need more
FARTHEST = 1e150  # quantile


class Rule(NamedTuple):
    """Nodes of w of one nu: an average over w is a weighted sum over them."""

    inverse: np.ndarray  # 1 / w
    log_weights: np.ndarray
    missing: float  # probability of w below the nodes, where y is as likely above any number as below

    @property
    def weights(self) -> np.ndarray:
        """Weights of the nodes."""
        return np.exp(self.log_weights)


def precision_rule(nu: float, ratio: float) -> Rule:
    """Return nodes for variances of t up to `ratio` times sigma^2."""
    half = 0.5 * nu
    of_all, of_far = NEGLIGIBLE / half, NEGLIGIBLE / (half + 0.5)
    farthest = np.log1p(0.5 * FAR**2 * (1.0 + ratio) / (half + 0.5)) + of_far + np.sqrt(2.0 * of_far)
    lowest = max(-max(of_all + np.sqrt(2.0 * of_all), float(farthest)), LEAST_LOG)
    highest = np.log1p(of_all + np.sqrt(2.0 * of_all))
    step = min(STEP, STEP_IN_STDS / np.sqrt(half))
    log_w = np.arange(lowest, highest + step, step)
    constant = half * np.log(half) - gammaln(half) + np.log(step)
    missing = float(gammainc(half, half * np.exp(lowest - 0.5 * step)))
    return Rule(np.exp(-log_w), half * (log_w - np.exp(log_w)) + constant, missing)


def cdf(deviation: np.ndarray, variance: np.ndarray, log_sigma: np.ndarray, log_nu: np.ndarray) -> np.ndarray:
    """Return P(Y <= mean + deviation)."""

    def lower(deviation: np.ndarray, variances: np.ndarray, rule: Rule) -> np.ndarray:
        return np.sum(ndtr(deviation / np.sqrt(variances)) * rule.weights, axis=1) + 0.5 * rule.missing

    found = _averages(lower, -np.abs(deviation), variance, log_sigma, log_nu)
    return np.where(deviation > 0.0, 1.0 - found, found)


def log_density(deviation: np.ndarray, variance: np.ndarray, log_sigma: np.ndarray, log_nu: np.ndarray) -> np.ndarray:
    """Return the logarithm of the density at mean + deviation, up to `FAR` standard deviations from the mean."""

    def logarithm(deviation: np.ndarray, variances: np.ndarray, rule: Rule) -> np.ndarray:
        terms = rule.log_weights - 0.5 * (deviation**2 / variances + np.log(variances))
        largest = terms.max(axis=1)
        return largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1)) - 0.5 * np.log(2.0 * np.pi)

    return _averages(logarithm, deviation, variance, log_sigma, log_nu)


def quantile(
    means: np.ndarray,
    variances: np.ndarray,
    log_sigma: np.ndarray,
    log_nu: np.ndarray,
    weights: np.ndarray,
    level: float,
) -> np.ndarray:
    """Solve F(y) = level for the mixture at each column of (components, points) arrays.

    Newton's method on log F as a function of asinh(y), which is about a line in a tail of Student's t. A step that
    leaves the bracket, or follows one that did not halve the residual, is a bisection.
    """
    if level > 0.5:  # reflect: a cdf has its relative precision in the lower tail, and 1 - level is exact
        return -quantile(-means, variances, log_sigma, log_nu, weights, 1.0 - level)
    target, arrays = np.log(level), (means, variances, log_sigma, log_nu, weights)
    center = np.sum(weights * means, axis=0)
    scale = np.sqrt(np.sum(weights * (variances + np.exp(2.0 * log_sigma)), axis=0))
    # P(a Z + b T < a z + b t) <= P(Z < z) + P(T < t), and a component has its median at its mean.
    noise = np.exp(log_sigma) * np.maximum(2.0 * stdtrit(np.exp(log_nu), 0.5 * level), -FARTHEST)
    ends = np.min(means + np.sqrt(variances) * ndtri(0.5 * level) + noise, axis=0), np.max(means, axis=0)
    lower, upper = (np.arcsinh((end - center) / scale) + shift for end, shift in zip(ends, (-1e-6, 1e-6), strict=True))
    at = np.clip(np.arcsinh(ndtri(level)) * np.ones_like(center), lower, upper)
    previous, pending, roots = np.full(at.shape, np.inf), np.arange(at.size), np.empty(at.size)
    for _ in range(MAX_ITERATIONS):
        y = center + scale * np.sinh(at)
        below, density = _below(y, *arrays)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            residual = np.log(below) - target
            newton = at - residual * below / (density * scale * np.cosh(at))
        lower, upper = np.where(residual < 0, at, lower), np.where(residual > 0, at, upper)
        done = (np.abs(residual) <= TOLERANCE) | (upper - lower <= 4.0 * np.spacing(np.abs(at)))
        roots[pending[done]] = y[done]
        if done.all():
            return roots
        trusted = (newton > lower) & (newton < upper) & (np.abs(residual) <= 0.5 * previous)
        previous = np.where(trusted, np.abs(residual), np.inf)
        at = np.where(trusted, newton, 0.5 * (lower + upper))
        if done.any():
            state = (at, lower, upper, previous, pending, center, scale)
            at, lower, upper, previous, pending, center, scale = (each[~done] for each in state)
            arrays = tuple(each[:, ~done] for each in arrays)
    raise RuntimeError(f"quantile {level} not found at {pending.size} points; check means and variances there")


def _below(
    y: np.ndarray,
    means: np.ndarray,
    variances: np.ndarray,
    log_sigma: np.ndarray,
    log_nu: np.ndarray,
    weights: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the distribution function and the density of the mixture at each column."""
    deviation = y - means

    def both(deviation: np.ndarray, variances: np.ndarray, rule: Rule) -> np.ndarray:
        scales = np.sqrt(variances)
        score = deviation / scales
        below = np.sum(ndtr(-np.abs(score)) * rule.weights, axis=1) + 0.5 * rule.missing
        density = np.sum(np.exp(-0.5 * score**2) / scales * rule.weights, axis=1)
        return below + 1j * density / np.sqrt(2.0 * np.pi)

    found = _averages(both, deviation, variances, log_sigma, log_nu, complex)
    of_each = np.where(deviation > 0.0, 1.0 - np.real(found), np.real(found))
    return np.sum(weights * of_each, axis=0), np.sum(weights * np.imag(found), axis=0)


def _averages(
    of_nodes: Callable[[np.ndarray, np.ndarray, Rule], np.ndarray],
    deviation: np.ndarray,
    variance: np.ndarray,
    log_sigma: np.ndarray,
    log_nu: np.ndarray,
    dtype: type = float,
) -> np.ndarray:
    """Apply a function of deviations (points, 1), variances of y (points, nodes) and the rule; NaN stays NaN."""
    arrays = np.broadcast_arrays(deviation, variance, log_sigma, log_nu)
    found = np.full(arrays[0].shape, np.nan, dtype)
    flat, out = [each.ravel() for each in arrays], found.reshape(-1)
    for some, rule in _rules(*flat):
        deviation, variance, log_sigma = (each[some][:, None] for each in flat[:3])
        out[some] = of_nodes(deviation, variance + np.exp(2.0 * log_sigma) * rule.inverse, rule)
    return out.reshape(found.shape)


def _rules(
    deviation: np.ndarray, variance: np.ndarray, log_sigma: np.ndarray, log_nu: np.ndarray
) -> Iterator[tuple[np.ndarray, Rule]]:
    """Yield points of the same nu, a few at a time, with their rule, which other points have no influence on."""
    valid = np.flatnonzero(np.isfinite(deviation) & np.isfinite(variance))
    widths = np.ceil(np.log1p(variance[valid] * np.exp(-2.0 * log_sigma[valid])) / WIDTH_CLASS)
    kinds, which = np.unique(np.stack([log_nu[valid], widths]), axis=1, return_inverse=True)
    for i, (of_nu, width) in enumerate(kinds.T.tolist()):
        own = valid[which.ravel() == i]
        rule = precision_rule(float(np.exp(of_nu)), float(np.expm1(WIDTH_CLASS * width)))
        at_once = max(AT_ONCE // len(rule.inverse), 1)
        for first in range(0, len(own), at_once):
            yield own[first : first + at_once], rule
