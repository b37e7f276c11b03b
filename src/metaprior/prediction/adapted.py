"""A learned prior adapted to one new task: predictions in the units of y, averaged over particles."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils import check_random_state

from metaprior.checks import check_integer
from metaprior.gp.posterior import TaskPosterior
from metaprior.meta.adaptation import adapt_in, joint, label_log_probabilities, marginals, sampled_label_probability
from metaprior.prediction.ensemble import Ensemble, Model, average_log, noise_variance, observations, padded_size
from metaprior.prediction.mixtures import GaussianMixture, JointMixture
from metaprior.tasks.labels import encode
from metaprior.tasks.padding import pad_to
from metaprior.tasks.types import Task, as_inputs, as_task


class _Adapted:
    """The prior conditioned on one task's context, in double precision."""

    def __init__(self, model: Ensemble, x: np.ndarray, y: np.ndarray):
        self._model = model
        self._posteriors = [_adapt(member, Task(x, y)) for member in model.members]

    def _predictions(self, X: Any, predict: Callable[[TaskPosterior, Any], Any]) -> tuple[list[tuple[Model, Any]], int]:
        """What `predict(posteriors, x)` gives for every member at checked, scaled inputs; and how many are real.

        Inputs are padded, so that few sizes are ever compiled.
        """
        x = as_inputs(X, "predict", self._model.input_dim)
        padding = ((0, padded_size(len(x)) - len(x)), (0, 0))
        predictions = []
        with jax.enable_x64(True):
            for member, posteriors in zip(self._model.members, self._posteriors, strict=True):
                predicted = predict(posteriors, jnp.asarray(np.pad(member.scaling.inputs(x), padding)))
                predictions.append((member, predicted))
        return predictions, len(x)


class AdaptedClassifier(_Adapted):
    """The prior conditioned on one task's labeled context by Laplace's approximation.

    `classes_` holds the two classes; columns of probabilities are in their order.
    """

    def __init__(self, model: Ensemble, x: np.ndarray, y: np.ndarray, classes: np.ndarray):
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
        key = jax.random.key(check_random_state(random_state).randint(2**31 - 1))
        drawn, n = self._predictions(
            X, lambda posteriors, x: sampled_label_probability(key, marginals(posteriors, x), n_samples)
        )
        second = self._model.weights @ np.stack([np.asarray(of_member)[0, :n] for _, of_member in drawn])
        return np.stack([1.0 - second, second], axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of the probabilities (n, 2)."""
        return self._log_probabilities(X).T

    def decision_function(self, X: Any) -> np.ndarray:
        """Log odds of the second class: positive where `predict` gives it."""
        first, second = self._log_probabilities(X)
        return second - first

    def _log_probabilities(self, X: Any) -> np.ndarray:
        predicted, n = self._predictions(X, lambda posteriors, x: label_log_probabilities(marginals(posteriors, x)))
        return average_log([np.asarray(of_member)[:, 0, :n] for _, of_member in predicted], self._model.weights)


class AdaptedRegressor(_Adapted):
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
        predicted, n = self._predictions(X, marginals)
        parts = [observations(prediction, member.scaling, latent) for member, prediction in predicted]
        means, variances = (np.concatenate(part)[:, 0, :n] for part in zip(*parts, strict=True))
        return GaussianMixture(means, variances, np.log(self._model.particle_weights))

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
        predicted, n = self._predictions(X, joint)
        means, covariances = [], []
        for member, (mean, covariance, likelihood) in predicted:
            noise = 0.0 if latent else noise_variance(likelihood)[:, None, None] * np.eye(n)
            means.append(member.scaling.undo_mean(np.asarray(mean)[:, :n]))
            covariances.append(member.scaling.undo_variance(np.asarray(covariance)[:, :n, :n] + noise))
        log_weights = np.log(self._model.particle_weights)
        return JointMixture(np.concatenate(means), np.concatenate(covariances), log_weights)


def _adapt(member: Model, context: Task) -> TaskPosterior:
    """The posteriors of all particles of one member."""
    scaled = member.scaling.task(context)
    with jax.enable_x64(True):
        padded = (jnp.asarray(part[0]) for part in pad_to([scaled], padded_size(len(scaled.y)), np.float64))
        posteriors = adapt_in(member.particles, member.rest, *padded)
    # As NumPy's, which keep their precision when they are copied, pickled and read where JAX's would lose it.
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, posteriors)
