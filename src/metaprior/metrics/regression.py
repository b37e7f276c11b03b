"""Metrics of predicted numbers: error, likelihood, calibration and intervals.

Arrays have queries on the last axis and tasks before it. Tasks of unequal size are padded and come with a boolean
`mask` of the same shape, True where a query is real; None means that all are. Padding may hold anything, NaN included.
"""

import dataclasses
from typing import Any

import numpy as np
from sklearn.utils import Bunch

CALIBRATION_LEVELS = np.arange(1, 20) / 20


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


def report(summary: dict[str, Any]) -> Bunch:
    """Return means and standard errors over tasks of the result of `summarize` or `summarize_labels`."""
    per_task = {name: values for name, values in summary.items() if name != "calibration_error"}
    figures: dict[str, Any] = {}
    for name, values in per_task.items():
        figures[name], figures[f"{name}_se"] = mean_and_standard_error(values)
    n_tasks = len(next(iter(per_task.values())))
    return Bunch(**figures, calibration_error=summary["calibration_error"], n_tasks=n_tasks, per_task=Bunch(**per_task))


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
