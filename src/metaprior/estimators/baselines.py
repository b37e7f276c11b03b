"""Baselines that learn from the context of one task alone: what meta-learning has to beat.

A classification baseline maps (x_context, y_context, x_query) of a task, with labels 0 and 1, to p(y = 1) at the
queries.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits  # a dependency of scikit-learn

from metaprior.checks import check_positive
from metaprior.metrics import Scores, check_labels, report, summarize, summarize_labels
from metaprior.prediction.mixtures import GaussianMixture
from metaprior.tasks.labels import as_labeled_tests
from metaprior.tasks.types import TestTask, as_inputs, as_test_tasks

Baseline = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

MIN_PROBABILITY = 1e-12  # of an observed label: no query costs more than 27.6 nats
# In units of the standard deviation of the context, in x and in y. The noise bound, a tenth of it, favors this
# baseline: with few readings the likelihood is often highest without noise, and a tiny predicted deviation is costly.
# With scikit-learn's own bound of 1e-5 the RMSE is much the same, but the negative log likelihood is many times as
# large.
KERNEL = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(1.0, (1e-2, 1e2)) + WhiteKernel(0.1, (1e-2, 1e1))
RESTARTS, SEED = 2, 0


def nearest_class_mean(x_context: np.ndarray, y_context: np.ndarray, x_query: np.ndarray) -> np.ndarray:
    """Return p(y = 1) = sigmoid((‖x − m_0‖² − ‖x − m_1‖²) / 2) with the class means m_0 and m_1 of the context.

    This is the posterior of two equally likely Gaussian classes of unit covariance. With fewer than two classes in the
    context it is the rule of succession.
    """
    if _lacks_a_class(y_context):
        return _rule_of_succession(y_context, len(x_query))
    mean_0, mean_1 = (x_context[y_context == label].mean(axis=0, dtype=np.float64) for label in (0, 1))
    # The same logit without the squares, which lose digits far from the origin.
    return expit((x_query - (mean_0 + mean_1) / 2) @ (mean_1 - mean_0))


def logistic_regression(x_context: np.ndarray, y_context: np.ndarray, x_query: np.ndarray) -> np.ndarray:
    """Return p(y = 1) by scikit-learn's LogisticRegression with C = 1, which suits inputs of unit variance."""
    if _lacks_a_class(y_context):
        return _rule_of_succession(y_context, len(x_query))
    classifier = LogisticRegression(max_iter=10_000).fit(x_context, y_context)
    return classifier.predict_proba(x_query)[:, 1]


BASELINES: dict[str, Baseline] = {
    "nearest class mean": nearest_class_mean,
    "logistic regression": logistic_regression,
}


def score_baseline(baseline: Baseline, tasks: Sequence[TestTask]) -> dict[str, np.ndarray | float]:
    """Score a classification baseline on every task, by `summarize_labels`."""
    if len(tasks) == 0:
        raise ValueError("tasks is empty: there is nothing to score")
    input_dim = as_inputs(tasks[0][2], "tasks[0] query").shape[1]
    tasks, _ = as_labeled_tests(tasks, "tasks", input_dim, np.array([0, 1]))
    predictions = [baseline(task.x_context, task.y_context, task.x_query) for task in tasks]
    for index, (task, prediction) in enumerate(zip(tasks, predictions, strict=True)):
        if prediction.shape != task.y_query.shape:
            raise ValueError(
                f"baseline must return shape {task.y_query.shape} for tasks[{index}]; got {prediction.shape}"
            )
    n_queries = np.array([len(task.y_query) for task in tasks])
    mask = np.arange(n_queries.max()) < n_queries[:, None]
    probability, y = np.zeros(mask.shape), np.zeros(mask.shape)
    probability[mask], y[mask] = np.concatenate(predictions), np.concatenate([task.y_query for task in tasks])
    of_observed = np.where(y == 1, probability, 1.0 - probability)
    return summarize_labels(y, probability, np.log(np.maximum(of_observed, MIN_PROBABILITY)), mask)


def per_task_gp(
    x_context: np.ndarray, y_context: np.ndarray, x_query: np.ndarray, y_scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of new readings by scikit-learn's GP, fitted to one context by likelihood.

    Inputs are standardized by the context. For readings that are all equal the likelihood has no maximum; then the
    kernel keeps its initial parameters, in units of `y_scale`.
    """
    if len(y_context) == 0:
        raise ValueError("y_context is empty: a GP of one task needs at least one reading")
    check_positive("y_scale", y_scale, limits=None)
    scale = x_context.std(axis=0)
    center, scale = x_context.mean(axis=0), np.where(scale > 0, scale, 1.0)
    x, x_new = (x_context - center) / scale, (x_query - center) / scale
    if np.ptp(y_context) == 0:
        initial: Any = GaussianProcessRegressor(KERNEL, optimizer=None)  # type: ignore[arg-type]
        _, std = initial.fit(x, np.zeros(len(x))).predict(x_new, return_std=True)
        return np.full(len(x_new), y_context[0]), y_scale * std
    regressor: Any = GaussianProcessRegressor(
        KERNEL, normalize_y=True, n_restarts_optimizer=RESTARTS, random_state=SEED
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # raised for an optimum at a bound
        regressor.fit(x, y_context)
    return regressor.predict(x_new, return_std=True)


def score_per_task_gp(tasks: Sequence[TestTask], coverage: float = 0.9) -> Scores:
    """Return what `MetaGPRegressor.evaluate` returns, for `per_task_gp` on every task."""
    if len(tasks) == 0:
        raise ValueError("tasks is empty: there is nothing to score")
    tasks = as_test_tasks(tasks, "tasks", as_inputs(tasks[0][2], "tasks[0] query").shape[1])
    y_scale = float(np.std(np.concatenate([task.y_context for task in tasks]))) or 1.0
    shape = len(tasks), max(len(task.y_query) for task in tasks)
    y, mean, variance, mask = np.zeros(shape), np.zeros(shape), np.ones(shape), np.zeros(shape, bool)
    with threadpool_limits(1):  # a few readings take three times as long on several cores (measured)
        for i, task in enumerate(tasks):
            n = len(task.y_query)
            predicted, std = per_task_gp(task.x_context, task.y_context, task.x_query, y_scale)
            y[i, :n], mean[i, :n], variance[i, :n], mask[i, :n] = task.y_query, predicted, std**2, True
    return report(summarize(GaussianMixture(mean[None], variance[None]), y, mask, coverage), coverage)


def _lacks_a_class(y_context: np.ndarray) -> bool:
    check_labels("y_context", y_context)
    return np.unique(y_context).size < 2


def _rule_of_succession(y_context: np.ndarray, n_query: int) -> np.ndarray:
    """Return Laplace's (n_1 + 1) / (n + 2) for every query."""
    return np.full(n_query, (np.sum(y_context) + 1) / (len(y_context) + 2))
