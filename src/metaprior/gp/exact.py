"""Exact inference for one task with Gaussian noise: log evidence and posterior (paper, section 2.1)."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from metaprior.gp.likelihoods import Gaussian
from metaprior.gp.linalg import cholesky, log_normal, noisy_covariance, solve_lower, solve_upper
from metaprior.gp.posterior import TaskPosterior
from metaprior.gp.prior import GPPrior, Points


def log_evidence(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    """ln p_theta(Y | X), equation (evidence), of the samples where `mask` is True."""
    n_samples = jnp.sum(mask, dtype=y.dtype)
    return log_normal(*_centered(prior, points, y, mask)) - 0.5 * math.log(2.0 * math.pi) * n_samples


class Posterior(TaskPosterior):
    """p_theta(t(x) | D) for one task: the context and what conditioning on it costs, done once."""

    prior: GPPrior
    context: Points
    mask: Bool[Array, " n"]
    factor: Float[Array, "n n"]  # lower Cholesky factor of K + sigma^2 I
    coefficients: Float[Array, " n"]  # (K + sigma^2 I)^-1 (Y - mu(X))

    def _whiten(self, cross: Float[Array, "n q"]) -> Float[Array, "n q"]:
        return solve_lower(self.factor, cross)


def condition(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Posterior:
    """Adapt to one task, in closed form."""
    covariance, residual = _centered(prior, points, y, mask)
    factor = cholesky(covariance)
    coefficients = solve_upper(factor, solve_lower(factor, residual))
    return Posterior(prior, points, mask, factor, coefficients)


def moments(
    prior: GPPrior, x: Float[Array, "n d"], mask: Bool[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Mean and covariance of the readings at x, where `mask` is True; zero and identity elsewhere.

    Evaluated point by point, so that derivatives of any order and direction pass.
    """
    x = prior.encode(x)
    mean = jnp.where(mask, jax.vmap(prior.mean)(x), 0.0)
    return mean, noisy_covariance(prior.kernel(x, x), _noise_variance(prior), mask)


def _centered(
    prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]
) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """K + sigma^2 I, and Y - mu(X)."""
    covariance = noisy_covariance(prior.covariance(points, points), _noise_variance(prior), mask)
    return covariance, jnp.where(mask, y - points.mean, 0.0)


def _noise_variance(prior: GPPrior) -> Float[Array, ""]:
    if not isinstance(prior.likelihood, Gaussian):
        raise TypeError(f"prior.likelihood must be Gaussian to be exact; got {type(prior.likelihood).__name__}.")
    return prior.likelihood.variance
