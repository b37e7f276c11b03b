"""The context of every task of a table of queries: rows of another table with the same name.

From tables to tasks, and from tables to predictions: for many tasks at once.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, check_bool, counted, is_number, warn_caller
from metaprior.predict.batches import Posteriors, predict_rows
from metaprior.predict.conformal import check_method, conformal_band
from metaprior.predict.ensemble import predicts_labels
from metaprior.predict.plausibility import warn_if_implausible
from metaprior.tables.columns import Columns, TableWarning, as_columns, in_fitted_order
from metaprior.tables.csv_files import Source, as_table
from metaprior.tables.grouping import (
    Context,
    TaskTable,
    group_rows,
    group_with_covariates,
    share_covariates,
    warn_if_absent,
    with_fitted_kinds,
)
from metaprior.tables.label_columns import known_columns, label_columns
from metaprior.tables.reading import names_of
from metaprior.tasks.categories import as_text, composed, nearest
from metaprior.tasks.columns import Features
from metaprior.tasks.splits import as_context_rule, check_order, split_once, warn_if_behind
from metaprior.tasks.types import Ragged, Task, TestTask, as_inputs

if TYPE_CHECKING:
    import pandas as pd


def match_contexts(
    meta: Any, context: Any, queries: TaskTable, columns: Columns, from_prior: Any, drops: dict[str, Any]
) -> tuple[list[Context], TaskTable | None]:
    """Return the context of each query task, empty where it may be: if there are no contexts at all, or if asked for.

    Return the tasks of the context too.

    A name that is written in two ways, such as 101 and 0101, would otherwise be predicted without its readings.
    """
    check_bool("from_prior", from_prior)
    given = None if context is None else _grouped(context, queries, columns, predicts_labels(meta), drops)
    known = {} if given is None else _by_name(given)
    empty = Context(Task(np.zeros((0, meta.model_.input_dim)), np.zeros(0)))
    contexts = [known.get(as_text(name), empty) for name in queries.names]
    without = [name for name, of_task in zip(queries.names, contexts, strict=True) if of_task is empty]
    wanted = {as_text(name) for name in queries.names}
    unused = [name for name in known if name not in wanted]
    if without:
        found = (
            f"{len(without)} of {counted(len(contexts), 'query task')} have no context (the first is {without[0]!r})"
        )
        if predicts_labels(meta) and meta.classes_ is None:
            advice = "Add rows of each to the context, or leave these tasks out of the queries."
            raise ValueError(f"{found}, and every task has its own labels, so theirs are unknown. {advice}")
        if known and not from_prior:
            alike = nearest(as_text(without[0]), unused)
            meant = "" if alike is None else f" The context has {alike!r}, for which there is no query: is it the same?"
            if alike is not None and composed(alike) == composed(as_text(without[0])):
                meant += f" They look the same, but are stored as {alike!a} and {without[0]!a} (Unicode NFC and NFD)."
            advice = "Name tasks alike in both tables, or pass "
            raise ValueError(
                Message(f"{found}.{meant} {advice}", Argument("from_prior", True), " to predict them from the prior.")
            )
        warn_caller(f"{found}: they are predicted from the prior.", TableWarning)
    if unused:
        found = f"{len(unused)} of {counted(len(known), 'task')} of the context have no query, and are not used"
        warn_caller(f"{found} (the first is {unused[0]!r}).", TableWarning)
    return contexts, given


def _grouped(context: Any, queries: TaskTable, columns: Columns, labels: bool, drops: dict[str, Any]) -> TaskTable:
    """Return the tasks of the context."""
    how = {"name": "context", "allow_empty": True, "fill_covariates": True, **drops}
    table = group_with_covariates(context, columns, labels=labels, **how)
    if table.tasks and table.dates != queries.dates:
        name = next(name for name in columns.x if (name in table.dates) != (name in queries.dates))
        raise ValueError(f"column {name!r} must hold dates in the context and in the queries, or in neither.")
    return table


def _by_name(table: TaskTable) -> dict[Any, Context]:
    """Return the context of each task by its name as text."""
    known: dict[Any, Context] = {}
    for name, of_task, rows in zip(table.names, table.tasks, table.rows, strict=True):
        known[as_text(name)] = Context(of_task, int(rows[0]))
    return known


MAX_NAMED = 4  # environments in a warning
OF_NUMBERS = ("mean", "std", "lower", "upper")  # columns of predicted numbers


def tasks_from_frame(
    frame: Any,
    *,
    task: Any,
    x: Any,
    y: Any,
    environment: Any = None,
    covariates: Any = None,
    categorical: Any = None,
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
        Input columns: numbers, or dates, which become days since 1970-01-01 (UTC), or text and columns of pandas' type
        category, which are taken for categories.
    y : str
        Output column: numbers, or labels.
    environment : str, optional
        Column that names the environment of a task, such as a hospital.
    covariates : str or list of str, optional
        Columns that are constant within a task, such as age and sex. They become the last columns of X, and may be
        missing. Pass the same names to the estimator.
    categorical : str or list of str, optional
        Columns of numbers, among `x` and `covariates`, that hold categories.
    drop_missing, drop_duplicates : bool, default=False
        Drop rows with a missing value, which otherwise is an error, or exact repetitions of a row.

    Returns
    -------
    list of (X, y), or dict from environment to such a list
        The dict, for `fit(tasks, target=...)`, if `environment` is given. With categories or covariates X is a data
        frame, so that the estimator knows their names and kinds.

    Examples
    --------
    >>> from metaprior import tasks_from_frame
    >>> table = {"patient": ["a", "a", "b"], "hours": [0, 1, 0], "rate": [80, 82, 95]}
    >>> [task.y.tolist() for task in tasks_from_frame(table, task="patient", x="hours", y="rate")]
    [[80, 82], [95]]
    """
    named = {"task": task, "x": x, "environment": environment, "covariates": covariates, "categorical": categorical}
    how = {"drop_missing": drop_missing, "drop_duplicates": drop_duplicates, "recognize": True}
    columns = as_columns(**named, y=y)
    if columns.y is None:
        raise ValueError(Message(Argument("y"), " must be the name of a column; got None."))
    table = group_rows(frame, columns, **how)
    if not (columns.covariates or table.categorical):
        return table.tasks if table.environments is None else table.by_environment()
    places = table.places()
    framed = {name: [_as_frames(table.tasks[i], columns, table) for i in of_name] for name, of_name in places.items()}
    return framed if table.environments is not None else framed[""]


