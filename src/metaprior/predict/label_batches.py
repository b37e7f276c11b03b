"""Probabilities of labels for many new tasks, averaged over the members of an ensemble."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp

from metaprior.predict.batches import Posteriors, pad_rows, read_tests
from metaprior.predict.ensemble import Ensemble
from metaprior.tasks.padding import Ragged
from metaprior.tasks.types import TestTask


def predict_label_rows(posteriors: Posteriors, queries: Ragged) -> np.ndarray:
    """Return log probabilities of all classes for all query rows, (classes, rows).

    They are minus infinity for classes that a task does not have.
    """

    def values(tasks: np.ndarray, x: np.ndarray) -> np.ndarray:
        of_member = lambda member, posterior, x: member.class_log_probabilities(posterior, x)  # noqa: E731
        return average_log(posteriors.evaluate(of_member, tasks, x), posteriors.model.weights)

    assert posteriors.n_classes is not None
    rows = np.full((int(posteriors.n_classes.max(initial=0)), queries.n_rows), -np.inf)
    for places, of_chunk in posteriors.predict(queries, values):
        rows[: len(of_chunk), places] = of_chunk
    return rows


def predict_labels(
    model: Ensemble, tasks: Sequence[TestTask], n_classes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log probabilities (classes, tasks, queries), y and mask; padding is NaN and masked."""
    return pad_rows(predict_label_rows(*read_tests(model, tasks, n_classes)), tasks)


def average_log(log_probabilities: Any, weights: np.ndarray) -> np.ndarray:
    """Return the log of the members' average probability, over the first axis."""
    log_probabilities = np.asarray(log_probabilities)
    if len(weights) == 1:
        return log_probabilities[0]  # exactly as it is
    log_weights = np.log(weights).reshape(-1, *(1,) * (log_probabilities.ndim - 1))
    return np.asarray(logsumexp(log_probabilities + log_weights, 0))
