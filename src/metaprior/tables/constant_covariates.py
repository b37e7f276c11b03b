"""Covariates of tables: one value within a task, or an error that names the lines of two values."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message, counted
from metaprior.tables.csv_files import Source


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
