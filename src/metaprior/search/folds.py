"""What is held out to choose settings by: folds over the target tasks, context and queries within each."""

import numpy as np

from metaprior.tasks.types import Task, TestTask

N_FOLDS = 5
LEAVE_ONE_OUT_BELOW = 8  # target tasks
N_SPLITS = 5


def make_folds(n_tasks: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Indices of the tasks of each fold: every task alone below eight tasks, five folds of near equal size above."""
    n_folds = n_tasks if n_tasks < LEAVE_ONE_OUT_BELOW else N_FOLDS
    return [np.sort(fold) for fold in np.array_split(rng.permutation(n_tasks), n_folds)]


def split_task(task: Task, rng: np.random.Generator, labels: bool = False) -> list[TestTask]:
    """Context and queries of a held-out task, up to five ways: half of the samples (rounded down) are context.

    The contexts are spread evenly over the samples in random order. `labels` alternates the two classes in that order,
    so that contexts have both. A task of one sample has no context: it is predicted from the prior.
    """
    n = len(task.y)
    order = rng.permutation(n)
    if labels:
        order = _alternate(order, task.y)
    splits = []
    n_splits = min(n, N_SPLITS)
    for first in (np.arange(n_splits) * n // n_splits).tolist():
        rolled = np.roll(order, -first)
        context, query = np.sort(rolled[: n // 2]), np.sort(rolled[n // 2 :])
        splits.append(TestTask(task.x[context], task.y[context], task.x[query], task.y[query]))
    return splits


def _alternate(order: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The order in which the two labels are as evenly mixed as their numbers let them be."""
    place = np.empty(len(order))
    for label in (0.0, 1.0):
        of_label = np.flatnonzero(y[order] == label)
        place[of_label] = (np.arange(len(of_label)) + 0.5) / max(len(of_label), 1)
    return order[np.argsort(place, kind="stable")]
