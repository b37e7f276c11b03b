"""How the classes of a new task follow from its labels, under a fitted prior."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message
from metaprior.tasks.labels import MAX_CLASSES, as_labels, encode, encode_contexts, task_classes


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
