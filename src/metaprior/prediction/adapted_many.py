"""A learned prior adapted to many new tasks at once: what `adapt` gives for one, as lists with an entry per task."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from metaprior.prediction.adapted import AdaptedClassifier, AdaptedRegressor
from metaprior.prediction.batches import NewTasks, components, predict_label_rows, predict_rows
from metaprior.prediction.ensemble import Ensemble
from metaprior.prediction.mixtures import GaussianMixture
from metaprior.tasks.ragged import Ragged, as_context_rows, as_input_rows
from metaprior.tasks.types import as_inputs


class _AdaptedMany(Sequence):
    """Contexts of many tasks, and the prior that is conditioned on them."""

    def __init__(self, model: Ensemble, x: Ragged, y: Ragged, dtype: str):
        self._model, self._x, self._y, self._dtype = model, x, y, dtype

    def __len__(self) -> int:
        return len(self._x.sizes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._chosen(np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} tasks; got the index {index}.")
        return self._one(range(len(self))[index])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} tasks, dtype={self._dtype!r})"

    @abstractmethod
    def _chosen(self, tasks: np.ndarray) -> Any:
        """The same for some of the tasks."""

    @abstractmethod
    def _one(self, task: int) -> Any:
        """What `adapt` gives for one of them."""

    def _new_tasks(self, X: Any) -> NewTasks:
        """What to predict: one array of inputs for all tasks, or an iterable with an entry for each."""
        if not isinstance(X, Ragged):
            X = as_input_rows(self._per_task("X", X), "X[{}]".format, self._model.input_dim)
        return NewTasks(self._x, self._y, X)

    def _per_task(self, name: str, values: Any) -> list[Any]:
        shape = getattr(values, "shape", ())
        stacked = len(shape) == 3 and shape[::2] == (len(self), self._model.input_dim)
        if name == "X" and hasattr(values, "__array__") and not stacked:
            return [as_inputs(values, "X for all tasks", self._model.input_dim)] * len(self)
        also = ", or one array for all of them" if name == "X" else ""
        expected = f"{name} must be a list with an array for each of the {len(self)} tasks{also}"
        if isinstance(values, str | dict) or not isinstance(values, Iterable):
            raise ValueError(f"{expected}; got {type(values).__name__}.")
        entries = list(values)
        if len(entries) != len(self):
            raise ValueError(f"{expected}; got {len(entries)}.")
        return entries


class AdaptedRegressors(_AdaptedMany):
    """The prior conditioned on the contexts of many tasks, as `AdaptedRegressor` is on that of one. Made by `adapt_many`.

    `[i]` is the `AdaptedRegressor` of task i, in double precision. The methods predict all tasks at once and give lists with
    an array for each.
    Their X is a list with the inputs of each task, of any lengths, an array (tasks, n, inputs), or one (n, inputs) for
    all tasks.

    Conditioning is in closed form and costs less than predicting, so it is done anew in every call: what is kept are
    the contexts alone.
    """

    def predict(self, X: Any, return_std: bool = False, latent: bool = False) -> Any:
        """Means of the predictions, a list; and a list of their standard deviations if asked."""
        if not return_std:
            return self._each(X, lambda predictive, _: predictive.mean(), latent)
        return self._each(X, lambda predictive, _: np.stack([predictive.mean(), predictive.std()]), latent)

    def predictive(self, X: Any, latent: bool = False) -> list[GaussianMixture]:
        """The predictive distribution of every task: `quantile`, `interval`, `cdf`, `log_density`, ..."""
        new = self._new_tasks(X)
        rows = predict_rows(self._model, new, lambda predictive, _: components(predictive), latent, self._dtype)
        log_weights = np.log(self._model.particle_weights)
        return [GaussianMixture(means, variances, log_weights) for means, variances in new.x_query.split(rows)]

    def quantile(self, X: Any, probability: Any, latent: bool = False) -> Any:
        """Quantiles of the predictions, a list; for a vector of probabilities a tuple of lists, one for each."""
        return self._each(X, lambda predictive, _: predictive.quantile(probability), latent)

    def interval(self, X: Any, coverage: Any = 0.9, latent: bool = False) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Lower and upper ends of the central intervals of the predictions, two lists."""
        return self._each(X, lambda predictive, _: np.stack(predictive.interval(coverage)), latent)

    def log_density(self, X: Any, y: Any, latent: bool = False) -> list[np.ndarray]:
        """log p(y | x, context) of each sample, in the units of y, a list; y is one as well."""
        pairs = list(zip(self._per_task("X", X), self._per_task("y", y), strict=True))
        queries, observed = as_context_rows(pairs, "log_density[{}]".format, self._model.input_dim)
        rows = Ragged.of(observed).rows
        return self._each(queries, lambda predictive, places: predictive.log_density(rows[places]), latent)

    def _each(self, X: Any, wanted: Callable[[GaussianMixture, np.ndarray], np.ndarray], latent: bool) -> Any:
        """What is wanted of the predictive at all inputs, as a list of arrays (n,), or a tuple of such lists."""
        new = self._new_tasks(X)
        rows = predict_rows(self._model, new, wanted, latent, self._dtype)
        return new.x_query.split(rows) if rows.ndim == 1 else tuple(new.x_query.split(row) for row in rows)

    def _chosen(self, tasks: np.ndarray) -> "AdaptedRegressors":
        return AdaptedRegressors(self._model, self._x.take(tasks), self._y.take(tasks), self._dtype)

    def _one(self, task: int) -> AdaptedRegressor:
        return AdaptedRegressor(self._model, self._x[task], self._y[task])


