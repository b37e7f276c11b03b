"""Labels of classification tasks: any strings, integers or bools, encoded as 0.0, 1.0, ... in the order of the classes.

Either all tasks share their classes (healthy, ill), which then mean the same everywhere and may be missing in a task,
or every task has its own (wren, finch, owl), which mean nothing in other tasks and may differ in number.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message
from metaprior.tasks.input_columns import Features
from metaprior.tasks.types import Task, TestTask, as_test_tasks

KINDS = {"b": "bools", "i": "numbers", "u": "numbers", "f": "numbers", "U": "text"}
MAX_CLASSES = 100  # of a task; memory grows with the number, and more are readings or ids by mistake


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
    environments: Sequence[Sequence[Task]],
    names: Sequence[str],
    weights: Sequence[float],
    shared: bool | str = "auto",
    most: int = MAX_CLASSES,
) -> tuple[list[Sequence[Task]], np.ndarray | None, list[np.ndarray]]:
    """Return meta-training tasks with labels 0.0, 1.0, ...; the classes if all tasks share them; numbers of classes.

    With "auto", classes are shared if all labels are of one kind and a task has all of them, or if there are two in
    all. Environments with weight zero do not decide, and their labels become 0.0 and 1.0 whatever they are. The numbers
    of classes are one array per environment, (tasks,).
    """
    own = [[np.unique(task.y) for task in tasks] for tasks in environments]
    counted = [labels for of_tasks, weight in zip(own, weights, strict=True) if weight > 0 for labels in of_tasks]
    for of_tasks, name, weight in zip(own, names, weights, strict=True):
        for i, labels in enumerate(of_tasks if weight > 0 else ()):
            check_classes(labels, f"{name}[{i}]", most)
    classes = _shared_classes(counted, shared, most)
    encoded, n_classes = [], []
    for tasks, of_tasks, name, weight in zip(environments, own, names, weights, strict=True):
        if weight == 0:
            codes = [np.minimum(encode(task.y, labels), 1.0) for task, labels in zip(tasks, of_tasks, strict=True)]
        elif classes is None:
            for i, labels in enumerate(of_tasks):
                _require_two(labels, f"{name}[{i}]")
            codes = [encode(task.y, labels) for task, labels in zip(tasks, of_tasks, strict=True)]
        else:
            codes = [encode(task.y, classes) for task in tasks]
        sizes = [2 if weight == 0 else len(labels) if classes is None else len(classes) for labels in of_tasks]
        encoded.append([Task(task.x, y) for task, y in zip(tasks, codes, strict=True)])
        n_classes.append(np.array(sizes, int))
    if classes is None:
        sets = [tuple(labels.tolist()) for labels in counted]
        common = max(set(sets), key=sets.count)
        others = [labels for labels in sets if labels != common]
        warn_if_misspelled([common, *others[:1]], len(sets) - len(others), len(sets))
    return encoded, classes, n_classes


def task_classes(
    y: np.ndarray, name: str, shared: np.ndarray | None, given: Any = None, most: int = MAX_CLASSES
) -> np.ndarray:
    """Return the classes of a new task, in the order of their codes: given, shared by all tasks, or its own labels.

    The second class of a task with a single label is known if the labels are 0 and 1 or bools, and None otherwise.
    """
    labels = np.unique(y)
    if given is not None:
        classes = np.unique(as_labels(given, f"{name}: classes"))
        if len(classes) < 2:
            raise ValueError(f"{name}: classes must be two or more different labels; got {given!r}.")
        check_classes(classes, f"{name}: classes", most)
        if extra := [label for label in labels.tolist() if label not in classes.tolist()]:
            found = f"{name}: y has the label {extra[0]!r}, which is not one of classes"
            raise ValueError(f"{found} [{_preview(classes)}].")
        return classes
    if shared is not None and set(labels.tolist()) <= set(shared.tolist()) and (not len(y) or _same_kind([shared, y])):
        return shared
    check_classes(labels, name, most)
    # Labels of another kind, or several new ones, are clearly the task's own. A single new one is likely a mistake.
    if shared is not None and len(labels) and _same_kind([shared, labels]):
        known = [label for label in labels.tolist() if label in shared.tolist()]
        if known or len(labels) == 1:
            found = f"{name}: y has {_preview(labels)}, but all meta-training tasks have the labels {_preview(shared)}"
            own = ". Correct its labels or, if this task has its own classes, pass all as ", Argument("classes=...")
            raise ValueError(Message(found, *own, "."))
    if len(labels) >= 2:
        return labels
    if len(labels) == 1 and labels.dtype.kind in "biuf" and labels[0] in (0, 1):
        return np.array([0, 1]).astype(labels.dtype)
    return np.array([*labels.tolist(), None, None][:2], dtype=object)


def encode(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the places of labels among the classes, which are sorted, as float64."""
    if not len(y) or classes[-1] is None:  # one label is known at most
        return np.zeros(len(y))
    return np.searchsorted(classes, y).astype(np.float64)


