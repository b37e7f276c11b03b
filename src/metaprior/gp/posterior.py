"""What every posterior of one task offers, however it was found."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.gp.prior import GPPrior


class TaskPosterior(eqx.Module):
    """Mean and (co)variance of the latent function at new inputs: prior less what the context explains."""

    prior: eqx.AbstractVar[GPPrior]

    @abstractmethod
    def _project(self, x: Float[Array, "q d"]) -> tuple[Float[Array, " q"], Float[Array, "n q"]]:
        """The mean at encoded inputs x, and the whitened covariance with the context."""

    def marginals(self, x: Float[Array, "q d"]) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
        """Mean mu(x) and variance s^2(x) of the latent function."""
        x = self.prior.encode(x)
        mean, whitened = self._project(x)
        variance = self.prior.kernel(x) - jnp.sum(whitened**2, axis=0)
        return mean, jnp.maximum(variance, 0.0)

    def joint(self, x: Float[Array, "q d"]) -> tuple[Float[Array, " q"], Float[Array, "q q"]]:
        """Mean and covariance of the latent function."""
        x = self.prior.encode(x)
        mean, whitened = self._project(x)
        return mean, self.prior.kernel(x, x) - whitened.T @ whitened
