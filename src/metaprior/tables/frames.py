"""From tables to tasks, and from tables to predictions: for many tasks at once."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, check_bool, counted, is_number, warn_caller
from metaprior.predict.batches import Posteriors, predict_rows
from metaprior.predict.conformal import check_method, conformal_band
from metaprior.predict.ensemble import FittedClassifier, FittedEstimator, predicts_labels
from metaprior.predict.plausibility import warn_if_implausible
from metaprior.tables.columns import Columns, TableWarning, as_columns
from metaprior.tables.grouping import (
    Context,
    TaskTable,
    fitted_columns,
    group_rows,
    group_with_covariates,
    share_covariates,
    warn_if_absent,
)
from metaprior.tables.reading import Frame, Source, as_table, columns_of, like_table
from metaprior.tasks.categories import as_text, composed, nearest
from metaprior.tasks.columns import Features, no_extrapolation_warnings
from metaprior.tasks.labels import as_labels, task_classes
from metaprior.tasks.splits import as_context_rule, check_order, split_once, warn_if_behind
from metaprior.tasks.types import Ragged, Task, TestTask, as_inputs

MAX_NAMED = 4  # environments in a warning
MAX_OWN = 100  # columns of classes, if every task has its own
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
    frame : data frame, mapping of names to arrays, or path of a CSV or Parquet file
        Table with one row per sample. Data frames may be those of any library that narwhals supports, such as pandas,
        polars, PyArrow or DuckDB; lazy ones are collected.
    task : str or list of str
        Columns that name the task of a row. Rows with the same values are one task, in their order.
    x : str or list of str
        Input columns: numbers; dates, which become days since 1970-01-01 (UTC); text and columns of type category,
        which are taken for categories.
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
        frame of pandas, so that the estimator knows their names and kinds.

    Examples
    --------
    >>> from metaprior import tasks_from_frame
    >>> table = {"patient": ["a", "a", "b"], "hours": [0, 1, 0], "rate": [80, 82, 95]}
    >>> [task.y.tolist() for task in tasks_from_frame(table, task="patient", x="hours", y="rate")]
    [[80, 82], [95]]
    """
    named = {"task": task, "x": x, "environment": environment, "covariates": covariates, "categorical": categorical}
    columns = as_columns(**named, y=y)
    if columns.y is None:
        raise ValueError(Message(Argument("y"), " must be the name of a column; got None."))
    table = group_rows(frame, columns, drop_missing=drop_missing, drop_duplicates=drop_duplicates, recognize=True)
    tasks = table.tasks
    if columns.covariates or table.categorical:
        tasks = [_as_frame(task, columns, table.categorical) for task in tasks]
    if table.environments is None:
        return tasks
    return {name: [tasks[i] for i in places] for name, places in table.places().items()}


def _as_frame(task: Task, columns: Columns, categorical: Sequence[str]) -> tuple[Frame, np.ndarray]:
    """Return X as a data frame, in which categories have that type, and y."""
    import pandas as pd

    cells = {
        name: pd.Series(task.x[:, i], dtype=float if name not in categorical else "category")
        for i, name in enumerate(columns.x)
    }
    return pd.DataFrame(cells), task.y


