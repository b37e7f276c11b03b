"""Labels of stored tasks: which classes each task has, found in one pass over y."""

from collections.abc import Sequence

import numpy as np

from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.labels import (
    MAX_CLASSES,
    are_shared,
    check_classes,
    require_two,
    warn_if_misspelled,
    warn_if_unrepeated,
)
from metaprior.tasks.types import Task


def encode_stored(
    environments: Sequence[Sequence[Task]],
    names: Sequence[str],
    weights: Sequence[float],
    shared: bool | str = "auto",
    most: int = MAX_CLASSES,
) -> tuple[list[StoredTasks], np.ndarray | None, list[np.ndarray]]:
    """Return tasks, some of them stored, that give labels 0.0, 1.0, ...; the shared classes; numbers of classes.

    The rules are those of `tasks.labels.encode_environments`, for labels that are numbers.
    """
    input_dim = next(tasks.input_dim for tasks in environments if isinstance(tasks, StoredTasks))
    stored = []
    for tasks, name in zip(environments, names, strict=True):
        if any(task.y.dtype.kind not in "biuf" for task in (() if isinstance(tasks, StoredTasks) else tasks)):
            raise ValueError(f"{name}: labels must be numbers beside stored tasks, whose labels are numbers; got text.")
        stored.append(StoredTasks.from_tasks(tasks, input_dim))
    own = [
        _own_classes(tasks, name, most) if weight > 0 else _zero_or_one(tasks)
        for tasks, name, weight in zip(stored, names, weights, strict=True)
    ]
    counted = [classes for classes, weight in zip(own, weights, strict=True) if weight > 0]
    distinct = np.unique(np.concatenate([classes[np.isfinite(classes)] for classes in counted]))
    require_two(_as_integers(distinct))
    samples = [tasks.sizes for tasks, weight in zip(stored, weights, strict=True) if weight > 0]
    n_labels = [np.isfinite(classes).sum(axis=1) for classes in counted]
    warn_if_unrepeated(np.concatenate(n_labels), np.concatenate(samples))
    if are_shared(len(distinct), max(classes.shape[1] for classes in counted), shared):
        classes = _as_integers(distinct)
        check_classes(classes, None, most)
        own = [distinct if weight > 0 else of_tasks for of_tasks, weight in zip(own, weights, strict=True)]
    else:
        classes = None
        _check_own(own, names, weights, warn=shared == "auto")
    pairs = list(zip(stored, own, strict=True))
    n_classes = [np.broadcast_to(np.isfinite(of_tasks).sum(axis=-1), len(tasks)) for tasks, of_tasks in pairs]
    return [tasks.encoded(of_tasks) for tasks, of_tasks in pairs], classes, n_classes


def _own_classes(tasks: StoredTasks, name: str, most: int) -> np.ndarray:
    """Return the sorted labels of each task, (tasks, most classes), infinite where it has fewer."""
    found = []
    for begin, end in tasks.task_blocks():
        rows = tasks.offsets[begin : end + 1]
        y = np.asarray(tasks.y[rows[0] : rows[-1]], np.float64)
        of_task = np.repeat(np.arange(end - begin), np.diff(rows))
        order = np.lexsort((y, of_task))
        y, of_task = y[order], of_task[order]
        is_new = np.append(True, (y[1:] != y[:-1]) | (of_task[1:] != of_task[:-1]))
        labels, of_task = y[is_new], of_task[is_new]
        counts = np.bincount(of_task)
        fractions = np.bincount(of_task, labels != np.round(labels))
        bad = (counts > most) | ((counts > 2) & (fractions > 0))
        if bad.any():
            task = int(bad.argmax())
            check_classes(_as_integers(labels[of_task == task]), f"{name}[{begin + task}]", most)
        classes = np.full((end - begin, counts.max()), np.inf)
        classes[of_task, np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)] = labels
        found.append(classes)
    return _stacked(found)


def _zero_or_one(tasks: StoredTasks) -> np.ndarray:
    """Return two classes per task, so that its least label becomes 0 and all others 1."""
    found = [np.empty(0)]
    for begin, end in tasks.task_blocks():
        rows = tasks.offsets[begin : end + 1]
        found.append(np.minimum.reduceat(np.asarray(tasks.y[rows[0] : rows[-1]], np.float64), rows[:-1] - rows[0]))
    least = np.concatenate(found)
    return np.stack([least, np.full(len(least), np.finfo(np.float64).max)], axis=1)


def _check_own(own: Sequence[np.ndarray], names: Sequence[str], weights: Sequence[float], warn: bool) -> None:
    """Raise if a task that counts has one label only; `warn` if most tasks have the same labels."""
    counted = [(classes, name) for classes, name, weight in zip(own, names, weights, strict=True) if weight > 0]
    for classes, name in counted:
        alone = np.isfinite(classes).sum(axis=1) == 1
        if alone.any():
            require_two(_as_integers(classes[alone.argmax(), :1]), f"{name}[{int(alone.argmax())}]")
    if not warn:
        return
    sets, counts = np.unique(_stacked([classes for classes, _ in counted]), axis=0, return_counts=True)
    first = sets[np.argsort(-counts, kind="stable")[:2]]
    commonest = [tuple(_as_integers(labels[np.isfinite(labels)]).tolist()) for labels in first]
    warn_if_misspelled(commonest, int(counts.max()), int(counts.sum()))


def _stacked(classes: Sequence[np.ndarray]) -> np.ndarray:
    """Return tables of classes below each other, all as wide as the widest."""
    width = max((len(of_tasks.T) for of_tasks in classes), default=0)
    widened = [np.pad(of, ((0, 0), (0, width - len(of.T))), constant_values=np.inf) for of in classes]
    return np.concatenate([np.empty((0, width)), *widened])


def _as_integers(labels: np.ndarray) -> np.ndarray:
    exact = (labels == np.round(labels)) & (np.abs(labels) <= 2**53)
    return labels.astype(np.int64) if exact.all() else labels
