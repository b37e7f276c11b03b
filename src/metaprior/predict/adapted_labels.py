"""A prior adapted to new tasks of two or more classes: class probabilities, averaged over its members."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from metaprior.checks import check_integer, draw_seed
from metaprior.conventions import own_float_errors
from metaprior.predict.adapted import Adapted, AdaptedMany
from metaprior.predict.batches import Posteriors, check_precision, components, predict_label_rows, predict_rows
from metaprior.predict.ensemble import Ensemble
from metaprior.predict.export import write_module
from metaprior.tasks.columns import Features
from metaprior.tasks.labels import ClassRules, as_labels, joined_labels
from metaprior.tasks.types import Ragged

if TYPE_CHECKING:
    from metaprior.predict.single_task import SingleTaskClassifier

DRAWN_AT_ONCE = 2**22  # numbers


def sampled_probabilities(posteriors: Posteriors, queries: Ragged, n_samples: int, seed: int) -> list[np.ndarray]:
    """Return the probabilities of both classes for the queries of every task, (n, 2) each."""
    weights, probabilities = posteriors.model.component_weights, []
    for task, latent in enumerate(queries.split(predict_rows(posteriors, queries, components, latent=True))):
        rng = np.random.default_rng([seed, task])
        mean, variance = latent
        second = weights @ sampled_probability(rng, mean, variance, n_samples)
        probabilities.append(np.stack([1.0 - second, second], axis=1))
    return probabilities


def sampled_probability(rng: np.random.Generator, mean: np.ndarray, variance: np.ndarray, n_samples: int) -> np.ndarray:
    """Return the average of sigmoid(t) over draws of t ~ N(mean, variance)."""
    total, left = np.zeros(mean.shape), n_samples
    while left > 0:
        n = min(left, max(DRAWN_AT_ONCE // max(mean.size, 1), 1))
        total += expit(mean + np.sqrt(variance) * rng.standard_normal((n, *mean.shape))).sum(axis=0)
        left -= n
    return total / n_samples


@own_float_errors
class _Classification(Adapted):
    _output_name = "label"
    classes_: Any
    _rules: ClassRules

    def predict(self, X: Any) -> Any:
        """Predict the most probable class of each input.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)

        Returns
        -------
        ndarray of shape (n,)
        """
        return self._entries(
            [classes[np.argmax(rows, axis=1)] for classes, rows in zip(self._classes, self._rows(X), strict=True)]
        )

    def predict_proba(self, X: Any, n_samples: Any = None, random_state: Any = None) -> Any:
        """Return class probabilities, averaged over the members of the prior.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)
        n_samples : int, optional
            Draws of the latent function to average over, as in the paper, for priors trained by gradients. Default:
            quadrature.
        random_state : int, RandomState or None

        Returns
        -------
        ndarray of shape (n, n_classes)
            Columns are in the order of `classes_`.
        """
        if n_samples is not None:
            return self._sampled(X, check_integer("n_samples", n_samples, least=1), random_state)
        probabilities = (np.exp(rows) for rows in self._rows(X))
        return self._entries([rows / rows.sum(axis=1, keepdims=True) for rows in probabilities])

    def predict_log_proba(self, X: Any) -> Any:
        """Return logarithms of class probabilities, accurate for small ones.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)

        Returns
        -------
        ndarray of shape (n, n_classes)
        """
        return self._entries(self._rows(X))

    def decision_function(self, X: Any) -> Any:
        """Return log odds of the second of two classes, or log probabilities of more: `predict` returns the largest.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)

        Returns
        -------
        ndarray of shape (n,), or (n, n_classes) for more than two classes
        """
        return self._entries([rows[:, 1] - rows[:, 0] if rows.shape[1] == 2 else rows for rows in self._rows(X)])

    def update(self, X: Any, y: Any) -> Any:
        """Condition on more labels: what adapting the prior to all labels at once returns.

        Labels that the task did not have become classes of it where `adapt` would make them so.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)
        y : array-like of shape (n,)

        Returns
        -------
        AdaptedClassifier or AdaptedClassifiers
            A new one; this one stays as it is.
        """
        x, new = self._more(X, y, as_labels)
        known = [classes[codes.astype(int)] for classes, codes in zip(self._classes, self._codes, strict=True)]
        pairs = enumerate(zip(known, new, strict=True))
        labels = [joined_labels(*pair, f"{self._update_name.format(i)}: y") for i, pair in pairs]
        if isinstance(self, AdaptedMany):
            own, codes = self._rules.of_tasks(labels, "update")
        else:
            of_task, codes = self._rules.of_task(labels[0], "update")
            own = [of_task]
        model, dtype = self._posteriors.model, self._posteriors.dtype
        check_precision(dtype, model, x)
        y_all = Ragged.of_rows(codes, x.sizes)
        adapted = AdaptedClassifiers(model, x, y_all, own, dtype, self._features, self._rules)
        return adapted if isinstance(self, AdaptedMany) else adapted[0]

    @property
    def _codes(self) -> list[np.ndarray]:
        """The labels of every task, as places among its classes."""
        _, y = self._posteriors.given
        return np.split(y.rows[:-1], np.cumsum(y.sizes)[:-1])

    @property
    def _classes(self) -> Sequence[np.ndarray]:
        """The classes of every task."""
        return self.classes_ if isinstance(self, AdaptedMany) else [self.classes_]

    def _rows(self, X: Any) -> list[np.ndarray]:
        """Return the log probabilities of every task's classes, (n, n_classes) each."""
        queries = self._queries(X)
        parts = queries.split(predict_label_rows(self._posteriors, queries))
        return [part[: len(classes)].T for part, classes in zip(parts, self._classes, strict=True)]

    def _sampled(self, X: Any, n_samples: int, random_state: Any) -> Any:
        if not all(hasattr(member, "particles") for member in self._posteriors.model.members):
            raise ValueError(
                "n_samples is for priors trained by gradients, as in the paper. Leave it out: the probabilities of "
                "this prior are computed without draws."
            )
        seed = draw_seed(random_state)
        return self._entries(sampled_probabilities(self._posteriors, self._queries(X), n_samples, seed))


