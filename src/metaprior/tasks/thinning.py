"""Fewer samples of large tasks: a prior needs many tasks, and little of each."""

from collections.abc import Sequence

import numpy as np

from metaprior.checks import warn_caller
from metaprior.tasks.types import Task

MAX_SAMPLES = 256  # of a task in gradient training: time grows with the cube, and 512 take ten times as long


def thin_task(task: Task, most: int, rng: np.random.Generator) -> Task:
    """Return at most so many random samples of a task, in their order."""
    if len(task.y) <= most:
        return task
    kept = np.sort(rng.choice(len(task.y), most, replace=False))
    return Task(task.x[kept], task.y[kept])


def thin_tasks(environments: Sequence[Sequence[Task]], most: int = MAX_SAMPLES) -> list[list[Task]]:
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
    return [[thin_task(task, most, rng) for task in tasks] for tasks in environments]
