"""Standardization fitted to the meta-training tasks, and inverted in predictions."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.tasks.categories import ColumnKinds
from metaprior.tasks.types import Task

MAX_SCALED = 1e100  # standard deviations from the mean: squares must not overflow
MAX_SPREAD = 1e150  # of y, and one over it the least: variances must be numbers too
ROUNDING = 1e-14  # relative to the largest value of a column, which is constant if it varies by less
MAX_DECORRELATED = 1024  # input columns; the work grows with their cube


class Scaling(NamedTuple):
    """x -> (x - x_mean) / x_std [@ x_map] and y -> (y - y_mean) / y_std, in float64 on the host.

    With categories or covariates, the columns of X are expanded as `kinds` says, before they are decorrelated.
    """

    x_mean: np.ndarray  # (input_dim,), 0 for categories
    x_std: np.ndarray  # (input_dim,), 1 for categories
    y_mean: np.ndarray  # ()
    y_std: np.ndarray  # ()
    x_map: np.ndarray | None = None  # (width, width), if inputs are decorrelated
    kinds: ColumnKinds | None = None  # None: all columns are numbers
    shares: np.ndarray | None = None  # (width,), of the levels of categories

    @property
    def width(self) -> int:
        """Number of columns of scaled inputs."""
        return len(self.x_mean) if self.kinds is None else sum(self.kinds.widths)

    def task(self, task: Task) -> Task:
        """Scale inputs and outputs of one task."""
        return Task(self.inputs(task.x), self.outputs(task.y))

    def tasks(self, tasks: Sequence[Task]) -> list[Task]:
        """Scale inputs and outputs of tasks, all at once."""
        if not tasks:
            return []
        x, y = zip(*tasks, strict=True)
        return [Task(*pair) for pair in zip(_at_once(self.inputs, x), _at_once(self.outputs, y), strict=True)]

    def inputs_of(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Scale arrays of inputs, one or more, all at once."""
        return _at_once(self.inputs, arrays)

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Scale inputs."""
        if self.kinds is None or self.shares is None:
            scaled = _standardized("X", "inputs", x, self.x_mean, self.x_std)
        else:
            present = np.where(np.isnan(x), self.x_mean, x)
            numbers = _standardized("X", "inputs", present, self.x_mean, self.x_std)
            scaled = self.kinds.expand(numbers, x, self.shares)
        return scaled if self.x_map is None else scaled @ self.x_map

    def outputs(self, y: np.ndarray, name: str = "y") -> np.ndarray:
        """Scale outputs; errors call them by the name."""
        return _standardized(name, "outputs", y, self.y_mean, self.y_std)

    def undo_mean(self, mean: np.ndarray) -> np.ndarray:
        """Convert a mean, sample or quantile to the units of y."""
        return mean * self.y_std + self.y_mean

    def undo_variance(self, variance: np.ndarray) -> np.ndarray:
        """Convert a variance or covariance to the units of y."""
        return variance * self.y_std**2


def identity_scaling(input_dim: int, kinds: ColumnKinds | None = None) -> Scaling:
    """Return a scaling that changes nothing but the form of categories and covariates."""
    shares = None if kinds is None else np.zeros(sum(kinds.widths))
    unit = np.zeros(input_dim), np.ones(input_dim), np.asarray(0.0), np.asarray(1.0)
    return Scaling(*unit, kinds=kinds, shares=shares)


def fit_scaling(
    environments: Sequence[Sequence[Task]], weights: Sequence[float], kinds: ColumnKinds | None = None
) -> Scaling:
    """Standardize by the mean and standard deviation of samples weighted as in the loss, w_e / (N_e M_i).

    An environment with weight zero has no effect: alpha = 0 is exactly target-only.
    """
    tasks = [task for task, _ in _weighted_tasks(environments, weights)]
    of_samples = sample_weights(environments, weights)
    of_samples = of_samples[of_samples > 0]
    rows = np.concatenate([np.column_stack([task.x, task.y]) for task in tasks])
    columns, share = (rows, 1.0) if kinds is None else _present(rows, of_samples)
    # A power of two, so that dividing by it changes no digit. It keeps the squares of 1e200 and 1e-200 in range.
    size = np.ldexp(1.0, np.frexp(np.max(np.abs(columns), axis=0))[1] - 1)
    # Relative to the first row, because 1e9 + 1e-3 and its neighbors have few digits that differ.
    unit, weight = columns / size - columns[0] / size, of_samples / of_samples.sum()
    mean = weight @ unit
    std = np.sqrt(weight @ (unit - mean) ** 2 / share)
    scaling = scaling_of(size, columns[0] / size + mean, std, columns[0])
    return scaling if kinds is None else with_kinds(scaling, kinds, kinds.shares(rows[:, :-1], of_samples))


def sample_weights(environments: Sequence[Sequence[Task]], weights: Sequence[float]) -> np.ndarray:
    """Return the weight w_e / (N_e M_i) of every sample, of one task after another."""
    pairs = [
        (weight / len(tasks) / len(task.y), len(task.y))
        for tasks, weight in zip(environments, weights, strict=True)
        for task in tasks
    ]
    return np.repeat([weight for weight, _ in pairs], [size for _, size in pairs])


def output_scaling(tasks: Sequence[Task]) -> Scaling:
    """Return the scaling of y alone; it handles constant and very large readings."""
    return fit_scaling([[Task(task.x[:, :0], task.y) for task in tasks]], [1.0])


def with_kinds(scaling: Scaling, kinds: ColumnKinds, shares: np.ndarray) -> Scaling:
    """Return a scaling of numbers with categories and covariates."""
    mean, std = np.where(kinds.is_number, scaling.x_mean, 0.0), np.where(kinds.is_number, scaling.x_std, 1.0)
    return scaling._replace(x_mean=mean, x_std=std, kinds=kinds, shares=shares)


def _present(columns: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return columns with their weighted means in place of missing values, and the share of values that are there."""
    there = ~np.isnan(columns)
    share = np.maximum(weights @ there, 1e-300)
    means = weights @ np.where(there, columns, 0.0) / share
    return np.where(there, columns, means), share / weights.sum()


