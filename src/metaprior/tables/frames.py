"""From tables to tasks, and from tables to predictions: for many tasks at once."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, is_number
from metaprior.prediction.batches import Posteriors, predict_rows
from metaprior.prediction.ensemble import predicts_labels
from metaprior.prediction.mixtures import GaussianMixture
from metaprior.prediction.plausibility import warn_if_implausible
from metaprior.tables.columns import Columns, as_columns, in_fitted_order
from metaprior.tables.contexts import Context, match_contexts
from metaprior.tables.csv_files import Source, as_table
from metaprior.tables.grouping import TaskTable, group_rows
from metaprior.tables.label_columns import known_columns, label_columns
from metaprior.tasks.context_rules import as_context_rule, split_once
from metaprior.tasks.padding import Ragged
from metaprior.tasks.types import Task, TestTask

if TYPE_CHECKING:
    import pandas as pd

OF_NUMBERS = ("mean", "std", "lower", "upper")  # columns of predicted numbers


def tasks_from_frame(
    frame: Any,
    *,
    task: Any,
    x: Any,
    y: Any,
    environment: Any = None,
    drop_missing: Any = False,
    drop_duplicates: Any = False,
) -> Any:
    """Group the rows of a table into tasks.

    Parameters
    ----------
    frame : DataFrame, mapping of names to arrays, or path of a CSV or Parquet file
        Table with one row per sample.
    task : str or list of str
        Columns that name the task of a row. Rows with the same values are one task, in their order.
    x : str or list of str
        Input columns: numbers, or dates, which become days since 1970-01-01 (UTC).
    y : str
        Output column: numbers, or labels.
    environment : str, optional
        Column that names the environment of a task, such as a hospital.
    drop_missing, drop_duplicates : bool, default=False
        Drop rows with a missing value, which otherwise is an error, or exact repetitions of a row.

    Returns
    -------
    list of (X, y), or dict from environment to such a list
        The dict, for `fit(tasks, target=...)`, if `environment` is given.

    Examples
    --------
    >>> from metaprior import tasks_from_frame
    >>> table = {"patient": ["a", "a", "b"], "hours": [0, 1, 0], "rate": [80, 82, 95]}
    >>> [task.y.tolist() for task in tasks_from_frame(table, task="patient", x="hours", y="rate")]
    [[80, 82], [95]]
    """
    columns = as_columns(task=task, x=x, y=y, environment=environment)
    if columns.y is None:
        raise ValueError(Message(Argument("y"), " must be the name of a column; got None."))
    table = group_rows(frame, columns, drop_missing=drop_missing, drop_duplicates=drop_duplicates)
    return table.tasks if table.environments is None else table.by_environment()


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
    from_prior: Any = False,
) -> "pd.DataFrame":
    """Predict every row of a table, given the rows of the same task in another.

    Parameters
    ----------
    meta : MetaGPRegressor or MetaGPClassifier
        The fitted prior.
    context : DataFrame, mapping of names to arrays, path of a CSV or Parquet file, or None
        Observations of the new tasks. Without any, tasks are predicted from the prior.
    query : DataFrame, mapping of names to arrays, or path of a CSV or Parquet file
        Inputs to predict at.
    task, x, y : str or list of str
        Columns, as for `tasks_from_frame`. Without `task` all rows are one task. Tasks of the two tables match if their
        names read the same: 7 in a data frame is "7" in a CSV file. If the prior was fitted with the same names of
        inputs, their order does not matter.
    coverage : float, default=0.9
        Probability of the interval from `lower` to `upper`.
    drop_missing, drop_duplicates : bool, default=False
        Drop rows of the context with a missing value, or exact repetitions of a row.
    from_prior : bool, default=False
        Predict tasks without context from the prior, though other tasks have one. By default this is an error, because
        names that differ between the tables look the same.

    Returns
    -------
    DataFrame
        The task and x columns of the query, with its rows and index, and `mean`, `std`, `lower` and `upper` of a new
        observation in the units of y. For labels: `label`, the most probable class, and `probability_<class>` of every
        class. If every task has its own classes, these are the classes of all tasks, empty where a task does not have
        the class (there are none beyond 100), and `probability` is that of the label. A label of None is the class
        that the task's context does not show. `extrapolates` says which inputs are outside the range of the fit.

    Examples
    --------
    >>> from metaprior import MetaGPRegressor, predict_frame
    >>> meta = MetaGPRegressor(kernel="rbf", mean="constant", alpha=0.0, n_steps=0)
    >>> meta = meta.fit(target_tasks=[([[0.0], [1.0]], [80.0, 82.0])])
    >>> context, query = {"hours": [0.0, 1.0], "rate": [90.0, 91.0]}, {"hours": [2.0, 3.0]}
    >>> predict_frame(meta, context, query, x="hours", y="rate").columns.tolist()
    ['hours', 'mean', 'std', 'lower', 'upper', 'extrapolates']
    """
    columns, drops = as_columns(task=task, x=x, y=y), {"drop_missing": drop_missing, "drop_duplicates": drop_duplicates}
    return predict_tables(meta, context, query, columns, coverage, from_prior, **drops).frame


class TablePrediction(NamedTuple):
    """Predictions for a table of queries, and the tasks that they were made from."""

    frame: Any  # a data frame: the rows of the query table and their predictions
    queries: TaskTable
    contexts: list[Task]  # of each query task


def predict_tables(
    meta: Any, context: Any, query: Any, columns: Columns, coverage: Any = 0.9, from_prior: Any = False, **drops: Any
) -> TablePrediction:
    """Predict as `predict_frame`, and return the grouped tasks too."""
    is_labeled = predicts_labels(meta)  # raises unless it is a fitted prior
    if not (is_number(coverage) and 0 < coverage < 1):
        raise ValueError(Message(Argument("coverage"), f" must lie strictly between 0 and 1; got {coverage!r}."))
    if columns.y is None:
        raise ValueError(Message(Argument("y"), " must be the name of a column of context; got None."))
    columns = in_fitted_order(meta, columns)
    wanted = columns._replace(y=None)
    _check_free(known_columns(meta.classes_) if is_labeled else OF_NUMBERS, wanted)
    queries = group_rows(query, wanted, name="query")
    context = as_table(context)
    found = match_contexts(meta, context, queries, columns, from_prior, drops)
    if is_labeled:
        predicted = label_columns(meta, queries, found, Source.of(context, "context"), columns.y)
        _check_free(predicted, wanted)  # now with the classes of every task
    else:
        predicted = _columns(meta, queries, found, coverage)
    contexts = [each.task for each in found]
    features = dataclasses.replace(meta.features_, names=columns.x)
    x = _in_order(np.concatenate([of_task.x for of_task in queries.tasks]).T, queries).T
    features.warn_outside(x)
    outside = features.outside(x).any(axis=1)
    return TablePrediction(queries.frame.assign(**predicted, extrapolates=outside), queries, contexts)


def _check_free(added: Iterable[str], columns: Columns) -> None:
    """Raise if the result would have two columns of a name."""
    names = [*added, "extrapolates"]
    for name in names:
        if name in columns.used:
            listed = ", ".join(names[:12]) + ", ..." * (len(names) > 12)
            raise ValueError(f"column {name!r} has the name of a column of the result ({listed}). Rename it.")


def split_table(
    table: TaskTable, context: Any, rng: np.random.Generator, environment: str | None = None
) -> tuple[list[TestTask], list[Any], list[Any]]:
    """Return tasks to evaluate on, their names, and the names of those with too few rows.

    `context` is what `as_context_rule` takes. Tasks of other environments than the given one are left out, if the table
    names any.
    """
    rule = as_context_rule(context)
    tests, names, skipped = [], [], []
    places = table.environments or [environment] * len(table.names)
    for name, place, of_task in zip(table.names, places, table.tasks, strict=True):
        if place != environment:
            continue
        if len(of_task.y) <= (len(of_task.y) // 2 if rule.size is None else rule.size):
            skipped.append(name)
            continue
        tests.append(split_once(of_task, rule, rng))
        names.append(name)
    return tests, names, skipped


def _columns(meta: Any, queries: TaskTable, contexts: Sequence[Context], coverage: float) -> dict[str, np.ndarray]:
    def wanted(predictive: GaussianMixture, _: np.ndarray) -> np.ndarray:
        return np.stack([predictive.mean(), predictive.std(), *predictive.interval(coverage)])

    posteriors, inputs = _condition(meta, queries, [context.task for context in contexts])
    warn_if_implausible(meta.model_, posteriors.x, posteriors.y, lambda i: f"the context of task {queries.names[i]!r}")
    predicted = predict_rows(posteriors, inputs, wanted)
    return dict(zip(OF_NUMBERS, _in_order(predicted, queries), strict=True))


def _condition(meta: Any, queries: TaskTable, contexts: Sequence[Task]) -> tuple[Posteriors, Ragged]:
    """Return the posteriors of all tasks, and the inputs of their queries."""
    shape = queries.tasks[0].x.shape[1:]
    x, y = Ragged.of([context.x for context in contexts], shape), Ragged.of([context.y for context in contexts])
    return Posteriors(meta.model_, x, y), Ragged.of([of_task.x for of_task in queries.tasks], shape)


def _in_order(values: np.ndarray, queries: TaskTable) -> np.ndarray:
    """Return values (..., rows), which come task after task, in the order of the query table."""
    ordered = np.empty_like(values)
    ordered[..., np.concatenate(queries.rows)] = values
    return ordered
