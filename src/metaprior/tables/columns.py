"""The columns of a table: which ones are used and for what.

Covariates of tables: one value within a task, or an error that names the lines of two values.

Covariates of new tasks: from the table of queries, or from that of contexts, or missing.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, counted
from metaprior.tables.csv_files import Source, read_with
from metaprior.tasks.categories import as_read, check_reading, spelled_out


class TableWarning(UserWarning):
    """Warning about rows or columns of a table that were dropped or converted."""


class Columns(NamedTuple):
    """The columns of a table with one row per sample, by name."""

    task: tuple[str, ...]  # together they name a task; none: all rows are one task
    x: tuple[str, ...]  # inputs, and covariates after them
    y: str | None  # None for a table of queries
    environment: str | None = None
    covariates: tuple[str, ...] = ()  # those of x that are constant within a task, and may be missing
    categorical: tuple[str, ...] = ()  # those of x that hold categories
    aside: tuple[str, ...] = ()  # names that are read along, and decide nothing

    @property
    def naming(self) -> list[str]:
        """The columns that hold names; the environment may also be one of those that name the task."""
        return list(dict.fromkeys([*self.task, *([] if self.environment is None else [self.environment])]))

    @property
    def used(self) -> list[str]:
        """Every column once."""
        return [*self.task, *self.x, *(name for name in (self.y, *self.naming) if name and name not in self.task)]

    @property
    def read(self) -> list[str]:
        """Every column that is used, and those read along."""
        return list(dict.fromkeys([*self.used, *self.aside]))


def as_columns(
    *,
    task: Any = None,
    x: Any,
    y: Any = None,
    environment: Any = None,
    covariates: Any = None,
    categorical: Any = None,
) -> Columns:
    """Check names of columns: one for `y` and `environment`, one or several for the others.

    Covariates may be among x, or are added to it. Categories are among x or covariates.
    """
    inputs, of_tasks = _names(x, "x"), () if covariates is None else _names(covariates, "covariates")
    columns = Columns(
        task=() if task is None else _names(task, "task"),
        x=(*inputs, *(name for name in of_tasks if name not in inputs)),
        y=None if y is None else _name(y, "y"),
        environment=None if environment is None else _name(environment, "environment"),
        covariates=of_tasks,
        categorical=() if categorical is None else _names(categorical, "categorical"),
    )
    for name in columns.categorical:
        if name not in columns.x:
            known = ", ".join(map(repr, columns.x))
            raise ValueError(Message(Argument("categorical"), f" names {name!r}, which is no input: {known}."))
    if inputs and set(inputs) <= set(of_tasks):
        few = " must name a column that varies within tasks; all of them are covariates."
        raise ValueError(Message(Argument("x"), few))
    if not columns.x:
        raise ValueError(Message(Argument("x"), " must name one column or more; got none."))
    roles = [("task", name) for name in columns.task] + [("x", name) for name in columns.x]
    roles += [("y", columns.y)] if columns.y is not None else []
    if columns.environment is not None and columns.environment not in columns.task:
        roles.append(("environment", columns.environment))
    first: dict[str, str] = {}
    for role, name in roles:
        if name in first:
            both = f"twice in {role}" if first[name] == role else f"as {first[name]} and as {role}"
            raise ValueError(f"column {name!r} is named {both}. A column has one role only: leave one out.")
        first[name] = role
    check_reading(first, "column", "The ")
    return columns


def in_fitted_order(meta: Any, columns: Columns) -> Columns:
    """Return the columns with the inputs in the order of the fit, if it had inputs of these names."""
    n_inputs = meta.model_.input_dim
    if len(columns.x) != n_inputs:
        wanted = f" must name {counted(n_inputs, 'column')}, as many as the prior was fitted with"
        message = f"{wanted}; got {len(columns.x)}."
        raise ValueError(Message(Argument("x"), message))
    of_table = (meta.training_.get("columns") or {}).get("x") or ()
    known = tuple(getattr(meta, "feature_names_in_", of_table))
    return columns._replace(x=known) if sorted(known) == sorted(columns.x) else columns


def check_known(wanted: Iterable[str], known: Sequence[Any], source: str, index: Iterable[Any] = ()) -> None:
    """Raise unless every wanted column exists once; `source` is what errors call the table, `index` names its index."""
    for name in wanted:
        if name in index and name not in known:
            raise ValueError(f"{source} has no column {name!r}: that is its index. Pass it with .reset_index().")
        if name not in known:
            raise ValueError(Message(f"{source} has no column {name!r}", _suggestion(name, known)))
        if list(known).count(name) > 1:
            raise ValueError(f"{source} has {list(known).count(name)} columns named {name!r}. Rename all but one.")


def _suggestion(name: str, known: Sequence[Any]) -> Message:
    if not len(known):
        return Message(": it has no columns.")
    texts = [str(column) for column in known]
    lower = {as_read(text).lower(): text for text in reversed(texts)}
    close = difflib.get_close_matches(as_read(name).lower(), list(lower), n=1)
    guess = f"; did you mean {spelled_out(lower[close[0]], name)[0]}? Its" if close else "; its"
    shown = ", ".join(map(repr, texts[:12])) + (f" and {len(texts) - 12} more" if len(texts) > 12 else "")
    separator = next((mark for mark in (";", "\t", "|", ",") if len(texts) == 1 and mark in texts[0]), None)
    guess = f"{guess} columns are {shown}."
    if separator is None:
        return Message(guess)
    return Message(
        guess, f" They seem to be separated by {separator!r}: read it with ", read_with("sep", separator), "."
    )


def _names(value: Any, role: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_name(value, role),)
    if isinstance(value, dict | set | frozenset) or not isinstance(value, Iterable):  # inputs have an order
        raise ValueError(Message(Argument(role), f" must be the name of a column, or several; got {value!r}."))
    return tuple(_name(item, role) for item in value)


def _name(value: Any, role: str) -> str:
    if role == "y" and isinstance(value, list | tuple):
        instead = f" must name one column; got {len(value)}: {value!r}. Fit a prior to each output."
        raise ValueError(Message(Argument(role), instead))
    if not isinstance(value, str) or not value:
        raise ValueError(Message(Argument(role), f" must be the name of a column, a nonempty string; got {value!r}."))
    return value


def check_constant(
    name: str,
    values: np.ndarray,
    tasks: np.ndarray,
    rows: np.ndarray,
    names: Sequence[Any],
    source: Source,
    fill: bool = False,
) -> None:
    """Raise if a covariate has two values in a task, given that of every row, its task, and its place in the table.

    A missing value beside another is a second one, unless it is to be filled in.
    """
    import pandas as pd

    codes = pd.factorize(values)[0]  # -1 where they are missing
    kept = np.flatnonzero(codes >= 0) if fill else np.arange(len(codes))
    first = np.zeros(len(names), np.int64)
    first[tasks[kept][::-1]] = kept[::-1]  # of repeated tasks the last assignment counts
    other = kept[codes[kept] != codes[first[tasks[kept]]]]
    if not len(other):
        return
    here, there = int(other[0]), int(first[tasks[other[0]]])
    task = names[tasks[here]]
    n_more = int(np.sum(tasks[other] == tasks[here])) - 1
    more = f", and another one than there in {counted(n_more, 'more row')}" if n_more else ""
    cells = [_shown(values[place], int(codes[place])) for place in (here, there)]
    places = [source.place(int(rows[place])) for place in (here, there)]
    raise ValueError(
        Message(
            f"{source}: {places[0]}, column {name}: covariate {name!r} must have one value within a task; task "
            f"{task!r} has {cells[0]} here and {cells[1]} in {places[1]}{more}. Correct these rows, or take the column "
            "out of ",
            *(Argument("covariates"), " to use it as an input."),
        )
    )


def _shown(value: Any, code: int) -> str:
    """Return a value as messages quote it."""
    return "no value" if code < 0 else f"{value:.12g}" if isinstance(value, float) else repr(value)
