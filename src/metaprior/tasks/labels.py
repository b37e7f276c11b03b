"""Labels of classification tasks: any two strings, integers or bools, encoded as 0 and 1.

Either all tasks share two labels (healthy and ill), which then mean the same everywhere and may be missing in a task,
or every task has its own two (wren and finch), which mean nothing in other tasks.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message
from metaprior.tasks.input_columns import Features
from metaprior.tasks.types import Task, TestTask, as_test_tasks

KINDS = {"b": "bools", "i": "numbers", "u": "numbers", "f": "numbers", "U": "text"}


def as_labels(values: Any, name: str) -> np.ndarray:
    """Check y of a classification task; return an array of labels of one kind."""
    if np.ma.is_masked(values):
        raise ValueError(f"{name} must not have masked values. Drop these samples.")
    # Lists as objects: NumPy would convert a mix of text and numbers to text.
    labels = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if labels.dtype.kind in "OT" and labels.size:  # T: strings of NumPy and pandas
        if any(item is None or item != item for item in labels.flat):  # NaN is not equal to itself
            raise ValueError(f"{name} must not have missing labels, None or NaN. Drop these samples.")
        kinds = {_kind(np.asarray(item).dtype, type(item).__name__) for item in labels.flat}
        if len(kinds) > 1:
            raise ValueError(f"{name} must be labels of one kind; got a mix of {' and '.join(sorted(kinds))}.")
        labels = np.array(labels.tolist())
    if labels.size and labels.dtype.kind not in KINDS:
        raise ValueError(f"{name} must be labels: text, integers or bools; got {labels.dtype}.")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(f"{name} must not have NaN or infinite labels. Drop these samples.")
    return labels


def encode_environments(
    environments: Sequence[Sequence[Task]], names: Sequence[str], weights: Sequence[float]
) -> tuple[list[Sequence[Task]], np.ndarray | None]:
    """Return meta-training tasks with labels 0.0 and 1.0, and the two labels if all tasks share them.

    Environments with weight zero do not affect whether labels are shared.
    """
    labels = [task.y for tasks, weight in zip(environments, weights, strict=True) if weight > 0 for task in tasks]
    distinct = {label for y in labels for label in np.unique(y).tolist()}
    if len(distinct) < 2:
        raise ValueError(
            f"y must have two labels; got {distinct.pop()!r} for every sample of every task. There is nothing to learn."
        )
    is_shared = len(distinct) == 2 and _same_kind(labels)
    shared = np.unique(np.concatenate([np.unique(y) for y in labels])) if is_shared else None
    encoded: list[Sequence[Task]] = []
    for tasks, name, weight in zip(environments, names, weights, strict=True):
        if weight == 0:
            classes = [np.unique(task.y) for task in tasks]
        elif shared is None:
            classes = [_two_classes(task.y, f"{name}[{i}]") for i, task in enumerate(tasks)]
        else:
            classes = [shared] * len(tasks)
        encoded.append([Task(task.x, encode(task.y, pair)) for task, pair in zip(tasks, classes, strict=True)])
    if shared is None:
        pairs = [tuple(np.unique(y).tolist()) for y in labels]
        common = max(set(pairs), key=pairs.count)
        others = [pair for pair in pairs if pair != common]
        warn_if_misspelled([common, *others[:1]], len(pairs) - len(others), len(pairs))
    return encoded, shared


def task_classes(y: np.ndarray, name: str, shared: np.ndarray | None, given: Any = None) -> np.ndarray:
    """Return the two classes of a new task, in the order 0, 1: given, shared by all tasks, or the task's own labels.

    The second class of a task with a single label is known if the labels are 0 and 1 or bools, and None otherwise.
    """
    labels = np.unique(y)
    if given is not None:
        classes = np.unique(as_labels(given, f"{name}: classes"))
        if len(classes) != 2:
            raise ValueError(f"{name}: classes must be two different labels; got {given!r}.")
        if extra := [label for label in labels.tolist() if label not in classes.tolist()]:
            raise ValueError(f"{name}: y has the label {extra[0]!r}, which is not one of classes {classes.tolist()}.")
        return classes
    if shared is not None and set(labels.tolist()) <= set(shared.tolist()) and (not len(y) or _same_kind([shared, y])):
        return shared
    if len(labels) > 2:
        raise ValueError(f"{name}: y must have two labels; got {len(labels)}: {_preview(labels)}.")
    # Labels of another kind, or two new ones, are clearly the task's own. A single new one is more likely a mistake.
    if shared is not None and len(labels) and _same_kind([shared, labels]):
        known = [label for label in labels.tolist() if label in shared.tolist()]
        if known or len(labels) == 1:
            found = f"{name}: y has {_preview(labels)}, but all meta-training tasks have the labels {_preview(shared)}"
            own = ". Correct its labels or, if this task has its own classes, pass both as ", Argument("classes=...")
            raise ValueError(Message(found, *own, "."))
    if len(labels) == 2:
        return labels
    if len(labels) == 1 and labels.dtype.kind in "biuf" and labels[0] in (0, 1):
        return np.array([0, 1]).astype(labels.dtype)
    return np.array([*labels.tolist(), None, None][:2], dtype=object)


def encode(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return 0.0 for the first of the classes, 1.0 for the second."""
    return np.asarray(y != classes[0]).astype(np.float64) if len(y) else np.zeros(0)


