"""Adaptation to new tasks: the closed-form posterior of every particle, for one task or many."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from metaprior.gp.inference import condition, points_of_tasks
from metaprior.gp.likelihoods import Likelihood, sampled_probability
from metaprior.gp.parameters import cast, merge
from metaprior.gp.posterior import TaskPosterior
from metaprior.gp.prior import GPPrior, Points
from metaprior.tasks.padding import pad_to
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task, TestTask


class Queries(NamedTuple):
    """Padded meta-test tasks: context to adapt on, queries to predict."""

    x_context: Any  # (tasks, context, input_dim)
    y_context: Any  # (tasks, context)
    context_mask: Any  # (tasks, context)
    x_query: Any  # (tasks, queries, input_dim)


def pad_queries(
    tasks: Sequence[TestTask], scaling: Scaling, n_context: int, n_query: int, dtype: Any
) -> tuple[Queries, np.ndarray, np.ndarray]:
    """Meta-test tasks scaled and padded to these sizes: queries, y_query, query mask."""
    contexts = [scaling.task(Task(task.x_context, task.y_context)) for task in tasks]
    targets = [scaling.task(Task(task.x_query, task.y_query)) for task in tasks]
    x_context, y_context, context_mask = pad_to(contexts, n_context, dtype)
    x_query, y_query, mask = pad_to(targets, n_query, dtype)
    return Queries(x_context, y_context, context_mask, x_query), y_query, mask


class Prediction(NamedTuple):
    """Latent mean and variance of every particle, and its likelihood (stacked) to observe them by."""

    mean: Float[Array, "particles tasks queries"]
    variance: Float[Array, "particles tasks queries"]
    likelihood: Likelihood


def predict(particles: PyTree, rest: GPPrior, queries: Queries) -> Prediction:
    """Adapt every particle to every task and predict the queries."""

    def one_particle(theta: PyTree) -> tuple[Array, Array, Likelihood]:
        prior = merge(theta, rest)

        def one_task(context: Points, y_context: Array, mask: Array, query: Points) -> tuple[Array, Array]:
            return condition(prior, context, y_context, mask).marginals(query)

        context, query = points_of_tasks(prior, queries.x_context), points_of_tasks(prior, queries.x_query)
        return *jax.vmap(one_task)(context, queries.y_context, queries.context_mask, query), prior.likelihood

    return Prediction(*jax.vmap(one_particle)(particles))


@eqx.filter_jit
def predict_in(particles: PyTree, rest: GPPrior, queries: Queries) -> Prediction:
    """`predict`, compiled, in the precision of the queries."""
    return predict(*cast((particles, rest), queries.x_query.dtype), queries)


@eqx.filter_jit
def adapt_in(particles: PyTree, rest: GPPrior, x: Array, y: Array, mask: Array) -> TaskPosterior:
    """The posteriors of all particles for one task, stacked, in the precision of x."""
    particles, rest = cast((particles, rest), x.dtype)
    return eqx.filter_vmap(lambda theta: _adapt(merge(theta, rest), x, y, mask))(particles)


def _adapt(prior: GPPrior, x: Array, y: Array, mask: Array) -> TaskPosterior:
    return condition(prior, prior.points(x), y, mask)


@eqx.filter_jit
def marginals(posteriors: TaskPosterior, x: Array) -> Prediction:
    """Mean and variance at new inputs of one task, with a task axis of one."""
    mean, variance = eqx.filter_vmap(lambda posterior: posterior.marginals(posterior.prior.points(x)))(posteriors)
    return Prediction(mean[:, None], variance[:, None], posteriors.prior.likelihood)


@eqx.filter_jit
def joint(posteriors: TaskPosterior, x: Array) -> tuple[Array, Array, Likelihood]:
    """Mean and covariance at new inputs, and likelihood, of every particle."""
    mean, covariance = eqx.filter_vmap(lambda posterior: posterior.joint(posterior.prior.points(x)))(posteriors)
    return mean, covariance, posteriors.prior.likelihood


def mixture_log_density(prediction: Prediction, y: Float[Array, "tasks queries"]) -> Float[Array, "tasks queries"]:
    """log of the particles' average observation density (of a label: of their average probability)."""
    mean, variance, likelihoods = prediction
    densities = eqx.filter_vmap(lambda likelihood, m, v: likelihood.log_predictive(y, m, v))(
        likelihoods, mean, variance
    )
    return jax.nn.logsumexp(densities, axis=0) - jnp.log(jnp.asarray(densities.shape[0], densities.dtype))


@eqx.filter_jit
def label_log_probabilities(prediction: Prediction) -> Float[Array, "2 tasks queries"]:
    """log p(y = 0) and log p(y = 1), each the log of the particles' average and accurate where it is small."""
    y = jnp.zeros_like(prediction.mean[0])
    return jnp.stack([mixture_log_density(prediction, y), mixture_log_density(prediction, y + 1.0)])


@eqx.filter_jit
def sampled_label_probability(
    key: PRNGKeyArray, prediction: Prediction, n_samples: int
) -> Float[Array, "tasks queries"]:
    """p(y = 1) from draws of the latent function, as in the paper, averaged over particles."""
    return jnp.mean(sampled_probability(key, prediction.mean, prediction.variance, n_samples), axis=0)
