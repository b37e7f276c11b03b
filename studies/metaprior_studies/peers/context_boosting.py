"""Gradient boosting of a query's reading from features of its task's context, by scikit-learn.

Training tasks are split at random into context and queries, several times. A second model learns the variance from
squared residuals of tasks that were held out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from metaprior_studies.peers.protocol import Array, Fitted, Rows, Scaling, Tasks, halves

SPLITS = 6  # random halves of every training task, so that a reading is a query six times
N_NEAREST = 3
RIDGE = 1.0  # of the slopes of the line through a context, in readings of standardized inputs
FOLDS = 5
SMALLEST_SQUARE = 1e-4  # of a residual
SMALLEST_VARIANCE = 0.1  # of a prediction, of the mean square of held-out residuals
OUTCOMES = ("reading", "minus context mean", "minus context line")  # what the trees predict
TREES: dict[str, Any] = {
    "max_iter": 80,
    "learning_rate": 0.08,
    "max_leaf_nodes": 8,
    "min_samples_leaf": 10 * SPLITS,
    "l2_regularization": 1.0,
    "early_stopping": False,
}
VARIANCE_TREES: dict[str, Any] = {"loss": "gamma", "max_iter": 40, "min_samples_leaf": 30 * SPLITS}


def features(x_context: Array, y_context: Array, x_query: Array, in_target: float) -> tuple[Array, Array]:
    """Return a row of features per query, and the baselines 0, the context's mean and its ridge line."""
    n, mean = len(y_context), y_context.mean()
    center = x_context.mean(axis=0)
    shifted = x_context - center
    slopes = np.linalg.solve(shifted.T @ shifted + RIDGE * np.eye(x_context.shape[1]), shifted.T @ (y_context - mean))
    line = mean + (x_query - center) @ slopes
    residual = y_context - mean - shifted @ slopes
    distance = np.sqrt(((x_query[:, None] - x_context) ** 2).sum(axis=-1))
    order = np.argsort(distance, axis=1, kind="stable")[:, np.minimum(np.arange(N_NEAREST), n - 1)]
    nearest = np.take_along_axis(distance, order, axis=1)
    soft = np.exp(-0.5 * (distance / (nearest[:, :1] + 0.3)) ** 2)
    smoothed = soft @ y_context / soft.sum(axis=1)
    of_task = [mean, y_context.std(), y_context.min(), y_context.max(), residual.std(), *slopes, *center, in_target]
    shared = np.broadcast_to(of_task, (len(x_query), len(of_task)))
    columns = np.column_stack([x_query, shared, line, smoothed, y_context[order], nearest])
    return columns, np.stack([np.zeros(len(x_query)), np.full(len(x_query), mean), line])


class Examples:
    """Queries of random splits of tasks: features, baselines, readings and the number of the task."""

    def __init__(self, tasks: Tasks, n_source: int, rng: np.random.Generator):
        parts, group = [], []
        for number, task in enumerate(tasks):
            for test in (each for _ in range(SPLITS) for each in halves([task], rng) if len(each.y_context)):
                in_target = float(number >= n_source)
                parts.append((*features(test.x_context, test.y_context, test.x_query, in_target), test.y_query))
                group += [number] * len(test.y_query)
        columns, baselines, y = zip(*parts, strict=True)
        self.columns, self.y = np.concatenate(columns), np.concatenate(y)
        self.baselines = np.concatenate(baselines, axis=1)
        self.group, self.in_target = np.array(group), np.array(group) >= n_source


def fit_context_boosting(source: Tasks, target: Tasks, seed: int) -> Fitted:
    """Choose what the trees predict by held-out target tasks, then fit means and variances."""
    scaling = Scaling.of(Rows.of(source, target))
    tasks = [scaling.task(task) for task in (*source, *target)]
    rng = np.random.default_rng(seed)
    examples = Examples(tasks, len(source), rng)
    folds = _folds(len(source), len(target), rng)[examples.group]
    residuals = [_held_out_residuals(examples, folds, outcome, seed) for outcome in range(len(OUTCOMES))]
    # Both environments count alike in the choice: the target decides, and many source tasks steady it.
    errors = [np.mean(each[examples.in_target] ** 2) + np.mean(each[~examples.in_target] ** 2) for each in residuals]
    best = int(np.argmin(errors))
    mean = _trees(seed).fit(examples.columns, examples.y - examples.baselines[best])
    squares = np.maximum(residuals[best] ** 2, SMALLEST_SQUARE)
    spread = _trees(seed, **VARIANCE_TREES).fit(examples.columns, squares)
    smallest = SMALLEST_VARIANCE * float(squares.mean())

    def predict(contexts: Tasks, queries: Sequence[Array]) -> Any:
        predicted = []
        for context, x_query in zip(map(scaling.task, contexts), map(scaling.inputs, queries), strict=True):
            columns, baselines = features(context.x, context.y, x_query, 1.0)
            variance = np.maximum(spread.predict(columns), smallest)
            predicted.append(scaling.predictive(mean.predict(columns) + baselines[best], variance))
        return predicted

    return Fitted(predict, OUTCOMES[best])


def _folds(n_source: int, n_target: int, rng: np.random.Generator) -> Array:
    """Return a fold for every task; each fold has tasks of both environments."""
    return np.concatenate([rng.permutation(n_source) % FOLDS, rng.permutation(n_target) % FOLDS])


def _held_out_residuals(examples: Examples, folds: Array, outcome: int, seed: int) -> Array:
    residual, wanted = np.zeros(len(examples.y)), examples.y - examples.baselines[outcome]
    for fold in np.unique(folds):
        learned, held_out = folds != fold, folds == fold
        trees = _trees(seed).fit(examples.columns[learned], wanted[learned])
        residual[held_out] = wanted[held_out] - trees.predict(examples.columns[held_out])
    return residual


def _trees(seed: int, **changes: Any) -> Any:
    return HistGradientBoostingRegressor(**{**TREES, "random_state": seed, **changes})
