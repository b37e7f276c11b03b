"""What adapted tasks share, of numbers and of labels: inputs read and checked, one task or many, one path for both.

One task is the only entry of many: methods are written once, for a list of tasks.

A learned prior adapted to new tasks of numbers: predictions in the units of y, averaged over particles.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from metaprior.checks import check_integer, counted, draw_seed, warn_caller
from metaprior.conventions import own_float_errors
from metaprior.likelihoods.base import Likelihood
from metaprior.predict.batches import (
    Posteriors,
    check_covariances,
    check_precision,
    components,
    marginals,
    predict_rows,
    weighted_covariance,
)
from metaprior.predict.conformal import check_method, conformal_band
from metaprior.predict.ensemble import Ensemble, mixture
from metaprior.predict.export import write_module
from metaprior.predict.plausibility import warn_if_implausible
from metaprior.predict.predictive import JointMixture
from metaprior.tasks.columns import Features
from metaprior.tasks.splits import FIRST, warn_if_behind
from metaprior.tasks.types import CheckOutputs, Ragged, as_context_rows, as_input_rows, as_inputs, as_numbers

if TYPE_CHECKING:
    from metaprior.predict.single_task import SingleTaskRegressor


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


@own_float_errors
class _Regression(Adapted):
    @property
    def _likelihood(self) -> Likelihood:
        """What is observed, which checks y."""
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
            if not (latent or self._likelihood.normal):
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
        rows = predict_rows(self._posteriors, queries, components, latent)
        return self._entries([_as_mixture(model, part, latent) for part in queries.split(rows)])

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
        pairs = list(zip(self._list("X", X), self._list("y", y), strict=True))
        queries, observed = as_context_rows(pairs, self._sample_name.format, self._features, self._likelihood)
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

    def update(self, X: Any, y: Any) -> Any:
        """Condition on more readings: what adapting the prior to all readings at once returns.

        Parameters
        ----------
        X : array-like of shape (n, n_inputs)
        y : array-like of shape (n,)

        Returns
        -------
        AdaptedRegressor or AdaptedRegressors
            A new one; this one stays as it is.
        """
        x, new = self._more(X, y, self._likelihood)
        model, dtype = self._posteriors.model, self._posteriors.dtype
        adapted = adapt_readings(
            model, x, self._posteriors.y.joined(Ragged.of(new)), dtype, self._features, self._update_name.format
        )
        return adapted if isinstance(self, AdaptedMany) else adapted[0]

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
        sizes = queries.sizes.astype(float)
        check_covariances(f"The {what} of {{:,}} inputs", sizes, posteriors.x.sizes, advice)
        for task, n in enumerate(queries.sizes.tolist()):
            padded, _ = queries.pad(queries.starts[[task]], queries.sizes[[task]], posteriors.padded_size(n))
            predicted = posteriors.evaluate(marginals, np.array([task]), padded)
            means, _, log_weights = mixture(model, predicted, latent)
            weights = model.component_weights if log_weights.ndim == 1 else softmax(log_weights[:, 0])
            observe = None if latent else _observe(model)

            def covariance_of(shares: np.ndarray, task: int = task, x: np.ndarray = padded, n: int = n) -> np.ndarray:
                found = weighted_covariance(posteriors, task, x, shares, latent)
                return found if len(found) == n else found[:n, :n].copy()

            mixtures.append(JointMixture(means[:, 0, :n], covariance_of, weights, observe))
        return mixtures


def _observe(model: Ensemble) -> Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray] | None:
    """Return a function that draws what is observed of the latent function; None for noise in its covariance."""
    likelihood, parameters = model.likelihood, model.parameters
    if likelihood.normal:
        return None
    return lambda t, drawn, rng: likelihood.draw(t, parameters[drawn][:, None], rng)


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


def _as_mixture(model: Ensemble, part: np.ndarray, latent: bool) -> Any:
    """Return the mixture of `components` of one task, whose queries share the weights."""
    varying = len(part) > 2 and part.shape[-1] > 0
    log_weights = part[2][:, 0] if varying else np.log(model.component_weights)
    return model.predictive(part[0], part[1], log_weights, latent)


@own_float_errors
class AdaptedRegressor(_Regression):
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

    def to_sklearn(self) -> "SingleTaskRegressor":
        """Return the task as a fitted regressor that scikit-learn's tools take.

        Returns
        -------
        SingleTaskRegressor
            Its `fit` adapts the prior to other readings; clones share the prior.
        """
        prior = AdaptedRegressors(*self._nothing(), "float64", self._features)[0]
        from metaprior.predict.single_task import SingleTaskRegressor  # scikit-learn takes long to import

        return SingleTaskRegressor(prior)._fitted_to(self)

    def export(self, path: str | os.PathLike) -> None:
        """Write the task as a Python file that predicts with NumPy alone.

        The file has `predict`, `interval` and `quantile` of this task, and `adapt` for other tasks of the same prior.
        It holds the readings of the task. Only priors of the default can be exported. Conformal
        intervals are not: a warning says so, if the prior has them.

        Parameters
        ----------
        path : path-like
            The file, with the name of a module, such as "patient.py". It is replaced atomically.
        """
        if not self._likelihood.normal:
            name = self._likelihood.name
            raise ValueError(f"export is for priors with Gaussian noise; this one has likelihood={name!r}.")
        write_module(path, self._posteriors, self._features)
        if self._posteriors.model.conformal is not None:
            warn_caller("interval of the exported file is the model's own: conformal intervals need metaprior.")


@own_float_errors
class AdaptedRegressors(AdaptedMany, _Regression):
    """A prior conditioned on the contexts of many tasks: what `adapt_many` returns.

    It is a sequence: `[i]` is the `AdaptedRegressor` of task i, in double precision. Methods are those of
    `AdaptedRegressor`, for all tasks at once: X is a list of arrays of any lengths, or one array for all tasks, and
    results are lists with an entry for each task. Conditioning happens in the first prediction; posteriors of up to
    512 MB are kept for later ones.
    """

    def __init__(self, model: Ensemble, x: Ragged, y: Ragged, dtype: str, features: Features | None = None):
        super().__init__(Posteriors(model, x, y, dtype), features)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return AdaptedRegressors(*self._some(index), self._posteriors.dtype, self._features)
        return AdaptedRegressor(self._one(index)[1], self._features)


def adapt_readings(
    model: Ensemble, x: Ragged, y: Ragged, dtype: str, features: Features, name: Callable[[int], str]
) -> AdaptedRegressors:
    """Condition a prior on the contexts of tasks; warn about readings that it cannot explain."""
    check_precision(dtype, model, x)
    adapted = AdaptedRegressors(model, x, y, dtype, features)
    warn_if_implausible(adapted._posteriors, name)
    return adapted
