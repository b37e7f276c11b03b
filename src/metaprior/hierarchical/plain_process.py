"""Exported tasks: the Gaussian process of a hierarchical prior for one task, with NumPy alone.

`task.export` copies this file, with `plain_readings` or `plain_labels`, in front of the arrays of a prior. Here the
arrays are missing: nothing in metaprior predicts with it. The formulas are those of `hierarchical_prior`, with scales,
whitening and the deviation of the target multiplied into the arrays.
"""

import base64
import math
import warnings
from typing import Any, NamedTuple

import numpy as np

COLUMNS: list[str] | None = None  # names of the input columns
RANGE: Any = None  # the smallest and the largest value of every input column in the tasks of the fit, (2, columns)
MAX_RANGED = 20  # columns: of more, some are always beyond what they ever were
PRIORS: list[dict[str, Any]] = []  # the members of the prior, whose predictions are averaged
ROUNDING = 2.0 ** (-52 * 2 / 3)  # of a variance, below which differences are noise
NOISE_FLOOR = 1e-8  # of the noise variance, relative to the variance of y


class Points(NamedTuple):
    """What a prior says about inputs: the covariance is A A' + f^2 (B B' + v k(x, x') - C C'), with a factor f."""

    x: np.ndarray  # standardized
    common: np.ndarray  # basis functions of the mean that all tasks have in common
    fixed: np.ndarray  # A
    scaled: np.ndarray  # B
    removed: np.ndarray  # C


def as_array(text: str, shape: tuple[int, ...]) -> np.ndarray:
    """Read an array from its bytes, 64-bit numbers in base 64."""
    return np.frombuffer(base64.b64decode(text), "<f8").reshape(shape)


def as_inputs(X: Any) -> np.ndarray:
    """Return inputs as floats (n, columns)."""
    if COLUMNS is not None and hasattr(X, "columns"):
        X = X[COLUMNS]
    n_columns = len(PRIORS[0]["x_mean"])
    x = np.asarray(X, dtype=float)
    x = x.reshape(-1, n_columns) if x.ndim == 1 and (n_columns == 1 or not x.size) else x
    if x.ndim != 2 or x.shape[1] != n_columns:
        raise ValueError(f"X must have shape (n, {n_columns}); got {x.shape}.")
    if not np.isfinite(x).all():
        raise ValueError("X must be finite.")
    return x


def extrapolates(X: Any) -> np.ndarray:
    """Tell which inputs are outside the range of the tasks that the prior was fitted to, by a tenth of it or more."""
    x = as_inputs(X)
    if RANGE is None or x.shape[1] > MAX_RANGED:
        return np.zeros(len(x), bool)
    lower, upper = RANGE
    allowed = np.maximum(0.1 * (upper - lower), 1e-9 * np.maximum(np.abs(lower), np.abs(upper)))
    return np.any((x < lower - allowed) | (x > upper + allowed), axis=1)


def as_queries(X: Any) -> np.ndarray:
    """Return inputs to predict at; warn about those outside the range of the fit."""
    outside = extrapolates(X)
    if outside.any():
        warnings.warn(f"Predictions extrapolate at {outside.sum()} of {len(outside)} inputs.", stacklevel=3)
    return as_inputs(X)


def standardized(prior: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Return inputs in the units of the prior."""
    x = (x - prior["x_mean"]) / prior["x_std"]
    return x @ prior["x_map"] if "x_map" in prior else x


def rbf(x: np.ndarray, z: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return exp(-|x - z|^2 / (2 length^2)) of all pairs, (n, m)."""
    pairs = zip((x / lengths).T, (z / lengths).T, strict=True)
    return np.exp(-0.5 * sum(np.subtract.outer(one, other) ** 2 for one, other in pairs))


def describe(prior: dict[str, Any], x: np.ndarray) -> Points:
    """Return what a prior says about standardized inputs (n, columns)."""
    lines, nothing = np.column_stack([np.ones(len(x)), x]), np.zeros((len(x), 0))
    features = network(prior["network"], x) if "network" in prior else nothing
    mean_curve = rbf(x, prior["points"], prior["mean_lengths"]) if "mean_lengths" in prior else nothing
    common = np.concatenate([lines, mean_curve, features], axis=1)
    curve = common_curve(prior["curve"], x) if "curve" in prior else nothing
    if "removed" in prior:  # shapes: all functions of a task have one covariance
        to_points = rbf(x, prior["points"], prior["lengths"])
        own, removed = np.concatenate([lines, curve, to_points], axis=1), to_points @ prior["removed"]
    else:
        own, removed = np.concatenate([lines, curve, features], axis=1), nothing
    own = own @ prior["own"]
    fixed = np.concatenate([common @ prior["common_root"], own[:, : lines.shape[1]]], axis=1)
    return Points(x, common, fixed, own[:, lines.shape[1] :], removed)


def network(layers: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return learned features, of two hidden layers."""
    x = np.tanh(x @ layers["first"] / math.sqrt(len(layers["first"])) + layers["first_bias"])
    x = np.tanh(x @ layers["second"] / math.sqrt(len(layers["second"])) + layers["second_bias"])
    return x @ layers["last"] / math.sqrt(len(layers["last"]))


def common_curve(curve: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Return the curve that tasks scale and shift, and its slopes along the inputs."""
    kernel = rbf(x, curve["points"], curve["lengths"])
    value = kernel @ curve["weights"]
    functions = [curve["line"][0] + x @ curve["line"][1:] + value]
    for j in range(curve["n_slopes"]):
        pulled = value * x[:, j] - kernel @ (curve["weights"] * curve["points"][:, j])
        functions.append(curve["line"][1 + j] - pulled / curve["lengths"][j] ** 2)
    return np.stack(functions, axis=1)


def covariance(prior: dict[str, Any], left: Points, right: Points) -> tuple[np.ndarray, np.ndarray]:
    """Return the covariance without noise: the fixed part, and the part that a factor multiplies."""
    scaled = left.scaled @ right.scaled.T - left.removed @ right.removed.T
    if "lengths" in prior:
        scaled += prior["smooth_variance"] * rbf(left.x, right.x, prior["lengths"])
    return left.fixed @ right.fixed.T, scaled


def variance(prior: dict[str, Any], points: Points) -> tuple[np.ndarray, np.ndarray]:
    """Return the diagonals of both parts."""
    scaled = np.sum(points.scaled**2, axis=1) - np.sum(points.removed**2, axis=1)
    return np.sum(points.fixed**2, axis=1), scaled + prior.get("smooth_variance", 0.0)


def stable_cholesky(matrix: np.ndarray) -> np.ndarray:
    """Return a Cholesky factor, with as much added to the diagonal as rounding makes necessary."""
    for jitter in (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4):
        try:
            return np.linalg.cholesky(matrix + np.diag(jitter * np.diagonal(matrix)))
        except np.linalg.LinAlgError:
            continue
    return np.linalg.cholesky(matrix + np.diag(1e-2 * np.diagonal(matrix)))


def erfc(z: np.ndarray) -> np.ndarray:
    """Return the complementary error function."""
    return np.vectorize(math.erfc, otypes=[float])(z)