def predict_frame(
    meta: FittedEstimator,
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
) -> Any:
    """Predict every row of a table, given the rows of the same task in another.

    Parameters
    ----------
    meta : MetaGPRegressor, MetaGPClassifier, or those of `metaprior.wfem`
        The fitted prior.
    context : data frame, mapping of names to arrays, path of a CSV or Parquet file, or None
        Observations of the new tasks. Without any, tasks are predicted from the prior.
    query : data frame, mapping of names to arrays, or path of a CSV or Parquet file
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
    data frame
        Of the library that `query` comes from; of pandas for files and mappings. It has the task and x columns of the
        query, with its rows (and index), and `mean`, `std`, `lower` and `upper` of a new observation in the units of
        y. For labels: `label`, the most probable class, and `probability_<class>` of every class. If every task has its
        own classes, these are the classes of all tasks, empty where a task does not have the class (there are none
        beyond 100), and `probability` is that of the label. A label of None is the class that the task's context does
        not show. `extrapolates` says which inputs are outside the range of the fit.

    Examples
    --------
    >>> from metaprior import MetaGPRegressor, predict_frame
    >>> meta = MetaGPRegressor(alpha=0.0, random_state=0)
    >>> meta = meta.fit(target_tasks=[([[0.0], [1.0]], [80.0, 82.0]), ([[0.0], [1.0]], [95.0, 96.0])])
    >>> context, query = {"hours": [0.0, 1.0], "rate": [90.0, 91.0]}, {"hours": [2.0, 3.0]}
    >>> predict_frame(meta, context, query, x="hours", y="rate").columns.tolist()
    ['hours', 'mean', 'std', 'lower', 'upper', 'extrapolates']
    """
    columns = as_columns(task=task, x=x, y=y, covariates=covariates)
    drops = {"drop_missing": drop_missing, "drop_duplicates": drop_duplicates}
    table = as_table(query, "query")
    predicted = predict_tables(meta, context, table, columns, coverage, from_prior, method, **drops)
    return like_table(predicted.frame, table, query)


class TablePrediction(NamedTuple):
    """Predictions for a table of queries, and the tasks that they were made from."""

    frame: Frame  # of pandas: the rows of the query table and their predictions
    queries: TaskTable
    contexts: list[Task]  # of each query task