def scaling_of(size: np.ndarray, mean: np.ndarray, std: np.ndarray, first: np.ndarray) -> Scaling:
    """Return the scaling by mean and standard deviation of all columns, y the last, in units of their sizes.

    A column that varies by less than rounding is constant, and has its `first` value: dividing by its spread would
    amplify noise.
    """
    constant = std <= ROUNDING
    mean, std = np.where(constant, first, mean * size), np.where(constant, 1.0, std * size)
    if not 1.0 / MAX_SPREAD <= std[-1] <= MAX_SPREAD:
        limits = f"between {1.0 / MAX_SPREAD:g} and {MAX_SPREAD:g}, so that its variance is a number"
        raise ValueError(f"y must have a standard deviation {limits}; it is {std[-1]:.3g}. Change the units of y.")
    if abs(mean[-1]) > MAX_SPREAD:  # constant, or nearly
        raise ValueError(
            f"y must have a mean of at most {MAX_SPREAD:g} in size; it is {mean[-1]:.3g}. Change its units."
        )
    return Scaling(mean[:-1], std[:-1], mean[-1], std[-1])


def fit_label_scaling(
    environments: Sequence[Sequence[Task]], weights: Sequence[float], within: bool, kinds: ColumnKinds | None = None
) -> Scaling:
    """Standardize the inputs of classification tasks; codes of labels stay as they are.

    With `within`, inputs are also divided by their standard deviation within the classes of a task and decorrelated by
    the correlations R within classes. R is shrunk to (1 - s) R + s I as by Ledoit and Wolf, with tasks in place of
    samples: s^2 = (variance of the mean of the tasks' R_i) / ||R - I||^2. Their shrinkage is this s^2, optimal for R.
    For its inverse, which is used here, the larger s is better with tasks of one environment and slightly worse with
    two (`studies/benchmarks/fewshot.py --study shrinkage`).
    """
    plain = fit_scaling(environments, weights, kinds)._replace(y_mean=np.asarray(0.0), y_std=np.asarray(1.0))
    input_dim = plain.width
    if not within or input_dim > MAX_DECORRELATED:
        return plain
    tasks = [(_class_residuals(plain.task(task)), weight) for task, weight in _weighted_tasks(environments, weights)]
    tasks = [(rows, weight) for rows, weight in tasks if len(rows)]
    if not tasks:
        return plain._replace(x_map=np.eye(input_dim))  # one sample per class does not show the spread
    share = np.array([weight for _, weight in tasks])
    share = share / share.sum()
    variance = share @ np.stack([np.mean(rows**2, axis=0) for rows, _ in tasks])
    varies = variance > 1e-12  # a column that is constant within classes is not scaled
    spread = np.sqrt(variance[varies])
    x_map = np.eye(input_dim)
    if varies.any():
        correlations = _shrunk_correlations([rows[:, varies] / spread for rows, _ in tasks], share)
        eigenvalues, vectors = np.linalg.eigh(correlations)
        root = np.sqrt(np.maximum(eigenvalues, 1e-6))
        x_map[np.ix_(varies, varies)] = ((vectors / root) @ vectors.T) / spread[:, None]
    return plain._replace(x_map=x_map)