def encode_contexts(
    labels: Sequence[np.ndarray], name: str, shared: np.ndarray | None, given: Any = None, most: int = MAX_CLASSES
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the classes of many new tasks, as by `task_classes`, and the codes of all labels, task after task."""
    filled = [y for y in labels if len(y)]
    if shared is not None and given is None and filled and _same_kind([shared, *filled]):  # fast path
        every = np.concatenate(filled)
        codes = np.searchsorted(shared, every)
        if (shared[np.minimum(codes, len(shared) - 1)] == every).all():
            return [shared] * len(labels), codes.astype(np.float64)
    classes = [task_classes(y, f"{name}[{i}]", shared, given, most) for i, y in enumerate(labels)]
    return classes, np.concatenate([np.zeros(0), *map(encode, labels, classes)])


def as_labeled_tests(
    tasks: Iterable[Any] | None,
    name: str,
    features: Features | int,
    shared: np.ndarray | None,
    most: int = MAX_CLASSES,
) -> tuple[list[TestTask], np.ndarray]:
    """Check test tasks and encode their labels; return also the number of classes of each, in context and queries."""
    encoded, n_classes = [], []
    for i, task in enumerate(as_test_tasks(tasks, name, features, as_labels)):
        where = f"{name}[{i}]"
        if len(task.y_context) and not _same_kind([task.y_context, task.y_query]):
            raise ValueError(f"{where}: the labels of context and query must be of one kind.")
        both = np.concatenate([task.y_context, task.y_query]) if len(task.y_context) else task.y_query
        classes = task_classes(both, where, shared, most=most)
        y_context, y_query = encode(task.y_context, classes), encode(task.y_query, classes)
        encoded.append(task._replace(y_context=y_context, y_query=y_query))
        n_classes.append(len(classes))
    return encoded, np.array(n_classes, int)


def check_classes(labels: np.ndarray, name: str, most: int = MAX_CLASSES) -> None:
    """Raise if there are too many distinct labels, or more than two that are no integers: these are readings."""
    readings = labels.dtype.kind == "f" and len(labels) > 2 and (labels != np.round(labels)).any()
    if not readings and len(labels) <= most:
        return
    found = f"{name}: y has {len(labels):,} labels: {_preview(labels)}"
    if readings:
        problem = ", which are no integers: y looks like readings. For these "
    elif most == 2:
        raise ValueError(f"{found}; gradient training knows two classes at most.")
    else:
        problem = f"; a task has {most} classes at most. y looks like readings or ids. For readings "
    raise ValueError(Message(found, problem, Argument("use MetaGPRegressor"), "."))


def warn_if_misspelled(commonest: Sequence[tuple], n_common: int, n_tasks: int) -> None:
    """Warn if most tasks have the same labels and some have others, as after writing Yes for yes.

    `commonest` are the labels of tasks, the most frequent first; `n_common` tasks have these.
    """
    if len(commonest) > 1 and len(commonest[0]) > 1 and n_common > n_tasks / 2 and n_tasks > 2:
        warnings.warn(
            f"{n_common} of {n_tasks} tasks have the labels {commonest[0]}, another has {commonest[1]}. Labels are "
            "therefore treated as specific to each task, with no meaning across tasks. Is one of them misspelled?",
            stacklevel=4,
        )


def _shared_classes(labels: Sequence[np.ndarray], shared: bool | str, most: int) -> np.ndarray | None:
    """Return the classes that all tasks share, given the distinct labels of each, or None if each has its own."""
    distinct = {label for of_task in labels for label in of_task.tolist()}
    if len(distinct) < 2:
        found = f"got {distinct.pop()!r} for every sample of every task"
        raise ValueError(f"y must have two or more labels; {found}. There is nothing to learn.")
    same_kind = _same_kind(labels)
    if shared is True and not same_kind:
        raise ValueError("y must be labels of one kind if all tasks share their classes; got a mix.")
    has_all = len(distinct) == 2 or max(map(len, labels)) == len(distinct)
    if not (shared is True or (shared == "auto" and same_kind and has_all)):
        return None
    classes = np.unique(np.concatenate(labels))
    check_classes(classes, "all tasks", most)
    return classes


def _require_two(classes: np.ndarray, name: str) -> None:
    """Raise if a task whose labels are its own has one only."""
    if len(classes) == 1:
        raise ValueError(
            f"{name}: y has one label only, {classes.tolist()[0]!r}, and the tasks do not share their classes, so the "
            "others are unknown. Drop the task, or correct the labels of the others."
        )


def _kind(dtype: np.dtype, otherwise: str) -> str:
    return KINDS.get(dtype.kind, otherwise)


def _same_kind(labels: Iterable[np.ndarray]) -> bool:
    return len({_kind(y.dtype, y.dtype.kind) for y in labels}) == 1


def _preview(labels: np.ndarray) -> str:
    return ", ".join([repr(label) for label in labels.tolist()[:4]] + ["..."] * (len(labels) > 4))
