"""Warnings about labels that may be a mistake: spelled in two ways, or readings."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message, counted, warn_caller


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
