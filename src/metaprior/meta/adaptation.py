"""Adaptation to new tasks: the closed-form posterior of every particle, for one task or many."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from metaprior.gp.exact import Posterior, condition
from metaprior.gp.parameters import cast, merge
from metaprior.gp.prior import GPPrior


class Queries(NamedTuple):
    """Padded meta-test tasks: context to adapt on, queries to predict."""

    x_context: Any  # (tasks, context, input_dim)
    y_context: Any  # (tasks, context)
    context_mask: Any  # (tasks, context)
    x_query: Any  # (tasks, queries, input_dim)


class Prediction(NamedTuple):
    """Latent mean and variance, and the noise variance, of every particle."""

    mean: Float[Array, "particles tasks queries"]
    variance: Float[Array, "particles tasks queries"]
    noise_variance: Float[Array, " particles"]


def predict(particles: PyTree, rest: GPPrior, queries: Queries) -> Prediction:
    """Adapt every particle to every task and predict the queries."""

    def one_particle(theta: PyTree) -> tuple[Array, Array, Array]:
        prior = merge(theta, rest)

        def one_task(x_context: Array, y_context: Array, mask: Array, x_query: Array) -> tuple[Array, Array]:
            return condition(prior, x_context, y_context, mask).marginals(x_query)

        return *jax.vmap(one_task)(*queries), prior.likelihood.variance

    return Prediction(*jax.vmap(one_particle)(particles))


@eqx.filter_jit
def predict_in(particles: PyTree, rest: GPPrior, queries: Queries) -> Prediction:
    """`predict`, compiled, in the precision of the queries."""
    return predict(*cast((particles, rest), queries.x_query.dtype), queries)


@eqx.filter_jit
def adapt_in(particles: PyTree, rest: GPPrior, x: Array, y: Array, mask: Array) -> Posterior:
    """The posteriors of all particles for one task, stacked, in the precision of x."""
    particles, rest = cast((particles, rest), x.dtype)
    return eqx.filter_vmap(lambda theta: condition(merge(theta, rest), x, y, mask))(particles)


@eqx.filter_jit
def marginals(posteriors: Posterior, x: Array) -> Prediction:
    """Mean and variance at new inputs of one task, with a task axis of one."""
    mean, variance = eqx.filter_vmap(lambda posterior: posterior.marginals(x))(posteriors)
    return Prediction(mean[:, None], variance[:, None], _noise_variance(posteriors))


@eqx.filter_jit
def joint(posteriors: Posterior, x: Array) -> tuple[Array, Array, Array]:
    """Mean, covariance and noise variance at new inputs, for every particle."""
    mean, covariance = eqx.filter_vmap(lambda posterior: posterior.joint(x))(posteriors)
    return mean, covariance, _noise_variance(posteriors)


def mixture_log_density(prediction: Prediction, y: Float[Array, "tasks queries"]) -> Float[Array, "tasks queries"]:
    """log of the particles' average observation density."""
    variance = prediction.variance + prediction.noise_variance[:, None, None]
    densities = jax.scipy.stats.norm.logpdf(y[None], prediction.mean, jnp.sqrt(variance))
    return jax.nn.logsumexp(densities, axis=0) - jnp.log(jnp.asarray(densities.shape[0], densities.dtype))


def _noise_variance(posteriors: Posterior) -> Float[Array, " particles"]:
    return eqx.filter_vmap(lambda posterior: posterior.prior.likelihood.variance)(posteriors)
