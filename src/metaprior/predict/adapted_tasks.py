"""What adapted tasks share, of numbers and of labels: inputs read and checked, one task or many, one path for both.

One task is the only entry of many: methods are written once, for a list of tasks.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from metaprior.checks import counted
from metaprior.float_errors import own_float_errors
from metaprior.predict.batches import Posteriors
from metaprior.predict.ensemble import Ensemble
from metaprior.tasks.context_rules import FIRST, warn_if_behind
from metaprior.tasks.input_columns import Features
from metaprior.tasks.padding import Ragged, as_context_rows, as_input_rows
from metaprior.tasks.types import CheckOutputs, as_inputs, as_numbers


@own_float_errors
class Adapted:
    """Posteriors of one task; `AdaptedMany` overrides what differs for many."""

    _query_name, _sample_name, _update_name = "predict", "log_density", "update"  # in errors
    _output_name = "reading"

    def __init__(self, posteriors: Posteriors, features: Features | None = None):
        self._posteriors, self._features = posteriors, features or Features(posteriors.model.input_dim)

    def __repr__(self) -> str:
        context = counted(self._posteriors.y.n_rows, self._output_name)
        return f"{type(self).__name__}({context} as context, {counted(self._features.count or 0, 'input column')})"

    @property
    def n_features_in_(self) -> int:
        """Number of input columns."""
        return self._posteriors.model.input_dim

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the input columns; an AttributeError if the tasks of the fit came as arrays, without names."""
        if self._features.names is None:
            raise AttributeError("The tasks that the prior was fitted to had no names of input columns.")
        return np.array(self._features.names, dtype=object)

    def extrapolates(self, X: Any) -> Any:
        """Tell which inputs are outside the range of the tasks that the prior was fitted to.

        An input is outside if any of its columns is, by more than a tenth of the column's range. Ranges are those of
        all environments with weight. With more than 20 columns, as in images, nothing is outside.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)

        Returns
        -------
        ndarray of bool of shape (n,)
        """
        queries = self._read(X)
        return self._entries(queries.split(np.any(self._features.outside(queries.rows[:-1]), axis=1)))

    def __sklearn_clone__(self) -> Any:
        return self  # nothing changes it

    def _nothing(self) -> tuple[Ensemble, Ragged, Ragged]:
        """Return the prior, and the context of a task without readings."""
        model = self._posteriors.model
        return model, Ragged.of([np.empty((0, model.input_dim))], (model.input_dim,)), Ragged.of([np.empty(0)])

    def _list(self, name: str, values: Any) -> list[Any]:
        """Return what users pass as a list with an entry for every task."""
        return [values]

    def _entries(self, values: list[Any]) -> Any:
        """Return a list with an entry for every task as users get it."""
        return values[0]

    def _more(self, X: Any, y: Any, outputs: CheckOutputs = as_numbers) -> tuple[Ragged, list[np.ndarray]]:
        """Return the inputs of all readings, with more of them, and the outputs that are new."""
        pairs = list(zip(self._list("X", X), self._list("y", y), strict=True))
        x, new = as_context_rows(pairs, self._update_name.format, self._features, outputs)
        return self._posteriors.given[0].joined(self._with_covariates(x, self._update_name)), new

    def _queries(self, X: Any) -> Ragged:
        """Return the inputs of every task to predict at; warn about those outside the range of the fit, or behind."""
        queries = self._read(X)
        self._features.warn_outside(queries.rows[:-1])
        if self._features.forecasts:
            context = self._posteriors.given[0]
            warn_if_behind([(context[i], queries[i]) for i in range(len(queries.sizes))], FIRST)
        return queries

    def _read(self, X: Any) -> Ragged:
        """Return the checked inputs of every task."""
        if not isinstance(X, Ragged):
            X = as_input_rows(self._list("X", X), self._query_name.format, self._features)
        return self._with_covariates(X, self._query_name)

    def _with_covariates(self, x: Ragged, name: str) -> Ragged:
        """Return inputs with the covariates of the context where they are missing; raise if they are others."""
        context, covariates = self._posteriors.given[0], list(self._features.categories.covariates)
        if not covariates or not context.n_rows:
            return x
        owner = np.repeat(np.arange(len(x.sizes)), x.sizes)
        known = context.rows[np.where(context.sizes > 0, context.starts[:-1], context.n_rows)][owner][:, covariates]
        rows = x.rows.copy()
        given, is_known = rows[:-1, covariates], (context.sizes > 0)[owner][:, None]
        other = is_known & ~np.isnan(given) & (given != known)
        if other.any():
            row, column = (int(place) for place in np.argwhere(other)[0])
            covariate = self._features.column_name(covariates[column])
            raise ValueError(
                f"{name.format(owner[row])}: covariate {covariate} must be that of the context, or missing; it "
                "differs, or is missing in the context. A task has one value: pass it with the context too."
            )
        rows[:-1, covariates] = np.where(is_known, known, given)
        return Ragged(rows, x.sizes)


@own_float_errors
class AdaptedMany(Adapted, Sequence):
    """Posteriors of many tasks."""

    _query_name, _sample_name, _update_name = "X[{}]", "log_density[{}]", "update[{}]"

    def __len__(self) -> int:
        return len(self._posteriors.x.sizes)

    def __repr__(self) -> str:
        context, dtype = counted(self._posteriors.y.n_rows, self._output_name), self._posteriors.dtype
        return f"{type(self).__name__}({counted(len(self), 'task')}, {context} as context, dtype={dtype!r})"

    def _some(self, index: slice) -> tuple[Ensemble, Ragged, Ragged]:
        """Return the prior and the contexts of some tasks."""
        tasks, (x, y) = np.arange(len(self))[index], self._posteriors.given
        return self._posteriors.model, x.take(tasks), y.take(tasks)

    def _one(self, index: int) -> tuple[int, Posteriors]:
        """Return the number of a task, and its posteriors in double precision."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} tasks; got the index {index}.")
        task = range(len(self))[index]
        if len(self) == 1 and self._posteriors.dtype == "float64":
            return task, self._posteriors
        n_classes = self._posteriors.n_classes
        of_task = None if n_classes is None else n_classes[task : task + 1]
        place, (x, y) = np.array([task]), self._posteriors.given
        used = self._posteriors.x.take(place), self._posteriors.y.take(place)
        given = x.take(place), y.take(place)
        return task, Posteriors(self._posteriors.model, *used, n_classes=of_task, given=given)

    def _list(self, name: str, values: Any) -> list[Any]:
        shape = getattr(values, "shape", ())
        stacked = len(shape) == 3 and shape[::2] == (len(self), self._features.count)
        if name == "X" and hasattr(values, "__array__") and not stacked:
            return [as_inputs(values, "X for all tasks", self._features)] * len(self)
        also = ", or one array for all of them" if name == "X" else ""
        expected = f"{name} must be a list with an array for each of the {len(self)} tasks{also}"
        if isinstance(values, str | dict) or not isinstance(values, Iterable):
            raise ValueError(f"{expected}; got {type(values).__name__}.")
        entries = list(values)
        if len(entries) != len(self):
            raise ValueError(f"{expected}; got {len(entries)}.")
        return entries

    def _entries(self, values: list[Any]) -> list[Any]:
        return values
