"""Predicted labels as columns of a table: the most probable class, and the probability of every class."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprior.checks import warn_caller
from metaprior.tables.columns import TableWarning
from metaprior.tables.csv_files import Source
from metaprior.tables.grouping import Context, TaskTable
from metaprior.tasks.columns import no_extrapolation_warnings
from metaprior.tasks.labels import as_labels, task_classes

MAX_OWN = 100  # columns of classes, if every task has its own


def known_columns(classes: np.ndarray | None) -> list[str]:
    """Return the names of the columns that are known before tasks are: of classes that all tasks share, or without."""
    return ["label", "probability"] if classes is None else ["label", *map(column_of, classes.tolist())]


def column_of(label: Any) -> str:
    """Return the name of the column for the probability of a class."""
    return f"probability_{label}"


def label_columns(
    meta: Any, queries: TaskTable, contexts: Sequence[Context], source: Source, column: str | None
) -> dict[str, Any]:
    """Return the columns of predicted labels, in the order of the rows of the query table.

    A class that a task does not have is missing (NaN) in its rows.
    """
    import pandas as pd

    labeled = []
    for name, context in zip(queries.names, contexts, strict=True):
        where = source.task(name, context.row, column)
        labeled.append((context.task.x, as_labels(context.task.y, f"{where}: y")))
        task_classes(labeled[-1][1], where, meta.classes_)  # raises an error that says which task
    adapted = meta.adapt_many(labeled)
    with no_extrapolation_warnings():
        probabilities = adapted.predict_proba([of_task.x for of_task in queries.tasks])
    n_rows = sum(map(len, queries.rows))
    label, highest = np.empty(n_rows, object), np.empty(n_rows)
    for rows, classes, of_task in zip(queries.rows, adapted.classes_, probabilities, strict=True):
        label[rows], highest[rows] = classes.astype(object)[of_task.argmax(axis=1)], of_task.max(axis=1)
    of_label = {"probability": highest} if meta.classes_ is None else {}
    each = _of_each_class(meta.classes_, adapted.classes_, probabilities, queries.rows, n_rows)
    return {"label": pd.Series(label).infer_objects().array, **of_label, **each}


def _of_each_class(
    shared: np.ndarray | None,
    classes: Sequence[np.ndarray],
    probabilities: Sequence[np.ndarray],
    rows: Sequence[np.ndarray],
    n_rows: int,
) -> dict[str, np.ndarray]:
    """Return a column for every class of any task, unless they are too many."""
    known: dict[str, int] = {}
    for of_task in classes if shared is None else [shared]:
        for label in of_task.tolist():
            if label is not None:  # the class that a context does not show
                known.setdefault(column_of(label), len(known))
    if shared is None and len(known) > MAX_OWN:
        found = f"The tasks have {len(known)} classes of their own, too many for a column of each"
        warn_caller(f"{found}: the probability of the label is written only. Predict fewer tasks.", TableWarning)
        return {}
    values = np.full((n_rows, len(known)), np.nan)
    for of_rows, of_task, found in zip(rows, classes, probabilities, strict=True):
        shown = [j for j, label in enumerate(of_task.tolist()) if label is not None]
        places = [known[column_of(of_task.tolist()[j])] for j in shown]
        values[np.ix_(of_rows, np.array(places, int))] = found[:, shown]
    return dict(zip(known, values.T, strict=True))
