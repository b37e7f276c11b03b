"""Exact inference for one task with Gaussian noise: log evidence and posterior (paper, section 2.1)."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from metaprior.gp.likelihoods import Gaussian
from metaprior.gp.linalg import cholesky, noisy_covariance, solve_lower, solve_upper
from metaprior.gp.posterior import TaskPosterior
from metaprior.gp.prior import GPPrior


def log_evidence(
    prior: GPPrior, x: Float[Array, "n d"], y: Float[Array, " n"], mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """ln p_theta(Y | X), equation (evidence), of the samples where `mask` is True."""
    factor, residual = _factorise(prior, prior.encode(x), y, mask)
    whitened = solve_lower(factor, residual)
    n_samples = jnp.sum(mask, dtype=y.dtype)
    log_determinant_half = jnp.sum(jnp.log(jnp.diagonal(factor)))
    return -0.5 * jnp.sum(whitened**2) - log_determinant_half - 0.5 * math.log(2.0 * math.pi) * n_samples


class Posterior(TaskPosterior):
    """p_theta(t(x) | D) for one task: the context and what conditioning on it costs, done once."""

    prior: GPPrior
    x: Float[Array, "n d"]  # encoded
    mask: Bool[Array, " n"]
    factor: Float[Array, "n n"]  # lower Cholesky factor of K + sigma^2 I
    coefficients: Float[Array, " n"]  # (K + sigma^2 I)^-1 (Y - mu(X))

    def _project(self, x: Float[Array, "q d"]) -> tuple[Float[Array, " q"], Float[Array, "n q"]]:
        cross = jnp.where(self.mask[:, None], self.prior.kernel(self.x, x), 0.0)
        mean = jax.vmap(self.prior.mean)(x) + self.coefficients @ cross
        return mean, solve_lower(self.factor, cross)


def condition(prior: GPPrior, x: Float[Array, "n d"], y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Posterior:
    """Adapt to one task, in closed form."""
    x = prior.encode(x)
    factor, residual = _factorise(prior, x, y, mask)
    coefficients = solve_upper(factor, solve_lower(factor, residual))
    return Posterior(prior, x, mask, factor, coefficients)


def moments(
    prior: GPPrior, x: Float[Array, "n d"], mask: Bool[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Mean and covariance of the readings at x, where `mask` is True; zero and identity elsewhere."""
    if not isinstance(prior.likelihood, Gaussian):
        raise TypeError(f"prior.likelihood must be Gaussian to be exact; got {type(prior.likelihood).__name__}.")
    x = prior.encode(x)
    mean = jnp.where(mask, jax.vmap(prior.mean)(x), 0.0)
    return mean, noisy_covariance(prior.kernel(x, x), prior.likelihood.variance, mask)


def _factorise(
    prior: GPPrior, x: Float[Array, "n d"], y: Float[Array, " n"], mask: Bool[Array, " n"]
) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    if not isinstance(prior.likelihood, Gaussian):
        raise TypeError(f"prior.likelihood must be Gaussian to be exact; got {type(prior.likelihood).__name__}.")
    residual = jnp.where(mask, y - jax.vmap(prior.mean)(x), 0.0)
    factor = cholesky(noisy_covariance(prior.kernel(x, x), prior.likelihood.variance, mask))
    return factor, residual
