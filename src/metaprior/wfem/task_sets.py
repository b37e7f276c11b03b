"""Meta-training tasks as pytrees: padded, masked arrays in a few size buckets."""

from collections.abc import Sequence

import equinox as eqx
import numpy as np
from jax.typing import ArrayLike

from metaprior.tasks.padding import group_by_size, pad_to
from metaprior.tasks.types import Task


class TaskBatch(eqx.Module):
    """Tasks padded to one size, sorted by environment. A leading axis of runs may be stacked in front."""

    x: ArrayLike  # (tasks, samples, input_dim)
    y: ArrayLike  # (tasks, samples)
    mask: ArrayLike  # (tasks, samples), True where there is a sample
    included: ArrayLike  # (tasks,), False for a held-out task: it has no weight
    counts: tuple[int, ...] = eqx.field(static=True)  # tasks per environment, held out or not


class TaskSet(eqx.Module):
    """All meta-training tasks: one batch per size bucket, with the same environments in each."""

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
    """Pad the tasks of all environments into at most `max_buckets` sizes; `included` marks those not held out.

    Held-out tasks stay in the arrays, so that all folds of a cross-validation have the same shapes.
    """
    flat = [task for tasks in environments for task in tasks]
    sizes = np.array([len(task.y) for task in flat])
    counted = np.concatenate([np.ones(len(tasks), bool) for tasks in environments] if included is None else included)
    environment = np.repeat(np.arange(len(environments)), [len(tasks) for tasks in environments])
    buckets = []
    for upper, members in group_by_size(sizes, max_buckets):
        x, y, mask = pad_to([flat[i] for i in members.tolist()], upper, dtype)
        counts = np.bincount(environment[members], minlength=len(environments))
        buckets.append(TaskBatch(x, y, mask, counted[members], tuple(counts.tolist())))
    return TaskSet(tuple(buckets))
