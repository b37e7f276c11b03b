"""Labels of classification tasks: any strings, integers or bools, encoded as 0.0, 1.0, ... in the order of the classes.

Either all tasks share their classes (healthy, ill), which then mean the same everywhere and may be missing in a task,
or every task has its own (wren, finch, owl), which mean nothing in other tasks and may differ in number.

Labels that may be a mistake, such as two spellings of one, are told.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, counted, warn_caller
from metaprior.tasks.categories import check_reading, check_spelling, is_missing, nearest, plain, spelled_out
from metaprior.tasks.columns import Features
from metaprior.tasks.types import Task, TestTask, as_test_tasks

KINDS = {"b": "bools", "i": "numbers", "u": "numbers", "f": "numbers", "U": "text"}
REGRESSOR = Argument("use MetaGPRegressor")
MAX_CLASSES = 100  # of a task; memory grows with the number, and more are readings or ids by mistake


def as_labels(values: Any, name: str) -> np.ndarray:
    """Check y of a classification task; return an array of labels of one kind."""
    if np.ma.is_masked(values):
        raise ValueError(f"{name} must not have masked values. Drop these samples.")
    # Lists as objects: NumPy would convert a mix of text and numbers to text.
    labels = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if labels.dtype.kind in "OT" and labels.size:  # T: strings of NumPy and pandas
        if any(is_missing(item) for item in labels.flat):
            raise ValueError(f"{name} must not have missing labels (None, NaN or pandas' NA). Drop these samples.")
        if any(isinstance(item, str) and "\0" in item for item in labels.flat):  # NumPy drops them from ends
            raise ValueError(f"{name} must not have labels with a NUL character. Remove it.")
        kinds = {_kind(np.asarray(item).dtype, type(item).__name__) for item in labels.flat}
        if len(kinds) > 1:
            raise ValueError(f"{name} must be labels of one kind; got a mix of {' and '.join(sorted(kinds))}.")
        labels = np.array([plain(item) for item in labels.flat]).reshape(labels.shape)
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
    counted = {
        f"{name}[{i}]": labels
        for of_tasks, name, weight in zip(own, names, weights, strict=True)
        for i, labels in enumerate(of_tasks if weight > 0 else ())
    }
    for name, labels in counted.items():
        check_classes(labels, name, most)
    if shared is not False:
        texts = {label for labels in counted.values() if labels.dtype.kind == "U" for label in labels.tolist()}
        check_reading(sorted(texts), "label", "The ")
    classes = _shared_classes(list(counted.values()), shared, most)
    if classes is None:
        for name, labels in counted.items():
            require_two(labels, name)
        if shared == "auto" and not warn_if_kinds_differ([(_kind(of.dtype, ""), of) for of in counted.values()]):
            sets = Counter(tuple(labels.tolist()) for labels in counted.values()).most_common(2)
            warn_if_misspelled([labels for labels, _ in sets], sets[0][1], len(counted))
    sizes = [len(task.y) for tasks, weight in zip(environments, weights, strict=True) if weight > 0 for task in tasks]
    warn_if_unrepeated(np.array([len(labels) for labels in counted.values()]), np.array(sizes))
    encoded, n_classes = [], []
    for tasks, of_tasks, weight in zip(environments, own, weights, strict=True):
        used = of_tasks if classes is None or weight == 0 else [classes] * len(tasks)
        last = np.inf if weight > 0 else 1.0
        codes = [np.minimum(encode(task.y, labels), last) for task, labels in zip(tasks, used, strict=True)]
        encoded.append([Task(task.x, y) for task, y in zip(tasks, codes, strict=True)])
        n_classes.append(np.array([len(labels) if weight > 0 else 2 for labels in used], int))
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
    if shared is not None:
        raise _unknown_labels(labels, name, shared)
    check_classes(labels, name, most, Argument("use a prior of MetaGPRegressor"))
    if len(labels) >= 2:
        return labels
    if len(labels) == 1 and labels.dtype.kind in "biuf" and labels[0] in (0, 1):
        return np.array([0, 1]).astype(labels.dtype)
    return np.array([*labels.tolist(), None, None][:2], dtype=object)


def _unknown_labels(labels: np.ndarray, name: str, shared: np.ndarray) -> ValueError:
    """Return an error for a task with labels that the fit did not have, though all its tasks share their classes."""
    known = shared.tolist()
    texts = {str(label): label for label in known}
    unknown = next((label for label in labels.tolist() if label not in known), labels.tolist()[0])
    near = nearest(str(unknown), list(texts))
    meant = "" if near is None else " Is {} the same as {}?".format(*spelled_out(unknown, texts[near]))
    found = f"{name}: y has {_preview(labels)}, but all meta-training tasks have the labels {_preview(shared)}.{meant}"
    own = " Correct its labels or, if this task has its own classes, pass all as ", Argument("classes=...")
    return ValueError(Message(found, *own, ", or fit with ", Argument("shared_classes", False), "."))


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


def check_classes(labels: np.ndarray, name: str | None, most: int = MAX_CLASSES, instead: Argument = REGRESSOR) -> None:
    """Raise if there are too many distinct labels, or more than two that are no integers: these are readings.

    `name` is that of the task, or None for the labels of all tasks; `instead` is the advice on readings.
    """
    if labels.dtype.kind == "U":
        check_reading(labels.tolist(), "label", "The " if name is None else f"{name}: y has the ")
    readings = labels.dtype.kind == "f" and len(labels) > 2 and (labels != np.round(labels)).any()
    if not readings and len(labels) <= most:
        return
    task, found = "" if name is None else f"{name}: ", f"{len(labels):,} ({_preview(labels)})"
    limit = "two labels" if most == 2 else f"at most {most} labels"
    if readings:
        limit, advice = "integers or text as labels", "y looks like readings. For these "
    elif most == 2:
        raise ValueError(f"{task}y must have {limit}; got {found}. Gradient training is for two classes.")
    else:
        advice = "y looks like readings or ids. For readings "
    raise ValueError(Message(f"{task}y must have {limit}; got {found}. {advice}", instead, "."))


def require_two(labels: Sequence[Any] | np.ndarray, name: str | None = None) -> None:
    """Raise if there is a single label, in a task whose labels are its own or, without a name, in all tasks."""
    if len(labels) > 1:
        return
    [label] = np.asarray(labels).tolist()
    if name is None:
        found = f"got {label!r} for every sample of every task"
        raise ValueError(f"y must have two or more labels; {found}. There is nothing to learn.")
    found = f"{name}: y has one label only, {label!r}, and tasks do not share classes, so the others are unknown. "
    advice = "Drop the task, correct the labels of the others or, if labels mean the same in all tasks, pass "
    raise ValueError(Message(found, advice, Argument("shared_classes", True), "."))


def are_shared(n_distinct: int, most_of_a_task: int, shared: bool | str) -> bool:
    """Return whether tasks share their classes: as given or, with "auto", if a task has all, or there are two."""
    return n_distinct in (2, most_of_a_task) if shared == "auto" else bool(shared)


def _shared_classes(labels: Sequence[np.ndarray], shared: bool | str, most: int) -> np.ndarray | None:
    """Return the classes that all tasks share, given the distinct labels of each, or None if each has its own."""
    distinct = {label for of_task in labels for label in of_task.tolist()}
    require_two(list(distinct))
    kinds = {_kind(of_task.dtype, "") for of_task in labels}
    if shared is True and len(kinds) > 1:
        found = f"got {' and '.join(sorted(kinds))}"
        raise ValueError(f"y must be labels of one kind if all tasks share their classes; {found}.")
    if len(kinds) > 1 or not are_shared(len(distinct), max(map(len, labels)), shared):
        return None
    classes = np.unique(np.concatenate(labels))
    check_classes(classes, None, most)
    check_spelling(classes.tolist(), "label", "The ")
    return classes


def _kind(dtype: np.dtype, otherwise: str) -> str:
    return KINDS.get(dtype.kind, otherwise)


def _same_kind(labels: Iterable[np.ndarray]) -> bool:
    return len({_kind(y.dtype, y.dtype.kind) for y in labels}) == 1


def _preview(labels: np.ndarray) -> str:
    return ", ".join([repr(label) for label in labels.tolist()[:4]] + ["..."] * (len(labels) > 4))


class ClassRules(NamedTuple):
    """What decides about the classes of a task besides its labels."""

    shared: np.ndarray | None = None  # the classes that all tasks of the fit share
    given: Any = None  # the classes that the user has given
    most: int = MAX_CLASSES
    fixed: bool = False  # whether the prior has a rule for the shared classes, so that no task may have others

    def of_task(self, y: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the classes of one task and the codes of its labels."""
        own = task_classes(y, name, self.shared, self.given, self.most)
        self._check([own], name.format)
        return own, encode(y, own)

    def of_tasks(self, labels: Sequence[np.ndarray], name: str) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the classes of many tasks, and the codes of all labels, task after task."""
        own, codes = encode_contexts(labels, name, self.shared, self.given, self.most)
        self._check(own, f"{name}[{{}}]".format)
        return own, codes

    def _check(self, classes: Sequence[np.ndarray], name: Callable[[int], str]) -> None:
        """Raise for a task with classes of its own if the prior has a rule for those of the fit."""
        if self.shared is None or not self.fixed:
            return
        for i, own in enumerate(classes):
            if own is not self.shared and not np.array_equal(own, self.shared):
                listed = ", ".join(map(repr, self.shared.tolist()))
                found = f"{name(i)}: this prior has a rule by which the classes {listed} are told apart in every task, "
                advice = "and this task has other classes. Fit with ", Argument("shared_classes", False)
                raise ValueError(Message(found, *advice, " for a prior of any classes."))


def joined_labels(earlier: np.ndarray, later: np.ndarray, name: str) -> np.ndarray:
    """Return the labels of a task followed by more of them; raise if they are of two kinds."""
    if not len(earlier) or not len(later):
        return later if len(later) else earlier
    return as_labels([*earlier.tolist(), *later.tolist()], name)


def warn_if_misspelled(commonest: Sequence[tuple], n_common: int, n_tasks: int) -> None:
    """Warn if most tasks have the same labels and some have others, as after writing Yes for yes.

    Not for classes that the user has said to be each task's own: there tasks of the same labels are nothing odd.
    `commonest` are the labels of tasks, the most frequent first; `n_common` tasks have these.
    """
    if len(commonest) > 1 and len(commonest[0]) > 1 and n_common > n_tasks / 2 and n_tasks > 2:
        first, second = map(_listed, commonest)
        found = f"{n_common} of {n_tasks} tasks have the labels {first}, another has {second}. Labels are therefore "
        meaning = "treated as specific to each task, with no meaning across tasks. Is one of them misspelled? "
        advice = "If they mean the same in all tasks, pass ", Argument("shared_classes", True), "."
        warn_caller(Message(found, meaning, *advice))


def warn_if_kinds_differ(labels: Sequence[tuple[str, np.ndarray]]) -> bool:
    """Warn if labels of two kinds read the same, as True in some tasks and 1 or "true" in others; return whether.

    `labels` are the kind and the distinct labels of every task.
    """
    kinds = Counter(kind for kind, _ in labels)
    if len(kinds) < 2:
        return False
    spelled: dict[str, str] = {}
    for kind, of_task in labels:
        for text in (text for label in of_task.tolist() for text in _spellings(label)):
            if spelled.setdefault(text, kind) != kind:
                listed = " and ".join(f"{name} in {counted(n, 'task')}" for name, n in kinds.most_common())
                found = f"Labels are {listed}, and are therefore treated as specific to each task, with no meaning "
                advice = "across tasks. If they mean the same, make them of one kind; if not, pass "
                warn_caller(Message(found, advice, Argument("shared_classes", False), "."))
                return True
    return False


def _spellings(label: Any) -> list[str]:
    """Return how a label may be written."""
    if isinstance(label, bool):
        return [str(label).casefold(), str(int(label))]
    return [label.strip().casefold() if isinstance(label, str) else f"{label:g}"]


def warn_if_unrepeated(n_labels: np.ndarray, n_samples: np.ndarray) -> None:
    """Warn if most tasks have three or more labels and none of them twice, as when y are counts or ids."""
    if ((n_labels > 2) & (n_labels == n_samples)).mean() > 0.5:
        found = "Most tasks have three or more labels, and none of them twice, which shows little about classes. "
        warn_caller(Message(found, "If y are readings, ", Argument("use MetaGPRegressor"), "."))


def _listed(labels: tuple) -> str:
    return f"({', '.join([repr(label) for label in labels[:6]] + ['...'] * (len(labels) > 6))})"
