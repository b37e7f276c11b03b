"""Readings with outliers: those of `prediction/robust_responses.py`, in JAX."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, polygamma
from jaxtyping import Array, Float

from metaprior.gp.parameters import Parameter
from metaprior.gp.response_likelihoods import (
    NODE_WEIGHTS,
    Expected,
    Numbers,
    ResponseLikelihood,
    Start,
    average,
    last_axis,
    nodes_of,
)

LEAST_SHARE = 0.02  # of E[w] / sigma^2 that the precision of a reading has at least, as in `robust_responses.py`
WIDE = 0.7  # standard deviation of t, in units of sigma sqrt(nu), from which on its nodes are too few
RATE_STEP = 0.6
LOG_RATES = np.arange(-28.0, 3.7, RATE_STEP)
FAR = 15.0  # standard deviations from which on a density is averaged over t, and not over w
PRECISIONS = np.arange(-30.0, 8.1, 0.25)  # nodes of log w, in standard deviations from its mode


class StudentT(ResponseLikelihood):
    """y = t + sigma T, where T has Student's t distribution with nu degrees of freedom."""

    log_sigma: Parameter
    log_nu: Parameter
    name: ClassVar[str] = "student-t"

    @property
    def parameters(self) -> Float[Array, "*batch p"]:
        """The logarithms of sigma and nu."""
        return jnp.stack([jnp.asarray(self.log_sigma), jnp.asarray(self.log_nu)], axis=-1)

    def log_density(self, y: Numbers, t: Numbers) -> Numbers:
        """Return log p(y | t)."""
        nu = jnp.exp(self.log_nu)
        constant = gammaln(0.5 * (nu + 1.0)) - gammaln(0.5 * nu) - 0.5 * jnp.log(math.pi * nu) - self.log_sigma
        return constant - 0.5 * (nu + 1.0) * jnp.log1p((y - t) ** 2 * jnp.exp(-2.0 * self.log_sigma) / nu)

    def start(self, y: Numbers, mean: Numbers, variance: Numbers) -> Start:
        """Return y, with a larger variance the farther it is from what is expected."""
        nu, unit = jnp.exp(self.log_nu), jnp.exp(2.0 * self.log_sigma)
        return Start(y, (nu * unit + (y - mean) ** 2 + variance) / (nu + 1.0))

    def expected_of_t(self, y: Numbers, mean: Numbers, variance: Numbers) -> Expected:
        """Return E[log p(y | t)]; its curvature is negative at outliers, where a small precision replaces it."""
        value, slope, curvature = (average(part) for part in self.derivatives(y, mean, variance))
        nu, error = jnp.exp(self.log_nu), y - mean
        unit = jnp.broadcast_to(nu * jnp.exp(2.0 * self.log_sigma), error.shape)
        inverse = average(1.0 / (unit[..., None] + (y[..., None] - nodes_of(mean, variance)) ** 2))
        wide, at_center = variance > WIDE**2 * unit, self.log_density(y, y)
        log_ratio, of_wide, pull, bend = _averages_over_rates(error, variance, unit)
        value = jnp.where(wide, at_center - 0.5 * (nu + 1.0) * log_ratio, value)
        slope = jnp.where(wide, (nu + 1.0) * pull, slope)
        least = LEAST_SHARE * (nu + 1.0) * jnp.where(wide, of_wide, inverse)
        return Expected(value, slope, jnp.maximum(jnp.where(wide, (nu + 1.0) * bend, -curvature), least))

    def log_average(self, y: Numbers, mean: Numbers, variance: Numbers) -> Numbers:
        """Return the log of the average density, over nodes of the precision w; far out over nodes of t."""
        half, unit = 0.5 * jnp.exp(self.log_nu), jnp.exp(2.0 * self.log_sigma)
        # log w of w ~ Gamma(half, half) has its mode at zero and about this standard deviation.
        log_w = jnp.sqrt(polygamma(1, half)) * last_axis(PRECISIONS, y)
        log_weights = half * (log_w - jnp.exp(log_w))
        log_weights = log_weights - jax.nn.logsumexp(log_weights, axis=-1, keepdims=True)
        variances = variance[..., None] + unit * jnp.exp(-log_w)
        normal = -0.5 * ((y - mean)[..., None] ** 2 / variances + jnp.log(2.0 * math.pi * variances))
        near = jax.nn.logsumexp(normal + log_weights, axis=-1)
        at = nodes_of(mean, variance)
        at_nodes = self.log_density(jnp.broadcast_to(y[..., None], at.shape), at)
        far = jax.nn.logsumexp(at_nodes + last_axis(np.log(NODE_WEIGHTS), y), axis=-1)
        return jnp.where(jnp.abs(y - mean) > FAR * jnp.sqrt(variance + unit), far, near)


def _averages_over_rates(error: Numbers, variance: Numbers, unit: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return what the function of this name in `robust_responses.py` does."""
    r = last_axis(np.exp(LOG_RATES), error)
    step = last_axis(RATE_STEP * np.exp(-np.exp(LOG_RATES)), error)
    total, square = unit[..., None] + 2.0 * r * variance[..., None], error[..., None] ** 2
    left = jnp.exp(-r * square / total) * jnp.sqrt(unit[..., None] / total)
    pull = left * r / total
    curvature = jnp.sum(pull * (1.0 - 2.0 * r * square / total) * step, axis=-1)
    log_ratio, inverse = jnp.sum((1.0 - left) * step, axis=-1), jnp.sum(left * r * step, axis=-1) / unit
    return log_ratio, inverse, error * jnp.sum(pull * step, axis=-1), curvature
