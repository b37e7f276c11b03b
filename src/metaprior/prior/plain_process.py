"""Exported tasks: the Gaussian process of a hierarchical prior for one task, with NumPy alone.

`task.export` copies this file, with `plain_readings` or `plain_labels`, in front of the arrays of a prior. Here the
arrays are missing: nothing in metaprior predicts with it. The formulas are those of `hierarchical_prior`, with scales,
whitening and the deviation of the target multiplied into the arrays.
"""

import base64
import math
import unicodedata
import warnings
from typing import Any, NamedTuple

import numpy as np

COLUMNS: list[str] | None = None  # names of the input columns
RANGE: Any = None  # the smallest and the largest value of every input column in the tasks of the fit, (2, columns)
LEVELS: list[list[Any] | None] | None = None  # of every input column, None for numbers; None: all are numbers
COVARIATES: list[int] = []  # columns that are constant within a task, and may be missing (None)
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


def as_cells(X: Any) -> np.ndarray:
    """Return inputs as they are given (n, columns): floats, or objects where some columns are categories."""
    X, n_columns = in_order(X), len(PRIORS[0]["x_mean"])
    cells = np.asarray(X, dtype=float if LEVELS is None else object)
    return cells.reshape(-1, n_columns) if cells.ndim == 1 and (n_columns == 1 or not cells.size) else cells


def in_order(X: Any) -> Any:
    """Return a data frame with the columns in the order of the fit; the names 0, 1, ... of an array's are none."""
    names = list(getattr(X, "columns", []))
    if names == list(range(len(names))) or (COLUMNS is None and all(isinstance(name, str) for name in names)):
        return X
    if COLUMNS is None or len(names) != len(COLUMNS) or any(name not in names for name in COLUMNS):
        raise ValueError(f"the names of the columns of X must be those of the fit, {COLUMNS}; got {names}.")
    return X.iloc[:, [names.index(name) for name in COLUMNS]] if hasattr(X, "iloc") else X[COLUMNS]


def as_inputs(X: Any) -> np.ndarray:
    """Return inputs as floats (n, columns)."""
    cells, n_columns = as_cells(X), len(PRIORS[0]["x_mean"])
    if cells.ndim != 2 or cells.shape[1] != n_columns:
        raise ValueError(f"X must have shape (n, {n_columns}); got {cells.shape}.")
    x = cells if LEVELS is None else as_codes(cells, LEVELS)
    finite = np.isfinite(x)
    finite[:, COVARIATES] |= np.isnan(x[:, COVARIATES])
    if not finite.all():
        raise ValueError("X must be finite.")
    return x


def as_codes(cells: np.ndarray, of_columns: list[list[Any] | None]) -> np.ndarray:
    """Return cells as floats: a level as its number, an unseen one as the number of levels, a missing cell as NaN."""
    x = np.full(cells.shape, np.nan)
    for column, levels in enumerate(of_columns):
        known = {spelled(level): code for code, level in enumerate(levels or [])}
        for row, cell in enumerate(cells[:, column].tolist()):
            cell = cell.item() if isinstance(cell, np.generic) else cell
            if cell is None or type(cell).__name__ in ("NAType", "NaTType") or cell != cell:
                continue
            if levels is None:
                x[row, column] = cell
            else:  # True equals 1, and 7 is spelled as "7"
                x[row, column] = levels.index(cell) if cell in levels else known.get(spelled(cell), len(levels))
    return x


