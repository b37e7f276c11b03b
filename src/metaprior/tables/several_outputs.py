"""Several output columns of one table: each with the tasks of the rows that have it, and predictions side by side."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metaprior.tables.columns import Columns
from metaprior.tables.csv_files import as_table
from metaprior.tables.grouping import group_rows
from metaprior.tasks.spelling import as_text

if TYPE_CHECKING:
    import pandas as pd


def group_outputs(frame: Any, columns: dict[str, Columns], **how: Any) -> dict[str, Any]:
    """Return the grouped tasks of every output: rows without it are left out, and a warning counts them."""
    frame = as_table(frame)
    return {name: group_rows(frame, of_output, sparse_y=True, **how) for name, of_output in columns.items()}


def are_mentioned(names: Sequence[Any], context: Any, columns: Columns) -> bool:
    """Return whether all tasks have rows in the context: those without an output are no misspelled names."""
    if context is None:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # every output tells them
        named = Columns(columns.task, x=(), y=None)
        table = group_rows(context, named, drop_missing=True, name="context", allow_empty=True)
    known = {as_text(name) for name in table.names}
    return all(as_text(name) in known for name in names)


def side_by_side(frames: dict[str, "pd.DataFrame"], kept: Sequence[str]) -> "pd.DataFrame":
    """Join predictions of the same rows: columns of an output end in its name; one that `extrapolates` is enough."""
    first = next(iter(frames.values()))
    kept = [name for name in kept if name in first]  # a table of queries may lack covariates
    joined = first[kept].copy()
    for name, frame in frames.items():
        for column in frame.columns.drop([*kept, "extrapolates"]):
            added = f"{column}_{name}"
            if added in joined:
                raise ValueError(f"column {added!r} has the name of a column of the result. Rename it.")
            joined[added] = frame[column]
    return joined.assign(extrapolates=np.any([frame["extrapolates"] for frame in frames.values()], axis=0))
