"""Counts with a logarithmic rate t: those of `prediction/count_responses.py`, in JAX."""

import math
from abc import abstractmethod
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from metaprior.gp.parameters import Parameter
from metaprior.gp.response_likelihoods import (
    NODE_WEIGHTS,
    NODES,
    Expected,
    Numbers,
    ResponseLikelihood,
    Start,
    last_axis,
    nodes_of,
)

NEWTON_STEPS = 12


class Counts(ResponseLikelihood):
    """Counts with the mean e^t."""

    @property
    @abstractmethod
    def excess(self) -> Float[Array, ""] | float:
        """The variance of a rate relative to its square, 1 / r."""

    def start(self, y: Numbers, mean: Numbers, variance: Numbers) -> Start:
        """Return log(y + 1/2), with the variance of a logarithmic count."""
        return Start(jnp.log(y + 0.5), 1.0 / (y + 0.5) + self.excess)

    def log_average(self, y: Numbers, mean: Numbers, variance: Numbers) -> Numbers:
        """Return the log of the average probability, by quadrature around the mode of p(y | t) N(t)."""
        variance = jnp.maximum(variance, 1e-12)
        start = self.start(y, mean, variance)
        t = (mean * start.variance + start.reading * variance) / (start.variance + variance)

        def slopes(t: Array) -> tuple[Array, Array]:
            one = jnp.ones_like(t)
            first = lambda t: jax.jvp(lambda t: self.log_density(y, t), (t,), (one,))[1]  # noqa: E731
            return jax.jvp(first, (t,), (one,))

        for _ in range(NEWTON_STEPS):  # of a concave function, from near its mode
            slope, curvature = slopes(t)
            t = t + jnp.clip((slope - (t - mean) / variance) / (1.0 / variance - curvature), -3.0, 3.0)
        std = 1.0 / jnp.sqrt(1.0 / variance - slopes(t)[1])
        at = nodes_of(t, std**2)
        squares = (at - mean[..., None]) ** 2 / variance[..., None]
        of_nodes = last_axis(0.5 * NODES**2 + np.log(NODE_WEIGHTS), t)
        total = self.log_density(jnp.broadcast_to(y[..., None], at.shape), at) - 0.5 * squares + of_nodes
        return jax.nn.logsumexp(total, axis=-1) + jnp.log(std) - 0.5 * jnp.log(variance)


class Poisson(Counts):
    """y ~ Poisson(e^t)."""

    name: ClassVar[str] = "poisson"

    @property
    def parameters(self) -> Float[Array, "*batch p"]:
        """None; the batch is that of the center."""
        return jnp.zeros((*jnp.shape(self.center), 0))

    @property
    def excess(self) -> float:
        """Zero."""
        return 0.0

    def log_density(self, y: Numbers, t: Numbers) -> Numbers:
        """Return log p(y | t)."""
        return y * t - _exp(t) - gammaln(y + 1.0)

    def expected_of_t(self, y: Numbers, mean: Numbers, variance: Numbers) -> Expected:
        """Return y E[t] - E[e^t] - log y!, in closed form."""
        rate = _exp(mean + 0.5 * variance)
        return Expected(y * mean - rate - gammaln(y + 1.0), y - rate, rate)


class NegativeBinomial(Counts):
    """y with the mean e^t and the variance e^t + e^2t / r."""

    log_r: Parameter
    name: ClassVar[str] = "negative-binomial"

    @property
    def parameters(self) -> Float[Array, "*batch p"]:
        """The logarithm of r."""
        return jnp.asarray(self.log_r)[..., None]

    @property
    def excess(self) -> Float[Array, ""]:
        """1 / r."""
        return jnp.exp(-self.log_r)

    def log_density(self, y: Numbers, t: Numbers) -> Numbers:
        """Return log p(y | t)."""
        r, u = jnp.exp(self.log_r), t - self.log_r
        constant = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0)
        return constant + y * u - (y + r) * jnp.logaddexp(0.0, u)


def _exp(t: Numbers) -> Numbers:
    """Return e^t, bounded where it would overflow."""
    return jnp.exp(jnp.minimum(t, 0.95 * math.log(float(jnp.finfo(t.dtype).max))))
