"""Covariates of new tasks: from the table of queries, or from that of contexts, or missing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from metaprior.checks import warn_caller
from metaprior.tables.columns import Columns, TableWarning
from metaprior.tables.csv_files import TableFile
from metaprior.tables.grouping import TaskTable, group_rows
from metaprior.tables.reading import column_names
from metaprior.tasks.categories import is_missing


def with_fitted_kinds(meta: Any, columns: Columns) -> Columns:
    """Return columns with the covariates and categories of the fit, by their places."""
    levels = meta.features_.categories.levels
    covariates = tuple(columns.x[i] for i in meta.features_.categories.covariates)
    return columns._replace(covariates=covariates, categorical=tuple(columns.x[i] for i in levels))


def group_with_covariates(table: Any, columns: Columns, **how: Any) -> TaskTable:
    """Group the rows of a table that may lack columns of covariates, which are missing then."""
    known = table_columns(table)
    absent = [name for name in columns.covariates if known is not None and name not in known]
    if not absent:
        return group_rows(table, columns, **how)
    there = columns._replace(
        x=tuple(name for name in columns.x if name not in absent),
        covariates=tuple(name for name in columns.covariates if name not in absent),
        categorical=tuple(name for name in columns.categorical if name not in absent),
    )
    grouped = group_rows(table, there, **how)
    tasks = []
    for task in grouped.tasks:
        x = np.full((len(task.y), len(columns.x)), None, object)
        for i, name in enumerate(columns.x):
            x[:, i] = task.x[:, there.x.index(name)] if name in there.x else None
        tasks.append(task._replace(x=x))
    return replace(grouped, tasks=tasks)


def warn_if_absent(columns: Columns, *tables: Any) -> None:
    """Warn about covariates that are in none of the tables: all tasks get the average."""
    known = [table_columns(table) for table in tables if table is not None]
    absent = [name for name in columns.covariates if all(each is not None and name not in each for each in known)]
    if absent:
        listed = ", ".join(map(repr, absent))
        warn_caller(f"No table has the covariates {listed}: all tasks are predicted with the average.", TableWarning)


def table_columns(table: Any) -> Sequence[Any] | None:
    """Return the names of the columns of a table, None of what is no table."""
    if isinstance(table, TableFile):
        return column_names(table)
    if isinstance(table, Mapping):
        return list(table)
    return list(table.columns) if hasattr(table, "columns") else None


def share_covariates(queries: TaskTable, contexts: Sequence[Any], columns: Columns) -> tuple[TaskTable, list[Any]]:
    """Give context and queries of every task the covariates that one of them has; raise if they differ."""
    if not columns.covariates:
        return queries, list(contexts)
    tasks, found = [], []
    for name, query, context in zip(queries.names, queries.tasks, contexts, strict=True):
        x_query, x_context = query.x.copy(), context.task.x.astype(query.x.dtype)
        for column in (columns.x.index(each) for each in columns.covariates):
            cells = [*x_query[:, column], *x_context[:, column]]
            values = list(dict.fromkeys(cell for cell in cells if not is_missing(cell)))
            if len(values) > 1:
                raise ValueError(
                    f"covariate {columns.x[column]!r} of task {name!r} must have one value in context and query; got "
                    f"{values[0]!r} and {values[1]!r}. Correct one of them."
                )
            if values:
                x_query[:, column] = x_context[:, column] = values[0]
        tasks.append(query._replace(x=x_query))
        found.append(context._replace(task=context.task._replace(x=x_context)))
    return replace(queries, tasks=tasks), found