@own_float_errors
class AdaptedClassifier(_Classification):
    """A prior conditioned on the labeled context of one task, by Laplace's approximation: what `adapt` returns.

    The posterior is computed once, at the first prediction. `classes_` holds the classes of the task.
    """

    def __init__(
        self,
        posteriors: Posteriors,
        classes: np.ndarray,
        features: Features | None = None,
        rules: ClassRules | None = None,
    ):
        super().__init__(posteriors, features)
        self.classes_, self._rules = classes, rules or ClassRules()

    def to_sklearn(self) -> "SingleTaskClassifier":
        """Return the task as a fitted classifier that scikit-learn's tools take.

        Returns
        -------
        SingleTaskClassifier
            Its `fit` adapts the prior to other labels; clones share the prior.
        """
        of_nothing, _ = self._rules.of_task(np.empty(0), "to_sklearn")
        prior = AdaptedClassifiers(*self._nothing(), [of_nothing], "float64", self._features, self._rules)[0]
        from metaprior.predict.single_task import SingleTaskClassifier  # scikit-learn takes long to import

        return SingleTaskClassifier(prior)._fitted_to(self)

    def export(self, path: str | os.PathLike) -> None:
        """Write the task as a Python file that predicts with NumPy alone.

        The file has `predict`, `predict_proba` and `predict_log_proba` of this task, and `adapt` for other tasks of the
        same prior. It holds the labels of the task. Only hierarchical priors, the default, can be exported.

        Parameters
        ----------
        path : path-like
            The file, with the name of a module, such as "birds.py". It is replaced atomically.
        """
        write_module(path, self._posteriors, self._features, self.classes_)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, classes_={self.classes_.tolist()})"


@own_float_errors
class AdaptedClassifiers(AdaptedMany, _Classification):
    """A prior conditioned on the labeled contexts of many tasks: what `adapt_many` returns.

    As `AdaptedRegressors`, with the methods of `AdaptedClassifier`. `classes_` lists the classes of each task.
    """

    def __init__(
        self,
        model: Ensemble,
        x: Ragged,
        y: Ragged,
        classes: list[np.ndarray],
        dtype: str,
        features: Features | None = None,
        rules: ClassRules | None = None,
    ):
        n_classes = np.fromiter(map(len, classes), np.int64, len(classes))
        super().__init__(Posteriors(model, x, y, dtype, n_classes), features)
        self.classes_, self._rules = classes, rules or ClassRules()

    def __getitem__(self, index: Any) -> Any:
        given = self._features, self._rules
        if isinstance(index, slice):
            return AdaptedClassifiers(*self._some(index), self.classes_[index], self._posteriors.dtype, *given)
        task, posteriors = self._one(index)
        return AdaptedClassifier(posteriors, self.classes_[task], *given)
