"""Observation models p(y | t)."""

import equinox as eqx
import jax
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


class Bernoulli(eqx.Module):
    """y in {0, 1} with p(y = 1 | t) = sigmoid(t); for any array of t, each in the tail as accurate as at zero."""

    def log_density(self, y: Float[Array, "*n"], t: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """log p(y | t)."""
        return y * jax.nn.log_sigmoid(t) + (1.0 - y) * jax.nn.log_sigmoid(-t)

    def gradient(self, y: Float[Array, "*n"], t: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """d log p(y | t) / dt = y - sigmoid(t), without its cancellation."""
        return y * jax.nn.sigmoid(-t) - (1.0 - y) * jax.nn.sigmoid(t)

    def root_curvature(self, t: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """The square root of W = -d^2 log p(y | t) / dt^2, which is the same for either y.

        Taken of the logarithm of W, so that its derivative is finite where W underflows.
        """
        return jnp.exp(0.5 * (jax.nn.log_sigmoid(t) + jax.nn.log_sigmoid(-t)))
