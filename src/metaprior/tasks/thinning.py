"""Fewer samples of large tasks: a prior needs many tasks, and little of each."""

from collections.abc import Sequence

import numpy as np

from metaprior.checks import warn_caller
from metaprior.tasks.types import Task

MAX_SAMPLES = 256  # of a task in gradient training: time grows with the cube, and 512 take ten times as long


def thin_task(task: Task, most: int, rng: np.random.Generator, labels: bool = False) -> Task:
    """Return at most so many random samples of a task, in their order; of labels, one or more of each class."""
    if len(task.y) <= most:
        return task
    kept = draw_of_each(task.y, most, rng) if labels else np.sort(rng.choice(len(task.y), most, replace=False))
    return Task(task.x[kept], task.y[kept])


def draw_of_each(codes: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return the places of about `most` random labels, sorted: of each class its share of them, and at least one.

    Shares are rounded by largest remainders, so that frequent classes stay as frequent as they are.
    """
    _, of_class, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    if len(codes) <= most:
        return np.arange(len(codes))
    shares = np.maximum(sizes * most / len(codes), 1.0)
    shares = 1.0 + (shares - 1.0) * max(most - len(sizes), 0) / max(np.sum(shares - 1.0), 1e-12)  # sum to `most`
    counts = np.floor(shares + 1e-9).astype(int)
    rest = np.argsort(counts - shares, kind="stable")[: max(most - counts.sum(), 0)]
    counts[rest] += 1
    order = rng.permutation(len(codes))
    order = order[np.argsort(of_class[order], kind="stable")]  # class by class, in random order
    rank = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[rank < np.repeat(counts, sizes)])


def typical_labels(x: np.ndarray, codes: np.ndarray, most: int) -> np.ndarray:
    """Return the places of about `most` labels of one task, sorted, that do not depend on the order of its samples."""
    order = np.lexsort((*x.T, codes))
    return np.sort(order[draw_of_each(codes[order], most, np.random.default_rng(0))])


def thin_tasks(
    environments: Sequence[Sequence[Task]], most: int = MAX_SAMPLES, labels: bool = False
) -> list[list[Task]]:
    """Return all tasks with at most so many samples each; warn if some have more."""
    sizes = [len(task.y) for tasks in environments for task in tasks]
    large = [size for size in sizes if size > most]
    if large:
        found = (
            f"{len(large)} of {len(sizes)} tasks have more than {most} samples, up to {max(large):,}: training uses "
        )
        why = f"{most} random ones of each, because its time and memory grow fast with the size of a task. "
        warn_caller(found + why + "Adaptation to a new task uses its whole context.")
    rng = np.random.default_rng(0)  # not the fit's: other seeds see the same tasks
    return [[thin_task(task, most, rng, labels) for task in tasks] for tasks in environments]
