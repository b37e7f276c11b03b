"""Baselines that learn from the context of one task alone: what meta-learning has to beat.

A classification baseline maps (x_context, y_context, x_query, n_classes) of a task, with labels 0, 1, ..., to the
probabilities of its classes at the queries, (queries, classes).
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits  # a dependency of scikit-learn

from metaprior.checks import check_positive
from metaprior.metrics import Scores, check_codes, report, summarize, summarize_labels
from metaprior.predict.mixtures import GaussianMixture
from metaprior.tasks.types import TestTask, as_inputs, as_test_tasks

Baseline = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]

MIN_PROBABILITY = 1e-12  # of a class: no query costs more than 27.6 nats
# In units of the standard deviation of the context, in x and in y. The noise bound, a tenth of it, favors this
# baseline: with few readings the likelihood is often highest without noise, and a tiny predicted deviation is costly.
# With scikit-learn's own bound of 1e-5 the RMSE is much the same, but the negative log likelihood is many times as
# large.
KERNEL = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(1.0, (1e-2, 1e2)) + WhiteKernel(0.1, (1e-2, 1e1))
RESTARTS, SEED = 2, 0


def nearest_class_mean(
    x_context: np.ndarray, y_context: np.ndarray, x_query: np.ndarray, n_classes: int = 2
) -> np.ndarray:
    """Return p(y = c) proportional to exp(−‖x − m_c‖² / 2) with the class means m_c of the context.

    This is the posterior of equally likely Gaussian classes of unit covariance. Classes that the context lacks follow
    the rule of succession.
    """

    def among_present(codes: np.ndarray, n_present: int) -> np.ndarray:
        means = np.stack([x_context[codes == c].mean(axis=0, dtype=np.float64) for c in range(n_present)])
        # The same logits without the squares of x, which lose digits far from the origin.
        center = means.mean(axis=0)
        return softmax((x_query - center) @ (means - center).T - np.sum((means - center) ** 2, axis=1) / 2, axis=1)

    return _with_absent(among_present, y_context, len(x_query), n_classes)


def logistic_regression(
    x_context: np.ndarray, y_context: np.ndarray, x_query: np.ndarray, n_classes: int = 2
) -> np.ndarray:
    """Return p(y = c) by scikit-learn's LogisticRegression with C = 1, which suits inputs of unit variance.

    Classes that the context lacks follow the rule of succession.
    """

    def among_present(codes: np.ndarray, n_present: int) -> np.ndarray:
        return LogisticRegression(max_iter=10_000).fit(x_context, codes).predict_proba(x_query)

    return _with_absent(among_present, y_context, len(x_query), n_classes)


BASELINES: dict[str, Baseline] = {
    "nearest class mean": nearest_class_mean,
    "logistic regression": logistic_regression,
}


def score_baseline(
    baseline: Baseline, tasks: Sequence[TestTask], n_classes: np.ndarray | None = None
) -> dict[str, np.ndarray | float]:
    """Score a classification baseline on every task, by `summarize_labels`.

    `n_classes` are the numbers of classes of the tasks, whose labels are 0, 1, ...; by default all have two.
    """
    if len(tasks) == 0:
        raise ValueError("tasks is empty: there is nothing to score")
    tasks = as_test_tasks(tasks, "tasks", as_inputs(tasks[0][2], "tasks[0] query").shape[1])
    counts = [2] * len(tasks) if n_classes is None else np.asarray(n_classes).tolist()
    sizes = [len(task.y_query) for task in tasks]
    y, mask = np.zeros((len(tasks), max(sizes))), np.arange(max(sizes)) < np.array(sizes)[:, None]
    log_probabilities = np.full((max(counts), *mask.shape), -np.inf)
    for i, (task, count, size) in enumerate(zip(tasks, counts, sizes, strict=True)):
        check_codes(f"tasks[{i}]: y", np.concatenate([task.y_context, task.y_query]), count)
        predicted = baseline(task.x_context, task.y_context, task.x_query, count)
        if predicted.shape != (size, count):
            raise ValueError(f"baseline must return shape {(size, count)} for tasks[{i}]; got {predicted.shape}")
        y[i, :size] = task.y_query
        log_probabilities[:count, i, :size] = np.log(np.maximum(predicted, MIN_PROBABILITY)).T
    return summarize_labels(y, log_probabilities, mask)


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


def score_per_task_gp(tasks: Sequence[Any], coverage: float = 0.9) -> Scores:
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


def _with_absent(
    among_present: Callable[[np.ndarray, int], np.ndarray], y_context: np.ndarray, n_query: int, n_classes: int
) -> np.ndarray:
    """Return the probabilities of all classes, given those of the classes in the context among each other.

    Every class that the n labels of the context lack has the probability 1 / (n + classes) of Laplace's rule of
    succession. `among_present` gets the labels as 0, 1, ..., numbers among the classes present, of which it has two or
    more.
    """
    check_codes("y_context", y_context, n_classes)
    present, codes = np.unique(y_context.astype(np.int64), return_inverse=True)
    absent = 1.0 / (len(y_context) + n_classes)
    probabilities = np.full((n_query, n_classes), absent)
    if len(present):
        share = 1.0 - (n_classes - len(present)) * absent
        among = among_present(codes, len(present)) if len(present) > 1 else np.ones((n_query, 1))
        probabilities[:, present] = share * among
    return probabilities
