"""Probabilities of labels for many new tasks, averaged over the members of an ensemble."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp

from metaprior.prediction.batches import Posteriors, pad_rows, read_tests
from metaprior.prediction.ensemble import Ensemble
from metaprior.prediction.trained import Model
from metaprior.tasks.padding import Ragged
from metaprior.tasks.types import TestTask


def predict_label_rows(posteriors: Posteriors, queries: Ragged) -> np.ndarray:
    """Return log probabilities of the two labels for all query rows, (2, rows)."""

    def values(tasks: np.ndarray, x: np.ndarray) -> np.ndarray:
        return average_log(posteriors.evaluate(Model.label_log_probabilities, tasks, x), posteriors.model.weights)

    rows = np.empty((2, queries.n_rows))
    for places, of_chunk in posteriors.predict(queries, values):
        rows[:, places] = of_chunk
    return rows


def predict_labels(model: Ensemble, tasks: Sequence[TestTask]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log probabilities (2, tasks, queries) of labels, y and mask; padding is NaN and masked."""
    return pad_rows(predict_label_rows(*read_tests(model, tasks)), tasks)


def average_log(log_probabilities: Any, weights: np.ndarray) -> np.ndarray:
    """Return the log of the members' average probability, over the first axis."""
    log_probabilities = np.asarray(log_probabilities)
    if len(weights) == 1:
        return log_probabilities[0]  # exactly as it is
    log_weights = np.log(weights).reshape(-1, *(1,) * (log_probabilities.ndim - 1))
    return np.asarray(logsumexp(log_probabilities + log_weights, 0))
