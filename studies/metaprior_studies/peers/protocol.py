"""What a contestant is: it learns from source and target tasks, then predicts queries of new tasks from their contexts.

Fitting and predicting are separate calls, so no contestant sees a test task while it learns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from metaprior.predict.predictive import GaussianMixture, Predictive
from metaprior.tasks.types import Task, TestTask

Array = np.ndarray
Tasks = Sequence[Task]
SMALLEST_VARIANCE = (
    1e-4  # of a prediction, of the variance of y: a peer that found no noise is not punished without end
)
Predict = Callable[
    [Tasks, Sequence[Array]], list[GaussianMixture] | list[Predictive]
]  # contexts, inputs of queries -> predictives


class Fitted(NamedTuple):
    """A fitted contestant: predictions of new target tasks, and a few words on what it chose."""

    predict: Predict
    choice: str = ""


Contestant = Callable[[Tasks, Tasks, int], Fitted]  # source tasks, target tasks, seed


class Rows(NamedTuple):
    """Readings of many tasks below each other."""

    x: Array  # (n, d)
    y: Array  # (n,)
    group: Array  # (n,) number of the task
    in_target: Array  # (n,) 1.0 in the target environment, 0.0 in the source

    @classmethod
    def of(cls, source: Tasks, target: Tasks) -> "Rows":
        """Stack tasks of both environments, source first."""
        tasks = [*source, *target]
        group = np.repeat(np.arange(len(tasks)), [len(task.y) for task in tasks])
        x, y = np.concatenate([task.x for task in tasks]), np.concatenate([task.y for task in tasks])
        return cls(x, y, group, (group >= len(source)).astype(float))

    def parts(self) -> list[Array]:
        """Return the places of the rows of each task."""
        return np.split(np.arange(len(self.y)), np.flatnonzero(np.diff(self.group)) + 1)


@dataclass(frozen=True)
class Scaling:
    """Center and spread of inputs and outputs of the training rows; contestants work in these units."""

    x_center: Array
    x_spread: Array
    y_center: float
    y_spread: float

    @classmethod
    def of(cls, rows: Rows) -> "Scaling":
        """Measure rows; a column that does not vary has spread one."""
        spread = rows.x.std(axis=0)
        y_spread = float(rows.y.std()) or 1.0
        return cls(rows.x.mean(axis=0), np.where(spread > 0, spread, 1.0), float(rows.y.mean()), y_spread)

    def inputs(self, x: Array) -> Array:
        """Standardize inputs."""
        return (x - self.x_center) / self.x_spread

    def task(self, task: Task) -> Task:
        """Standardize a task."""
        return Task(self.inputs(task.x), (task.y - self.y_center) / self.y_spread)

    def predictive(self, mean: Array, variance: Array) -> GaussianMixture:
        """Return one Gaussian per query in the units of y, from standardized moments."""
        mean, variance = np.asarray(mean, float), np.maximum(np.asarray(variance, float), SMALLEST_VARIANCE)
        return GaussianMixture((self.y_center + self.y_spread * mean)[None], (self.y_spread**2 * variance)[None])


def halves(tasks: Tasks, rng: np.random.Generator) -> list[TestTask]:
    """Split every task at random into halves, each of which is the context of the other."""
    split = []
    for task in tasks:
        first, second = np.array_split(rng.permutation(len(task.y)), 2)
        for context, query in ((first, second), (second, first)):
            if len(query):
                split.append(TestTask(task.x[context], task.y[context], task.x[query], task.y[query]))
    return split


def contexts_of(tests: Sequence[TestTask]) -> tuple[list[Task], list[Array]]:
    """Return what a contestant sees of test tasks: contexts, and the inputs of queries."""
    return [Task(test.x_context, test.y_context) for test in tests], [test.x_query for test in tests]


def log_density(fitted: Fitted, tests: Sequence[TestTask]) -> float:
    """Return the mean log density of the readings of all queries."""
    predicted = fitted.predict(*contexts_of(tests))
    each = [mixture.log_density(test.y_query) for mixture, test in zip(predicted, tests, strict=True)]
    return float(np.mean(np.concatenate(each)))


def cross_validate(fit: Callable[[Tasks, Tasks], Fitted], source: Tasks, target: Tasks, seed: int) -> float:
    """Return the mean log density of held-out tasks, in halves; both environments count alike.

    Every fold holds out one target task and a share of the source tasks. On development draws this chose better
    variants than target tasks alone, which are few.
    """
    rng = np.random.default_rng(seed)
    fold = rng.permutation(len(source)) % len(target)
    target_splits = [halves([task], rng) for task in target]
    source_splits = [halves([task], rng) for task in source]
    of_target, of_source = [], []
    for number, split in enumerate(target_splits):
        fitted = fit(
            [task for task, of_task in zip(source, fold, strict=True) if of_task != number],
            [task for other, task in enumerate(target) if other != number],
        )
        of_target.append(log_density(fitted, split))
        of_source += [log_density(fitted, source_splits[task]) for task in np.flatnonzero(fold == number)]
    return float(np.mean([np.mean(each) for each in (of_target, of_source) if each]))


def rank(candidates: Mapping[str, Any], score: Callable[[Any], float]) -> list[str]:
    """Return the names of candidates, highest score first; those whose fit fails or is not finite are left out."""
    scores: dict[str, float] = {}
    for name, candidate in candidates.items():
        try:
            scores[name] = score(candidate)
        except Exception:  # libraries raise their own kinds
            continue
    finite = [name for name, value in scores.items() if np.isfinite(value)]
    return sorted(finite, key=lambda name: -scores[name])
