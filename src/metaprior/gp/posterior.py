"""What every posterior of one task offers, however it was found."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from metaprior.gp.linalg import product
from metaprior.gp.prior import GPPrior, Points


class TaskPosterior(eqx.Module):
    """Mean and (co)variance of the latent function at new inputs: prior less what the context explains."""

    prior: eqx.AbstractVar[GPPrior]
    context: eqx.AbstractVar[Points]
    mask: eqx.AbstractVar[Bool[Array, " n"]]
    coefficients: eqx.AbstractVar[Float[Array, " n"]]  # by which the context moves the mean

    @abstractmethod
    def _whiten(self, cross: Float[Array, "n q"]) -> Float[Array, "n q"]:
        """Covariances with the context such that the squares are what it explains."""

    def marginals(self, points: Points) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
        """Mean mu(x) and variance s^2(x) of the latent function."""
        mean, whitened = self._project(points)
        variance = self.prior.covariance(points) - jnp.sum(whitened**2, axis=0)
        return mean, jnp.maximum(variance, 0.0)

    def joint(self, points: Points) -> tuple[Float[Array, " q"], Float[Array, "q q"]]:
        """Mean and covariance of the latent function."""
        mean, whitened = self._project(points)
        return mean, self.prior.covariance(points, points) - product(whitened.T, whitened)

    def _project(self, points: Points) -> tuple[Float[Array, " q"], Float[Array, "n q"]]:
        cross = jnp.where(self.mask[:, None], self.prior.covariance(self.context, points), 0.0)
        return points.mean + jnp.sum(self.coefficients[:, None] * cross, axis=0), self._whiten(cross)
