"""The posterior of one task, and exact inference under Gaussian noise (paper, section 2.1)."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from metaprior.wfem.likelihoods import GaussianNoise
from metaprior.wfem.linalg import cholesky, log_normal, noise_floor, noisy_covariance, product, solve_lower, solve_upper
from metaprior.wfem.prior import GPPrior, Points


class Posterior(eqx.Module):
    """Normal posterior of the latent function of one task, exact or approximate.

    It holds only what depends on the task, so that posteriors of many tasks stack; methods take the prior. The context
    explains k(x, X) R (L L^T)^-1 R k(X, x') of the prior covariance.
    """

    context: Points
    mask: Bool[Array, " n"]
    factor: Float[Array, "n n"]  # L, lower: L L^T = K + sigma^2 I (exact) or B (Laplace)
    coefficients: Float[Array, " n"]  # K^-1 (E[t(X)] - mu(X)); exact: (K + sigma^2 I)^-1 (Y - mu(X))
    root: Float[Array, " n"] | None = None  # diagonal of R; None: R = I
    converged: Bool[Array, ""] | None = None  # whether Laplace's approximation found the mode; None: exact

    def marginals(self, prior: GPPrior, points: Points) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
        """Return the mean and variance of the latent function at each point."""
        mean, whitened = self._project(prior, points)
        before = prior.covariance(points)
        least = noise_floor(before.dtype) * jnp.sum(self.mask, dtype=before.dtype) * before  # the rest is rounding
        return mean, jnp.maximum(before - jnp.sum(whitened**2, axis=0), least)

    def joint(self, prior: GPPrior, points: Points) -> tuple[Float[Array, " q"], Float[Array, "q q"]]:
        """Return the mean and covariance of the latent function at all points."""
        mean, whitened = self._project(prior, points)
        return mean, prior.covariance(points, points) - product(whitened.T, whitened)

    def _project(self, prior: GPPrior, points: Points) -> tuple[Float[Array, " q"], Float[Array, "n q"]]:
        """Return the mean, and L^-1 R k(X, x)."""
        cross = jnp.where(self.mask[:, None], prior.covariance(self.context, points), 0.0)
        scaled = cross if self.root is None else self.root[:, None] * cross
        return points.mean + jnp.sum(self.coefficients[:, None] * cross, axis=0), solve_lower(self.factor, scaled)


def log_evidence(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    """Return ln p_theta(Y | X), equation (evidence), of the samples where `mask` is True."""
    n_samples = jnp.sum(mask, dtype=y.dtype)
    return log_normal(*_centered(prior, points, y, mask)) - 0.5 * math.log(2.0 * math.pi) * n_samples


def condition(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> Posterior:
    """Return the posterior given one task, in closed form."""
    covariance, residual = _centered(prior, points, y, mask)
    factor = cholesky(covariance)
    return Posterior(points, mask, factor, solve_upper(factor, solve_lower(factor, residual)))


def moments(
    prior: GPPrior, x: Float[Array, "n d"], mask: Bool[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Return mean and covariance of observations at x where `mask` is True; zero and identity elsewhere.

    Evaluated point by point, which is differentiable to any order in forward and reverse mode.
    """
    x = prior.encode(x)
    mean = jnp.where(mask, jax.vmap(prior.mean)(x), 0.0)
    return mean, noisy_covariance(prior.kernel(x, x), _noise_variance(prior), mask)


def _centered(
    prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]
) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """Return K + sigma^2 I and Y - mu(X)."""
    covariance = noisy_covariance(prior.covariance(points, points), _noise_variance(prior), mask)
    return covariance, jnp.where(mask, y - points.mean, 0.0)


def _noise_variance(prior: GPPrior) -> Float[Array, ""]:
    if not isinstance(prior.likelihood, GaussianNoise):
        raise TypeError(f"Exact inference needs a Gaussian prior.likelihood; got {type(prior.likelihood).__name__}.")
    return prior.likelihood.variance
