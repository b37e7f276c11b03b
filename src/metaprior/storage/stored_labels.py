"""Labels of stored tasks: which two classes each task has, found in one pass over y."""

from collections.abc import Sequence

import numpy as np

from metaprior.checks import Argument, Message
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.labels import warn_if_misspelled
from metaprior.tasks.types import Task

MANY = 3  # distinct labels that tell that tasks do not share two


def encode_stored(
    environments: Sequence[Sequence[Task]], names: Sequence[str], weights: Sequence[float], most: int = 2
) -> tuple[list[StoredTasks], np.ndarray | None, list[np.ndarray]]:
    """Return tasks, some of them stored, that give labels 0.0 and 1.0; the two labels if shared; numbers of classes.

    The rules are those of `tasks.labels.encode_environments`, for labels that are numbers.
    """
    input_dim = next(tasks.input_dim for tasks in environments if isinstance(tasks, StoredTasks))
    stored = []
    for tasks, name in zip(environments, names, strict=True):
        if any(task.y.dtype.kind not in "biuf" for task in (() if isinstance(tasks, StoredTasks) else tasks)):
            raise ValueError(f"{name}: labels must be numbers beside stored tasks, whose labels are numbers; got text.")
        stored.append(StoredTasks.from_tasks(tasks, input_dim))
    n_classes = [np.full(len(tasks), 2) for tasks in stored]
    counted = [tasks for tasks, weight in zip(stored, weights, strict=True) if weight > 0]
    distinct = np.unique(np.concatenate([_distinct(tasks) for tasks in counted]))
    if len(distinct) < 2:
        raise ValueError(
            f"y must have two labels; got {distinct[0]:g} for every sample of every task. There is nothing to learn."
        )
    if len(distinct) == 2:
        return [tasks.encoded(np.full(len(tasks), distinct[0])) for tasks in stored], _as_integers(distinct), n_classes
    named = zip(stored, names, weights, strict=True)
    classes = [_classes(tasks, name if weight > 0 else None) for tasks, name, weight in named]
    decisive = np.concatenate([pairs for pairs, weight in zip(classes, weights, strict=True) if weight > 0])
    pairs, counts = np.unique(decisive, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    warn_if_misspelled([tuple(pairs[i].tolist()) for i in order[:2]], int(counts.max()), len(decisive))
    return [tasks.encoded(pairs[:, 0]) for tasks, pairs in zip(stored, classes, strict=True)], None, n_classes


def _distinct(tasks: StoredTasks) -> np.ndarray:
    """Return the distinct labels, or the first few of them if there are more than two."""
    found = np.empty(0)
    for first, last in tasks.blocks():
        found = np.unique(np.concatenate([found, tasks.y[first:last]]))
        if len(found) >= MANY:
            break
    return found


def _classes(tasks: StoredTasks, name: str | None) -> np.ndarray:
    """Return the smallest and largest label of each task, (tasks, 2). With a name, raise unless each task has two."""
    classes = [np.empty((0, 2))]
    for begin, end in tasks.task_blocks():
        rows = tasks.offsets[begin : end + 1]
        y, starts = np.asarray(tasks.y[rows[0] : rows[-1]], np.float64), rows[:-1] - rows[0]
        least, most = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
        third = (y != np.repeat(least, np.diff(rows))) & (y != np.repeat(most, np.diff(rows)))
        bad = (least == most) | (np.add.reduceat(third, starts) > 0)
        if name is not None and bad.any():
            task = int(bad.argmax())
            labels = np.unique(y[starts[task] :][: int(rows[task + 1] - rows[task])])
            found = f"{len(labels)}: {', '.join(f'{label:g}' for label in labels[:4])}"
            problem = (
                f"{name}[{begin + task}]: y must have two labels, since the tasks do not all share two; got {found}"
            )
            advice = ". Leave the task out, correct the labels or, for real-valued y, "
            raise ValueError(Message(problem, advice, Argument("use MetaGPRegressor"), "."))
        classes.append(np.stack([least, most], axis=1))
    return np.concatenate(classes)


def _as_integers(labels: np.ndarray) -> np.ndarray:
    exact = (labels == np.round(labels)) & (np.abs(labels) <= 2**53)
    return labels.astype(np.int64) if exact.all() else labels
