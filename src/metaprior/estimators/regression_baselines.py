"""A Gaussian process that learns from the context of one task alone: what meta-learning has to beat on readings."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.utils import Bunch
from threadpoolctl import threadpool_limits

from metaprior.checks import check_positive
from metaprior.metrics.regression import summarize
from metaprior.metrics.summary import report
from metaprior.prediction.mixtures import GaussianMixture
from metaprior.tasks.types import TestTask, as_inputs, as_test_tasks

# In units of the spread of the context, in x and in y. The least noise, a tenth of that spread, favors this baseline:
# of a few readings the likelihood is often highest without noise, and a deviation of next to nothing costs dearly. With
# scikit-learn's own 1e-5 its RMSE is much the same, but its negative log likelihood many times as large.
KERNEL = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(1.0, (1e-2, 1e2)) + WhiteKernel(0.1, (1e-2, 1e1))
RESTARTS, SEED = 2, 0


def per_task_gp(
    x_context: np.ndarray, y_context: np.ndarray, x_query: np.ndarray, spread: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of new readings by scikit-learn's GP, fitted to one context by maximum likelihood.

    Inputs are standardized by the context. Of readings that are all the same the likelihood has no maximum: it grows
    as the predicted deviation goes to zero. The kernel then stays as it starts, in units of `spread`.
    """
    if len(y_context) == 0:
        raise ValueError("y_context is empty: a GP of one task needs a reading of it")
    check_positive("spread", spread)
    scale = x_context.std(axis=0)
    center, scale = x_context.mean(axis=0), np.where(scale > 0, scale, 1.0)
    x, x_new = (x_context - center) / scale, (x_query - center) / scale
    if np.ptp(y_context) == 0:
        as_it_starts: Any = GaussianProcessRegressor(KERNEL, optimizer=None)  # type: ignore[arg-type]
        _, std = as_it_starts.fit(x, np.zeros(len(x))).predict(x_new, return_std=True)
        return np.full(len(x_new), y_context[0]), spread * std
    regressor: Any = GaussianProcessRegressor(
        KERNEL, normalize_y=True, n_restarts_optimizer=RESTARTS, random_state=SEED
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # an optimum at a bound is one
        regressor.fit(x, y_context)
    mean, std = regressor.predict(x_new, return_std=True)
    return mean, std


def score_per_task_gp(tasks: Sequence[TestTask], coverage: float = 0.9) -> Bunch:
    """What `MetaGPRegressor.evaluate` gives, of `per_task_gp` on every task.

    The spread that stands in for that of a context of equal readings is that of the contexts of all tasks.
    """
    if len(tasks) == 0:
        raise ValueError("tasks is empty: there is nothing to score")
    tasks = as_test_tasks(tasks, "tasks", as_inputs(tasks[0][2], "tasks[0] query").shape[1])
    spread = float(np.std(np.concatenate([task.y_context for task in tasks]))) or 1.0
    shape = len(tasks), max(len(task.y_query) for task in tasks)
    y, mean, variance, mask = np.zeros(shape), np.zeros(shape), np.ones(shape), np.zeros(shape, bool)
    with threadpool_limits(1):  # a few readings are faster on one core than on several: three times, measured
        for i, task in enumerate(tasks):
            n = len(task.y_query)
            predicted, std = per_task_gp(task.x_context, task.y_context, task.x_query, spread)
            y[i, :n], mean[i, :n], variance[i, :n], mask[i, :n] = task.y_query, predicted, std**2, True
    return report(summarize(GaussianMixture(mean[None], variance[None]), y, mask, coverage))
