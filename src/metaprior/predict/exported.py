"""The text of exported tasks: functions in place of SciPy's, the inputs, and the task of readings or of labels.

Nothing in metaprior runs this. `export` writes it after the modules that it imports, in front of the arrays of a prior,
which are missing here.
"""

import base64
import math
import unicodedata
import warnings
from statistics import NormalDist
from typing import Any

import numpy as np

from metaprior.likelihoods.gaussian import normal_quantile
from metaprior.linalg import log_sum_exp, stable_cholesky
from metaprior.prior.label_prior import LabelProcess
from metaprior.prior.process import Factors, Process, condition, moments
from metaprior.tasks.categories import ColumnKinds

FAR_LEFT = -35.0  # from which on the distribution function has an asymptotic series


def ndtr(z: np.ndarray) -> np.ndarray:
    """Return the standard normal distribution function."""
    return 0.5 * np.vectorize(math.erfc, otypes=[float])(-np.asarray(z) / math.sqrt(2.0))


def log_ndtr(z: np.ndarray) -> np.ndarray:
    """Return its logarithm."""
    w = 1.0 / np.minimum(z, FAR_LEFT) ** 2
    series = 1.0 - w * (1.0 - 3.0 * w * (1.0 - 5.0 * w * (1.0 - 7.0 * w)))
    tail = -0.5 / w + 0.5 * np.log(w / (2.0 * math.pi)) + np.log(series)
    return np.where(z < FAR_LEFT, tail, np.log(ndtr(np.maximum(z, FAR_LEFT))))


def ndtri(p: np.ndarray | float) -> np.ndarray:
    """Return its inverse."""
    inner = lambda each: NormalDist().inv_cdf(each) if 0.0 < each < 1.0 else math.copysign(math.inf, each - 0.5)  # noqa: E731
    return np.vectorize(inner, otypes=[float])(p)