def predict_frame(
    meta: Any,
    context: Any,
    query: Any,
    *,
    task: Any = None,
    x: Any,
    y: Any,
    covariates: Any = None,
    coverage: Any = 0.9,
    drop_missing: Any = False,
    drop_duplicates: Any = False,
    from_prior: Any = False,
    method: str = "model",
) -> "pd.DataFrame":
    """Predict every row of a table, given the rows of the same task in another.

    Parameters
    ----------
    meta : MetaGPRegressor, MetaGPClassifier, or those of `metaprior.wfem`
        The fitted prior.
    context : DataFrame, mapping of names to arrays, path of a CSV or Parquet file, or None
        Observations of the new tasks. Without any, tasks are predicted from the prior.
    query : DataFrame, mapping of names to arrays, or path of a CSV or Parquet file
        Inputs to predict at.
    task, x : str or list of str
        Columns, as for `tasks_from_frame`. Without `task` all rows are one task. Tasks of the two tables match if their
        names read the same: 7 in a data frame is "7" in a CSV file. If the prior was fitted with the same names of
        inputs, their order does not matter.
    y : str
        Column of the context with the output.
    covariates : str or list of str, optional
        Columns of the covariates that the prior was fitted with, in that order. They are taken from the query, or from
        the context if the query has no such column. A task without them gets the average.
    coverage : float, default=0.9
        Probability of the interval from `lower` to `upper`.
    drop_missing, drop_duplicates : bool, default=False
        Drop rows of the context with a missing value, or exact repetitions of a row.
    from_prior : bool, default=False
        Predict tasks without context from the prior, though other tasks have one. By default this is an error, because
        names that differ between the tables look the same.
    method : "model" or "conformal", default="model"
        Whether `lower` and `upper` are the central interval of the predictive distribution, or a conformal interval,
        for priors fitted with `conformal=True`.

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
    >>> meta = MetaGPRegressor(alpha=0.0, random_state=0)
    >>> meta = meta.fit(target_tasks=[([[0.0], [1.0]], [80.0, 82.0]), ([[0.0], [1.0]], [95.0, 96.0])])
    >>> context, query = {"hours": [0.0, 1.0], "rate": [90.0, 91.0]}, {"hours": [2.0, 3.0]}
    >>> predict_frame(meta, context, query, x="hours", y="rate").columns.tolist()
    ['hours', 'mean', 'std', 'lower', 'upper', 'extrapolates']
    """
    drops = {"drop_missing": drop_missing, "drop_duplicates": drop_duplicates}
    columns = as_columns(task=task, x=x, y=y, covariates=covariates)
    return predict_tables(meta, context, query, columns, coverage, from_prior, method, **drops).frame


