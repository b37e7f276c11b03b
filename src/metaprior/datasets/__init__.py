"""Data to try metaprior on: the sinusoid of the paper, and the tables of `metaprior example`."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metaprior.checks import check_integer, check_positive, is_number
from metaprior.tasks.types import Task, TestTask

__all__ = ["Sinusoid"]

FREQUENCY = 1.5  # eq. groundtruth; the rest is eq. taskdistribution_source
SLOPE_MEAN, SLOPE_STD = 0.5, 0.2  # a
AMPLITUDE_MEAN, AMPLITUDE_HALF_WIDTH = 1.0, 0.3  # b ~ U(0.7, 1.3)
PHASE_STD = 0.1  # c
OFFSET_MEAN, OFFSET_STD = 5.0, 0.1  # d
INPUT_LOW, INPUT_HIGH = -5.0, 5.0  # x

Seed = int | np.random.Generator


class Functions(NamedTuple):
    """Functions f(x) = a x + b sin(1.5 (x - c)) + d of n tasks (eq. groundtruth), each parameter of shape (n,)."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    d: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the values (n, m) at x, of shape (n, m) or, for inputs common to all functions, (m,)."""
        a, b, c, d = (parameter[:, None] for parameter in self)
        return a * x + b * np.sin(FREQUENCY * (x - c)) + d


@dataclass(frozen=True)
class Sinusoid:
    """Tasks `y = a x + b sin(1.5 (x - c)) + d + noise`, whose source and target differ in the mean of the phase c.

    In both environments x ~ U(-5, 5), a ~ N(0.5, 0.2^2), b ~ U(0.7, 1.3), d ~ N(5, 0.1^2), and c has standard
    deviation 0.1 (eq. taskdistribution_source).

    Parameters
    ----------
    deviation : float, default=0.5
        Mean phase of the target minus that of the source.
    source_phase : float, default=0.0
        Mean phase of the source.
    noise_std : float, default=0.1
        Standard deviation of the observation noise.

    Examples
    --------
    >>> from metaprior.datasets import Sinusoid
    >>> X, y = Sinusoid(deviation=0.25).source_tasks(25, 5, rng=0)[0]
    >>> X.shape, y.shape
    ((5, 1), (5,))
    """

    deviation: float = 0.5
    source_phase: float = 0.0
    noise_std: float = 0.1

    def __post_init__(self):
        for name in ("deviation", "source_phase"):
            if not is_number(value := getattr(self, name)):
                raise ValueError(f"{name} must be a finite number; got {value!r}.")
        check_positive("noise_std", self.noise_std, limits=None)

    def source_functions(self, n_tasks: int, rng: Seed) -> Functions:
        """Draw task functions from the source environment."""
        return _draw_functions(self.source_phase, n_tasks, rng)

    def target_functions(self, n_tasks: int, rng: Seed) -> Functions:
        """Draw task functions from the target environment; with the same seed only c differs from the source's."""
        return _draw_functions(self.source_phase + self.deviation, n_tasks, rng)

    def observe(self, functions: Functions, n_samples: int, rng: Seed) -> tuple[np.ndarray, np.ndarray]:
        """Draw x ~ U(-5, 5) and y ~ N(f(x), noise_std^2), each of shape (n_functions, n_samples)."""
        check_integer("n_samples", n_samples, least=0)
        rng = np.random.default_rng(rng)
        x = rng.uniform(INPUT_LOW, INPUT_HIGH, (len(functions.a), n_samples))
        return x, functions(x) + self.noise_std * rng.standard_normal(x.shape)

    def source_tasks(self, n_tasks: int, n_samples: int, rng: Seed) -> list[Task]:
        """Draw meta-training tasks from the source environment.

        Parameters
        ----------
        n_tasks, n_samples : int
            Number of tasks, and of samples in each.
        rng : int or numpy.random.Generator
            Seed.

        Returns
        -------
        list of (X, y)
        """
        rng = np.random.default_rng(rng)
        x, y = self.observe(self.source_functions(n_tasks, rng), n_samples, rng)
        return list(map(Task, x[..., None], y))

    def target_tasks(self, n_tasks: int, n_samples: int, rng: Seed) -> list[Task]:
        """Draw meta-training tasks from the target environment; see `source_tasks`."""
        rng = np.random.default_rng(rng)
        x, y = self.observe(self.target_functions(n_tasks, rng), n_samples, rng)
        return list(map(Task, x[..., None], y))

    def test_tasks(self, n_tasks: int, n_context: int, n_query: int, rng: Seed) -> list[TestTask]:
        """Draw test tasks from the target environment.

        Parameters
        ----------
        n_tasks, n_context, n_query : int
            Number of tasks, and of context and query samples in each.
        rng : int or numpy.random.Generator
            Seed.

        Returns
        -------
        list of (X_context, y_context, X_query, y_query)
        """
        check_integer("n_context", n_context, least=0)
        check_integer("n_query", n_query, least=0)
        tasks = self.target_tasks(n_tasks, n_context + n_query, rng)
        return [TestTask(x[:n_context], y[:n_context], x[n_context:], y[n_context:]) for x, y in tasks]


def _draw_functions(phase_mean: float, n_tasks: int, rng: Seed) -> Functions:
    check_integer("n_tasks", n_tasks, least=0)
    rng = np.random.default_rng(rng)
    a = rng.normal(SLOPE_MEAN, SLOPE_STD, n_tasks)
    b = AMPLITUDE_MEAN + AMPLITUDE_HALF_WIDTH * rng.uniform(-1, 1, n_tasks)
    c = rng.normal(phase_mean, PHASE_STD, n_tasks)
    return Functions(a, b, c, rng.normal(OFFSET_MEAN, OFFSET_STD, n_tasks))
