"""Adaptation to new tasks: the posterior of every particle for every task, in the precision of x; its predictions."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task, TestTask, pad_to
from metaprior.wfem import evidence
from metaprior.wfem.exact import Posterior
from metaprior.wfem.hyperprior import cast, merge
from metaprior.wfem.likelihoods import Observation
from metaprior.wfem.prior import GPPrior


class Queries(NamedTuple):
    """Padded meta-test tasks: context to adapt to, queries to predict."""

    x_context: Any  # (tasks, context, input_dim)
    y_context: Any  # (tasks, context)
    context_mask: Any  # (tasks, context)
    x_query: Any  # (tasks, queries, input_dim)


class Prediction(NamedTuple):
    """Mean and variance of the latent function under every particle, and the particles' likelihoods."""

    mean: Float[Array, "particles tasks queries"]
    variance: Array  # likewise; from `joint` covariance matrices
    likelihood: Observation


def pad_queries(
    tasks: Sequence[TestTask], scaling: Scaling, n_context: int, n_query: int, dtype: Any
) -> tuple[Queries, np.ndarray, np.ndarray]:
    """Return meta-test tasks scaled and padded to these sizes: queries, y_query and the mask of queries."""
    x_context, y_context, context_mask = pad_to([scaling.task(Task(*task[:2])) for task in tasks], n_context, dtype)
    x_query, y_query, mask = pad_to([scaling.task(Task(*task[2:])) for task in tasks], n_query, dtype)
    return Queries(x_context, y_context, context_mask, x_query), y_query, mask


def condition(particles: PyTree, rest: GPPrior, x: Any, y: Any, mask: Any) -> Posterior:
    """Return the posterior of every particle for every task; leaves are (particles, tasks, ...)."""

    def one_particle(theta: PyTree) -> Posterior:
        prior = cast(merge(theta, rest), x.dtype)
        one_task = lambda *task: evidence.condition(prior, *task)  # noqa: E731
        return jax.vmap(one_task)(evidence.points_of_tasks(prior, x), y, mask)

    return jax.vmap(one_particle)(particles)


def marginals(particles: PyTree, rest: GPPrior, posteriors: Posterior, x: Any) -> Prediction:
    """Predict x (tasks, queries, input_dim), each query on its own."""
    return _evaluate(particles, rest, posteriors, x, Posterior.marginals)


def joint(particles: PyTree, rest: GPPrior, posteriors: Posterior, x: Any) -> Prediction:
    """Predict x (tasks, queries, input_dim), with covariances among the queries of a task."""
    return _evaluate(particles, rest, posteriors, x, Posterior.joint)


def predict(particles: PyTree, rest: GPPrior, queries: Queries) -> Prediction:
    """Condition every particle on every task and predict the queries."""
    *contexts, x_query = queries
    return marginals(particles, rest, condition(particles, rest, *contexts), x_query)


def _evaluate(
    particles: PyTree, rest: GPPrior, posteriors: Posterior, x: Any, moments: Callable[..., tuple[Array, Array]]
) -> Prediction:
    def one_particle(theta: PyTree, of_tasks: Posterior) -> tuple[Array, Array, Observation]:
        prior = cast(merge(theta, rest), x.dtype)
        points = evidence.points_of_tasks(prior, x)
        return *jax.vmap(lambda posterior, at: moments(posterior, prior, at))(of_tasks, points), prior.likelihood

    return Prediction(*jax.vmap(one_particle)(particles, posteriors))


def mixture_log_density(prediction: Prediction, y: Float[Array, "tasks queries"]) -> Float[Array, "tasks queries"]:
    """Return the log of the particles' average density of an observation, or probability of a label."""
    mean, variance, likelihoods = prediction
    log_predictive = lambda likelihood, m, v: likelihood.log_predictive(y, m, v)  # noqa: E731
    densities = eqx.filter_vmap(log_predictive)(likelihoods, mean, variance)
    return jax.nn.logsumexp(densities, axis=0) - jnp.log(jnp.asarray(densities.shape[0], densities.dtype))


@eqx.filter_jit
def label_log_probabilities(prediction: Prediction) -> Float[Array, "2 tasks queries"]:
    """Return log p(y = 0) and log p(y = 1), averaged over particles and accurate for small probabilities."""
    y = jnp.zeros_like(prediction.mean[0])
    return jnp.stack([mixture_log_density(prediction, y), mixture_log_density(prediction, y + 1.0)])
