"""One task as an estimator of scikit-learn: `fit` conditions a learned prior on its rows, `predict` is as usual."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from metaprior.tasks.columns import Features


def refuse_categories(features: Features) -> None:
    """Raise if a prior has categories: scikit-learn would fail on them later, with a message about floats."""
    if levels := features.categories.levels:
        named = ", ".join(features.column_name(i) for i in levels)
        raise ValueError(
            f"X has categories, {named}: estimators of scikit-learn check that inputs are numbers. Use adapt(X, "
            "y).predict, or fit the prior to columns of 0 and 1 for the levels."
        )


class _SingleTask(BaseEstimator):
    """What both estimators share. Inputs are checked as scikit-learn does: two-dimensional, with its messages."""

    prior: Any
    task_: Any

    def _adapt(self, X: Any, y: Any, **checks: Any) -> Any:
        """Condition the prior on checked rows."""
        if not hasattr(self.prior, "update"):
            kind = type(self.prior).__name__
            raise TypeError(f"prior must be what meta.adapt([], []) returns, or meta.to_sklearn().prior; got {kind}.")
        refuse_categories(getattr(self.prior, "_features", Features()))
        X, y = validate_data(self, self._in_order(X, "fit"), y, dtype=np.float64, **self._missing, **checks)
        return self.prior.update(X, y)

    def _inputs(self, X: Any) -> np.ndarray:
        """Return checked inputs to predict at."""
        check_is_fitted(self, "task_")
        X = self._in_order(X, "predict")
        return np.asarray(validate_data(self, X, dtype=np.float64, reset=False, **self._missing))

    @property
    def _missing(self) -> dict[str, Any]:
        """How scikit-learn checks for missing values: covariates may be NaN, and the prior checks other columns."""
        has_covariates = bool(getattr(self.prior, "_features", Features()).categories.covariates)
        return {"ensure_all_finite": "allow-nan"} if has_covariates else {}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = bool(self._missing)
        return tags

    def _in_order(self, X: Any, where: str) -> Any:
        """Return the named columns of X in the order of the prior, if that has names."""
        names = getattr(self.prior, "feature_names_in_", None)
        return X if names is None else Features(len(names), tuple(names)).in_order(X, where)

    def _fitted_to(self, task: Any) -> Any:
        """Take a task that has been adapted already."""
        refuse_categories(task._features)
        self.task_, self.n_features_in_ = task, task.n_features_in_
        names = getattr(task, "feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = names
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "task_")


class SingleTaskRegressor(RegressorMixin, _SingleTask):
    """A task of a meta-learned prior as a regressor that scikit-learn's tools take: what `task.to_sklearn()` returns.

    `fit` conditions the prior on other readings, in milliseconds. The prior itself is never fitted again, and clones
    share it. `X` must have the columns of the prior.

    Parameters
    ----------
    prior : AdaptedRegressor
        A prior without readings, `meta.adapt([], [])`. Readings that it has are kept beside those of `fit`.

    Attributes
    ----------
    task_ : AdaptedRegressor
        The task, with quantiles, intervals and samples.
    n_features_in_ : int
        Number of input columns.
    feature_names_in_ : ndarray of str
        Names of the input columns, if the prior or the X of `fit` has any.

    Examples
    --------
    >>> from sklearn.model_selection import cross_val_score
    >>> from metaprior import MetaGPRegressor
    >>> from metaprior.datasets import Sinusoid
    >>> problem = Sinusoid(deviation=0.25)
    >>> meta = MetaGPRegressor(random_state=0).fit(target_tasks=problem.target_tasks(10, 8, rng=0))
    >>> X, y = problem.target_tasks(1, 20, rng=1)[0]
    >>> cross_val_score(meta.to_sklearn(), X, y, cv=4).shape
    (4,)
    """

    def __init__(self, prior: Any):
        self.prior = prior

    def fit(self, X: Any, y: Any) -> "SingleTaskRegressor":
        """Condition the prior on readings.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of shape (n,)

        Returns
        -------
        self
        """
        self.task_ = self._adapt(X, y, y_numeric=True)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the mean of new observations.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        return_std : bool, default=False
            Whether to return standard deviations too.

        Returns
        -------
        mean : ndarray of shape (n,)
        std : ndarray of shape (n,), optional
        """
        X = self._inputs(X)
        return self.task_.predict(X, return_std)


class SingleTaskClassifier(ClassifierMixin, _SingleTask):
    """A task of a meta-learned prior as a classifier that scikit-learn's tools take: what `task.to_sklearn()` returns.

    As `SingleTaskRegressor`, for labels.

    Parameters
    ----------
    prior : AdaptedClassifier
        A prior without labels, `meta.adapt([], [])`. Labels that it has are kept beside those of `fit`.

    Attributes
    ----------
    task_ : AdaptedClassifier
        The task.
    classes_ : ndarray
        The classes of the task: those of its labels or, if all tasks share their classes, all of these.
    n_features_in_, feature_names_in_
        As for `SingleTaskRegressor`.
    """

    def __init__(self, prior: Any):
        self.prior = prior

    def fit(self, X: Any, y: Any) -> "SingleTaskClassifier":
        """Condition the prior on labels.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        y : array-like of shape (n,)

        Returns
        -------
        self
        """
        check_classification_targets(y)
        self._take_classes(self._adapt(X, y))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable class of each input.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of shape (n,)
        """
        X = self._inputs(X)
        return self.task_.predict(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities, in the order of `classes_`.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of shape (n, n_classes)
        """
        X = self._inputs(X)
        return self.task_.predict_proba(X)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return logarithms of class probabilities, accurate for small ones.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of shape (n, n_classes)
        """
        X = self._inputs(X)
        return self.task_.predict_log_proba(X)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return log odds of the second of two classes, or log probabilities of more.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of shape (n,), or (n, n_classes) for more than two classes
        """
        X = self._inputs(X)
        return self.task_.decision_function(X)

    def _fitted_to(self, task: Any) -> Any:
        self._take_classes(task)
        return super()._fitted_to(task)

    def _take_classes(self, task: Any) -> None:
        known = [label for label in task.classes_.tolist() if label is not None]
        if len(known) < len(task.classes_):
            found = f"the only class of y is {known[0]!r}" if known else "y has no classes"
            raise ValueError(f"{found}: what the others are is unknown. Adapt with classes=[...] first.")
        self.task_, self.classes_ = task, task.classes_
