"""Tables in long format, one row per sample, as tasks."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaprior.checks import check_bool
from metaprior.tables.cells import Column, as_inputs, as_outputs, read_names, read_values
from metaprior.tables.columns import Columns, TableWarning, as_columns, as_text, check_known
from metaprior.tables.reading import read_table
from metaprior.tasks.types import Task

Frame = Any  # a data frame: pandas annotates every selection from one as perhaps a series


@dataclass(frozen=True, eq=False)
class TaskTable:
    """The tasks of a table in the order of their first rows. `rows` are places among the rows of the table."""

    names: list[Any]  # the value that names each task, or a tuple of them where several columns do
    environments: list[str] | None  # of each task
    rows: list[np.ndarray]  # of each task, in their order
    tasks: list[Task]  # y is zero where the table has no column y

    def by_environment(self) -> dict[str, list[Task]]:
        """The tasks of each environment; of one without a name where the table has none."""
        grouped: dict[str, list[Task]] = {}
        for name, of_task in zip(self.environments or [""] * len(self.tasks), self.tasks, strict=True):
            grouped.setdefault(name, []).append(of_task)
        return grouped

    def of_environment(self, name: str) -> "TaskTable":
        """The tasks of one environment alone."""
        kept = [i for i, place in enumerate(self.environments or []) if place == name]
        pick: Any = lambda values: [values[i] for i in kept]  # noqa: E731
        return TaskTable(pick(self.names), None, pick(self.rows), pick(self.tasks))


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
    """The tasks of a table with one row per sample.

    `frame` is a pandas DataFrame, a mapping from column names to arrays, or the path of a CSV or Parquet file. Rows
    with the same value in column `task` (or in all of several) are one task (X, y), with inputs from the columns `x`
    and outputs from column `y`, in the order of the rows. With `environment`, a column, the result is a dict from its
    values, as strings, to lists of tasks, for `fit(tasks, target=...)`; without it the result is a list.
    `drop_missing` leaves out rows in which a value is missing, `drop_duplicates` exact repetitions of a row.
    """
    columns = as_columns(task=task, x=x, y=y, environment=environment)
    if columns.y is None:
        raise ValueError("y must be the name of a column; got None.")
    table = group_rows(frame, columns, drop_missing=drop_missing, drop_duplicates=drop_duplicates)
    return table.tasks if table.environments is None else table.by_environment()


def group_rows(
    frame: Any,
    columns: Columns,
    *,
    drop_missing: Any = False,
    drop_duplicates: Any = False,
    labels: bool | None = None,
    source: str = "frame",
) -> TaskTable:
    """Check a table and gather the rows of every task.

    `labels` says whether y are labels or numbers (None: see which its cells are), `source` what errors call the table.
    """
    check_bool("drop_missing", drop_missing)
    check_bool("drop_duplicates", drop_duplicates)
    source = str(frame) if isinstance(frame, str | os.PathLike) else source
    frame = as_frame(frame, columns, source)
    naming = [read_names(frame[name], name, source) for name in columns.task]
    places = None if columns.environment is None else _as_text(frame, columns.environment, source)
    inputs = [read_values(frame[name], name, source) for name in columns.x]
    outputs = None if columns.y is None else read_values(frame[columns.y], columns.y, source)
    every = [*naming, *([] if places is None else [places]), *inputs, *([] if outputs is None else [outputs])]
    rows = _present(every, len(frame), drop_missing, source, queries=outputs is None)

    points = np.stack([as_inputs(column.at(rows), rows) for column in inputs], axis=1)
    y = np.zeros(len(rows)) if outputs is None else as_outputs(outputs.at(rows), rows, labels)
    tasks = _codes([column.at(rows) for column in naming], len(rows))
    if outputs is not None:
        keep = _distinct([tasks, *points.T, y], rows, drop_duplicates, source)
        rows, points, y, tasks = rows[keep], points[keep], y[keep], tasks[keep]
    order = np.argsort(tasks, kind="stable")
    ends = np.cumsum(np.bincount(tasks))
    first = order[ends - np.bincount(tasks)]
    environments = None
    if places is not None:
        places = places.at(rows)
        _check_environments(places, tasks, first, naming, rows, source)
        environments = places.cells(first)
    names = [column.cells(rows[first]) for column in naming]
    return TaskTable(
        names=names[0] if len(names) == 1 else list(zip(*names, strict=True)) or [()],
        environments=environments,
        rows=_split(rows[order], ends),
        tasks=[Task(*pair) for pair in zip(_split(points[order], ends), _split(y[order], ends), strict=True)],
    )


def as_frame(table: Any, columns: Columns, source: str) -> Frame:
    """The columns that are used, of a data frame, a mapping from names to arrays, or a file."""
    import pandas as pd

    if isinstance(table, str | os.PathLike):
        return read_table(table, columns)
    if isinstance(table, pd.DataFrame):
        check_known(columns.used, list(table.columns), source, [name for name in table.index.names if name])
        return table[columns.used]
    if hasattr(table, "to_pandas"):  # of Arrow, or polars
        return as_frame(table.to_pandas(), columns, source)
    known = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", []))
    if not known:
        raise ValueError(
            f"{source} must be a DataFrame, a mapping from column names to arrays, or the path of a CSV or Parquet "
            f"file; got {type(table).__name__}."
        )
    check_known(columns.used, known, source)
    arrays = {name: table[name] for name in columns.used}
    for name, values in arrays.items():
        try:
            shape = np.shape(values)
        except ValueError:  # lists of unequal lengths
            shape = "lists of several lengths"
        if len(shape) != 1:
            raise ValueError(f"{source}: column {name!r} must have shape (rows,); got {shape}.")
    sizes = {name: len(values) for name, values in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"{source} must have columns of one length; got {sizes}.")
    return pd.DataFrame({name: pd.Series(values).reset_index(drop=True) for name, values in arrays.items()})


def _as_text(frame: Frame, name: str, source: str) -> Column:
    """A column of names as text, each stored once."""
    column = read_names(frame[name], name, source)
    assert column.codes is not None
    distinct, places = np.unique(np.array([as_text(value) for value in column.values], object), return_inverse=True)
    return column._replace(values=distinct, codes=np.append(places, -1)[column.codes])


def _present(columns: Sequence[Column], n: int, drop_missing: bool, source: str, queries: bool) -> np.ndarray:
    """Rows without missing values. Others are an error unless dropping them was asked for."""
    missing = np.zeros(n, bool)
    counts = []
    for column in columns:
        of_column = column.missing()
        missing |= of_column
        if of_column.any():
            counts.append(f"{int(of_column.sum())} in {column.name}")
    if not missing.any() and n:
        return np.arange(n)
    found = f"{int(missing.sum())} of {n} rows with a missing value ({', '.join(counts)})"
    if missing.all():
        raise ValueError(f"{source} must have at least one row without missing values; got {found if n else 'none'}.")
    if not drop_missing:
        advice = "leave them out" if queries else "pass drop_missing=True to leave them out"
        raise ValueError(f"{source} has {found}; the first is row {missing.argmax() + 1}. Fill them in, or {advice}.")
    warnings.warn(f"{source}: dropped {found}.", TableWarning, stacklevel=4)
    return np.flatnonzero(~missing)


def _distinct(parts: Sequence[np.ndarray], rows: np.ndarray, drop: bool, source: str) -> np.ndarray | slice:
    """Rows that do not repeat an earlier one exactly, if they are to be dropped; a warning of them either way."""
    import pandas as pd

    repeated = pd.DataFrame(dict(enumerate(parts)), copy=False).duplicated().to_numpy()
    if not repeated.any():
        return slice(None)
    found = f"{int(repeated.sum())} row(s) that repeat an earlier row exactly, the first is row"
    found = f"{found} {rows[repeated.argmax()] + 1}"
    advice = "Each counts as a sample of its own; if they are copies, pass drop_duplicates=True."
    message = f"{source}: dropped {found}." if drop else f"{source} has {found}. {advice}"
    warnings.warn(message, TableWarning, stacklevel=4)
    return ~repeated if drop else slice(None)


def _codes(naming: Sequence[Column], n: int) -> np.ndarray:
    """The number of each row's task, in the order of first rows; one task if no column names them."""
    import pandas as pd

    codes = np.zeros(n, np.int64)
    for column in naming:
        assert column.codes is not None
        codes = pd.factorize(codes * len(column.values) + column.codes)[0]
    return codes


def _check_environments(
    places: Column, tasks: np.ndarray, first: np.ndarray, naming: Sequence[Column], rows: np.ndarray, source: str
) -> None:
    """No task has rows in two environments."""
    assert places.codes is not None
    other = places.codes != places.codes[first][tasks]
    if not other.any():
        return
    row = int(other.argmax())
    here, there = places.cells(np.array([first[tasks[row]], row]))
    name = ", ".join(repr(column.cells(rows[[row]])[0]) for column in naming) or "of all rows"
    columns = [places.name, *(column.name for column in naming if column.name != places.name)]
    raise ValueError(
        f"{source}: task {name} is in two environments, {here!r} (row {rows[first[tasks[row]]] + 1}) and {there!r} "
        f"(row {rows[row] + 1}). If these are different tasks, name tasks by both columns: task={columns}. "
        "If they are one, mend the environment."
    )


def _split(values: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    """Views of the rows of each task; `np.split` takes three times as long."""
    starts = [0, *ends[:-1].tolist()]
    return [values[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
