"""Priors adapted to new tasks, of numbers and of labels: one task, or many at once.

Methods are written once, for a list of tasks: one task is the only entry of its list.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, softmax

from metaprior.checks import check_integer, counted, draw_seed, warn_caller
from metaprior.conventions import own_float_errors
from metaprior.likelihoods.base import Likelihood
from metaprior.predict.batches import (
    Posteriors,
    check_covariances,
    check_precision,
    components,
    predict_label_rows,
    predict_rows,
    weighted_covariance,
)
from metaprior.predict.conformal import check_method, conformal_band
from metaprior.predict.ensemble import Ensemble
from metaprior.predict.export import write_module
from metaprior.predict.plausibility import warn_if_implausible
from metaprior.predict.predictive import JointMixture
from metaprior.tasks.columns import Features
from metaprior.tasks.labels import ClassRules, as_labels, joined_labels
from metaprior.tasks.splits import FIRST, warn_if_behind
from metaprior.tasks.types import CheckOutputs, Ragged, as_context_rows, as_input_rows, as_inputs

DRAWN_AT_ONCE = 2**22  # numbers


@own_float_errors
class Adapted:
    """A prior conditioned on contexts: of one task, or of many in `AdaptedMany`."""

    _output_name = "reading"
    _outputs: Any  # the check of y
    _joined: Any  # returns y of the context of every task, followed by new ones: (y, name)
    _anew: Any  # conditions the prior on other contexts of as many tasks: (x, y, the method that errors name)

    def __init__(self, posteriors: Posteriors, features: Features | None = None):
        self._posteriors, self._features = posteriors, features or Features(posteriors.model.input_dim)

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

    def update(self, X: Any, y: Any) -> Any:
        """Condition on more samples: what adapting the prior to all samples at once returns.

        Labels that the task did not have become classes of it where `adapt` would make them so.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)
        y : array-like of shape (n,)

        Returns
        -------
        AdaptedRegressor, AdaptedClassifier, or those of many tasks
            A new one; this one stays as it is.
        """
        name = self._named("update")
        x, new = self._pairs(X, y, name)
        x = self._context.joined(self._with_covariates(x, name))
        return self._result(self._anew(x, self._joined(new, name), "update"))

    def __sklearn_clone__(self) -> Any:
        return self  # nothing changes it

    @property
    def _context(self) -> Ragged:
        """All inputs of the contexts, of which posteriors may use a part."""
        return self._posteriors.given[0]

    @property
    def _observed(self) -> list[np.ndarray]:
        """All y of the context of every task; labels are places among its classes."""
        y = self._posteriors.given[1]
        return np.split(y.rows[:-1], np.cumsum(y.sizes)[:-1])

    def _extra(self, tasks: Sequence[int]) -> tuple[Any, ...]:
        """Return the arguments of the constructor after the features, for some tasks."""
        return ()

    def _named(self, method: str) -> Callable[[int], str]:
        """Return a function that names a task of a method's arguments in errors."""
        return method.format

    def _list(self, name: str, values: Any) -> list[Any]:
        """Return what users pass as a list with an entry for every task."""
        return [values]

    def _entries(self, values: list[Any]) -> Any:
        """Return a list with an entry for every task as users get it."""
        return values[0]

    def _result(self, adapted: "AdaptedMany") -> Any:
        """Return adapted tasks as users get them."""
        return adapted[0]

    def _pairs(self, X: Any, y: Any, name: Callable[[int], str]) -> tuple[Ragged, list[np.ndarray]]:
        """Return the checked inputs of every task, and its y."""
        pairs = list(zip(self._list("X", X), self._list("y", y), strict=True))
        return as_context_rows(pairs, name, self._features, self._outputs)

    def _queries(self, X: Any) -> Ragged:
        """Return the inputs of every task to predict at; warn about those outside the range of the fit, or behind."""
        queries = self._read(X)
        self._features.warn_outside(queries.rows[:-1])
        if self._features.forecasts:
            warn_if_behind([(self._context[i], queries[i]) for i in range(len(queries.sizes))], FIRST)
        return queries

    def _read(self, X: Any) -> Ragged:
        """Return the checked inputs of every task."""
        name = self._named("predict")
        if not isinstance(X, Ragged):
            X = as_input_rows(self._list("X", X), name, self._features)
        return self._with_covariates(X, name)

    def _with_covariates(self, x: Ragged, name: Callable[[int], str]) -> Ragged:
        """Return inputs with the covariates of the context where they are missing; raise if they differ from these."""
        context, covariates = self._context, list(self._features.categories.covariates)
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
                f"{name(owner[row])}: covariate {covariate} must be that of the context, or missing; it "
                "differs, or is missing in the context. A task has one value: pass it with the context too."
            )
        rows[:-1, covariates] = np.where(is_known, known, given)
        return Ragged(rows, x.sizes)


