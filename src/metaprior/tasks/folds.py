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
    """Context and queries of a held-out task, up to five ways; every sample is a query once.

    A fifth of the samples are queries, and the rest context: of five samples, each is predicted from the other four.
    `labels` deals out the samples of either class evenly, so that contexts keep both. A task of one sample is predicted
    from the prior.
    """
    n = len(task.y)
    order = rng.permutation(n)
    if labels:
        order = order[np.argsort(task.y[order], kind="stable")]
    n_splits = min(N_SPLITS, n)
    splits = []
    for first in range(n_splits):
        query = np.sort(order[first::n_splits])
        context = np.setdiff1d(np.arange(n), query)
        splits.append(TestTask(task.x[context], task.y[context], task.x[query], task.y[query]))
    return splits
