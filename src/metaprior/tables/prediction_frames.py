"""From table to table: predictions for the rows of one from the rows of another, for many tasks at once."""

import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from metaprior.checks import check_integer, is_number
from metaprior.prediction.batches import NewTasks, predict_label_rows, predict_rows
from metaprior.prediction.ensemble import is_classifier
from metaprior.prediction.mixtures import GaussianMixture
from metaprior.tables.columns import Columns, TableWarning, as_columns, as_text
from metaprior.tables.grouping import TaskTable, as_frame, group_rows
from metaprior.tasks.labels import as_labels, encode, task_classes
from metaprior.tasks.ragged import Ragged
from metaprior.tasks.types import Task, TestTask

if TYPE_CHECKING:
    import pandas as pd


def predict_frame(
    meta: Any,
    context: Any,
    query: Any,
    *,
    task: Any = None,
    x: Any,
    y: Any,
    coverage: Any = 0.9,
    drop_missing: Any = False,
    drop_duplicates: Any = False,
) -> "pd.DataFrame":
    """Predict every row of the table `query`, given the rows of the same task in the table `context`.

    `meta` is a fitted MetaGPRegressor or MetaGPClassifier. Tables are data frames, mappings from column names to
    arrays, or paths of CSV or Parquet files; `task`, `x` and `y` are their columns as for `tasks_from_frame` (no
    `task`: all rows are one). A task without context, or all of them where `context` is None or has no rows, is
    predicted from the prior. Tasks match where their names read the same, so that 7 in a frame is 7 in a CSV file.
    `drop_missing` and `drop_duplicates` are for the context.

    The result has the query's rows and index: the task and x columns as they came, then `mean`, `std`, `lower` and
    `upper` (of the central interval with probability `coverage`) of a new observation, or `label`, the more probable
    class, and its `probability`. A label of None is the class that a task's context does not show.
    """
    labels = is_classifier(meta)
    if not (is_number(coverage) and 0 < coverage < 1):
        raise ValueError(f"coverage must lie strictly between 0 and 1; got {coverage!r}.")
    columns = as_columns(task=task, x=x, y=y)
    if columns.y is None:
        raise ValueError("y must be the name of a column of context; got None.")
    if len(columns.x) != meta.model_.input_dim:
        raise ValueError(f"x must name {meta.model_.input_dim} column(s), as meta was fitted; got {len(columns.x)}.")
    wanted = columns._replace(y=None)
    rows = as_frame(query, wanted, "query")
    if not len(rows):
        raise ValueError(f"{_source(query, 'query')} has no rows: there is nothing to predict.")
    _check_free(wanted, ("label", "probability") if labels else ("mean", "std", "lower", "upper"))
    queries = group_rows(rows, wanted, source=_source(query, "query"))
    contexts = contexts_of(meta, queries, context, columns, drop_missing, drop_duplicates)
    predicted = _label_columns(meta, queries, contexts) if labels else _columns(meta, queries, contexts, coverage)
    return rows.assign(**predicted)


def contexts_of(
    meta: Any,
    queries: TaskTable,
    context: Any,
    columns: Columns,
    drop_missing: Any = False,
    drop_duplicates: Any = False,
) -> list[Task]:
    """The context of each query task, empty where it has none."""
    return _matched(queries, _contexts(context, columns, is_classifier(meta), drop_missing, drop_duplicates), meta)


def split_table(
    table: TaskTable, n_context: Any, rng: np.random.Generator
) -> tuple[list[TestTask], list[Any], list[Any]]:
    """Tasks to evaluate on, their names, and the names of those left out.

    Of each task `n_context` rows, drawn at random, are context and the others queries; tasks with no row more are
    left out.
    """
    n_context = check_integer("n_context", n_context, least=0)
    tests, names, skipped = [], [], []
    for name, of_task in zip(table.names, table.tasks, strict=True):
        if len(of_task.y) <= n_context:
            skipped.append(name)
            continue
        order = rng.permutation(len(of_task.y))
        context, query = np.sort(order[:n_context]), np.sort(order[n_context:])
        tests.append(TestTask(of_task.x[context], of_task.y[context], of_task.x[query], of_task.y[query]))
        names.append(name)
    return tests, names, skipped