class TablePrediction(NamedTuple):
    """Predictions for a table of queries, and the tasks that they were made from."""

    frame: Any  # a data frame: the rows of the query table and their predictions
    queries: TaskTable
    contexts: list[Task]  # of each query task


def predict_tables(
    meta: Any,
    context: Any,
    query: Any,
    columns: Columns,
    coverage: Any = 0.9,
    from_prior: Any = False,
    method: str = "model",
    **drops: Any,
) -> TablePrediction:
    """Predict as `predict_frame`, and return the grouped tasks too."""
    is_labeled = predicts_labels(meta)  # raises unless it is a fitted prior
    conformal = check_method(method, False, meta.model_, is_labeled)
    if not (is_number(coverage) and 0 < coverage < 1):
        raise ValueError(Message(Argument("coverage"), f" must lie strictly between 0 and 1; got {coverage!r}."))
    if columns.y is None:
        raise ValueError(Message(Argument("y"), " must be the name of a column of context; got None."))
    columns = with_fitted_kinds(meta, in_fitted_order(meta, columns))
    wanted = columns._replace(y=None)
    _check_free(known_columns(meta.classes_) if is_labeled else OF_NUMBERS, wanted)
    query, context = as_table(query), as_table(context)
    queries = group_with_covariates(query, _with_place(meta, wanted, query), name="query", fill_covariates=True)
    found, given = match_contexts(meta, context, queries, _with_place(meta, columns, context), from_prior, drops)
    _warn_if_elsewhere(meta, (given, queries), columns)
    queries, found = share_covariates(queries, found, columns)
    warn_if_absent(columns, query, context)
    if is_labeled:
        predicted = label_columns(meta, queries, found, Source.of(context, "context"), columns.y)
        _check_free(predicted, wanted)  # now with the classes of every task
    else:
        predicted = _columns(meta, queries, found, coverage, conformal)
    contexts = [each.task for each in found]
    features = dataclasses.replace(meta.features_, names=columns.x)
    inputs = [as_inputs(of_task.x, "query", features) for of_task in queries.tasks]
    warn_if_behind([(each.x, x) for each, x in zip(contexts, inputs, strict=True)], meta.parameters_["context"])
    x = _in_order(np.concatenate(inputs).T, queries).T
    features.warn_outside(x)
    outside = features.outside(x).any(axis=1)
    asked = queries.frame[[name for name in wanted.used if name in queries.frame]]  # it may lack covariates
    return TablePrediction(asked.assign(**predicted, extrapolates=outside), queries, contexts)


def _column_of_place(meta: Any) -> str | None:
    """Return the column of the environment, which priors fitted by the command line know."""
    return (meta.training_.get("columns") or {}).get("environment")


def _with_place(meta: Any, columns: Columns, table: Any) -> Columns:
    """Return columns of a table with that of the environment to be read along, if it is there."""
    column = _column_of_place(meta)
    is_there = table is not None and column is not None and column in names_of(table)
    return columns._replace(aside=(column,)) if is_there else columns


def _warn_if_elsewhere(meta: Any, tables: Sequence[TaskTable | None], columns: Columns) -> None:
    """Warn about tasks of environments that the prior was not fitted to predict in, where a table tells."""
    column, found = _column_of_place(meta), {}
    for table in tables:
        if table is not None and column in table.frame and columns.task:
            rows = table.frame[list(dict.fromkeys([*columns.task, column]))].drop_duplicates().dropna()
            cells = zip(*(rows[name] for name in (*columns.task, column)), strict=True)
            found |= {tuple(map(as_text, names)): as_text(place) for *names, place in cells}
    target = str(meta.training_.get("target"))
    if others := environments_in_words(list(found.values()), target):
        words = f"{others} are predicted with the prior of {target!r}, which the others only helped to learn."
        warn_caller(words[:1].upper() + words[1:], TableWarning)


