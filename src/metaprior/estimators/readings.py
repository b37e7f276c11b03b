"""Priors of numbers: adapted to new tasks, scored, and compared."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from metaprior.conventions import check_is_fitted
from metaprior.estimators.arguments import NamedEnvironments, read_environments, reject_rows
from metaprior.estimators.base import MetaGP
from metaprior.estimators.comparison import Comparison, compare_readings, score_model
from metaprior.estimators.seen_tasks import task_blocks
from metaprior.float_errors import own_float_errors
from metaprior.likelihoods import make_likelihood, warn_if_suggested
from metaprior.likelihoods.base import Likelihood
from metaprior.metrics import Scores
from metaprior.predict.adapted import AdaptedRegressor, AdaptedRegressors, adapt_readings
from metaprior.predict.batches import Posteriors, check_outputs, predict_tasks
from metaprior.predict.plausibility import warn_if_implausible
from metaprior.tasks.context_rules import split_all
from metaprior.tasks.input_columns import Features
from metaprior.tasks.padding import Ragged, as_contexts, as_new_tasks
from metaprior.tasks.types import Task, TestTask, as_task, as_tasks, as_test_tasks

MAX_LOOKED_AT = 100_000  # readings of each environment


@own_float_errors
class ReadingsPrior(MetaGP):
    """A prior of tasks whose y holds numbers: what its estimators share."""

    _estimator_type = "regressor"

    def adapt(self, X: Any, y: Any) -> AdaptedRegressor:
        """Condition the prior on the readings of a new task, in closed form.

        Parameters
        ----------
        X : array-like of shape (n_context, n_features)
            Inputs of the context. An empty context predicts from the prior.
        y : array-like of shape (n_context,)
            Readings.

        Returns
        -------
        AdaptedRegressor
        """
        check_is_fitted(self, "model_")
        features = self.features_
        task = as_task(X, y, "adapt", features, self._likelihood)
        x, y = Ragged.of([task.x], task.x.shape[1:]), Ragged.of([task.y])
        return adapt_readings(self.model_, x, y, "float64", features, "adapt".format)[0]

    def adapt_many(self, contexts: Iterable[Any], *, dtype: str = "float64") -> AdaptedRegressors:
        """Condition the prior on the contexts of many new tasks at once: `adapt` for each of them, much faster.

        Parameters
        ----------
        contexts : iterable of (X, y)
            Contexts of any sizes.
        dtype : "float64" or "float32", default="float64"
            float32 is faster and accurate to about 1e-4 of the spread of y, and is refused if the noise is too small.
            Ten or more standard deviations from the data its bands may be too wide. Hierarchical priors always compute
            in float64.

        Returns
        -------
        AdaptedRegressors
        """
        check_is_fitted(self, "model_")
        features = self.features_
        x, y = as_contexts(contexts, "contexts", features, self._likelihood)
        return adapt_readings(self.model_, x, Ragged.of(y), dtype, features, "contexts[{}]".format)

    def predict_many(
        self, tasks: Iterable[Any], *, return_std: bool = False, latent: bool = False, dtype: str = "float64"
    ) -> Any:
        """Adapt to many tasks and predict their queries.

        Parameters
        ----------
        tasks : iterable of (X_context, y_context, X_query)
            Tasks of any sizes.
        return_std : bool, default=False
            Also return standard deviations.
        latent : bool, default=False
            Predict the noise-free function instead of new observations.
        dtype : "float64" or "float32", default="float64"
            As for `adapt_many`.

        Returns
        -------
        list of ndarray, or a tuple of two lists
            Means, and standard deviations if asked for, of every task.
        """
        check_is_fitted(self, "model_")
        features = self.features_
        x, y, queries = as_new_tasks(tasks, "tasks", features, self._likelihood)
        adapted = adapt_readings(self.model_, x, Ragged.of(y), dtype, features, "tasks[{}] context".format)
        return adapted.predict(queries, return_std, latent=latent)

    def evaluate(self, test_tasks: Iterable[Any], coverage: Any = 0.9, context: Any = None) -> Scores:
        """Adapt to the contexts of test tasks and score the predictions of their queries.

        Parameters
        ----------
        test_tasks : sequence of (X_context, y_context, X_query, y_query)
            Tasks that were not meta-trained on; others warn with a `SeenTasksWarning`.
        coverage : float, default=0.9
            Nominal coverage of the central interval.
        context : "random", "first", int, or ("first", int), optional
            Split tasks that are given as (X, y) into context and queries, as the parameter of the constructor.

        Returns
        -------
        Bunch
            Printed, a table. Its entries: means over tasks of `rmse`, `nll` (nats per reading), `coverage` and
            `width` of the interval, each with its standard error `..._se`; `calibration_error` over all queries;
            `n_tasks`; `per_task`, the values per task. If the prior has conformal intervals of this coverage:
            `conformal_coverage` and `conformal_width` too.
        """
        tasks = self._read_tests(self._split(test_tasks, context), "test_tasks")
        return score_model(self.model_, tasks, coverage)

    def compare(self, test_tasks: Iterable[Any], coverage: Any = 0.9, context: Any = None) -> Comparison:
        """Score the prior on test tasks beside models that you would fit without it.

        These are a linear mixed model, with correlated random intercepts and slopes, and a hierarchical GP of all
        tasks, each counted once, and scikit-learn's GP of each task. `MetaGPRegressor` fits the first two with the
        prior; priors of `metaprior.wfem` have the third only.

        Parameters
        ----------
        test_tasks, coverage, context
            As for `evaluate`.

        Returns
        -------
        Comparison
            Printed, a table. Its `scores` are what `evaluate` returns, of each model by name; its `gains` are by how
            much the RMSE and NLL of each are above those of "metaprior", with standard errors of the paired
            differences.
        """
        tasks = self._read_tests(self._split(test_tasks, context), "test_tasks")
        return compare_readings(self, tasks, coverage)

    def score(self, test_tasks: Iterable[Any], y: Any = None) -> float:  # type: ignore[override]
        """Return the coefficient of determination R^2 over the queries of all test tasks.

        Parameters
        ----------
        test_tasks : sequence of (X_context, y_context, X_query, y_query)
            As for `evaluate`.
        y : None
            Not used: the tasks have their own. Anything else raises a TypeError.

        Returns
        -------
        float
            The coefficient of determination; 1 is best.
        """
        reject_rows(y)
        tasks = self._read_tests(test_tasks, "test_tasks")
        predictive, observed, mask = predict_tasks(self.model_, tasks)
        residual = (observed - predictive.mean())[mask]
        total = np.sum((observed[mask] - np.mean(observed[mask])) ** 2)
        return float(1.0 - np.sum(residual**2) / total) if total > 0 else float(np.all(residual == 0.0))

    def _read_tests(self, tasks: Any, name: str) -> list[TestTask]:
        tests = super()._read_tests(tasks, name)
        check_outputs(self.model_, tests, name)
        x = Ragged.of([test.x_context for test in tests], (self.n_features_in_,))
        y = Ragged.of([test.y_context for test in tests])
        warn_if_implausible(Posteriors(self.model_, x, y), f"{name}[{{}}] context".format)
        return tests

    def _read_environments(
        self, source_tasks: Any, target_tasks: Any, target: Any, features: Features
    ) -> NamedEnvironments:
        environments = read_environments(source_tasks, target_tasks, target, as_tasks, features)
        if (exposure := getattr(self, "exposure", None)) is not None:
            features.exposure = features.find_exposure(exposure)
        self._exposure = features.exposure
        self._checked_likelihood = check_observations(self._given_likelihood, environments, features)
        return environments

    @property
    def features_(self) -> Features:
        """What is known of the input columns: their number, names, ranges, and which is the exposure."""
        features = super().features_
        if hasattr(self, "model_"):  # not yet while a file is read
            features.exposure = getattr(self.model_.members[0], "exposure", None)
        return features

    @property
    def _given_likelihood(self) -> Likelihood:
        """What the estimator was told of y."""
        return make_likelihood(self._kind)

    @property
    def _likelihood(self) -> Likelihood:
        """What checks y, once the tasks of the fit are checked."""
        return self.model_.likelihood if hasattr(self, "model_") else self._checked_likelihood

    def _split(self, tasks: Any, context: Any) -> Any:
        if context is None:
            return tasks
        features = self.features_
        return split_all(as_tasks(tasks, "test_tasks", features, self._likelihood), context, features)

    def _check_tasks(self, tasks: Any, name: str, features: Features) -> list[Task]:
        return as_tasks(tasks, name, features, self._likelihood)

    def _check_tests(self, tasks: Any, name: str, features: Features) -> list[TestTask]:
        return as_test_tasks(tasks, name, features, self._likelihood)


def check_observations(likelihood: Likelihood, environments: NamedEnvironments, features: Features) -> Likelihood:
    """Raise if y of a task cannot be observed under a likelihood, or an exposure is not positive.

    Returns the likelihood, with what it has learned of y. A hint is given where y suggests another one than Gaussian
    noise.
    """
    if likelihood.normal:
        warn_if_suggested(np.concatenate([np.zeros(0), *_some_readings(environments)]))
        return likelihood
    for tasks, argument in zip(environments.tasks, environments.arguments, strict=True):
        first = 0
        for x, y, sizes in task_blocks(tasks):
            if not (likelihood.allow(y) and features.allow(x)):
                starts = np.cumsum(sizes) - sizes
                for i, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
                    where = f"{argument}[{first + i}]"
                    likelihood.check(y[start : start + size], f"{where}: y")
                    features.check_exposure(x[start : start + size], where)
            first += len(sizes)
    return likelihood.learned(y for tasks in environments.tasks for _, y, _ in task_blocks(tasks))


def _some_readings(environments: NamedEnvironments) -> Iterator[np.ndarray]:
    for tasks in environments.tasks:
        n = 0
        for _, y, _ in task_blocks(tasks):
            yield y
            n += len(y)
            if n > MAX_LOOKED_AT:
                break
