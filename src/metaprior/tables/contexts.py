"""The context of every task of a table of queries: rows of another table with the same name."""

from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, check_bool, counted, warn_caller
from metaprior.predict.ensemble import predicts_labels
from metaprior.tables.columns import Columns, TableWarning
from metaprior.tables.covariate_columns import group_with_covariates
from metaprior.tables.grouping import TaskTable
from metaprior.tasks.categories import as_text, composed, nearest
from metaprior.tasks.types import Task


class Context(NamedTuple):
    """The context of a query task."""

    task: Task
    row: int | None = None  # of its table, the first of the task


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