def _source(table: Any, name: str) -> str:
    return str(table) if isinstance(table, str | os.PathLike) else name


def _check_free(columns: Columns, added: Sequence[str]) -> None:
    for name in added:
        if name in columns.used:
            raise ValueError(f"column {name!r} has the name of a column of the result ({', '.join(added)}). Rename it.")


def _contexts(context: Any, columns: Columns, labels: bool, drop_missing: Any, drop_duplicates: Any) -> dict[Any, Task]:
    """The context of each task, by its name as text."""
    if context is None:
        return {}
    source = _source(context, "context")
    rows = as_frame(context, columns, "context")
    if not len(rows) or (drop_missing is True and rows.isna().any(axis=1).all()):
        return {}
    table = group_rows(
        rows, columns, drop_missing=drop_missing, drop_duplicates=drop_duplicates, labels=labels, source=source
    )
    known: dict[Any, Task] = {}
    for name, of_task in zip(table.names, table.tasks, strict=True):
        if as_text(name) in known:
            raise ValueError(f"{source}: two tasks are named {as_text(name)}, as text and as a number. Rename one.")
        known[as_text(name)] = of_task
    return known


def _matched(queries: TaskTable, known: dict[Any, Task], meta: Any) -> list[Task]:
    """The context of each query task, empty where there is none."""
    empty = Task(np.zeros((0, meta.model_.input_dim)), np.zeros(0))
    contexts = [known.get(as_text(name), empty) for name in queries.names]
    without = [name for name, context in zip(queries.names, contexts, strict=True) if not len(context.y)]
    if without:
        of = f"{len(without)} of {len(contexts)} query tasks have no context (the first is {without[0]!r})"
        if is_classifier(meta) and meta.classes_ is None:
            raise ValueError(
                f"{of}, and tasks have labels of their own, so nothing tells what theirs are. Add rows of each to "
                "context, or leave these tasks out of query."
            )
        warnings.warn(f"{of}: they are predicted from the prior.", TableWarning, stacklevel=3)
    return contexts


def _columns(meta: Any, queries: TaskTable, contexts: Sequence[Task], coverage: float) -> dict[str, np.ndarray]:
    def wanted(predictive: GaussianMixture, _: np.ndarray) -> np.ndarray:
        return np.stack([predictive.mean(), predictive.std(), *predictive.interval(coverage)])

    predicted = predict_rows(meta.model_, _new_tasks(queries, contexts), wanted)
    return dict(zip(("mean", "std", "lower", "upper"), _in_order(predicted, queries), strict=True))


def _label_columns(meta: Any, queries: TaskTable, contexts: Sequence[Task]) -> dict[str, Any]:
    import pandas as pd

    classes, encoded = [], []
    for name, context in zip(queries.names, contexts, strict=True):
        where = f"context, task {name!r}"
        y = as_labels(context.y, where)
        classes.append(task_classes(y, where, meta.classes_))
        encoded.append(Task(context.x, encode(y, classes[-1])))
    first, second = _in_order(predict_label_rows(meta.model_, _new_tasks(queries, encoded)), queries)
    odds = second - first
    label = np.empty(len(odds), object)
    for rows, pair in zip(queries.rows, classes, strict=True):
        label[rows] = pair.astype(object)[(odds[rows] > 0).astype(int)]
    return {"label": pd.Series(label).infer_objects().array, "probability": expit(np.abs(odds))}


def _new_tasks(queries: TaskTable, contexts: Sequence[Task]) -> NewTasks:
    shape = queries.tasks[0].x.shape[1:]
    x, y = Ragged.of([context.x for context in contexts], shape), Ragged.of([context.y for context in contexts])
    return NewTasks(x, y, Ragged.of([of_task.x for of_task in queries.tasks], shape))


def _in_order(values: np.ndarray, queries: TaskTable) -> np.ndarray:
    """Values (..., rows), of one task after another, in the order of the query table."""
    ordered = np.empty_like(values)
    ordered[..., np.concatenate(queries.rows)] = values
    return ordered
