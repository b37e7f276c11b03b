"""Fitted priors, alone or averaged, and their predictions for many tasks at once."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree
from scipy.special import logsumexp
from sklearn.utils.validation import check_is_fitted

from metaprior.gp.likelihoods import Gaussian, Likelihood
from metaprior.gp.prior import GPPrior
from metaprior.meta.adaptation import Prediction, Queries, label_log_probabilities, predict_in
from metaprior.predictive import GaussianMixture
from metaprior.tasks import Scaling, Task, TestTask, pad_to
from metaprior.tasks.batch import by_size

MAX_NUMBERS = 2**25  # inputs of the test tasks adapted to at once; images of many tasks would not fit


class Model(NamedTuple):
    """A fitted prior: the particles of theta, the rest of the prior, and the scaling of its data."""

    particles: PyTree
    rest: GPPrior
    scaling: Scaling

    @property
    def input_dim(self) -> int:
        """Number of input columns."""
        return len(self.scaling.x_mean)


def is_classifier(meta: Any) -> bool:
    """Whether a fitted estimator predicts labels; an error if it is none."""
    if getattr(meta, "likelihood", None) not in ("gaussian", "bernoulli"):
        raise ValueError(f"meta must be a fitted MetaGPRegressor or MetaGPClassifier; got {type(meta).__name__}.")
    check_is_fitted(meta, "model_")
    return meta.likelihood == "bernoulli"


class Ensemble(NamedTuple):
    """Priors whose predictions are averaged, with weights on the simplex: those fitted with the settings that held-out
    tasks speak for, or just one."""

    members: tuple[Model, ...]
    weights: np.ndarray  # (members,)

    @property
    def input_dim(self) -> int:
        """Number of input columns."""
        return self.members[0].input_dim

    @property
    def n_particles(self) -> int:
        """Of each member."""
        return len(jax.tree.leaves(self.members[0].particles)[0])

    @property
    def particle_weights(self) -> np.ndarray:
        """(members x particles,): the weights of the particles of all members, one member after another."""
        return np.repeat(self.weights / self.n_particles, self.n_particles)


def predict_tasks(
    model: Ensemble, tasks: Sequence[TestTask], max_buckets: int = 3
) -> tuple[GaussianMixture, np.ndarray, np.ndarray]:
    """Predict the queries of many tasks at once: predictive of observations, y and mask, all (tasks, queries).

    Tasks are batched by context size; what a task does not fill is NaN and masked. One bucket is for tasks that the
    caller has batched: their number and largest sizes are then all that decides what is compiled.
    """
    y, mask = _true_queries(tasks)
    means = np.full((len(model.members), model.n_particles, *y.shape), np.nan)
    variances = means.copy()
    for i, member in enumerate(model.members):
        for place, prediction, valid in _predicted(member, tasks, max_buckets):
            mean, variance = observations(prediction, member.scaling, latent=False)
            width = valid.shape[1]
            means[i][:, *place] = np.where(valid, mean[..., :width], np.nan)
            variances[i][:, *place] = np.where(valid, variance[..., :width], np.nan)
    flat = (-1, *y.shape)
    return GaussianMixture(means.reshape(flat), variances.reshape(flat), np.log(model.particle_weights)), y, mask


def predict_labels(
    model: Ensemble, tasks: Sequence[TestTask], max_buckets: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predict the queries of many classification tasks: log probabilities (2, tasks, queries), y and mask."""
    y, mask = _true_queries(tasks)
    log_probabilities = np.full((len(model.members), 2, *y.shape), np.nan)
    for i, member in enumerate(model.members):
        for place, prediction, valid in _predicted(member, tasks, max_buckets):
            with jax.enable_x64(True):
                logs = np.asarray(label_log_probabilities(prediction))[..., : valid.shape[1]]
            log_probabilities[i][:, *place] = np.where(valid, logs, np.nan)
    return average_log(log_probabilities, model.weights), y, mask


def average_log(log_probabilities: Any, weights: np.ndarray) -> np.ndarray:
    """log of the members' average probability, over the first axis. One member's stay exactly as they are."""
    log_probabilities = np.asarray(log_probabilities)
    if len(weights) == 1:
        return log_probabilities[0]
    return np.asarray(
        logsumexp(log_probabilities + np.log(weights).reshape(-1, *(1,) * (log_probabilities.ndim - 1)), 0)
    )


def _true_queries(tasks: Sequence[TestTask]) -> tuple[np.ndarray, np.ndarray]:
    """y (tasks, queries), NaN where there is none, and the mask of where there is one."""
    y = np.full((len(tasks), max(len(task.y_query) for task in tasks)), np.nan)
    for row, task in zip(y, tasks, strict=True):
        row[: len(task.y_query)] = task.y_query
    return y, ~np.isnan(y)


def _predicted(
    model: Model, tasks: Sequence[TestTask], max_buckets: int
) -> Iterator[tuple[tuple[np.ndarray, slice], Prediction, np.ndarray]]:
    """Batches of predictions: their place among (tasks, queries), the prediction, and the mask of that width."""
    n_queries = max(len(task.y_query) for task in tasks)
    for members, queries, _, mask in padded_queries(tasks, model.scaling, max_buckets):
        with jax.enable_x64(True):
            prediction = predict_in(model.particles, model.rest, queries)
        width = min(mask.shape[1], n_queries)
        yield (members, slice(width)), prediction, mask[:, :width]


def padded_queries(
    tasks: Sequence[TestTask], scaling: Scaling, max_buckets: int = 3, dtype: Any = np.float64
) -> Iterator[tuple[np.ndarray, Queries, np.ndarray, np.ndarray]]:
    """Scaled and padded batches: (indices of the tasks, queries, y_query, query mask)."""
    sizes = np.array([len(task.y_context) for task in tasks])
    for upper, of_size in by_size(sizes, max_buckets):
        n_queries = padded_size(max(len(tasks[i].y_query) for i in of_size.tolist()))
        numbers = len(of_size) * (padded_size(upper) + n_queries) * len(scaling.x_mean)
        n_batches = 1 if max_buckets == 1 else min(math.ceil(numbers / MAX_NUMBERS), len(of_size))
        for members in np.array_split(of_size, n_batches):
            chosen = [tasks[i] for i in members.tolist()]
            contexts = [scaling.task(Task(task.x_context, task.y_context)) for task in chosen]
            targets = [scaling.task(Task(task.x_query, task.y_query)) for task in chosen]
            x_context, y_context, context_mask = pad_to(contexts, padded_size(upper), dtype)
            x_query, y_query, mask = pad_to(targets, n_queries, dtype)
            yield members, Queries(x_context, y_context, context_mask, x_query), y_query, mask


def padded_size(n: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: few distinct sizes to compile, at most half wasted."""
    power = 1 << max(n - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and n <= power * 3 // 4 else power


def observations(prediction: Prediction, scaling: Scaling, latent: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of new observations (or of the latent function), in the units of y."""
    mean, variance = np.asarray(prediction.mean), np.asarray(prediction.variance)
    if not latent:
        variance = variance + noise_variance(prediction.likelihood)[:, None, None]
    return scaling.undo_mean(mean), scaling.undo_variance(variance)


def noise_variance(likelihood: Likelihood) -> np.ndarray:
    """(particles,)."""
    assert isinstance(likelihood, Gaussian)  # labels have probabilities, not noise
    return np.exp(2.0 * np.asarray(likelihood.log_noise_std))
