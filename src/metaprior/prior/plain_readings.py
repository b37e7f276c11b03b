"""Exported tasks of readings: conditioning and predictions, with NumPy alone. See `plain_process`."""

from statistics import NormalDist
from typing import Any

import numpy as np

from metaprior.prior.plain_process import (
    NOISE_FLOOR,
    PRIORS,
    ROUNDING,
    as_inputs,
    as_queries,
    check_constant,
    covariance,
    describe,
    erfc,
    extrapolates,
    stable_cholesky,
    standardized,
    variance,
    with_covariates,
)

SPREAD = 1.0  # factor by which predictive distributions are stretched about their means


class Task:
    """The prior conditioned on the readings of a task; `X` has codes of levels, as `as_inputs` returns them."""

    def __init__(self, X: np.ndarray, y: Any):
        self.X, self.y = check_constant(X), np.asarray(y, dtype=float).ravel()
        if len(self.X) != len(self.y) or not np.isfinite(self.y).all():
            raise ValueError(f"y must be {len(self.X)} finite numbers, one for every row of X; got {self.y.shape}.")
        self._posteriors = [condition(prior, self.X, self.y) for prior in PRIORS]

    def update(self, X: Any, y: Any) -> "Task":
        """Condition on more readings."""
        x, y = with_covariates(as_inputs(X), self.X), np.asarray(y, dtype=float).ravel()
        return Task(np.concatenate([self.X, x]), np.concatenate([self.y, y]))

    def predict(self, X: Any, return_std: bool = False, latent: bool = False) -> Any:
        """Return the mean of new observations, and their standard deviation; `latent`: of the noise-free function."""
        means, variances, weights = self.components(X, latent)
        mean = weights @ means
        return (mean, np.sqrt(weights @ (variances + (means - mean) ** 2))) if return_std else mean

    def quantile(self, X: Any, probability: float, latent: bool = False) -> np.ndarray:
        """Return a quantile of the predictive distribution at each input."""
        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability must lie strictly between 0 and 1; got {probability}.")
        means, variances, weights = self.components(X, latent)
        return mixture_quantile(means, np.sqrt(variances), weights[:, None], probability)

    def interval(self, X: Any, coverage: float = 0.9, latent: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the central interval of the predictive distribution."""
        low, high = (self.quantile(X, 0.5 + sign * 0.5 * coverage, latent) for sign in (-1, 1))
        return low, high

    def extrapolates(self, X: Any) -> np.ndarray:
        """Tell which inputs are outside the range of the tasks that the prior was fitted to."""
        return extrapolates(X)

    def components(self, X: Any, latent: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return means and variances of the Gaussians of the prediction, (components, n), and their weights."""
        x = with_covariates(as_queries(X), self.X)
        pairs = zip(PRIORS, self._posteriors, strict=True)
        parts = [marginals(prior, posterior, x, latent) for prior, posterior in pairs]
        means, variances, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
        center = weights @ means
        return center + SPREAD * (means - center), SPREAD**2 * variances, weights


def adapt(X: Any, y: Any) -> Task:
    """Condition the prior on the readings of another task."""
    return Task(as_inputs(X), y)


@np.errstate(under="ignore")  # whatever a program has set: densities may be 1e-400
def condition(prior: dict[str, Any], x: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
    """Return the context, and for every noise the inverse root of its covariance, the residual and the weight."""
    x, y = standardized(prior, x), (y - prior["y_mean"]) / prior["y_std"]
    order = np.argsort(-np.sum(x**2, axis=1))  # far inputs first: rounding is least
    context, y = describe(prior, x[order]), y[order]
    fixed, scaled = covariance(prior, context, context)
    deviation, floor = y - context.common @ prior["common_weights"], ROUNDING * len(y)
    roots, residuals, evidence = [], [], []
    for factor, noise in zip(prior["factors"], prior["noise_variances"], strict=True):
        total = fixed + factor**2 * scaled
        total += np.diag(np.maximum(noise + NOISE_FLOOR, floor * np.diagonal(total)))
        root = stable_cholesky(total)
        roots.append(np.linalg.inv(root))
        residuals.append(roots[-1] @ deviation)
        evidence.append(-0.5 * np.sum(residuals[-1] ** 2) - np.sum(np.log(np.diagonal(root))))
    weights = prior["log_weights"] + np.array(evidence)
    weights = np.exp(weights - weights.max())
    return context, roots, residuals, weights / weights.sum()


@np.errstate(under="ignore")
def marginals(
    prior: dict[str, Any], posterior: tuple[Any, ...], x: np.ndarray, latent: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means, variances and weights of the predictions of one prior, in the units of y."""
    context, roots, residuals, weights = posterior
    queries = describe(prior, standardized(prior, x))
    fixed, scaled = covariance(prior, context, queries)
    fixed_variance, scaled_variance = variance(prior, queries)
    means, variances = [], []
    for factor, noise, root, residual in zip(prior["factors"], prior["noise_variances"], roots, residuals, strict=True):
        solved = root @ (fixed + factor**2 * scaled)
        means.append(queries.common @ prior["common_weights"] + residual @ solved)
        total = fixed_variance + factor**2 * scaled_variance
        left = np.maximum(total - np.sum(solved**2, axis=0), ROUNDING * total)
        variances.append(left if latent else left + noise)
    mean = np.array(means) * prior["y_std"] + prior["y_mean"]
    return mean, np.array(variances) * prior["y_std"] ** 2, prior["weight"] * weights


@np.errstate(under="ignore")
def mixture_quantile(means: np.ndarray, stds: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """Solve F(y) = level for mixtures of Gaussians (components, n), by Newton's method on log F inside a bracket."""
    if level > 0.5:  # the lower tail is the precise one
        return -mixture_quantile(-means, stds, weights, 1.0 - level)
    z = NormalDist().inv_cdf(level)
    lower, upper = np.min(means + stds * (z - 1e-6), axis=0), np.max(means + stds * (z + 1e-6), axis=0)
    y = 0.5 * (lower + upper)
    for iteration in range(500):
        scores = (y - means) / stds
        below = np.sum(weights * 0.5 * erfc(-scores / np.sqrt(2.0)), axis=0)
        density = np.sum(weights * np.exp(-0.5 * scores**2) / (stds * np.sqrt(2.0 * np.pi)), axis=0)
        lower, upper = np.where(below < level, y, lower), np.where(below >= level, y, upper)
        with np.errstate(all="ignore"):
            newton = y - np.log(below / level) * below / density
        trusted = (newton > lower) & (newton < upper) & (iteration % 8 != 7)
        new = np.where(trusted, newton, 0.5 * (lower + upper))
        moved, y = np.abs(new - y), new
        if np.all(moved <= 4.0 * np.spacing(np.abs(y)) + 1e-13 * np.min(stds, axis=0)):
            break
    return y
