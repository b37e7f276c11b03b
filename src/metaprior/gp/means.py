"""Mean functions mu_theta: modules for one point, and the descriptions they are built from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metaprior.checks import check_positive
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


class Linear(eqx.Module):
    """mu(x) = scale * weight . x / sqrt(d) + bias, learned but for the scale."""

    weight: Float[Array, " inputs"]
    bias: Float[Array, ""]
    scale: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, ""]:
        """Evaluate at one point."""
        return self.scale / math.sqrt(len(self.weight)) * jnp.sum(self.weight * x) + self.bias


class NetworkMean(eqx.Module):
    """mu(x) = network(x)."""

    network: MLP

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, ""]:
        """Evaluate at one point."""
        return self.network(x)[0]

    def at_points(self, X: Float[Array, "n inputs"]) -> Float[Array, " n"]:
        """Evaluate at many points at once."""
        return self.network.at_points(X)[:, 0]


@dataclass(frozen=True)
class ZeroMean:
    """The prior mean is zero in standardized units, the mean of the meta-training data in the units of y."""

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
class LinearMean:
    """The prior mean is linear in the inputs: a rule that all tasks have in common. Without one it learns noise.

    It is scale * weight . x / sqrt(d) + bias in d dimensions, so that under a hyper-prior of unit weights it varies by
    about `scale` over standardized inputs, whatever d.
    """

    scale: float = 4.0

    def __post_init__(self):
        check_positive("scale", self.scale)

    def build(self, key: PRNGKeyArray, input_dim: int) -> Linear:
        """Draw the module."""
        return Linear(jnp.zeros(input_dim), jnp.zeros(()), float(self.scale))


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
