"""Warnings about labels that may be a mistake: spelled in two ways, or readings."""

from collections.abc import Sequence

import numpy as np

from metaprior.checks import Argument, Message, warn_caller
from metaprior.tasks.spelling import SPELLING, spelled_alike


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


def warn_if_spelled_alike(classes: np.ndarray) -> None:
    """Warn if two of the classes that all tasks share differ in their spelling only."""
    for first, second in spelled_alike(classes.tolist()):
        found = f"The labels {first!r} and {second!r} differ in {SPELLING} only, and are two classes."
        warn_caller(f"{found} Is one of them misspelled?")


def warn_if_unrepeated(n_labels: np.ndarray, n_samples: np.ndarray) -> None:
    """Warn if most tasks have three or more labels and none of them twice, as when y are counts or ids."""
    if ((n_labels > 2) & (n_labels == n_samples)).mean() > 0.5:
        found = "Most tasks have three or more labels, and none of them twice, which shows little about classes. "
        warn_caller(Message(found, "If y are readings, ", Argument("use MetaGPRegressor"), "."))


def _listed(labels: tuple) -> str:
    return f"({', '.join([repr(label) for label in labels[:6]] + ['...'] * (len(labels) > 6))})"
