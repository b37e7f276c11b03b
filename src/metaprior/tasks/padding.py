"""Ragged tasks as padded, masked arrays in a few size buckets."""

from collections.abc import Iterator, Sequence

import equinox as eqx
import numpy as np
from jax.typing import ArrayLike

from metaprior.tasks.ragged import Ragged
from metaprior.tasks.types import Task


class TaskBatch(eqx.Module):
    """Tasks padded to one size, sorted by environment. A leading axis of runs may be stacked in front."""

    x: ArrayLike  # (tasks, samples, input_dim)
    y: ArrayLike  # (tasks, samples)
    mask: ArrayLike  # (tasks, samples), True where there is a sample
    included: ArrayLike  # (tasks,), False for a task that is held out: it has no weight
    counts: tuple[int, ...] = eqx.field(static=True)  # tasks per environment, held out or not


class TaskSet(eqx.Module):
    """All meta-training tasks: one batch per size bucket, the same environments in each."""

    buckets: tuple[TaskBatch, ...]

    @property
    def environment_counts(self) -> tuple[int, ...]:
        """Number of tasks of each environment, held out or not."""
        return tuple(sum(counts) for counts in zip(*(bucket.counts for bucket in self.buckets), strict=True))


def pad_tasks(
    environments: Sequence[Sequence[Task]],
    dtype: np.typing.DTypeLike = np.float32,
    max_buckets: int = 3,
    included: Sequence[np.ndarray] | None = None,
) -> TaskSet:
    """Pad the tasks of each environment into at most `max_buckets` sizes.

    `included` says for each environment which of its tasks are not held out (None: all). Held-out tasks keep their
    place, so that the folds of a cross-validation have equal shapes.
    """
    sizes = np.array([len(task.y) for tasks in environments for task in tasks])
    counted = np.concatenate([np.ones(len(tasks), bool) for tasks in environments] if included is None else included)
    environment = np.repeat(np.arange(len(environments)), [len(tasks) for tasks in environments])
    flat = [task for tasks in environments for task in tasks]
    buckets = []
    for upper, members in group_by_size(sizes, max_buckets):
        x, y, mask = pad_to([flat[i] for i in members.tolist()], upper, dtype)
        counts = np.bincount(environment[members], minlength=len(environments))
        buckets.append(TaskBatch(x, y, mask, counted[members], tuple(counts.tolist())))
    return TaskSet(tuple(buckets))


def pad_to(tasks: Sequence[Task], size: int, dtype: np.typing.DTypeLike) -> tuple[np.ndarray, ...]:
    """Stack tasks padded with valid numbers: each task's own first input (zero for an empty one), y = 0."""
    x = Ragged.of([task.x for task in tasks], tasks[0].x.shape[1:])
    y = Ragged.of([task.y for task in tasks])
    padded, places = x.pad(x.starts[:-1], x.sizes, size)
    with np.errstate(over="ignore"):  # infinite in float32 what lies 1e38 standard deviations off: training says so
        return padded.astype(dtype), y.rows[places].astype(dtype), places >= 0


def group_by_size(sizes: np.ndarray, max_buckets: int) -> Iterator[tuple[int, np.ndarray]]:
    """Buckets of like sizes: the largest size of each, and the places of those in it."""
    lower = -1
    for upper in bucket_sizes(sizes, max_buckets):
        yield upper, np.flatnonzero((lower < sizes) & (sizes <= upper))
        lower = upper


def bucket_sizes(sizes: np.ndarray, max_buckets: int) -> list[int]:
    """Bucket sizes that minimize the padded work, sum over tasks of (padded size)^2.

    Exact, by dynamic programming over the distinct sizes. A further bucket costs compilation and one more pass
    over small arrays, so it must save a fifth of the work to be opened.
    """
    distinct, counts = np.unique(sizes, return_counts=True)
    if len(distinct) > 256:  # merge neighbors: the program below is quadratic in the number of sizes
        edges = np.unique(np.quantile(sizes, np.linspace(0, 1, 256), method="higher"))
        counts = np.diff(np.searchsorted(np.sort(sizes), edges, side="right"), prepend=0)
        distinct = edges
    tasks_up_to = np.concatenate([[0], np.cumsum(counts)])
    # cost[i, j]: all tasks with distinct sizes i..j padded to distinct[j]
    in_bucket = np.maximum(tasks_up_to[None, 1:] - tasks_up_to[:-1, None], 0)
    cost = np.where(np.tri(len(distinct), dtype=bool).T, in_bucket * distinct.astype(float) ** 2, np.inf)
    best, previous = cost[0], []
    chosen = [int(distinct[-1])]
    for _ in range(1, min(max_buckets, len(distinct))):
        # best[j] with one bucket more: the last bucket is i..j and the rest ends at i - 1
        candidates = np.concatenate([[np.inf], best[:-1]])[:, None] + cost
        previous.append(candidates.argmin(axis=0))
        new = candidates.min(axis=0)
        if new[-1] > 0.8 * best[-1]:
            break
        best = new
        chosen, last = [int(distinct[-1])], len(distinct) - 1
        for starts in reversed(previous):
            last = int(starts[last]) - 1
            chosen.insert(0, int(distinct[last]))
    return chosen
