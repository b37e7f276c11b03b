"""Standardization learned from the meta-training tasks and undone in every prediction and density."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from metaprior.tasks.types import Task

LARGEST = 1e100  # scaled inputs; their squares must not overflow
MAX_DECORRELATED = 1024  # input columns; the work grows with their cube


class Scaling(NamedTuple):
    """x -> (x - x_mean) / x_std [x_map] and y -> (y - y_mean) / y_std, in float64 on the host.

    Done before anything becomes float32, so that inputs of size 1e6 with a spread of one keep their digits.
    """

    x_mean: np.ndarray  # (input_dim,)
    x_std: np.ndarray  # (input_dim,)
    y_mean: np.ndarray  # ()
    y_std: np.ndarray  # ()
    x_map: np.ndarray | None = None  # (input_dim, input_dim), where inputs are decorrelated too

    def task(self, task: Task) -> Task:
        """Scale inputs and outputs of one task."""
        return Task(self.inputs(task.x), self.outputs(task.y))

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Scale inputs."""
        with np.errstate(over="ignore"):
            scaled = (x - self.x_mean) / self.x_std
        if np.max(np.abs(scaled), initial=0.0) > LARGEST:
            raise ValueError(
                f"X lies more than {LARGEST:g} standard deviations from the meta-training inputs. Check its units."
            )
        return scaled if self.x_map is None else scaled @ self.x_map

    def outputs(self, y: np.ndarray) -> np.ndarray:
        """Scale outputs."""
        return (y - self.y_mean) / self.y_std

    def undo_mean(self, mean: np.ndarray) -> np.ndarray:
        """Bring a mean (or a sample, or a quantile) back to the units of y."""
        return mean * self.y_std + self.y_mean

    def undo_variance(self, variance: np.ndarray) -> np.ndarray:
        """Bring a variance or covariance back to the units of y."""
        return variance * self.y_std**2


def identity_scaling(input_dim: int) -> Scaling:
    """Leave everything as it is."""
    return Scaling(np.zeros(input_dim), np.ones(input_dim), np.asarray(0.0), np.asarray(1.0))


def fit_scaling(environments: Sequence[Sequence[Task]], weights: Sequence[float]) -> Scaling:
    """Weighted mean and standard deviation of all samples.

    A sample weighs as much as it does in the weighted meta-training loss, w_e / (N_e M_i). So an environment of
    weight zero leaves no trace (alpha = 0 is exactly target-only), and equal task weights are exactly pooling.
    """
    x, y, sample_weights = [], [], []
    for task, weight in _weighted(environments, weights):
        x.append(task.x)
        y.append(task.y)
        sample_weights.append(np.full(len(task.y), weight / len(task.y)))
    share = np.concatenate(sample_weights)
    x_mean, x_std = _moments(np.concatenate(x), share)
    y_mean, y_std = _moments(np.concatenate(y)[:, None], share)
    return Scaling(x_mean, x_std, y_mean[0], y_std[0])