def predict_tables(
    meta: FittedEstimator,
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
    columns = fitted_columns(meta, columns)
    wanted = columns._replace(y=None)
    _check_free(_label_names(meta.classes_) if predicts_labels(meta) else OF_NUMBERS, wanted)
    query = as_table(query, "query")
    context = None if context is None else as_table(context, "context")
    asked = _with_environment(meta, wanted, query)
    queries = group_with_covariates(query, asked, name="query", fill_covariates=True)
    found, given = _match_contexts(meta, context, queries, columns, from_prior, drops)
    _warn_if_elsewhere(meta, (given, queries), columns)
    queries, found = share_covariates(queries, found, columns)
    warn_if_absent(columns, query, context)
    if predicts_labels(meta):
        predicted = _label_columns(meta, queries, found, Source.of(context, "context"), columns.y)
        _check_free(predicted, wanted)  # now with the classes of every task
    else:
        predicted = _number_columns(meta, queries, found, coverage, conformal)
    contexts = [each.task for each in found]
    features = dataclasses.replace(meta.features_, names=columns.x)
    inputs = [as_inputs(of_task.x, "query", features) for of_task in queries.tasks]
    warn_if_behind([(each.x, x) for each, x in zip(contexts, inputs, strict=True)], meta.parameters_["context"])
    x = _in_order(np.concatenate(inputs).T, queries).T
    features.warn_outside(x)
    outside = features.outside(x).any(axis=1)
    rows = queries.frame[[name for name in wanted.used if name in queries.frame]]  # it may lack covariates
    return TablePrediction(rows.assign(**predicted, extrapolates=outside), queries, contexts)


def _check_free(added: Iterable[str], columns: Columns) -> None:
    """Raise if the result would have two columns of a name."""
    names = [*added, "extrapolates"]
    for name in names:
        if name in columns.used:
            listed = ", ".join(names[:12]) + ", ..." * (len(names) > 12)
            raise ValueError(f"column {name!r} has the name of a column of the result ({listed}). Rename it.")


def _match_contexts(
    meta: FittedEstimator, context: Any, queries: TaskTable, columns: Columns, from_prior: Any, drops: dict[str, Any]
) -> tuple[list[Context], TaskTable | None]:
    """Return the context of each query task, and the tasks of the table of contexts.

    A task may lack a context if there are no contexts at all, or if `from_prior`: a name that is written in two ways,
    such as 101 and 0101, would otherwise be predicted without its readings.
    """
    check_bool("from_prior", from_prior)
    given = None if context is None else _contexts(meta, context, queries, columns, drops)
    known = (
        {}
        if given is None
        else {
            as_text(name): Context(of_task, int(rows[0]))
            for name, of_task, rows in zip(given.names, given.tasks, given.rows, strict=True)
        }
    )
    empty = Context(Task(np.zeros((0, meta.model_.input_dim)), np.zeros(0)))
    contexts = [known.get(as_text(name), empty) for name in queries.names]
    unused = [name for name in known if name not in {as_text(each) for each in queries.names}]
    without = [name for name, of_task in zip(queries.names, contexts, strict=True) if of_task is empty]
    if without:
        found = (
            f"{len(without)} of {counted(len(contexts), 'query task')} have no context (the first is {without[0]!r})"
        )
        if predicts_labels(meta) and meta.classes_ is None:
            advice = "Add rows of each to the context, or leave these tasks out of the queries."
            raise ValueError(f"{found}, and every task has its own labels, so their labels are unknown. {advice}")
        if known and not from_prior:
            advice = f"{found}.{_likely(without[0], unused)} Name tasks alike in both tables, or pass "
            raise ValueError(Message(advice, Argument("from_prior", True), " to predict them from the prior."))
        warn_caller(f"{found}: they are predicted from the prior.", TableWarning)
    if unused:
        found = f"{len(unused)} of {counted(len(known), 'task')} of the context have no query, and are not used"
        warn_caller(f"{found} (the first is {unused[0]!r}).", TableWarning)
    return contexts, given


def _likely(name: Any, unused: Sequence[str]) -> str:
    """Return the sentence on which unused context a task without one may have."""
    alike = nearest(as_text(name), unused)
    if alike is None:
        return ""
    meant = f" The context has {alike!r}, for which there is no query: is it the same?"
    if composed(alike) == composed(as_text(name)):
        meant += f" They look the same, but are stored as {alike!a} and {name!a} (Unicode NFC and NFD)."
    return meant


def _contexts(
    meta: FittedEstimator, context: Any, queries: TaskTable, columns: Columns, drops: dict[str, Any]
) -> TaskTable:
    """Return the tasks of the table of contexts."""
    how = {"allow_empty": True, "fill_covariates": True, **drops, "labels": predicts_labels(meta)}
    table = group_with_covariates(context, _with_environment(meta, columns, context), name="context", **how)
    if table.tasks and table.dates != queries.dates:
        name = next(name for name in columns.x if (name in table.dates) != (name in queries.dates))
        raise ValueError(f"column {name!r} must hold dates in the context and in the queries, or in neither.")
    return table


def _environment_of(meta: FittedEstimator) -> str | None:
    """Return the column of the environment, which priors fitted by the command line know."""
    return (meta.training_.get("columns") or {}).get("environment")


def _with_environment(meta: FittedEstimator, columns: Columns, table: Any) -> Columns:
    """Return columns of a table with that of the environment to be read along, if it is there."""
    column = _environment_of(meta)
    return columns._replace(aside=(column,)) if column is not None and column in columns_of(table) else columns


def _warn_if_elsewhere(meta: FittedEstimator, tables: Sequence[TaskTable | None], columns: Columns) -> None:
    """Warn about tasks of environments that the prior was not fitted to predict in, where a table says so."""
    column, found = _environment_of(meta), {}
    for table in tables:
        if table is not None and column in table.frame and columns.task:
            rows = table.frame[list(dict.fromkeys([*columns.task, column]))].drop_duplicates().dropna()
            cells = zip(*(rows[name] for name in (*columns.task, column)), strict=True)
            found |= {tuple(map(as_text, names)): as_text(place) for *names, place in cells}
    target = str(meta.training_.get("target"))
    if others := environments_in_words(list(found.values()), target):
        words = f"{others} are predicted with the prior of {target!r}, which the others only helped to learn."
        warn_caller(words[:1].upper() + words[1:], TableWarning)


def _number_columns(
    meta: FittedEstimator, queries: TaskTable, contexts: Sequence[Context], coverage: float, conformal: bool
) -> dict[str, np.ndarray]:
    """Return the columns of predicted numbers, in the order of the rows of the query table."""

    def wanted(predictive: Any, _: np.ndarray) -> np.ndarray:
        return np.stack([predictive.mean(), predictive.std(), *predictive.interval(coverage)])

    features, likelihood, shape = meta.features_, meta.model_.likelihood, queries.tasks[0].x.shape[1:]
    x = [as_inputs(context.task.x, "context", features) for context in contexts]
    posteriors = Posteriors(meta.model_, Ragged.of(x, shape), Ragged.of([context.task.y for context in contexts]))
    inputs = Ragged.of([as_inputs(of_task.x, "query", features) for of_task in queries.tasks], shape)
    for i, name in enumerate(() if likelihood.normal else queries.names):
        likelihood.check(posteriors.y[i], f"the context of task {name!r}: y")
        features.check_exposure(posteriors.x[i], f"the context of task {name!r}")
        features.check_exposure(inputs[i], f"query, task {name!r}")
    warn_if_implausible(posteriors, lambda i: f"the context of task {queries.names[i]!r}")
    predicted = predict_rows(posteriors, inputs, wanted)
    if conformal:
        predicted[2:] = conformal_band(posteriors, inputs, coverage)
    return dict(zip(OF_NUMBERS, _in_order(predicted, queries), strict=True))


def _in_order(values: np.ndarray, queries: TaskTable) -> np.ndarray:
    """Return values (..., rows), which come task after task, in the order of the query table."""
    ordered = np.empty_like(values)
    ordered[..., np.concatenate(queries.rows)] = values
    return ordered


def _label_names(classes: np.ndarray | None) -> list[str]:
    """Return the names of the columns of labels, as far as they do not depend on the tasks."""
    return ["label", "probability"] if classes is None else ["label", *map(_column_of, classes.tolist())]


def _column_of(label: Any) -> str:
    """Return the name of the column for the probability of a class."""
    return f"probability_{label}"


def _label_columns(
    meta: FittedClassifier, queries: TaskTable, contexts: Sequence[Context], source: Source, column: str | None
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
    # The class that a context does not show is None, and has no column.
    shown = [label for classes in adapted.classes_ for label in classes.tolist() if label is not None]
    shown = shown if meta.classes_ is None else meta.classes_.tolist()
    of_classes = {_column_of(each): np.full(n_rows, np.nan) for each in dict.fromkeys(shown)}
    for rows, classes, of_task in zip(queries.rows, adapted.classes_, probabilities, strict=True):
        label[rows], highest[rows] = classes.astype(object)[of_task.argmax(axis=1)], of_task.max(axis=1)
        for name, probability in zip(classes.tolist(), of_task.T, strict=True):
            if name is not None:
                of_classes[_column_of(name)][rows] = probability
    of_label = {"label": pd.Series(label).infer_objects().array}
    if meta.classes_ is not None:
        return {**of_label, **of_classes}
    if len(of_classes) > MAX_OWN:
        found = f"The tasks have {len(of_classes)} classes of their own, too many for a column of each"
        warn_caller(f"{found}: the probability of the label is written only. Predict fewer tasks.", TableWarning)
        of_classes = {}
    return {**of_label, "probability": highest, **of_classes}


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
    """Return how many tasks are of each environment other than the target; empty if there are none."""
    others = Counter(name for name in environments if name != target)
    if not others:
        return ""
    named = [f"{count:,} of {name!r}" for name, count in others.most_common(MAX_NAMED)]
    more = f" and {len(others) - MAX_NAMED} more environments" if len(others) > MAX_NAMED else ""
    return f"{counted(others.total(), 'task')} of other environments ({', '.join(named)}{more})"
