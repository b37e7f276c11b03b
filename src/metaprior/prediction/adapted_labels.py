"""A learned prior adapted to new tasks of two classes: class probabilities, averaged over particles."""

from typing import Any

import jax
import numpy as np

from metaprior.checks import check_integer, draw_seed
from metaprior.gp.likelihoods import sampled_probability
from metaprior.prediction.adapted_tasks import Adapted, AdaptedMany
from metaprior.prediction.batches import Posteriors, components, predict_rows
from metaprior.prediction.ensemble import Ensemble
from metaprior.prediction.label_batches import predict_label_rows
from metaprior.tasks.input_columns import Features
from metaprior.tasks.padding import Ragged

_draw = jax.jit(sampled_probability, static_argnums=3)


class _Classification(Adapted):
    classes_: Any

    def predict(self, X: Any) -> Any:
        """Predict the more probable class of each input.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)

        Returns
        -------
        ndarray of shape (n,)
        """
        queries, (first, second) = self._log_probabilities(X)
        classes = self.classes_ if isinstance(self, AdaptedMany) else [self.classes_]
        chosen = queries.split((second - first > 0).astype(int))
        return self._entries([pair[of_task] for pair, of_task in zip(classes, chosen, strict=True)])

    def predict_proba(self, X: Any, n_samples: Any = None, random_state: Any = None) -> Any:
        """Return class probabilities, averaged over particles.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)
        n_samples : int, optional
            Draws of the latent function to average over, as in the paper. Default: quadrature.
        random_state : int, RandomState or None

        Returns
        -------
        ndarray of shape (n, 2)
            Columns are in the order of `classes_`.
        """
        if n_samples is not None:
            return self._sampled(X, check_integer("n_samples", n_samples, least=1), random_state)
        queries, rows = self._log_probabilities(X)
        probabilities = np.exp(rows)
        return self._entries([part.T for part in queries.split(probabilities / probabilities.sum(axis=0))])

    def predict_log_proba(self, X: Any) -> Any:
        """Return logarithms of class probabilities, accurate for small ones.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)

        Returns
        -------
        ndarray of shape (n, 2)
        """
        queries, rows = self._log_probabilities(X)
        return self._entries([part.T for part in queries.split(rows)])

    def decision_function(self, X: Any) -> Any:
        """Return log odds of the second class, positive where `predict` returns it.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)

        Returns
        -------
        ndarray of shape (n,)
        """
        queries, (first, second) = self._log_probabilities(X)
        return self._entries(queries.split(second - first))

    def _log_probabilities(self, X: Any) -> tuple[Ragged, np.ndarray]:
        queries = self._queries(X)
        return queries, predict_label_rows(self._posteriors, queries)

    def _sampled(self, X: Any, n_samples: int, random_state: Any) -> Any:
        queries, model = self._queries(X), self._posteriors.model
        key = jax.random.key(draw_seed(random_state))
        probabilities = []
        for task, latent in enumerate(queries.split(predict_rows(self._posteriors, queries, components, latent=True))):
            n, size = latent.shape[-1], self._posteriors.padded_size(latent.shape[-1])
            padded = np.pad(latent, ((0, 0), (0, 0), (0, size - n))).reshape(2, len(model.members), -1, 1, size)
            of_task = key if task == 0 else jax.random.fold_in(key, task)
            with jax.enable_x64(True):
                drawn = [np.asarray(_draw(of_task, *of_member, n_samples)) for of_member in np.moveaxis(padded, 1, 0)]
            second = model.component_weights @ np.concatenate(drawn)[:, 0, :n]
            probabilities.append(np.stack([1.0 - second, second], axis=1))
        return self._entries(probabilities)


class AdaptedClassifier(_Classification):
    """A prior conditioned on the labeled context of one task, by Laplace's approximation: what `adapt` returns.

    The posterior is computed once, at the first prediction. `classes_` holds the two classes.
    """

    def __init__(self, posteriors: Posteriors, classes: np.ndarray, features: Features | None = None):
        super().__init__(posteriors, features)
        self.classes_ = classes

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, classes_={self.classes_.tolist()})"


class AdaptedClassifiers(AdaptedMany, _Classification):
    """A prior conditioned on the labeled contexts of many tasks: what `adapt_many` returns.

    As `AdaptedRegressors`, with the methods of `AdaptedClassifier`. `classes_` lists the two classes of each task.
    """

    def __init__(
        self,
        model: Ensemble,
        x: Ragged,
        y: Ragged,
        classes: list[np.ndarray],
        dtype: str,
        features: Features | None = None,
    ):
        super().__init__(Posteriors(model, x, y, dtype), features)
        self.classes_ = classes

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return AdaptedClassifiers(*self._some(index), self.classes_[index], self._posteriors.dtype, self._features)
        task, posteriors = self._one(index)
        return AdaptedClassifier(posteriors, self.classes_[task], self._features)