def fit_label_scaling(environments: Sequence[Sequence[Task]], weights: Sequence[float], within: bool) -> Scaling:
    """The scaling of inputs whose y are labels 0 and 1, which stay as they are.

    `within` makes a unit of how samples of one class of one task differ, in every direction: inputs are divided by
    their standard deviation within classes and decorrelated by its correlations R. That is what tells a difference
    between classes from one within them, and many small tasks know it far better than one does. R is shrunk,
    (1 - s) R + s I, after Ledoit and Wolf with tasks in the place of samples: s^2 = variance of the mean of the tasks'
    R_i / ||R - I||^2. So few tasks, or tasks that disagree, leave inputs as they are. Theirs is s, not s^2, for R
    itself. What is used is its inverse, to which small eigenvalues matter most: tasks of one environment do better
    with the larger s, those of two a little worse (`studies/benchmarks/fewshot.py --study shrinkage`).
    """
    plain = fit_scaling(environments, weights)._replace(y_mean=np.asarray(0.0), y_std=np.asarray(1.0))
    input_dim = len(plain.x_mean)
    if not within or input_dim > MAX_DECORRELATED:
        return plain
    tasks = [(_residuals(plain.task(task)), weight) for task, weight in _weighted(environments, weights)]
    tasks = [(rows, weight) for rows, weight in tasks if len(rows)]
    if not tasks:
        return plain._replace(x_map=np.eye(input_dim))  # a sample per class says nothing of the spread within
    share = np.array([weight for _, weight in tasks])
    share = share / share.sum()
    variance = share @ np.stack([np.mean(rows**2, axis=0) for rows, _ in tasks])
    varies = variance > 1e-12  # a column that is constant within classes has no unit there: it stays as it is
    spread = np.sqrt(variance[varies])
    x_map = np.eye(input_dim)
    if varies.any():
        correlations = _shrunk_correlations([rows[:, varies] / spread for rows, _ in tasks], share)
        eigenvalues, vectors = np.linalg.eigh(correlations)
        root = np.sqrt(np.maximum(eigenvalues, 1e-6))
        x_map[np.ix_(varies, varies)] = ((vectors / root) @ vectors.T) / spread[:, None]
    return plain._replace(x_map=x_map)


def _shrunk_correlations(tasks: Sequence[np.ndarray], share: np.ndarray) -> np.ndarray:
    """(1 - s) R + s I, where R is the weighted mean of the tasks' R_i, the second moments of their rows."""
    identity = np.eye(tasks[0].shape[1])
    mean = sum((weight / len(rows) * (rows.T @ rows) for rows, weight in zip(tasks, share, strict=True)), 0 * identity)
    # ||R_i - R||^2 without forming R_i, of which there may be very many: ||R_i||^2 - 2 <R_i, R> + ||R||^2.
    norms = [np.sum((rows @ rows.T) ** 2) / len(rows) ** 2 for rows in tasks]
    products = [np.sum((rows @ mean) * rows) / len(rows) for rows in tasks]
    deviations = np.array(norms) - 2.0 * np.array(products) + np.sum(mean**2)
    concentration = np.sum(share**2)  # one over the effective number of tasks
    if concentration > 1.0 - 1e-9:
        return identity  # one task: nothing is known of how tasks differ
    of_mean = concentration * (share @ deviations) / (1.0 - concentration)  # unbiased where tasks vary alike
    distance = np.sum((mean - identity) ** 2)
    shrinkage = 1.0 if of_mean >= distance else np.sqrt(max(of_mean, 0.0) / distance)
    return (1.0 - shrinkage) * mean + shrinkage * identity


def _weighted(environments: Sequence[Sequence[Task]], weights: Sequence[float]) -> Iterator[tuple[Task, float]]:
    """Every task of an environment that counts, with its weight w_e / N_e."""
    for tasks, weight in zip(environments, weights, strict=True):
        if weight > 0:
            yield from ((task, weight / len(tasks)) for task in tasks)


def _residuals(task: Task) -> np.ndarray:
    """What is left of the inputs of each class with two samples or more less its mean, of unbiased variance."""
    rows = [np.empty((0, task.x.shape[1]))]
    for label in (0.0, 1.0):
        x = task.x[task.y == label]
        if len(x) > 1:
            rows.append((x - x.mean(axis=0)) * np.sqrt(len(x) / (len(x) - 1)))
    return np.concatenate(rows)


def _moments(values: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    share = share / share.sum()
    # Dividing by the largest magnitude first keeps the squares of 1e200 and of 1e-200 in range.
    size = np.max(np.abs(values), axis=0)
    size = np.where(size > 0, size, 1.0)
    unit = values / size
    mean = share @ unit
    std = np.sqrt(share @ (unit - mean) ** 2)
    # A column that varies by less than rounding is constant: dividing by its "spread" would only amplify noise.
    constant = std <= 1e-12
    return np.where(constant, values[0], mean * size), np.where(constant, 1.0, std * size)
