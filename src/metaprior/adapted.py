"""A learned prior adapted to new tasks: predictions in the units of y, averaged over particles."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from sklearn.utils import check_random_state

from metaprior.checks import check_integer
from metaprior.gp.likelihoods import Gaussian, Likelihood
from metaprior.gp.prior import GPPrior
from metaprior.meta.adaptation import (
    Prediction,
    Queries,
    adapt_in,
    joint,
    label_log_probabilities,
    marginals,
    predict_in,
    sampled_label_probability,
)
from metaprior.predictive import GaussianMixture, JointMixture
from metaprior.tasks import Scaling, Task, TestTask, as_inputs, as_task, encode, pad_to
from metaprior.tasks.batch import bucket_sizes

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


class _Adapted:
    """The prior conditioned on one task's context, in double precision."""

    def __init__(self, model: Model, x: np.ndarray, y: np.ndarray):
        self._model = model
        scaled = model.scaling.task(Task(x, y))
        with jax.enable_x64(True):
            padded = (jnp.asarray(part[0]) for part in pad_to([scaled], padded_size(len(y)), np.float64))
            posteriors = adapt_in(model.particles, model.rest, *padded)
        # As NumPy's, which keep their precision when they are copied, pickled and read where JAX's would lose it.
        self._posteriors = jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, posteriors)

    def _inputs(self, X: Any) -> tuple[np.ndarray, int]:
        """Checked, scaled inputs, padded so that few sizes are ever compiled; and how many are real."""
        x = self._model.scaling.inputs(as_inputs(X, "predict", self._model.input_dim))
        return np.pad(x, ((0, padded_size(len(x)) - len(x)), (0, 0))), len(x)


class AdaptedClassifier(_Adapted):
    """The prior conditioned on one task's labelled context by Laplace's approximation.

    `classes_` holds the two classes; columns of probabilities are in their order.
    """

    def __init__(self, model: Model, x: np.ndarray, y: np.ndarray, classes: np.ndarray):
        super().__init__(model, x, encode(y, classes))
        self.classes_ = classes

    def __repr__(self) -> str:
        return f"AdaptedClassifier(classes_={self.classes_.tolist()})"

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class."""
        return self.classes_[(self.decision_function(X) > 0).astype(int)]

    def predict_proba(self, X: Any, n_samples: Any = None, random_state: Any = None) -> np.ndarray:
        """Probabilities (n, 2), averaged over particles, by quadrature over the latent function.

        With `n_samples` they are averages over as many draws of it, as in the paper.
        """
        if n_samples is None:
            probabilities = np.exp(self._log_probabilities(X)).T
            return probabilities / probabilities.sum(axis=1, keepdims=True)
        n_samples = check_integer("n_samples", n_samples, least=1)
        x, n = self._inputs(X)
        key = jax.random.key(check_random_state(random_state).randint(2**31 - 1))
        with jax.enable_x64(True):
            drawn = sampled_label_probability(key, marginals(self._posteriors, jnp.asarray(x)), n_samples)
        second = np.asarray(drawn)[0, :n]
        return np.stack([1.0 - second, second], axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of the probabilities (n, 2)."""
        return self._log_probabilities(X).T

    def decision_function(self, X: Any) -> np.ndarray:
        """Log odds of the second class: positive where `predict` gives it."""
        first, second = self._log_probabilities(X)
        return second - first

    def _log_probabilities(self, X: Any) -> np.ndarray:
        x, n = self._inputs(X)
        with jax.enable_x64(True):
            return np.asarray(label_log_probabilities(marginals(self._posteriors, jnp.asarray(x))))[:, 0, :n]


