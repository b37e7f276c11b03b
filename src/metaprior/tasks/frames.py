"""Tables in long format, one row per sample, as tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metaprior.checks import check_bool
from metaprior.tasks.types import Task


def tasks_from_frame(
    frame: Any,
    *,
    task: str,
    x: str | Sequence[str],
    y: str,
    environment: str | None = None,
    drop_missing: Any = False,
) -> Any:
    """The tasks of a table with one row per sample: a pandas DataFrame, or a mapping from column names to arrays.

    Rows with the same value in column `task` are one task (X, y), with inputs from the columns `x` and outputs from
    column `y`, in the order of the rows. With `environment`, a column, the result is a dict from its values, as
    strings, to lists of tasks, for `fit(tasks, target=...)`; the same name of a task in two environments means two
    tasks. Without it the result is a list. `drop_missing` leaves out rows in which an input or the output is missing.
    """
    check_bool("drop_missing", drop_missing)
    inputs = [x] if isinstance(x, str) else list(x)
    if not inputs:
        raise ValueError("x must name one column or more; got none.")
    grouping = [task] if environment is None else [environment, task]
    columns = {name: _column(frame, name) for name in [*grouping, *inputs, y]}
    sizes = {name: len(values) for name, values in columns.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"frame must have columns of one length; got {sizes}.")
    keep = _present([columns[name] for name in [*inputs, y]], drop_missing)
    if not keep.any():
        raise ValueError("frame must have at least one row without missing values; got none.")
    points = np.stack([_numbers(columns[name][keep], name) for name in inputs], axis=1)
    outputs = columns[y][keep]
    if outputs.dtype == object and all(isinstance(value, int | float) for value in outputs):
        outputs = outputs.astype(float)
    codes = np.stack([_codes(columns[name][keep], name) for name in grouping], axis=1)
    grouped: dict[str | None, list[Task]] = {}
    for rows in _groups(codes):
        name = None if environment is None else str(columns[environment][keep][rows[0]])
        grouped.setdefault(name, []).append(Task(points[rows], outputs[rows]))
    return grouped[None] if environment is None else grouped


def _column(frame: Any, name: str) -> np.ndarray:
    known = list(frame) if isinstance(frame, Mapping) else list(getattr(frame, "columns", []))
    if not known:
        raise ValueError(
            f"frame must be a DataFrame or a mapping from column names to arrays; got {type(frame).__name__}."
        )
    if name not in known:
        raise ValueError(f"frame has no column {name!r}; its columns are {', '.join(map(repr, known))[:200]}.")
    values = np.asarray(frame[name])
    if values.ndim != 1:
        raise ValueError(f"column {name!r} must have shape (rows,); got {values.shape}.")
    return values


def _present(columns: Sequence[np.ndarray], drop_missing: Any) -> np.ndarray:
    """Rows without missing values. They are an error unless dropping them was asked for."""
    missing = np.zeros(len(columns[0]), bool)
    for values in columns:
        if values.dtype == object:
            missing |= np.array([value is None or value != value for value in values], bool)
        elif values.dtype.kind == "f":
            missing |= np.isnan(values)
    if missing.any() and not drop_missing:
        raise ValueError(
            f"frame has {missing.sum()} row(s) with a missing value, the first is row {missing.argmax()}. "
            "Fill them in, or pass drop_missing=True to leave them out."
        )
    return ~missing


def _numbers(values: np.ndarray, name: str) -> np.ndarray:
    try:
        return values.astype(float)
    except (TypeError, ValueError):
        raise ValueError(f"column {name!r} must hold numbers; got {values.dtype} such as {values[0]!r}.") from None


def _codes(values: np.ndarray, name: str) -> np.ndarray:
    """A number for each distinct value; names of tasks and environments must all be there."""
    known: dict[Any, int] = {}
    for row, value in enumerate(values.tolist()):
        if value is None or value != value:
            raise ValueError(f"column {name!r} must name the task or environment of every row; row {row} has none.")
        known.setdefault(value, len(known))
    return np.array([known[value] for value in values.tolist()])


def _groups(codes: np.ndarray) -> list[np.ndarray]:
    """Rows of equal codes, groups in the order of their first row."""
    _, first, inverse = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(np.ravel(inverse), kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(np.ravel(inverse)))[:-1])
    return [parts[i] for i in np.argsort(first)]