def _shrunk_correlations(tasks: Sequence[np.ndarray], share: np.ndarray) -> np.ndarray:
    """Return (1 - s) R + s I, where R is the weighted mean of the second moments R_i of the tasks' rows."""
    identity = np.eye(tasks[0].shape[1])
    mean = sum((weight / len(rows) * (rows.T @ rows) for rows, weight in zip(tasks, share, strict=True)), 0 * identity)
    # ||R_i - R||^2 = ||R_i||^2 - 2 <R_i, R> + ||R||^2, without storing the R_i of possibly very many tasks.
    norms = [np.sum((rows @ rows.T) ** 2) / len(rows) ** 2 for rows in tasks]
    products = [np.sum((rows @ mean) * rows) / len(rows) for rows in tasks]
    deviations = np.array(norms) - 2.0 * np.array(products) + np.sum(mean**2)
    concentration = np.sum(share**2)  # one over the effective number of tasks
    if concentration > 1.0 - 1e-9:
        return identity  # one task does not show how tasks differ
    variance = concentration * (share @ deviations) / (1.0 - concentration)  # unbiased if tasks vary alike
    distance = np.sum((mean - identity) ** 2)
    if distance == 0.0:  # one column
        return identity
    shrinkage = 1.0 if variance >= distance else np.sqrt(max(variance, 0.0) / distance)
    return (1.0 - shrinkage) * mean + shrinkage * identity


def _weighted_tasks(environments: Sequence[Sequence[Task]], weights: Sequence[float]) -> Iterator[tuple[Task, float]]:
    """Yield every task with a positive weight w_e / N_e, and the weight."""
    for tasks, weight in zip(environments, weights, strict=True):
        if weight > 0:
            yield from ((task, weight / len(tasks)) for task in tasks)


def _class_residuals(task: Task) -> np.ndarray:
    """Return the inputs minus the mean of their class, of classes with two or more samples, with unbiased variance."""
    rows = [np.empty((0, task.x.shape[1]))]
    for label in np.unique(task.y):
        x = task.x[task.y == label]
        if len(x) > 1:
            rows.append((x - x.mean(axis=0)) * np.sqrt(len(x) / (len(x) - 1)))
    return np.concatenate(rows)


def _at_once(scale: Callable[[np.ndarray], np.ndarray], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    ends = np.cumsum([len(each) for each in arrays])[:-1].tolist()
    return np.split(scale(np.concatenate(arrays)), ends)


def _standardized(name: str, kind: str, values: np.ndarray, mean: Any, std: Any) -> np.ndarray:
    with np.errstate(over="ignore"):
        scaled = (values - mean) / std
    if np.max(np.abs(scaled), initial=0.0) > MAX_SCALED:
        limit = f"{MAX_SCALED:g} standard deviations from the meta-training {kind}"
        raise ValueError(f"{name} is more than {limit}. Check its units.")
    return scaled