class AdaptedTask(_Adapted):
    """The prior conditioned on one task's context. Adaptation is exact and in double precision.

    Predictions are of a new observation y; `latent=True` asks for the noise-free function instead.
    """

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False, latent: bool = False) -> Any:
        """Mean of the predictions; with their standard deviation, or their covariance matrix, if asked."""
        if return_std and return_cov:
            raise ValueError("return_std and return_cov exclude each other; the former is the root of cov's diagonal.")
        if return_cov:
            mixture = self._joint(X, latent)
            return mixture.mean(), mixture.covariance()
        predictive = self.predictive(X, latent)
        return (predictive.mean(), predictive.std()) if return_std else predictive.mean()

    def predictive(self, X: Any, latent: bool = False) -> GaussianMixture:
        """The predictive distribution at each input: `quantile`, `interval`, `cdf`, `log_density`, ..."""
        x, n = self._inputs(X)
        with jax.enable_x64(True):
            prediction = marginals(self._posteriors, jnp.asarray(x))
        means, variances = _observations(prediction, self._model.scaling, latent)
        return GaussianMixture(means[:, 0, :n], variances[:, 0, :n])

    def quantile(self, X: Any, probability: Any, latent: bool = False) -> np.ndarray:
        """Quantiles of the predictions: (n,), or (len(probability), n) for a vector of probabilities."""
        return self.predictive(X, latent).quantile(probability)

    def interval(self, X: Any, coverage: Any = 0.9, latent: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of the central interval of the predictions."""
        return self.predictive(X, latent).interval(coverage)

    def log_density(self, X: Any, y: Any, latent: bool = False) -> np.ndarray:
        """log p(y | x, context) of each sample, in the units of y."""
        task = as_task(X, y, "log_density", self._model.input_dim)
        return self.predictive(task.x, latent).log_density(task.y)

    def sample(self, X: Any, n_samples: Any = 1, latent: bool = False, random_state: Any = None) -> np.ndarray:
        """Joint draws at all inputs, (n_samples, n)."""
        check_integer("n_samples", n_samples, least=0)
        rng = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
        return self._joint(X, latent).sample(n_samples, rng)

    def _joint(self, X: Any, latent: bool) -> JointMixture:
        x, n = self._inputs(X)
        with jax.enable_x64(True):
            means, covariances, likelihood = joint(self._posteriors, jnp.asarray(x))
        means, covariances = np.asarray(means), np.asarray(covariances)
        if not latent:
            covariances = covariances + _noise_variance(likelihood)[:, None, None] * np.eye(len(x))
        scaling = self._model.scaling
        return JointMixture(scaling.undo_mean(means[:, :n]), scaling.undo_variance(covariances[:, :n, :n]))


def predict_tasks(model: Model, tasks: Sequence[TestTask]) -> tuple[GaussianMixture, np.ndarray, np.ndarray]:
    """Predict the queries of many tasks at once: predictive of observations, y and mask, all (tasks, queries).

    Tasks are batched by context size; what a task does not fill is NaN and masked.
    """
    n_particles = len(jax.tree.leaves(model.particles)[0])
    means, y, mask = _empty_queries(tasks, n_particles)
    variances = means.copy()
    for place, prediction, y_query, valid in _predicted(model, tasks):
        mean, variance = (
            part[..., : valid.shape[1]] for part in _observations(prediction, model.scaling, latent=False)
        )
        means[:, *place], variances[:, *place] = np.where(valid, mean, np.nan), np.where(valid, variance, np.nan)
        y[place], mask[place] = np.where(valid, model.scaling.undo_mean(y_query), np.nan), valid
    return GaussianMixture(means, variances), y, mask


def predict_labels(model: Model, tasks: Sequence[TestTask]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predict the queries of many classification tasks: log probabilities (2, tasks, queries), y and mask."""
    log_probabilities, y, mask = _empty_queries(tasks, 2)
    for place, prediction, y_query, valid in _predicted(model, tasks):
        with jax.enable_x64(True):
            logs = np.asarray(label_log_probabilities(prediction))[..., : valid.shape[1]]
        log_probabilities[:, *place] = np.where(valid, logs, np.nan)
        y[place], mask[place] = np.where(valid, y_query, np.nan), valid
    return log_probabilities, y, mask


def _empty_queries(tasks: Sequence[TestTask], n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shape = (len(tasks), max(len(task.y_query) for task in tasks))
    return np.full((n, *shape), np.nan), np.full(shape, np.nan), np.zeros(shape, bool)


def _predicted(
    model: Model, tasks: Sequence[TestTask]
) -> Iterator[tuple[tuple[np.ndarray, slice], Prediction, np.ndarray, np.ndarray]]:
    """Batches of predictions: their place among (tasks, queries), the prediction, y and mask of that width."""
    n_queries = max(len(task.y_query) for task in tasks)
    for members, queries, y_query, mask in padded_queries(tasks, model.scaling):
        with jax.enable_x64(True):
            prediction = predict_in(model.particles, model.rest, queries)
        width = min(mask.shape[1], n_queries)
        yield (members, slice(width)), prediction, y_query[:, :width], mask[:, :width]


def padded_queries(
    tasks: Sequence[TestTask], scaling: Scaling, max_buckets: int = 3, dtype: Any = np.float64
) -> Iterator[tuple[np.ndarray, Queries, np.ndarray, np.ndarray]]:
    """Scaled and padded batches: (indices of the tasks, queries, y_query, query mask)."""
    sizes = np.array([len(task.y_context) for task in tasks])
    lower = -1
    for upper in bucket_sizes(sizes, max_buckets):
        of_size = np.flatnonzero((lower < sizes) & (sizes <= upper))
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
        lower = upper


def padded_size(n: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: few distinct sizes to compile, at most half wasted."""
    power = 1 << max(n - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and n <= power * 3 // 4 else power


def _observations(prediction: Prediction, scaling: Scaling, latent: bool) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = np.asarray(prediction.mean), np.asarray(prediction.variance)
    if not latent:
        variance = variance + _noise_variance(prediction.likelihood)[:, None, None]
    return scaling.undo_mean(mean), scaling.undo_variance(variance)


def _noise_variance(likelihood: Likelihood) -> np.ndarray:
    """(particles,)."""
    assert isinstance(likelihood, Gaussian)  # labels have probabilities, not noise
    return np.exp(2.0 * np.asarray(likelihood.log_noise_std))
