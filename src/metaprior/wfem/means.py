"""Mean functions mu_theta: modules for one input point, and the descriptions they are built from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metaprior.checks import check_positive
from metaprior.wfem.networks import MLP, check_network, make_mlp


class Zero(eqx.Module):
    """mu(x) = 0."""

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, ""]:
        """Evaluate at one point."""
        return jnp.zeros((), x.dtype)


class Constant(eqx.Module):
    """mu(x) = bias."""

    bias: Float[Array, ""]

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, ""]:
        """Evaluate at one point."""
        return self.bias


class Linear(eqx.Module):
    """mu(x) = scale * weight . x / sqrt(d) + bias, with a fixed scale."""

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
    """Zero mean, `mu(x) = 0` in standardized units: the average of the meta-training outputs in the units of y."""

    def build(self, key: PRNGKeyArray, input_dim: int) -> Zero:
        """Return the module."""
        return Zero()


@dataclass(frozen=True)
class ConstantMean:
    """Constant mean, `mu(x) = b` with a learned number b."""

    def build(self, key: PRNGKeyArray, input_dim: int) -> Constant:
        """Return the module."""
        return Constant(jnp.zeros(()))


@dataclass(frozen=True)
class LinearMean:
    """Linear mean, `mu(x) = scale * w . x / sqrt(d) + b` in d dimensions with learned w and b.

    Use it if all tasks share a linear trend; otherwise it fits noise.

    Parameters
    ----------
    scale : float
        Typical size of the trend over standardized inputs, in any dimension, for weights of size one.
    """

    scale: float = 4.0

    def __post_init__(self):
        check_positive("scale", self.scale)

    def build(self, key: PRNGKeyArray, input_dim: int) -> Linear:
        """Return the module."""
        return Linear(jnp.zeros(input_dim), jnp.zeros(()), float(self.scale))


@dataclass(frozen=True)
class MLPMean:
    """Network mean, `mu(x) = network(x)`; the defaults are the paper's.

    Parameters
    ----------
    hidden_sizes, activation
        As for `MLPKernel`.
    """

    hidden_sizes: Sequence[int] = (32, 32, 32, 32)
    activation: str = "tanh"

    def __post_init__(self):
        object.__setattr__(self, "hidden_sizes", check_network(self.hidden_sizes, self.activation))

    def build(self, key: PRNGKeyArray, input_dim: int) -> NetworkMean:
        """Draw the initial network."""
        return NetworkMean(make_mlp(key, input_dim, 1, self.hidden_sizes, self.activation))