def _as_frames(task: Task, columns: Columns, table: TaskTable) -> tuple[Any, np.ndarray]:
    """Return X as a data frame, whose categories are such by their type, and y."""
    import pandas as pd

    cells = dict(zip(columns.x, task.x.T, strict=True))
    kinds = {
        name: pd.Series(cell, dtype="category" if name in table.categorical else float) for name, cell in cells.items()
    }
    return pd.DataFrame(kinds), task.y


def _check_free(added: Iterable[str], columns: Columns) -> None:
    """Raise if the result would have two columns of a name."""
    names = [*added, "extrapolates"]
    for name in names:
        if name in columns.used:
            listed = ", ".join(names[:12]) + ", ..." * (len(names) > 12)
            raise ValueError(f"column {name!r} has the name of a column of the result ({listed}). Rename it.")


def split_table(
    table: TaskTable, context: Any, rng: np.random.Generator, features: Features, environment: str | None = None
) -> tuple[list[TestTask], list[Any], list[Any]]:
    """Return tasks to evaluate on, their names, and the names of those with too few rows.

    `context` is what `as_context_rule` takes. Tasks of other environments than the given one are left out, if the table
    names any.
    """
    rule = as_context_rule(context)
    check_order(rule, features)
    tests, names, skipped = [], [], []
    places = table.environments or [environment] * len(table.names)
    if others := environments_in_words(places, environment):
        warn_caller(f"Left out {others}: only tasks of {environment!r} are evaluated.", TableWarning)
    for name, place, of_task in zip(table.names, places, table.tasks, strict=True):
        if place != environment:
            continue
        if len(of_task.y) <= (len(of_task.y) // 2 if rule.size is None else rule.size):
            skipped.append(name)
            continue
        tests.append(split_once(of_task, rule, rng))
        names.append(name)
    return tests, names, skipped


def environments_in_words(environments: Sequence[str | None], target: str | None) -> str:
    """Return how many tasks are of other environments than the target, and of which; empty if there are none."""
    others = Counter(name for name in environments if name != target)
    if not others:
        return ""
    named = [f"{count:,} of {name!r}" for name, count in others.most_common(MAX_NAMED)]
    more = f" and {len(others) - MAX_NAMED} more environments" if len(others) > MAX_NAMED else ""
    return f"{counted(others.total(), 'task')} of other environments ({', '.join(named)}{more})"


def _columns(
    meta: Any, queries: TaskTable, contexts: Sequence[Context], coverage: float, conformal: bool
) -> dict[str, np.ndarray]:
    def wanted(predictive: Any, _: np.ndarray) -> np.ndarray:
        return np.stack([predictive.mean(), predictive.std(), *predictive.interval(coverage)])

    posteriors, inputs = _condition(meta, queries, [context.task for context in contexts])
    _check_observations(meta, queries, posteriors, inputs)
    warn_if_implausible(posteriors, lambda i: f"the context of task {queries.names[i]!r}")
    predicted = predict_rows(posteriors, inputs, wanted)
    if conformal:
        predicted[2:] = conformal_band(posteriors, inputs, coverage)
    return dict(zip(OF_NUMBERS, _in_order(predicted, queries), strict=True))


def _check_observations(meta: Any, queries: TaskTable, posteriors: Posteriors, inputs: Ragged) -> None:
    """Raise if a context cannot be observed under the likelihood of the prior, or an exposure is not positive."""
    likelihood, features = meta.model_.likelihood, meta.features_
    for i, name in enumerate(() if likelihood.normal else queries.names):
        likelihood.check(posteriors.y[i], f"the context of task {name!r}: y")
        features.check_exposure(posteriors.x[i], f"the context of task {name!r}")
        features.check_exposure(inputs[i], f"query, task {name!r}")


def _condition(meta: Any, queries: TaskTable, contexts: Sequence[Task]) -> tuple[Posteriors, Ragged]:
    """Return the posteriors of all tasks, and the inputs of their queries."""
    shape, features = queries.tasks[0].x.shape[1:], meta.features_
    x, y = [as_inputs(context.x, "context", features) for context in contexts], [context.y for context in contexts]
    asked = [as_inputs(of_task.x, "query", features) for of_task in queries.tasks]
    return Posteriors(meta.model_, Ragged.of(x, shape), Ragged.of(y)), Ragged.of(asked, shape)


def _in_order(values: np.ndarray, queries: TaskTable) -> np.ndarray:
    """Return values (..., rows), which come task after task, in the order of the query table."""
    ordered = np.empty_like(values)
    ordered[..., np.concatenate(queries.rows)] = values
    return ordered
