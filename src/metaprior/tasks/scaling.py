"""Standardisation learned from the meta-training tasks and undone in every prediction and density."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from metaprior.tasks.types import Task


class Scaling(NamedTuple):
    """x -> (x - x_mean) / x_std and y -> (y - y_mean) / y_std, in float64 on the host.

    Done before anything becomes float32, so that inputs of size 1e6 with a spread of one keep their digits.
    """

    x_mean: np.ndarray  # (input_dim,)
    x_std: np.ndarray  # (input_dim,)
    y_mean: np.ndarray  # ()
    y_std: np.ndarray  # ()

    def task(self, task: Task) -> Task:
        """Scale inputs and outputs of one task."""
        return Task(self.inputs(task.x), self.outputs(task.y))

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Scale inputs."""
        return (x - self.x_mean) / self.x_std

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
    for tasks, weight in zip(environments, weights, strict=True):
        if weight == 0:
            continue
        for task in tasks:
            x.append(task.x)
            y.append(task.y)
            sample_weights.append(np.full(len(task.y), weight / (len(tasks) * len(task.y))))
    share = np.concatenate(sample_weights)
    x_mean, x_std = _moments(np.concatenate(x), share)
    y_mean, y_std = _moments(np.concatenate(y)[:, None], share)
    return Scaling(x_mean, x_std, y_mean[0], y_std[0])


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
