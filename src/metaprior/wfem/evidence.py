"""Inference for one task, chosen by the likelihood.

Exact for Gaussian noise, Laplace's approximation for labels and other likelihoods.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from metaprior.wfem import exact, laplace
from metaprior.wfem.likelihoods import GaussianNoise
from metaprior.wfem.prior import GPPrior, Points


def log_evidence(
    prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """Return ln p_theta(Y | X), or its approximation, of the samples where `mask` is True; and whether it converged."""
    if isinstance(prior.likelihood, GaussianNoise):
        return exact.log_evidence(prior, points, y, mask), jnp.asarray(True)
    return laplace.log_evidence(prior, points, y, mask)


def condition(prior: GPPrior, points: Points, y: Float[Array, " n"], mask: Bool[Array, " n"]) -> exact.Posterior:
    """Return the posterior given one task."""
    if isinstance(prior.likelihood, GaussianNoise):
        return exact.condition(prior, points, y, mask)
    return laplace.condition(prior, points, y, mask)


def points_of_tasks(prior: GPPrior, x: Float[Array, "tasks n d"]) -> Points:
    """Return the points of many tasks, evaluated all at once: every leaf is (tasks, n, ...)."""
    n_tasks, size, input_dim = x.shape
    points = prior.points(x.reshape(n_tasks * size, input_dim))
    return jax.tree.map(lambda leaf: leaf.reshape(n_tasks, size, *leaf.shape[1:]), points)