@own_float_errors
class AdaptedOne(Adapted):
    """A prior conditioned on the context of one task."""

    def __repr__(self) -> str:
        context = counted(self._posteriors.y.n_rows, self._output_name)
        return f"{type(self).__name__}({context} as context, {counted(self._features.count or 0, 'input column')})"

    def to_sklearn(self) -> Any:
        """Return the task as a fitted estimator that scikit-learn's tools take.

        Returns
        -------
        SingleTaskRegressor or SingleTaskClassifier
            Its `fit` adapts the prior to other samples; clones share the prior.
        """
        from metaprior.predict.single_task import SingleTaskClassifier, SingleTaskRegressor  # they import scikit-learn

        single = SingleTaskClassifier if hasattr(self, "classes_") else SingleTaskRegressor
        n_inputs = self.n_features_in_
        without_context = self._anew(Ragged.of([np.empty((0, n_inputs))], (n_inputs,)), [np.empty(0)], "to_sklearn")
        return single(without_context[0])._fitted_to(self)

    def export(self, path: str | os.PathLike) -> None:
        """Write the task as a Python file that predicts with NumPy alone.

        The file has `predict` of this task, `interval` and `quantile` or, for labels, `predict_proba` and
        `predict_log_proba`, and `adapt` for other tasks of the same prior. It holds the readings or labels of the task.
        Only priors of the default can be exported, and numbers need Gaussian noise. Conformal intervals are left out,
        with a warning.

        Parameters
        ----------
        path : path-like
            The file, with the name of a module, such as "patient.py". It is replaced atomically.
        """
        model, classes = self._posteriors.model, getattr(self, "classes_", None)
        if classes is None and not model.likelihood.normal:
            name = model.likelihood.name
            raise ValueError(f"export is for priors with Gaussian noise; this one has likelihood={name!r}.")
        write_module(path, self._posteriors, self._features, classes)
        if model.conformal is not None:
            warn_caller("interval of the exported file is the model's own: conformal intervals need metaprior.")


@own_float_errors
class AdaptedMany(Adapted, Sequence):
    """A prior conditioned on the contexts of many tasks."""

    _one: ClassVar[type[AdaptedOne]]  # the class of a single task

    def __len__(self) -> int:
        return len(self._posteriors.x.sizes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            tasks = list(range(len(self))[index])
            return type(self)(self._posteriors.take(tasks), self._features, *self._extra(tasks))
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} tasks; got the index {index}.")
        tasks = [range(len(self))[index]]
        return self._one(self._posteriors.take(tasks, "float64"), self._features, *self._extra(tasks))

    def __repr__(self) -> str:
        context, dtype = counted(self._posteriors.y.n_rows, self._output_name), self._posteriors.dtype
        return f"{type(self).__name__}({counted(len(self), 'task')}, {context} as context, dtype={dtype!r})"

    def _named(self, method: str) -> Callable[[int], str]:
        return f"{'X' if method == 'predict' else method}[{{}}]".format

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

    def _result(self, adapted: "AdaptedMany") -> "AdaptedMany":
        return adapted


