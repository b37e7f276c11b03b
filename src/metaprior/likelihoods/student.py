"""Readings with outliers: y = t + sigma T, where T has Student's t distribution with nu degrees of freedom.

Given its precision w ~ Gamma(nu / 2, nu / 2), T is normal: densities, distribution functions and quantiles of y are
averages of normal ones over w, at the end of this file. The trapezoid rule over log w converges exponentially: these
functions are analytic for |arg w| < pi / 2. Its ends depend on nu, whose tail reaches far for small nu, and on how far
out y may be. For fits E[log p(y | t)]
is computed by quadrature over t, or in closed form but for one integral where t is wide. Its curvature is negative at
outliers, where the posterior would be wider than the prior: the precision of a site is at least a small share of
E[w] / sigma^2 there. A bound that treats w as independent of t keeps precisions positive, too, but finds posteriors
that are a third too narrow and noise that is too large (10% of the readings off by 2: RMSE 3 to 9% larger, on
validation draws).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammainc, gammaln, logsumexp, ndtr, ndtri, psi, stdtrit

from metaprior.checks import Argument, Message
from metaprior.likelihoods.base import NODE_WEIGHTS, Broad, Expected, Likelihood, Start, nodes_of
from metaprior.tasks.scaling import MAX_SCALED

MAD = 1.4826  # standard deviation of a normal variable, in median absolute deviations
LEAST_SHARE = 0.02  # of E[w] / sigma^2 that the precision of a reading has at least
WIDE = 0.7  # standard deviation of t, in units of sigma sqrt(nu), from which on its nodes are too few
RATE_STEP = 0.6
LOG_RATES = np.arange(-28.0, 3.7, RATE_STEP)  # exp(-pi^2 / 0.6) is 7e-8
CLIPPED = 4.0  # standard deviations at which readings are clipped to start from
HEAVY = 2.0  # degrees of freedom up to which there is no variance
BROAD_NU = 3.0
FAR = 15.0  # standard deviations, up to which densities are relatively exact
NEGLIGIBLE = 37.0  # minus the logarithm of what may be left out
STEP, STEP_IN_STDS = 0.4, 0.65  # of log w: exp(-pi^2 / 0.4) is 2e-11
WIDTH_CLASS = 3.0  # logarithms of variances that share a rule
LEAST_LOG = -690.0  # of w
AT_ONCE = 2**20  # numbers of one average
TOLERANCE = 1e-12  # of the logarithm of a probability
MAX_ITERATIONS = 300  # usually 8; gaps between narrow components need more
FARTHEST = 1e150  # quantile


class StudentT(Likelihood):
    """y = t + sigma T_nu. Parameters are log sigma and log nu."""

    name = "student-t"
    words = "numbers with outliers (Student’s t)"
    noise_words = "is learned"

    def check(self, y: np.ndarray, name: str) -> None:
        """Raise if a reading is too large."""
        if (np.abs(y) > MAX_SCALED).any():
            found = y[np.abs(y) > MAX_SCALED][0]
            most = f"{name} must be at most {MAX_SCALED:g} in size for "
            given = Argument("likelihood", self.name)
            raise ValueError(Message(most, given, f"; got {found:g}. Change its units."))

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

    def broad(self, y: Sequence[np.ndarray], offsets: Sequence[np.ndarray]) -> Broad:
        """Return a distribution with heavy tails around the median of all readings."""
        readings = np.concatenate(y)
        return Broad(self, np.asarray(np.median(readings)), 0.0, np.log([robust_std(readings), BROAD_NU]))

    def doubtful_mean(self, mean: np.ndarray, latent: Any, parameters: np.ndarray) -> tuple[np.ndarray | bool, str]:
        """Return that there is no variance, and no mean for nu <= 1."""
        if not mean.size or np.all(np.exp(parameters[..., 1]) > HEAVY):
            return False, ""
        return np.ones(mean.shape, bool), (
            "The predictive distribution has no variance: its tails are as heavy as those of Student's t with "
            f"{np.exp(parameters[..., 1].min()):.2g} degrees of freedom. The median is given in place of the "
            "mean, and standard deviations are infinite. Use quantile or interval."
        )

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
        found = np.asarray(_log_density(*arrays))
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
        return _cdf(y - mean, variance, parameters[..., 0], parameters[..., 1])

    def log_far_tail(
        self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray, upper: bool
    ) -> np.ndarray:
        """Return log P(Y >= y), or log P(Y <= y), down to 1e-17."""
        return np.log(_cdf(-np.abs(y - mean), variance, parameters[..., 0], parameters[..., 1]))

    def quantile(
        self, means: np.ndarray, variances: np.ndarray, parameters: np.ndarray, weights: np.ndarray, level: float
    ) -> np.ndarray:
        """Solve F(y) = level for the mixture at each column."""
        return _quantile(means, variances, parameters[..., 0], parameters[..., 1], weights, level)

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


def _cdf(deviation: np.ndarray, variance: np.ndarray, log_sigma: np.ndarray, log_nu: np.ndarray) -> np.ndarray:
    """Return P(Y <= mean + deviation)."""

    def lower(deviation: np.ndarray, variances: np.ndarray, rule: Rule) -> np.ndarray:
        return np.sum(ndtr(deviation / np.sqrt(variances)) * rule.weights, axis=1) + 0.5 * rule.missing

    found = _averages(lower, -np.abs(deviation), variance, log_sigma, log_nu)
    return np.where(deviation > 0.0, 1.0 - found, found)


def _log_density(deviation: np.ndarray, variance: np.ndarray, log_sigma: np.ndarray, log_nu: np.ndarray) -> np.ndarray:
    """Return the logarithm of the density at mean + deviation, up to `FAR` standard deviations from the mean."""

    def logarithm(deviation: np.ndarray, variances: np.ndarray, rule: Rule) -> np.ndarray:
        terms = rule.log_weights - 0.5 * (deviation**2 / variances + np.log(variances))
        largest = terms.max(axis=1)
        return largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1)) - 0.5 * np.log(2.0 * np.pi)

    return _averages(logarithm, deviation, variance, log_sigma, log_nu)


def _quantile(
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
        return -_quantile(-means, variances, log_sigma, log_nu, weights, 1.0 - level)
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
