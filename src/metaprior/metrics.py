"""How good predictions are: of numbers, and of probabilities of labels 0 and 1.

Arrays have queries on the last axis and tasks before it. Tasks of unequal size are padded and come with a boolean
`mask` of the same shape, True where a query is real; None means that all are. Padding may hold anything, NaN included.
"""

import dataclasses
from typing import Any

import numpy as np
from sklearn.utils import Bunch

from metaprior.checks import check_integer

CALIBRATION_LEVELS = np.arange(1, 20) / 20
MEANINGS = {
    "rmse": "root mean square error, in the units of y",
    "nll": "negative log likelihood, nats per reading",
    "coverage": "share of readings inside the interval",
    "width": "width of the interval, in the units of y",
    "accuracy": "share of labels predicted",
    "probability_accuracy": "mean probability of the observed label",
    "log_loss": "negative log probability, nats per label",
    "brier": "squared error of the probability",
    "calibration_error": "of the probabilities; 0 is perfect",
}


class Scores(Bunch):
    """How good predictions are: means over tasks, their standard errors and, in `per_task`, the values of every task.

    Printed, it is a table that says what each number means.
    """

    def __repr__(self) -> str:
        meanings = dict(MEANINGS)
        if "nominal_coverage" in self:
            meanings["coverage"] = f"share of readings inside the {self.nominal_coverage:.3g} interval"
        rows = []
        for name in (*self.per_task, "calibration_error"):
            error = self.get(f"{name}_se", np.nan)  # NaN for a single task
            number = f"{self[name]:.3g}" + (f" ± {error:.2g}" if np.isfinite(error) else "")
            rows.append((name, number, meanings[name]))
        first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
        table = [f"{name:<{first}}  {number:<{second}}  {meaning}" for name, number, meaning in rows]
        tasks = f"{self.n_tasks} test task{'s' * (self.n_tasks != 1)}"
        return "\n".join([f"Means over {tasks} ± standard error; per_task has the values of each.", *table])


def root_mean_square_error(y: np.ndarray, mean: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Return sqrt(1/n Σ_j (y_j − mean_j)²) of each task."""
    mask = check_mask(mask, {"y": y, "mean": mean})
    return np.asarray(np.sqrt(mean_over_queries(_subtract(y, mean, mask) ** 2, mask)))


def negative_log_likelihood(log_density: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Return −1/n Σ_j log p(y_j) of each task."""
    mask = check_mask(mask, {"log_density": log_density})
    return np.asarray(-mean_over_queries(log_density, mask))


def calibration_error(probability_integral_transform: np.ndarray, mask: np.ndarray | None = None) -> float:
    """Return the mean over p = 0.05, 0.10, ..., 0.95 of |F̂(p) − p|, where F̂(p) = 1/n Σ_j 1[u_j <= p].

    u_j = P(Y <= y_j) is the probability integral transform of query j, uniform if the prediction is right. The n
    queries of all tasks are pooled. Perfect is 0; half of the u_j at 0 and half at 1 (intervals far too narrow, no
    bias) is 9/38 ≈ 0.237; all of them at one end is 0.5.
    """
    mask = check_mask(mask, {"probability_integral_transform": probability_integral_transform})
    transform = np.sort(probability_integral_transform[mask])
    if not ((transform >= 0) & (transform <= 1)).all():
        raise ValueError("probability_integral_transform must lie in [0, 1]; got values outside, or nan")
    frequency = np.searchsorted(transform, CALIBRATION_LEVELS, side="right") / transform.size
    return float(np.mean(np.abs(frequency - CALIBRATION_LEVELS)))


def interval_coverage(
    y: np.ndarray, lower: np.ndarray, upper: np.ndarray, mask: np.ndarray | None = None
) -> np.ndarray:
    """Return the fraction of queries with lower <= y <= upper, of each task."""
    mask = check_mask(mask, {"y": y, "lower": lower, "upper": upper})
    return mean_over_queries(((lower <= y) & (y <= upper)).astype(np.float64), mask)


def interval_width(lower: np.ndarray, upper: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Return the mean of upper − lower of each task."""
    mask = check_mask(mask, {"lower": lower, "upper": upper})
    return mean_over_queries(_subtract(upper, lower, mask), mask)


def mean_and_standard_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean over tasks and its standard error s / √n, with s² = 1/(n − 1) Σ_i (v_i − mean)².

    The standard error of a single task is NaN.
    """
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"values must have shape (tasks,) with at least one task; got {values.shape}")
    values = values.astype(np.float64)
    standard_error = np.std(values, ddof=1) / np.sqrt(values.size) if values.size > 1 else np.nan
    return float(np.mean(values)), float(standard_error)


def summarize(
    mixture: Any, y: np.ndarray, mask: np.ndarray | None = None, coverage: float = 0.9
) -> dict[str, np.ndarray | float]:
    """Return 'rmse', 'nll', 'coverage' and 'width' of the central interval per task, and 'calibration_error'."""
    if y.shape != mixture.means.shape[1:]:
        raise ValueError(f"y must have shape {mixture.means.shape[1:]}, the mixture's points; got {y.shape}")
    mask = check_mask(mask, {"y": y})
    # A standard normal in place of padding, where an infinity would warn.
    y = np.where(mask, y, 0.0)
    mixture = dataclasses.replace(
        mixture, means=np.where(mask, mixture.means, 0.0), variances=np.where(mask, mixture.variances, 1.0)
    )
    lower, upper = mixture.interval(coverage)
    return {
        "rmse": root_mean_square_error(y, mixture.mean(), mask),
        "nll": negative_log_likelihood(mixture.log_density(y), mask),
        "coverage": interval_coverage(y, lower, upper, mask),
        "width": interval_width(lower, upper, mask),
        "calibration_error": calibration_error(mixture.cdf(y), mask),
    }


def report(summary: dict[str, Any], nominal_coverage: float | None = None) -> Scores:
    """Return means and standard errors over tasks of the result of `summarize` or `summarize_labels`."""
    per_task = {name: values for name, values in summary.items() if name != "calibration_error"}
    figures: dict[str, Any] = {} if nominal_coverage is None else {"nominal_coverage": nominal_coverage}
    for name, values in per_task.items():
        figures[name], figures[f"{name}_se"] = mean_and_standard_error(values)
    figures |= {"calibration_error": summary["calibration_error"], "per_task": Bunch(**per_task)}
    return Scores(**figures, n_tasks=len(next(iter(per_task.values()))))


def check_mask(mask: np.ndarray | None, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return the mask, all True for None; raise unless all shapes agree and every task has a query."""
    first, *others = arrays
    shape = arrays[first].shape
    if len(shape) == 0:
        raise ValueError(f"{first} must have queries on its last axis; got a scalar")
    for name in others:
        if arrays[name].shape != shape:
            raise ValueError(f"{name} must have the shape of {first} {shape}; got {arrays[name].shape}")
    if mask is None:
        mask = np.ones(shape, dtype=bool)
    if mask.shape != shape or mask.dtype != np.bool_:
        raise ValueError(f"mask must be boolean of shape {shape}; got {mask.dtype} of shape {mask.shape}")
    if mask.size == 0 or not mask.any(axis=-1).all():
        raise ValueError(f"{first} must have a valid query in every task; got a task with none")
    return mask


def _subtract(left: np.ndarray, right: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return left − right where the mask is True and zero elsewhere, where padding such as inf − inf would warn."""
    return np.subtract(left, right, out=np.zeros(mask.shape), where=mask)


def mean_over_queries(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the mean over queries of each task."""
    return np.asarray(np.mean(values, axis=-1, where=mask, dtype=np.float64))


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