@own_float_errors
class _Regression(Adapted):
    @property
    def _outputs(self) -> Likelihood:
        return self._posteriors.model.likelihood

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False, latent: bool = False) -> Any:
        """Predict the mean of new observations.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)
        return_std, return_cov : bool, default=False
            Whether to return standard deviations, or the covariance matrix, too.
        latent : bool, default=False
            Whether to predict the noise-free function instead of observations.

        Returns
        -------
        mean : ndarray of shape (n,)
        std or cov : ndarray of shape (n,) or (n, n), optional
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov exclude each other: std is the root of the diagonal of cov.")
        if return_cov:
            if not (latent or self._outputs.normal):
                raise ValueError(
                    "return_cov is for readings with Gaussian noise. Pass latent=True for the covariance of the latent "
                    "function, or draw from the joint predictive distribution with sample."
                )
            mixtures = self._joint(X, latent, "covariance", "Predict in parts, or pass return_std=True.")
            means, covariances = [each.mean() for each in mixtures], [each.covariance() for each in mixtures]
            return self._entries(means), self._entries(covariances)
        if return_std:
            return tuple(self._rows(X, lambda predictive, _: np.stack([predictive.mean(), predictive.std()]), latent))
        return self._rows(X, lambda predictive, _: predictive.mean(), latent)

    def predictive(self, X: Any, latent: bool = False) -> Any:
        """Return the predictive distribution at each input.

        Parameters
        ----------
        X, latent
            As for `predict`.

        Returns
        -------
        Predictive, or GaussianMixture of the latent function
        """
        queries, model = self._queries(X), self._posteriors.model
        found = []
        for part in queries.split(predict_rows(self._posteriors, queries, components, latent)):
            varying = len(part) > 2 and part.shape[-1] > 0
            log_weights = part[2][:, 0] if varying else np.log(model.component_weights)  # one task has one mixture
            found.append(model.predictive(part[0], part[1], log_weights, latent))
        return self._entries(found)

    def quantile(self, X: Any, probability: Any, latent: bool = False) -> Any:
        """Return quantiles of the predictive distribution.

        Parameters
        ----------
        X, latent : see `predict`
        probability : float or sequence of float
            Strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (n,), or (len(probability), n) for a sequence
            For many tasks a list, or for a sequence a tuple of lists.
        """
        return self._rows(X, lambda predictive, _: predictive.quantile(probability), latent)

    def interval(self, X: Any, coverage: Any = 0.9, latent: bool = False, method: str = "model") -> tuple[Any, Any]:
        """Return an interval of new readings at every input.

        Parameters
        ----------
        X, latent : see `predict`
        coverage : float, default=0.9
            Probability of the interval, strictly between 0 and 1.
        method : "model" or "conformal", default="model"
            "model" is the central interval of the predictive distribution. "conformal" is a conformal interval, for
            priors fitted with `conformal=True`: whether or not the model is right, a part of the nominal coverage is
            proven, which `repr(meta)` names. See "Conformal intervals" in the documentation. Both are integers for
            counts and ranks.

        Returns
        -------
        lower, upper : ndarray of shape (n,)
        """
        if not check_method(method, latent, self._posteriors.model):
            lower, upper = self._rows(X, lambda predictive, _: np.stack(predictive.interval(coverage)), latent)
            return lower, upper
        queries = self._queries(X)
        lower, upper = conformal_band(self._posteriors, queries, coverage)
        return self._entries(queries.split(lower)), self._entries(queries.split(upper))

    def log_density(self, X: Any, y: Any, latent: bool = False) -> Any:
        """Return log p(y | x, context) of each sample, in the units of y.

        Parameters
        ----------
        X, latent : see `predict`
        y : array-like of shape (n,)

        Returns
        -------
        ndarray of shape (n,)
        """
        queries, observed = self._pairs(X, y, self._named("log_density"))
        rows = Ragged.of(observed).rows
        return self._rows(queries, lambda predictive, places: predictive.log_density(rows[places]), latent)

    def sample(self, X: Any, n_samples: Any = 1, latent: bool = False, random_state: Any = None) -> Any:
        """Draw from the joint predictive distribution of all inputs of a task.

        Parameters
        ----------
        X, latent : see `predict`
        n_samples : int, default=1
        random_state : int, RandomState or None

        Returns
        -------
        ndarray of shape (n_samples, n)
        """
        check_integer("n_samples", n_samples, least=0)
        rng = np.random.default_rng(draw_seed(random_state))
        return self._entries([mixture.sample(n_samples, rng) for mixture in self._joint(X, latent)])

    def _joined(self, new: Sequence[np.ndarray], name: Callable[[int], str]) -> list[np.ndarray]:
        return [np.append(*both) for both in zip(self._observed, new, strict=True)]

    def _anew(self, x: Ragged, y: list[np.ndarray], method: str) -> "AdaptedRegressors":
        model, dtype = self._posteriors.model, self._posteriors.dtype
        return adapt_readings(model, x, Ragged.of(y), dtype, self._features, self._named(method))

    def _rows(self, X: Any, wanted: Callable[[Any, np.ndarray], np.ndarray], latent: bool) -> Any:
        queries = self._queries(X)
        rows = predict_rows(self._posteriors, queries, wanted, latent)
        if rows.ndim > 1 and isinstance(self, AdaptedMany):
            return tuple(queries.split(row) for row in rows)
        return self._entries(queries.split(rows))

    def _joint(
        self, X: Any, latent: bool, what: str = "joint distribution", advice: str = "Sample fewer inputs at once."
    ) -> list[JointMixture]:
        """Return the joint predictive distribution of every task, whose covariances are computed when asked for."""
        queries, posteriors, mixtures = self._queries(X), self._posteriors, []
        model = posteriors.model
        likelihood, parameters = model.likelihood, model.parameters
        check_covariances(f"The {what} of {{:,}} inputs", queries.sizes.astype(float), posteriors.x.sizes, advice)

        def draw(t: np.ndarray, drawn: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            return likelihood.draw(t, parameters[drawn][:, None], rng)

        for task, n in enumerate(queries.sizes.tolist()):
            padded, _ = queries.pad(queries.starts[[task]], queries.sizes[[task]], posteriors.padded_size(n))
            means, _, log_weights = posteriors.mixture(np.array([task]), padded, latent)
            weights = model.component_weights if log_weights.ndim == 1 else softmax(log_weights[:, 0])

            def covariance_of(shares: np.ndarray, task: int = task, x: np.ndarray = padded, n: int = n) -> np.ndarray:
                found = weighted_covariance(posteriors, task, x, shares, latent)
                return found if len(found) == n else found[:n, :n].copy()

            observe = None if latent or likelihood.normal else draw  # Gaussian noise is in the covariance
            mixtures.append(JointMixture(means[:, 0, :n], covariance_of, weights, observe))
        return mixtures


def draw_means(adapted: _Regression, x: Any, n_samples: int, seed: int) -> Any:
    """Draw functions without noise in the units of y: of counts and ranks, the mean of y given the latent function."""
    model = adapted._posteriors.model
    if not model.likelihood.discrete:
        return adapted.sample(x, n_samples, latent=True, random_state=seed)
    likelihood, parameters = model.likelihood, model.parameters
    rng = np.random.default_rng(draw_seed(seed))

    def mean(t: np.ndarray, drawn: np.ndarray, _: np.random.Generator) -> np.ndarray:
        return likelihood.moments(t, 0.0 * t, parameters[drawn][:, None])[0]

    mixtures = adapted._joint(x, latent=False)
    return adapted._entries([mixture._replace(observe=mean).sample(n_samples, rng) for mixture in mixtures])


@own_float_errors
class AdaptedRegressor(_Regression, AdaptedOne):
    """A prior conditioned on the context of one task, exactly and in double precision: what `adapt` returns.

    The posterior is computed once, at the first prediction.

    Examples
    --------
    >>> from metaprior import MetaGPRegressor
    >>> tasks = [([[0.0], [1.0]], [0.0, 1.0]), ([[0.5], [2.0]], [0.4, 2.1])]
    >>> meta = MetaGPRegressor(alpha=0.0, random_state=0)
    >>> task = meta.fit(target_tasks=tasks).adapt([[0.0]], [0.1])
    >>> lower, upper = task.interval([[0.5], [1.5]], coverage=0.9)
    >>> bool((lower < task.predict([[0.5], [1.5]])).all())
    True
    """


@own_float_errors
class AdaptedRegressors(_Regression, AdaptedMany):
    """A prior conditioned on the contexts of many tasks: what `adapt_many` returns.

    It is a sequence: `[i]` is the `AdaptedRegressor` of task i, in double precision. Methods are those of
    `AdaptedRegressor`, for all tasks at once: X is a list of arrays of any lengths, or one array for all tasks, and
    results are lists with an entry for each task. Conditioning happens in the first prediction; posteriors of up to
    512 MB are kept for later ones.
    """

    _one = AdaptedRegressor


def adapt_readings(
    model: Ensemble, x: Ragged, y: Ragged, dtype: str, features: Features, name: Callable[[int], str]
) -> AdaptedRegressors:
    """Condition a prior on the contexts of tasks; warn about readings that it cannot explain."""
    check_precision(dtype, model, x)
    adapted = AdaptedRegressors(Posteriors(model, x, y, dtype), features)
    warn_if_implausible(adapted._posteriors, name)
    return adapted


@own_float_errors
class _Classification(Adapted):
    _output_name = "label"

    def __init__(
        self,
        posteriors: Posteriors,
        features: Features | None,
        classes: list[np.ndarray],
        rules: ClassRules | None = None,
    ):
        super().__init__(posteriors, features)
        self._classes, self._rules = classes, rules or ClassRules()

    @property
    def classes_(self) -> Any:
        """The classes of the task; of many tasks, a list of those of each."""
        return self._entries(self._classes)

    def predict(self, X: Any) -> Any:
        """Predict the most probable class of each input.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)

        Returns
        -------
        ndarray of shape (n,)
        """
        pairs = zip(self._classes, self._rows(X), strict=True)
        return self._entries([classes[np.argmax(rows, axis=1)] for classes, rows in pairs])

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
        if n_samples is None:
            probabilities = (np.exp(rows) for rows in self._rows(X))
            return self._entries([rows / rows.sum(axis=1, keepdims=True) for rows in probabilities])
        check_integer("n_samples", n_samples, least=1)
        if not all(hasattr(member, "particles") for member in self._posteriors.model.members):
            raise ValueError(
                "n_samples is for priors trained by gradients, as in the paper. Leave it out: the probabilities of "
                "this prior are computed without draws."
            )
        seed = draw_seed(random_state)
        return self._entries(sampled_probabilities(self._posteriors, self._queries(X), n_samples, seed))

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

    @property
    def _outputs(self) -> CheckOutputs:
        return as_labels

    def _extra(self, tasks: Sequence[int]) -> tuple[list[np.ndarray], ClassRules]:
        return [self._classes[task] for task in tasks], self._rules

    def _joined(self, new: Sequence[np.ndarray], name: Callable[[int], str]) -> list[np.ndarray]:
        codes = self._observed
        known = [classes[codes[i].astype(int)] for i, classes in enumerate(self._classes)]
        return [joined_labels(known[i], each, f"{name(i)}: y") for i, each in enumerate(new)]

    def _anew(self, x: Ragged, y: list[np.ndarray], method: str) -> "AdaptedClassifiers":
        model, dtype, is_one = self._posteriors.model, self._posteriors.dtype, isinstance(self, AdaptedOne)
        return adapt_labels(model, x, y, dtype, self._features, self._rules, method, is_one)

    def _rows(self, X: Any) -> list[np.ndarray]:
        """Return the log probabilities of every task's classes, (n, n_classes) each."""
        queries = self._queries(X)
        parts = queries.split(predict_label_rows(self._posteriors, queries))
        return [part[: len(classes)].T for part, classes in zip(parts, self._classes, strict=True)]