def expit(t: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-t))."""
    return np.exp(log_expit(t))


def log_expit(t: np.ndarray) -> np.ndarray:
    """Return its logarithm."""
    return -np.logaddexp(0.0, -np.asarray(t, float))


def invert_roots(matrices: np.ndarray) -> None:
    """Overwrite symmetric matrices (..., n, n) with the inverses of their Cholesky factors."""
    matrices[...] = np.linalg.inv(stable_cholesky(matrices))


def triangular_inverses(factors: np.ndarray) -> np.ndarray:
    """Return the inverses of lower triangular matrices (..., n, n)."""
    return np.linalg.inv(factors)


def positive_inverses(matrices: np.ndarray) -> np.ndarray:
    """Return the inverses of symmetric, positive definite matrices (..., n, n)."""
    return np.linalg.inv(matrices)


COLUMNS: list[str] | None = None  # names of the input columns
RANGE: Any = None  # the smallest and the largest value of every input column in the tasks of the fit, (2, columns)
LEVELS: list[list[Any] | None] | None = None  # of every input column, None for numbers; None: all are numbers
COVARIATES: list[int] = []  # columns that are constant within a task, and may be missing (None)
MAX_RANGED = 20  # columns: of more, some are always beyond what they ever were
PRIORS: list[dict[str, Any]] = []  # the members of the prior, whose predictions are averaged
SPREAD = 1.0  # factor by which predictive distributions of readings are stretched about their means
CLASSES: list[Any] = []  # of labels


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
    """Return inputs in the units of the prior, with a column for every level of a category, (1, n, columns)."""
    numbers = (x - prior["x_mean"]) / prior["x_std"]
    if LEVELS is not None:
        kinds = ColumnKinds(tuple(len(levels or []) for levels in LEVELS), tuple(COVARIATES))
        numbers = kinds.expand(numbers, x, prior["shares"])
    return (numbers @ prior["x_map"] if "x_map" in prior else numbers)[None]


class TaskOfReadings:
    """The prior conditioned on the readings of a task; `X` has codes of levels, as `as_inputs` returns them."""

    def __init__(self, X: np.ndarray, y: Any):
        self.X, self.y = check_constant(X), np.asarray(y, dtype=float).ravel()
        if len(self.X) != len(self.y) or not np.isfinite(self.y).all():
            raise ValueError(f"y must be {len(self.X)} finite numbers, one for every row of X; got {self.y.shape}.")
        self._posteriors = [self._condition(prior) for prior in PRIORS]

    @np.errstate(under="ignore")  # whatever a program has set: densities may be 1e-400
    def _condition(self, prior: dict[str, Any]) -> Any:
        y = (self.y - prior["y_mean"]) / prior["y_std"]
        process, factors = Process(**prior["process"]), Factors(**prior["factors"])
        return condition(process, factors, standardized(prior, self.X), y[None], np.ones((1, len(y))))

    def update(self, X: Any, y: Any) -> "TaskOfReadings":
        """Condition on more readings."""
        x, y = with_covariates(as_inputs(X), self.X), np.asarray(y, dtype=float).ravel()
        return TaskOfReadings(np.concatenate([self.X, x]), np.concatenate([self.y, y]))

    def predict(self, X: Any, return_std: bool = False, latent: bool = False) -> Any:
        """Return the mean of new observations, and their standard deviation; `latent`: of the noise-free function."""
        means, variances, weights = self.components(X, latent)
        mean = weights @ means
        return (mean, np.sqrt(weights @ (variances + (means - mean) ** 2))) if return_std else mean

    @np.errstate(under="ignore")
    def quantile(self, X: Any, probability: float, latent: bool = False) -> np.ndarray:
        """Return a quantile of the predictive distribution at each input."""
        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability must lie strictly between 0 and 1; got {probability}.")
        means, variances, weights = self.components(X, latent)
        return normal_quantile(means, np.sqrt(variances), np.repeat(weights[:, None], means.shape[1], 1), probability)

    def interval(self, X: Any, coverage: float = 0.9, latent: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the central interval of the predictive distribution."""
        low, high = (self.quantile(X, 0.5 + sign * 0.5 * coverage, latent) for sign in (-1, 1))
        return low, high

    def extrapolates(self, X: Any) -> np.ndarray:
        """Tell which inputs are outside the range of the tasks that the prior was fitted to."""
        return extrapolates(X)

    def components(self, X: Any, latent: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return means and variances of the Gaussians of the prediction, (components, n), and their weights."""
        x = with_covariates(as_queries(X), self.X)
        parts = [self._member(*pair, x, latent) for pair in zip(PRIORS, self._posteriors, strict=True)]
        means, variances, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
        center = weights @ means
        return center + SPREAD * (means - center), SPREAD**2 * variances, weights

    @np.errstate(under="ignore")
    def _member(self, prior: dict[str, Any], posterior: Any, x: np.ndarray, latent: bool) -> tuple[np.ndarray, ...]:
        """Return means, variances and weights of the predictions of one prior, in the units of y."""
        factors = Factors(**prior["factors"])
        mean, variance = moments(Process(**prior["process"]), factors.scales, posterior, standardized(prior, x))
        variance = variance[:, 0] + (0.0 if latent else factors.noise[:, None])
        weights = prior["weight"] * np.exp(posterior.log_weights[:, 0])
        return mean[:, 0] * prior["y_std"] + prior["y_mean"], variance * prior["y_std"] ** 2, weights


class LabeledTask:
    """The prior conditioned on the labels of a task; `X` has codes of levels, as `as_inputs` returns them."""

    def __init__(self, X: np.ndarray, y: Any, classes: Any = None):
        self.classes_ = list(CLASSES if classes is None else classes)
        self.X, self.y = check_constant(X), list(y)
        unknown = [label for label in self.y if label not in self.classes_]
        if unknown or len(self.X) != len(self.y):
            raise ValueError(f"y must be {len(self.X)} labels of {self.classes_}; got {len(self.y)}, {unknown[:1]}.")
        self._posteriors = [self._condition(prior) for prior in PRIORS]

    @np.errstate(under="ignore")  # whatever a program has set: probabilities may be 1e-400
    def _condition(self, prior: dict[str, Any]) -> Any:
        codes, n_classes = np.array([[self.classes_.index(label) for label in self.y]], int), len(self.classes_)
        rule = prior["process"]["common_mean"]
        if len(rule) and len(rule) != (1 if n_classes == 2 else n_classes):
            raise ValueError("classes must be those of the fit: the prior has a rule by which they are told apart.")
        given = standardized(prior, self.X), codes, np.ones(codes.shape), np.array([n_classes])
        return as_labels(prior).condition(*given)

    def update(self, X: Any, y: Any) -> "LabeledTask":
        """Condition on more labels."""
        x = with_covariates(as_inputs(X), self.X)
        return LabeledTask(np.concatenate([self.X, x]), [*self.y, *y], self.classes_)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each input."""
        return np.array(self.classes_)[np.argmax(self.predict_log_proba(X), axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities (n, classes), in the order of `classes_`."""
        probabilities = np.exp(self.predict_log_proba(X))
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    @np.errstate(under="ignore")
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return logarithms of class probabilities."""
        x, logs = with_covariates(as_queries(X), self.X), []
        for prior, posterior in zip(PRIORS, self._posteriors, strict=True):
            found = as_labels(prior).log_probabilities(posterior, standardized(prior, x))
            logs.append(math.log(prior["weight"]) + found[0])
        return log_sum_exp(np.array(logs), axis=0)

    def extrapolates(self, X: Any) -> np.ndarray:
        """Tell which inputs are outside the range of the tasks that the prior was fitted to."""
        return extrapolates(X)


def as_labels(prior: dict[str, Any]) -> LabelProcess:
    """Return the latent functions of a member."""
    return LabelProcess(Process(**prior["process"]), prior["factor"], prior["ratio"], prior["shrink"])