def encode_contexts(
    labels: Sequence[np.ndarray], name: str, shared: np.ndarray | None, given: Any = None
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the classes of many new tasks, as by `task_classes`, and all labels as 0.0 and 1.0."""
    filled = [y for y in labels if len(y)]
    if shared is not None and given is None and filled and _same_kind([shared, *filled]):  # fast path
        every = np.concatenate(filled)
        if ((every == shared[0]) | (every == shared[1])).all():
            return [shared] * len(labels), encode(every, shared)
    classes = [task_classes(y, f"{name}[{i}]", shared, given) for i, y in enumerate(labels)]
    return classes, np.concatenate([np.zeros(0), *map(encode, labels, classes)])


def as_labeled_tests(
    tasks: Iterable[Any] | None, name: str, features: Features | int, shared: np.ndarray | None
) -> list[TestTask]:
    """Check test tasks and encode their labels; the classes of a task are those of context and queries."""
    encoded = []
    for i, task in enumerate(as_test_tasks(tasks, name, features, as_labels)):
        where = f"{name}[{i}]"
        if len(task.y_context) and not _same_kind([task.y_context, task.y_query]):
            raise ValueError(f"{where}: the labels of context and query must be of one kind.")
        both = np.concatenate([task.y_context, task.y_query]) if len(task.y_context) else task.y_query
        classes = task_classes(both, where, shared)
        y_context, y_query = encode(task.y_context, classes), encode(task.y_query, classes)
        encoded.append(task._replace(y_context=y_context, y_query=y_query))
    return encoded


def warn_if_misspelled(commonest: Sequence[tuple], n_common: int, n_tasks: int) -> None:
    """Warn if most tasks have the same two labels and some have others, as after writing Yes for yes.

    `commonest` are the labels of tasks, the most frequent first; `n_common` tasks have these.
    """
    if len(commonest) > 1 and len(commonest[0]) == 2 and n_common > n_tasks / 2 and n_tasks > 2:
        warnings.warn(
            f"{n_common} of {n_tasks} tasks have the labels {commonest[0]}, another has {commonest[1]}. Labels are "
            "therefore treated as specific to each task, with no meaning across tasks. Is one of them misspelled?",
            stacklevel=4,
        )


def _two_classes(y: np.ndarray, name: str) -> np.ndarray:
    """Return the two labels of a task whose labels are its own."""
    classes = np.unique(y)
    if len(classes) == 1:
        raise ValueError(
            f"{name}: y has one label only, {classes.tolist()[0]!r}, and the tasks do not all share two labels, so the "
            "other class is unknown. Drop the task, or correct the labels of the others."
        )
    if len(classes) > 2:
        continuous = classes.dtype.kind == "f" and (classes != np.round(classes)).any()
        advice: Any = ("For real-valued y ", Argument("use MetaGPRegressor"), ".")
        advice = advice if continuous else ("Make one task per pair of labels.",)
        raise ValueError(Message(f"{name}: y must have two labels; got {len(classes)}: {_preview(classes)}. ", *advice))
    return classes


def _kind(dtype: np.dtype, otherwise: str) -> str:
    return KINDS.get(dtype.kind, otherwise)


def _same_kind(labels: Iterable[np.ndarray]) -> bool:
    return len({_kind(y.dtype, y.dtype.kind) for y in labels}) == 1


def _preview(labels: np.ndarray) -> str:
    return ", ".join([repr(label) for label in labels.tolist()[:4]] + ["..."] * (len(labels) > 4))
