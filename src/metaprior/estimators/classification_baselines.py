"""Few-shot classifiers that learn from the context of one task alone: what meta-learning has to beat.

A baseline maps one task's (x_context, y_context, x_query), with labels 0 and 1, to p(y = 1) at each query.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from metaprior.metrics.classification import check_labels, summarize_labels
from metaprior.tasks.labels import as_labeled_tests
from metaprior.tasks.types import TestTask, as_inputs

Baseline = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

LEAST_PROBABILITY = 1e-12  # of an observed label, in `score`: no query costs more than 27.6 nats


def nearest_class_mean(x_context: np.ndarray, y_context: np.ndarray, x_query: np.ndarray) -> np.ndarray:
    """p(y = 1) = sigmoid((‖x − m_0‖² − ‖x − m_1‖²) / 2) with the class means m_0 and m_1 of the context.

    The posterior of two equally likely Gaussian classes of unit covariance. Which mean is nearer does not depend on
    the scale of x, but how sure the prediction is does. Fewer than two classes: the rule of succession.
    """
    if _lacks_a_class(y_context):
        return _rule_of_succession(y_context, len(x_query))
    mean_0, mean_1 = (x_context[y_context == label].mean(axis=0, dtype=np.float64) for label in (0, 1))
    # The same logit without the squares, which lose digits far from the origin.
    return expit((x_query - (mean_0 + mean_1) / 2) @ (mean_1 - mean_0))


def logistic_regression(x_context: np.ndarray, y_context: np.ndarray, x_query: np.ndarray) -> np.ndarray:
    """scikit-learn's LogisticRegression with C = 1, which suits inputs with a spread of about one.

    Its penalty and its solver both depend on the scale of x. Fewer than two classes: the rule of succession.
    """
    if _lacks_a_class(y_context):
        return _rule_of_succession(y_context, len(x_query))
    classifier = LogisticRegression(max_iter=10_000).fit(x_context, y_context)
    return classifier.predict_proba(x_query)[:, 1]


BASELINES: dict[str, Baseline] = {
    "nearest class mean": nearest_class_mean,
    "logistic regression": logistic_regression,
}


def score(baseline: Baseline, tasks: Sequence[TestTask]) -> dict[str, np.ndarray | float]:
    """How well a baseline predicts the queries of every task, by `summarize_labels`.

    The log loss takes an observed label to have a probability of at least `LEAST_PROBABILITY`: baselines give
    probabilities, not their logarithms, so one may be rounded to zero.
    """
    if len(tasks) == 0:
        raise ValueError("tasks is empty: there is nothing to score")
    tasks = as_labeled_tests(tasks, "tasks", as_inputs(tasks[0][2], "tasks[0] query").shape[1], np.array([0, 1]))
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
    return summarize_labels(y, probability, np.log(np.maximum(of_observed, LEAST_PROBABILITY)), mask)


def _lacks_a_class(y_context: np.ndarray) -> bool:
    """Whether the context has one class only, or none."""
    check_labels("y_context", y_context)
    return np.unique(y_context).size < 2


def _rule_of_succession(y_context: np.ndarray, n_query: int) -> np.ndarray:
    """Laplace's (n_1 + 1) / (n + 2) for every query, which is 1/2 where the context is empty."""
    return np.full(n_query, (np.sum(y_context) + 1) / (len(y_context) + 2))
