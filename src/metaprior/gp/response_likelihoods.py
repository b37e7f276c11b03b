"""Likelihoods of counts, ranks and readings with outliers, for priors that are trained by gradients.

They are those of `prediction/responses.py`, in JAX, with parameters that are a part of theta. The Gaussian process is
that of u, in units in which it is about one, and t = center + scale u. An exposure is a part of the prior mean of u.
"""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metaprior.gp.parameters import Parameter

Numbers = Float[Array, "..."]  # arguments of one function broadcast
NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(20)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()


class Expected(NamedTuple):
    """E[log p(y | u)] over u ~ N(mean, variance), and its derivatives."""

    value: Numbers
    slope: Numbers  # by the mean
    precision: Numbers  # minus twice the derivative by the variance; positive


class Start(NamedTuple):
    """Gaussian readings of t that stand for y, to start from."""

    reading: Numbers
    variance: Numbers


class ResponseLikelihood(eqx.Module):
    """The likelihood p(y | u) of an observation y given u, by that of t = center + scale u."""

    center: Parameter
    scale: Parameter
    name: ClassVar[str]

    @property
    @abstractmethod
    def parameters(self) -> Float[Array, "*batch p"]:
        """The parameters of the response of this name, in its order."""

    @abstractmethod
    def log_density(self, y: Numbers, t: Numbers) -> Numbers:
        """Return log p(y | t), twice differentiable by t."""

    @abstractmethod
    def start(self, y: Numbers, mean: Numbers, variance: Numbers) -> Start:
        """Return readings of t ~ N(mean, variance)."""

    @abstractmethod
    def log_average(self, y: Numbers, mean: Numbers, variance: Numbers) -> Numbers:
        """Return the log of the integral of p(y | t) over t ~ N(mean, variance)."""

    def expected_of_t(self, y: Numbers, mean: Numbers, variance: Numbers) -> Expected:
        """Return E[log p(y | t)] over t ~ N(mean, variance), by Gauss-Hermite quadrature."""
        value, slope, curvature = (average(part) for part in self.derivatives(y, mean, variance))
        return Expected(value, slope, -curvature)

    def derivatives(self, y: Numbers, mean: Numbers, variance: Numbers) -> tuple[Array, Array, Array]:
        """Return log p(y | t) and two derivatives by t, at the nodes of t, (..., nodes)."""
        t = nodes_of(mean, variance)

        def value(t: Array) -> Array:
            return self.log_density(jnp.broadcast_to(y[..., None], t.shape), t)

        def slope(t: Array) -> Array:
            return jax.jvp(value, (t,), (jnp.ones_like(t),))[1]

        return value(t), *jax.jvp(slope, (t,), (jnp.ones_like(t),))

    def expected(self, y: Numbers, mean: Numbers, variance: Numbers) -> Expected:
        """Return E[log p(y | u)] over u ~ N(mean, variance)."""
        found = self.expected_of_t(y, self.center + self.scale * mean, self.scale**2 * variance)
        return Expected(found.value, self.scale * found.slope, self.scale**2 * found.precision)

    def readings(self, y: Numbers, mean: Numbers, variance: Numbers) -> Start:
        """Return readings of u ~ N(mean, variance) to start from."""
        found = self.start(y, self.center + self.scale * mean, self.scale**2 * variance)
        return Start((found.reading - self.center) / self.scale, found.variance / self.scale**2)

    def log_predictive(self, y: Numbers, mean: Numbers, variance: Numbers) -> Numbers:
        """Return the log of the integral of p(y | u) over u ~ N(mean, variance)."""
        return self.log_average(y, self.center + self.scale * mean, self.scale**2 * variance)


def nodes_of(mean: Numbers, variance: Numbers) -> Float[Array, "... nodes"]:
    """Return the nodes of t ~ N(mean, variance)."""
    return mean[..., None] + jnp.sqrt(variance)[..., None] * last_axis(NODES, mean)


def average(at_nodes: Float[Array, "... nodes"]) -> Numbers:
    """Return the average over the nodes of t."""
    return jnp.sum(at_nodes * last_axis(NODE_WEIGHTS, at_nodes[..., 0]), axis=-1)


def last_axis(numbers: np.ndarray, like: Numbers) -> Float[Array, "... nodes"]:
    """Return constants along an axis after those of an array, in its precision."""
    return jnp.asarray(numbers, like.dtype).reshape((1,) * like.ndim + numbers.shape)