def with_covariates(x: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Return inputs with the covariates of the context where they are missing; raise if they are others."""
    if not (COVARIATES and len(context)):
        return x
    given, known = x[:, COVARIATES], context[0, COVARIATES]
    if not (np.isnan(given) | (given == known)).all():
        raise ValueError("a task has one value of a covariate: it must be that of the context, or be missing.")
    x = x.copy()
    x[:, COVARIATES] = known
    return x


def check_constant(x: np.ndarray) -> np.ndarray:
    """Return the inputs of a context; raise if a covariate varies."""
    values = x[:, COVARIATES]
    if not ((values == values[:1]) | (np.isnan(values) & np.isnan(values[:1]))).all():
        raise ValueError("a task has one value of a covariate: it must be the same in all rows.")
    return x


def spelled(level: Any) -> str:
    """Return a level as text, whole numbers without a point: 7, 7.0 and "7" are one level."""
    return str(int(level)) if isinstance(level, float) and level.is_integer() else str(level)


def named(level: Any, known: list[Any]) -> str:
    """Return an unseen level in words, with the known one that differs in case, blanks or typography only."""
    plain = lambda each: " ".join(unicodedata.normalize("NFKC", spelled(each)).split()).casefold()  # noqa: E731
    near = next((each for each in known if plain(each) == plain(level)), None)
    return repr(level) if near is None else f"{level!a} (the fit has {near!a})"


def unseen_levels(X: Any, x: np.ndarray) -> str:
    """Return, in words, the levels among inputs that the prior was not fitted to."""
    cells, found = as_cells(X), []
    for column, levels in enumerate(LEVELS or []):
        rows = x[:, column] == len(levels or [])
        if levels is not None and rows.any():
            name = f"X[:, {column}]" if COLUMNS is None else repr(COLUMNS[column])
            new = [named(level, levels) for level in dict.fromkeys(cells[rows, column].tolist())]
            found.append(f"{name} is {', '.join(new)}")
    return f" Levels that the prior was not fitted to: {'; '.join(found)}." if found else ""


def extrapolates(X: Any) -> np.ndarray:
    """Tell which inputs are outside the range of the tasks that the prior was fitted to, by a tenth of it or more."""
    x = as_inputs(X)
    if RANGE is None or x.shape[1] > MAX_RANGED:
        return np.zeros(len(x), bool)
    lower, upper = RANGE
    allowed = np.maximum(0.1 * (upper - lower), 1e-9 * np.maximum(np.abs(lower), np.abs(upper)))
    outside = (x < lower - allowed) | (x > upper + allowed)
    for column, levels in enumerate(LEVELS or []):
        if levels is not None:
            outside[:, column] = x[:, column] == len(levels)
    return np.any(outside, axis=1)


def as_queries(X: Any) -> np.ndarray:
    """Return inputs to predict at; warn about those outside the range of the fit."""
    x, outside = as_inputs(X), extrapolates(X)
    if outside.any():
        where = f"Predictions extrapolate at {outside.sum()} of {len(outside)} inputs."
        warnings.warn(f"{where}{unseen_levels(X, x)}", stacklevel=3)
    return x


def standardized(prior: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Return inputs in the units of the prior, with a column for every level of a category."""
    numbers = (x - prior["x_mean"]) / prior["x_std"]
    x = numbers if LEVELS is None else expanded(numbers, x, prior["shares"])
    return x @ prior["x_map"] if "x_map" in prior else x


def expanded(numbers: np.ndarray, x: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return numbers, then categories, then covariates: levels as columns, less how frequent they are."""
    assert LEVELS is not None
    kinds = [
        (column in COVARIATES, column not in COVARIATES and levels is not None, column)
        for column, levels in enumerate(LEVELS)
    ]
    parts: list[np.ndarray] = []
    for is_covariate, _, column in sorted(kinds):
        levels, missing = LEVELS[column], np.isnan(x[:, column : column + 1])
        if levels is None:
            parts.append(np.where(missing, 0.0, numbers[:, column : column + 1]))
        else:
            start = sum(part.shape[1] for part in parts)
            share = shares[start : start + len(levels) + 1]
            is_level = x[:, column : column + 1] == np.arange(len(levels) + 1)
            parts.append(np.where(missing, 0.0, is_level - share))
        if is_covariate:
            parts.append(missing.astype(float))
    return np.concatenate(parts, axis=1)


def rbf(x: np.ndarray, z: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return exp(-|x - z|^2 / (2 length^2)) of all pairs, (n, m)."""
    pairs = zip((x / lengths).T, (z / lengths).T, strict=True)
    return np.exp(-0.5 * sum(np.subtract.outer(one, other) ** 2 for one, other in pairs))


def describe(prior: dict[str, Any], x: np.ndarray) -> Points:
    """Return what a prior says about standardized inputs (n, columns)."""
    covariates, x = x[:, prior["n_inputs"] :], x[:, : prior["n_inputs"]]
    lines, nothing = np.column_stack([np.ones(len(x)), x]), np.zeros((len(x), 0))
    features = network(prior["network"], x) if "network" in prior else nothing
    mean_curve = rbf(x, prior["points"], prior["mean_lengths"]) if "mean_lengths" in prior else nothing
    common = np.concatenate([lines, mean_curve, features], axis=1)
    if "bent" in prior:
        common = np.concatenate([common, *effects(prior, x, mean_curve, covariates)], axis=1)
    curve = common_curve(prior["curve"], x) if "curve" in prior else nothing
    if "removed" in prior:  # shapes: all functions of a task have one covariance
        to_points = rbf(x, prior["points"], prior["lengths"])
        own, removed = np.concatenate([lines, curve, to_points], axis=1), to_points @ prior["removed"]
    else:
        own, removed = np.concatenate([lines, curve, features], axis=1), nothing
    own = own @ prior["own"]
    fixed = np.concatenate([common @ prior["common_root"], own[:, : lines.shape[1]]], axis=1)
    return Points(x, common, fixed, own[:, lines.shape[1] :], removed)


def effects(prior: dict[str, Any], x: np.ndarray, mean_curve: np.ndarray, covariates: np.ndarray) -> list[np.ndarray]:
    """Return covariates, their products with inputs and with functions of the common curve, and curves of them."""
    functions = np.concatenate([x[:, : prior["n_numbers"]], mean_curve @ prior["bend_map"]], axis=1)
    bent = covariates[:, np.asarray(prior["bent"], dtype=int)]
    products = bent[:, :, None] * functions[:, None, :]
    curves = []
    for column in np.asarray(prior.get("curved", []), dtype=int).tolist():  # the next one tells missing values
        kernels = np.exp(-0.5 * np.subtract.outer(covariates[:, column], prior["curved_points"]) ** 2)
        missing = covariates[:, column + 1 : column + 2]
        curves += [(kernels - prior["curved_averages"]) * (1.0 - missing), missing]
    return [covariates, products.reshape(len(x), bent.shape[1] * functions.shape[1]), *curves]


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
