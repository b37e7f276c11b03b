"""Folds of held-out tasks, and splits of each held-out task into context and queries."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task, TestTask

N_FOLDS, LEAVE_ONE_OUT_BELOW = 5, 8  # with fewer than eight target tasks every task is a fold
N_SPLITS = 5  # of a held-out task into context and queries


class Folds(NamedTuple):
    """The target tasks of each fold, and the splits of every target task into context and queries."""

    members: list[np.ndarray]
    splits: list[list[TestTask]]


def make_folds(target_tasks: Sequence[Task], seed: int, labels: bool) -> Folds:
    """Deal the target tasks into folds, and split each into context and queries."""
    rng, n_tasks = np.random.default_rng(seed), len(target_tasks)
    n_folds = n_tasks if n_tasks < LEAVE_ONE_OUT_BELOW else N_FOLDS
    members = [np.sort(fold) for fold in np.array_split(rng.permutation(n_tasks), n_folds)]
    return Folds(members, [split_task(task, rng, labels) for task in target_tasks])


def split_task(task: Task, rng: np.random.Generator, labels: bool = False) -> list[TestTask]:
    """Split a held-out task into context (half of the samples, rounded down) and queries, in up to five ways.

    The contexts are spread evenly over the samples in random order. With `labels` the two classes alternate in that
    order, so that contexts have both. A task of one sample has no context: it is predicted from the prior.
    """
    n = len(task.y)
    order = rng.permutation(n)
    if labels:
        order = _alternate_classes(order, task.y)
    splits = []
    n_splits = min(n, N_SPLITS)
    for first in (np.arange(n_splits) * n // n_splits).tolist():
        rolled = np.roll(order, -first)
        context, query = np.sort(rolled[: n // 2]), np.sort(rolled[n // 2 :])
        splits.append(TestTask(task.x[context], task.y[context], task.x[query], task.y[query]))
    return splits


def reference_log_densities(target_tasks: Sequence[Task], folds: Folds, labels: bool) -> np.ndarray:
    """Return the log density p_0 of `averaging.contaminated` at every query: what can be said without a model.

    Both labels are equally likely; readings are normal with the mean and standard deviation of all target readings.
    """
    units = fit_scaling([target_tasks], [1.0])  # handles constant and very large readings
    shape = (max(map(len, folds.splits)), max(len(split.y_query) for splits in folds.splits for split in splits))
    reference = np.full((len(folds.splits), *shape), np.nan)
    for i, splits in enumerate(folds.splits):
        for j, split in enumerate(splits):
            z = units.outputs(split.y_query)
            normal = -0.5 * z**2 - 0.5 * math.log(2.0 * math.pi) - np.log(units.y_std)
            reference[i, j, : len(split.y_query)] = math.log(0.5) if labels else normal
    return reference.reshape(len(folds.splits), -1)


def _alternate_classes(order: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Reorder samples so that the two labels are mixed as evenly as their numbers allow."""
    place = np.empty(len(order))
    for label in (0.0, 1.0):
        of_label = np.flatnonzero(y[order] == label)
        place[of_label] = (np.arange(len(of_label)) + 0.5) / max(len(of_label), 1)
    return order[np.argsort(place, kind="stable")]