class AdaptedClassifiers(_AdaptedMany):
    """The prior conditioned on the labeled contexts of many tasks, as `AdaptedClassifier` is on that of one.

    `[i]` is the `AdaptedClassifier` of task i, and `classes_` a list with the two classes of each. The rest is as for
    `AdaptedRegressors`.
    """

    def __init__(self, model: Ensemble, x: Ragged, y: Ragged, classes: list[np.ndarray], dtype: str):
        super().__init__(model, x, y, dtype)
        self.classes_ = classes

    def predict(self, X: Any) -> list[np.ndarray]:
        """The more probable classes, an array for each task."""
        second = [(odds > 0).astype(int) for odds in self.decision_function(X)]
        return [classes[of_task] for classes, of_task in zip(self.classes_, second, strict=True)]

    def predict_proba(self, X: Any) -> list[np.ndarray]:
        """Probabilities (n, 2), averaged over particles, by quadrature over the latent function."""
        queries, rows = self._log_probabilities(X)
        probabilities = np.exp(rows)
        return [part.T for part in queries.split(probabilities / probabilities.sum(axis=0))]

    def predict_log_proba(self, X: Any) -> list[np.ndarray]:
        """Logarithms of the probabilities (n, 2)."""
        queries, rows = self._log_probabilities(X)
        return [part.T for part in queries.split(rows)]

    def decision_function(self, X: Any) -> list[np.ndarray]:
        """Log odds of the second class: positive where `predict` gives it."""
        queries, (first, second) = self._log_probabilities(X)
        return queries.split(second - first)

    def _log_probabilities(self, X: Any) -> tuple[Ragged, np.ndarray]:
        new = self._new_tasks(X)
        return new.x_query, predict_label_rows(self._model, new, self._dtype)

    def _chosen(self, tasks: np.ndarray) -> "AdaptedClassifiers":
        classes = [self.classes_[i] for i in tasks.tolist()]
        return AdaptedClassifiers(self._model, self._x.take(tasks), self._y.take(tasks), classes, self._dtype)

    def _one(self, task: int) -> AdaptedClassifier:
        classes = self.classes_[task]
        return AdaptedClassifier(self._model, self._x[task], classes[self._y[task].astype(int)], classes)
