"""Mean functions mu_theta: modules for one point, and the descriptions they are built from."""

from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metaprior.gp.networks import MLP, check_network, make_mlp


class Zero(eqx.Module):
    """mu(x) = 0."""

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, ""]:
        """Evaluate at one point."""
        return jnp.zeros((), x.dtype)


class Constant(eqx.Module):
    """mu(x) = bias, learned."""

    bias: Float[Array, ""]

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, ""]:
        """Evaluate at one point."""
        return self.bias


class NetworkMean(eqx.Module):
    """mu(x) = network(x)."""

    network: MLP

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, ""]:
        """Evaluate at one point."""
        return self.network(x)[0]


@dataclass(frozen=True)
class ZeroMean:
    """The prior mean is zero in standardised units, the mean of the meta-training data in the units of y."""

    def build(self, key: PRNGKeyArray, input_dim: int) -> Zero:
        """Draw the module."""
        return Zero()


@dataclass(frozen=True)
class ConstantMean:
    """The prior mean is one learned number."""

    def build(self, key: PRNGKeyArray, input_dim: int) -> Constant:
        """Draw the module."""
        return Constant(jnp.zeros(()))


@dataclass(frozen=True)
class MLPMean:
    """The prior mean is a network: four tanh layers of 32 in the paper."""

    hidden_sizes: Sequence[int] = (32, 32, 32, 32)
    activation: str = "tanh"

    def __post_init__(self):
        object.__setattr__(self, "hidden_sizes", check_network(self.hidden_sizes, self.activation))

    def build(self, key: PRNGKeyArray, input_dim: int) -> NetworkMean:
        """Draw the module."""
        return NetworkMean(make_mlp(key, input_dim, 1, self.hidden_sizes, self.activation))