@own_float_errors
class AdaptedClassifier(_Classification, AdaptedOne):
    """A prior conditioned on the labeled context of one task, by Laplace's approximation: what `adapt` returns.

    The posterior is computed once, at the first prediction. `classes_` holds the classes of the task.
    """

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, classes_={self.classes_.tolist()})"


@own_float_errors
class AdaptedClassifiers(_Classification, AdaptedMany):
    """A prior conditioned on the labeled contexts of many tasks: what `adapt_many` returns.

    As `AdaptedRegressors`, with the methods of `AdaptedClassifier`. `classes_` lists the classes of each task.
    """

    _one = AdaptedClassifier


def adapt_labels(
    model: Ensemble,
    x: Ragged,
    labels: Sequence[np.ndarray],
    dtype: str,
    features: Features,
    rules: ClassRules,
    name: str,
    is_one: bool = False,
    standardized: bool = True,
) -> AdaptedClassifiers:
    """Condition a prior on the labeled contexts of tasks, or of one, which errors name."""
    check_precision(dtype, model, x, standardized)
    if is_one:
        own, codes = rules.of_task(labels[0], name)
        classes = [own]
    else:
        classes, codes = rules.of_tasks(labels, name)
    n_classes = np.fromiter(map(len, classes), np.int64, len(classes))
    posteriors = Posteriors(model, x, Ragged.of_rows(codes, x.sizes), dtype, n_classes)
    return AdaptedClassifiers(posteriors, features, classes, rules)


def sampled_probabilities(posteriors: Posteriors, queries: Ragged, n_samples: int, seed: int) -> list[np.ndarray]:
    """Return the probabilities of both classes for the queries of every task, (n, 2) each."""
    weights, probabilities = posteriors.model.component_weights, []
    for task, latent in enumerate(queries.split(predict_rows(posteriors, queries, components, latent=True))):
        mean, variance = latent
        second = weights @ sampled_probability(np.random.default_rng([seed, task]), mean, variance, n_samples)
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
