"""Observation models p(y | t)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.gp.parameters import Parameter


class Gaussian(eqx.Module):
    """y ~ N(t, noise_std^2), the noise fixed or learned, in the units of the scaled y."""

    log_noise_std: Parameter

    @property
    def variance(self) -> Float[Array, ""]:
        """sigma^2."""
        return jnp.exp(2.0 * self.log_noise_std)
