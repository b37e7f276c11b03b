"""Metrics of predicted probabilities of labels 0 and 1.

Arrays and masks are as in `metrics.regression`; `y` holds labels and `probability` p(y = 1).
"""

import numpy as np

from metaprior.checks import check_integer
from metaprior.metrics.regression import check_mask, mean_over_queries, negative_log_likelihood

ROUNDING = 1e-5  # by which a float32 log-sum-exp may exceed log 1


def accuracy(y: np.ndarray, probability: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Return the fraction of queries whose label is predicted, 1 where probability > 0.5, of each task.

    A probability of exactly 0.5 predicts neither label and counts as half right, as guessing would.
    """
    y, probability, mask = _check(y, probability, mask)
    return mean_over_queries(_fraction_right(y, probability), mask)


def probability_accuracy(y: np.ndarray, probability: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Return 1 − 1/n Σ_j |p_j − y_j| of each task, the mean probability of the observed labels."""
    y, probability, mask = _check(y, probability, mask)
    return np.asarray(1.0 - mean_over_queries(np.abs(probability - y), mask))


def log_loss(y: np.ndarray, log_probability: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Return −1/n Σ_j log p(y_j) of each task, given the log probability of the observed label, not of label 1."""
    mask = check_mask(mask, {"y": y, "log_probability": log_probability})
    check_labels("y", y[mask])
    if not (log_probability[mask] <= ROUNDING).all():
        raise ValueError("log_probability must be the logarithm of a probability, at most 0; got more, or nan")
    return negative_log_likelihood(log_probability, mask)


def brier_score(y: np.ndarray, probability: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Return 1/n Σ_j (p_j − y_j)² of each task, scikit-learn's brier_score_loss for two labels."""
    y, probability, mask = _check(y, probability, mask)
    return mean_over_queries((probability - y) ** 2, mask)


def expected_calibration_error(
    y: np.ndarray, probability: np.ndarray, mask: np.ndarray | None = None, n_bins: int = 15
) -> float:
    """Return Σ_b n_b/n |mean confidence − fraction right| over bins b of the confidence c = max(p, 1 − p).

    Bins (lower, upper] divide [0.5, 1] equally; the first includes 0.5. The n queries of all tasks are pooled.
    """
    count, confidence, right = confidence_bins(y, probability, mask, n_bins)
    return float(np.sum(np.abs(confidence - right)) / np.sum(count))


def confidence_bins(
    y: np.ndarray, probability: np.ndarray, mask: np.ndarray | None = None, n_bins: int = 15
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the number of queries, their total confidence and the number right in each calibration bin."""
    check_integer("n_bins", n_bins, 1)
    y, probability, mask = _check(y, probability, mask)
    confidence = np.maximum(probability, 1.0 - probability)[mask]
    inner_edges = np.linspace(0.5, 1.0, n_bins + 1)[1:-1]
    bins = np.searchsorted(inner_edges, confidence)
    right = np.bincount(bins, _fraction_right(y, probability)[mask], n_bins)
    return np.bincount(bins, minlength=n_bins), np.bincount(bins, confidence, n_bins), right


def summarize_labels(
    y: np.ndarray, probability: np.ndarray, log_probability: np.ndarray, mask: np.ndarray | None = None
) -> dict[str, np.ndarray | float]:
    """Return all metrics: 'accuracy', 'probability_accuracy', 'log_loss', 'brier' per task, and 'calibration_error'."""
    return {
        "accuracy": accuracy(y, probability, mask),
        "probability_accuracy": probability_accuracy(y, probability, mask),
        "log_loss": log_loss(y, log_probability, mask),
        "brier": brier_score(y, probability, mask),
        "calibration_error": expected_calibration_error(y, probability, mask),
    }


def check_labels(name: str, y: np.ndarray) -> None:
    """Raise unless every label is 0 or 1; `name` is the argument named in the error."""
    strange = y[(y != 0) & (y != 1)]
    if strange.size:
        raise ValueError(f"{name} must hold labels 0 and 1; got {strange[0]}")


def _check(
    y: np.ndarray, probability: np.ndarray, mask: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels and probabilities in float64, zero where they are padding, and the mask."""
    mask = check_mask(mask, {"y": y, "probability": probability})
    check_labels("y", y[mask])
    valid = probability[mask]
    if not ((valid >= 0) & (valid <= 1)).all():
        raise ValueError("probability must lie in [0, 1]; got values outside, or nan")
    return np.where(mask, y, 0).astype(np.float64), np.where(mask, probability, 0).astype(np.float64), mask


def _fraction_right(y: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """Return 1 where the label is predicted, 0 where the other one is, and 1/2 where neither is."""
    return np.where(probability == 0.5, 0.5, (probability > 0.5) == (y == 1))
