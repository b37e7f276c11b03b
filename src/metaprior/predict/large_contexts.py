"""Contexts of thousands of labels: conditioned on some of them, and users told so.

Large contexts, of readings too, are announced if they take minutes, and refused if they do not fit into memory.
"""

import numpy as np

from metaprior.checks import counted, warn_caller
from metaprior.memory import check_available
from metaprior.predict.ensemble import Ensemble
from metaprior.tasks.padding import Ragged
from metaprior.tasks.thinning import typical_labels

LARGE, SLOW = 500, 60.0  # readings of a task that count, and seconds from which on users are told what to expect
ADVICE = "Adapt to a part of the readings, such as every tenth: adapt(X[::10], y[::10])."


def limit_labels(model: Ensemble, x: Ragged, y: Ragged, n_classes: np.ndarray) -> tuple[Ragged, Ragged]:
    """Return contexts with at most as many labels as the members can condition on; warn if some have more.

    What is left of a task depends on nothing but the task.
    """
    limits = [member.most_labels(n_classes) for member in model.members if hasattr(member, "most_labels")]  # type: ignore[attr-defined]
    if not limits:
        return x, y
    most = np.min(limits, axis=0)
    large = np.flatnonzero(x.sizes > most)
    if not len(large):
        return x, y
    kept = [typical_labels(x[task], y[task], int(most[task])) for task in large.tolist()]
    is_kept = np.ones(x.n_rows + 1, bool)
    sizes = x.sizes.copy()
    for task, places in zip(large.tolist(), kept, strict=True):
        of_task = is_kept[x.starts[task] : x.starts[task + 1]]
        of_task[:] = False
        of_task[places] = True
        sizes[task] = len(places)
    _warn_if_thinned(x.sizes[large], sizes[large], most[large])
    return Ragged(x.rows[is_kept], sizes), Ragged(y.rows[is_kept], sizes)


def _warn_if_thinned(given: np.ndarray, used: np.ndarray, most: np.ndarray) -> None:
    largest = int(np.argmax(given))
    which = f"A context has {given[0]:,} labels"
    if len(given) > 1:
        which = f"{counted(len(given), 'context')} have up to {given[largest]:,} labels, {given.sum():,} in all"
    warn_caller(
        f"{which}: predictions use {used.sum():,} of them, because time and memory grow fast with their number. They "
        "are random ones of every class, in its share, and always the same. To choose them yourself, give at most "
        f"{most[largest]:,} labels of a task."
    )


def warn_if_slow(model: Ensemble, sizes: np.ndarray, n_classes: np.ndarray | None) -> None:
    """Warn before many large contexts: the work grows with the cube of their readings, or labels of some classes."""
    large, what = sizes >= LARGE, "reading" if n_classes is None else "label"
    given = sizes[large], None if n_classes is None else n_classes[large]
    costs = (m.expected_seconds(*given) for m in model.members if hasattr(m, "expected_seconds"))  # type: ignore[attr-defined]
    seconds = sum(costs)
    if seconds > SLOW:
        contexts = f"{counted(int(large.sum()), 'context')} of up to {counted(int(given[0].max()), what)}"
        warn_caller(
            f"{contexts} will take about {counted(round(seconds / 60.0), 'minute')} on one core: the work grows with "
            f"the cube of the {what}s of a task. Adapt to fewer than {LARGE} {what}s of each to save time."
        )


def check_memory(model: Ensemble, size: int) -> None:
    """Raise if a context of so many readings does not fit into memory."""
    if size < LARGE:
        return
    needed = max((m.expected_bytes(size) for m in model.members if hasattr(m, "expected_bytes")), default=0.0)  # type: ignore[attr-defined]
    check_available(f"A context of {size:,} readings", needed, ADVICE)


def check_covariances(what: str, queries: np.ndarray, contexts: np.ndarray, advice: str) -> None:
    """Raise if covariances at so many inputs of tasks do not fit into memory; `what` has a place for their number."""
    n_bytes = 8.0 * (queries @ queries + np.max(2.0 * queries**2 + 4.0 * queries * contexts, initial=0.0))
    check_available(what.format(int(queries.sum())), float(n_bytes), advice)
