"""Rows of a table in long format, one per sample, grouped into tasks: at once, or batch by batch."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, check_bool, counted, warn_caller
from metaprior.tables.cells import (
    as_inputs,
    as_levels,
    as_names,
    as_outputs,
    as_values,
    check_kinds,
    check_text,
    is_category,
    is_declared_category,
)
from metaprior.tables.columns import Columns, TableWarning, check_constant
from metaprior.tables.csv_files import Source, TableFile, as_table
from metaprior.tables.reading import Frame, as_frame, column_names
from metaprior.tasks.categories import as_read, as_text, check_spelling, is_missing, same_reading
from metaprior.tasks.types import Task


@dataclass(frozen=True, eq=False)
class TaskTable:
    """The tasks of a table in the order of their first rows. `rows` are places among the rows of the table."""

    names: list[Any]  # the value that names each task, or a tuple of them where several columns do
    environments: list[str] | None  # of each task
    rows: list[np.ndarray]  # of each task, in their order
    tasks: list[Task]  # y is zero where the table has no column y
    dates: list[str]  # input columns that hold dates, here as days since 1970
    frame: Frame  # the used columns of the table
    categorical: tuple[str, ...] = ()  # input columns that hold categories

    def places(self) -> dict[str, list[int]]:
        """Return the places of each environment's tasks among all tasks; {"": all} where the table names none."""
        grouped: dict[str, list[int]] = {}
        for i, name in enumerate(self.environments or [""] * len(self.tasks)):
            grouped.setdefault(name, []).append(i)
        return grouped

    def by_environment(self) -> dict[str, list[Task]]:
        """Return the tasks of each environment."""
        return {name: [self.tasks[i] for i in places] for name, places in self.places().items()}


def group_rows(
    frame: Any,
    columns: Columns,
    *,
    drop_missing: Any = False,
    drop_duplicates: Any = False,
    labels: bool | None = None,
    name: str = "frame",
    allow_empty: bool = False,
    recognize: bool = False,
    fill_covariates: bool = False,
) -> TaskTable:
    """Check a table and collect the rows of every task.

    `labels` says whether y holds labels or numbers (None: infer it); `name` is what errors call a table without path.
    With `recognize`, text among the inputs is taken for categories. X of a table with categories has objects. With
    `fill_covariates`, covariates may be missing in some rows of a task: the caller fills them in.
    """
    check_bool("drop_duplicates", drop_duplicates)
    frame = as_table(frame)
    source = Source.of(frame, name)
    index = TaskIndex(columns, drop_missing, labels, recognize)
    frame = as_frame(frame, columns, name)
    batch = index.add(frame, source)
    for each in columns.covariates:
        values, names = batch.x[:, columns.x.index(each)], list(index.names)
        check_constant(each, values, batch.tasks, batch.rows, names, source, fill_covariates)
    index.finish(source, allow_empty)
    if columns.y is not None:
        batch = _distinct(batch, drop_duplicates, source)
    order = np.argsort(batch.tasks, kind="stable")
    ends = np.cumsum(np.bincount(batch.tasks))
    rows, x, y = (_split(values[order], ends) for values in (batch.rows, batch.x, batch.y))
    tasks = [Task(*pair) for pair in zip(x, y, strict=True)]
    known = list(index.environments)
    environments = None if columns.environment is None else [known[e] for e in index.task_environments.tolist()]
    return TaskTable(list(index.names), environments, rows, tasks, index.dates, frame, index.categorical)


class Context(NamedTuple):
    """The context of a query task."""

    task: Task
    row: int | None = None  # of its table, the first of the task


class Batch(NamedTuple):
    """Checked rows of a table."""

    rows: np.ndarray  # places in the table
    tasks: np.ndarray  # the number of each row's task
    x: np.ndarray  # (rows, inputs): floats, or objects where some are categories
    y: np.ndarray  # zero where the table has no column y


class TaskIndex:
    """The tasks of tables that come in one batch of rows or many, numbered in the order of their first rows."""

    def __init__(
        self,
        columns: Columns,
        drop_missing: Any,
        labels: bool | None = None,
        recognize: bool = False,
    ):
        check_bool("drop_missing", drop_missing)
        self.recognize, self.categorical = recognize, columns.categorical
        self.declared: set[str] = set()  # categories by the type of their column
        self.columns, self.drop_missing, self.labels = columns, drop_missing, labels
        self.names: dict[Any, int] = {}
        self.environments: dict[str, int] = {}
        self.task_environments = np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int64)  # rows of each task
        self.read: dict[str, dict[str, Any]] = {name: {} for name in columns.naming}  # names, by how they read
        self.kinds: dict[str, tuple[str, str]] = {}  # text, numbers or dates in a column, and the table that says so
        self.dates: list[str] = []  # input columns that hold dates
        self.missing = dict.fromkeys(columns.used, 0)  # cells
        self.absent: dict[str, int] = {}  # cells of covariates, which may be missing
        self.n_rows = self.n_missing = 0

    def add(self, frame: Frame, source: Source, first: int = 0) -> Batch:
        """Check the rows of a batch, before which the table has `first` others, and number their tasks."""
        import pandas as pd

        columns, naming, kinds = self.columns, self.columns.naming, {}
        for name in dict.fromkeys([*naming, *columns.categorical]):
            check_kinds(frame[name], source)
        read = {name: (as_names if name in naming else as_values)(frame[name], source) for name in columns.used}
        table = self._present(pd.DataFrame(read).set_index(pd.RangeIndex(first, first + len(frame))), source)
        for name in columns.used:
            check_text(table[name], source)
        if self.recognize:
            self.declared = {n for n in columns.x if is_declared_category(frame[n], source)}
            known = {*columns.categorical, *self.declared}
            self.categorical = tuple(n for n in columns.x if n in known or is_category(table[n].dropna()))
        x = np.empty((len(table), len(columns.x)), object if self.categorical else float)
        for i, name in enumerate(columns.x):
            if name in self.categorical:
                x[:, i], kinds[name] = as_levels(table[name]), "categories"
                continue
            there = ~np.asarray(table[name].isna())  # covariates may be missing
            x[~there, i] = np.nan
            x[there, i], dates = as_inputs(table[name][there], source)
            kinds[name] = "dates" if dates else "numbers"
        y = np.zeros(len(table)) if columns.y is None else as_outputs(table[columns.y], source, self.labels)
        for name in naming:
            kinds[name] = "text" if len(table) and isinstance(table[name].iloc[0], str) else "numbers"
        if len(table):
            self._check_kinds(kinds, source)
        for name in naming:
            self._check_names(table[name], source)
        tasks = self._number(table)
        if columns.environment is not None:
            self._place(table[columns.environment], tasks, source)
        return Batch(table.index.to_numpy(), tasks, x, y)

    def finish(self, source: Source, allow_empty: bool = False) -> None:
        """Raise if no row is left; warn about dropped rows and about dates."""
        found = f"{self.n_missing} of {self.n_rows} rows with a missing value ({self._missing_cells()})"
        if not (self.names or allow_empty):
            found = found if self.n_rows else "none"
            raise ValueError(f"{source} must have at least one row without missing values; got {found}.")
        if self.n_missing:
            warnings.warn(f"{source}: dropped {found}.", TableWarning, stacklevel=4)
        for name, count in self.absent.items():
            if count:
                cells = f"{count} of {counted(self.n_rows, 'row')} (empty, or read as such: NA, nan, null)"
                text = f"{source}: covariate {name} is missing in {cells}. These tasks are taken for average ones."
                warnings.warn(text, TableWarning, stacklevel=4)
        if self.columns.y is not None:
            check_spelling(self.environments, "environment", f"{source}: ", TableWarning)
            check_spelling(self.names, "task", f"{source}: ", TableWarning)
        found = [name for name in self.categorical if name not in self.columns.categorical]
        for what, of_kind in (
            ("hold text", [name for name in found if name not in self.declared]),
            ("have the type category", [name for name in found if name in self.declared]),
        ):
            if of_kind:
                verb = what if len(of_kind) > 1 else what.replace("hold", "holds").replace("have", "has")
                named = f"{'column' if len(of_kind) == 1 else 'columns'} {', '.join(of_kind)}"
                warnings.warn(f"{source}: {named} {verb}, taken for categories.", TableWarning, stacklevel=4)
        for name in self.dates:
            advice = "If the time since each task's first row matters, add a column of that, such as hours."
            message = f"{source}: column {name} holds dates, which become days since 1970-01-01 (UTC). {advice}"
            warnings.warn(message, TableWarning, stacklevel=4)

    def _missing_cells(self) -> str:
        return ", ".join(f"{count} in {name}" for name, count in self.missing.items() if count)

    def _present(self, table: Frame, source: Source) -> Frame:
        """Return the rows without missing values; raise if there are others, unless they may be dropped."""
        for name in self.columns.covariates:
            self.absent[name] = self.absent.get(name, 0) + int(table[name].isna().sum())
        missing = table.drop(columns=list(self.columns.covariates)).isna()
        some = missing.any(axis=1)
        self.n_rows, self.n_missing = self.n_rows + len(table), self.n_missing + int(some.sum())
        for name in missing:
            self.missing[name] += int(missing[name].sum())
        if not some.any():
            return table
        if not self.drop_missing:
            rows = f"{self.n_missing} of {table.index[-1] + 1} rows read ({self._missing_cells()})"
            advice: Any = ("pass ", Argument("drop_missing", True), " to ") if self.columns.y is not None else ()
            first = source.place(int(some.idxmax()))
            message = f"{source} has missing values in {rows}; the first is {first}. Fill them in, or "
            raise ValueError(Message(message, *advice, "leave them out."))
        return table[~some]

    def _check_kinds(self, kinds: dict[str, str], source: Source) -> None:
        """Raise if a column is of one kind in a table and of another in the next: "7" and 7 would be two tasks."""
        for name, kind in kinds.items():
            before, where = self.kinds.setdefault(name, (kind, str(source)))
            if before != kind:
                advice = "Convert one of them (names in CSV files and of folders are text)."
                found = f"column {name!r} must be of one kind in all tables; it is {before} in {where}"
                raise ValueError(f"{found} and {kind} in {source}. {advice}")
        self.dates = [name for name in self.columns.x if self.kinds[name][0] == "dates"]

    def _check_names(self, column: Any, source: Source) -> None:
        """Raise if two names read the same, as the number 1 and the text "1": elsewhere they would be one."""
        known = self.read[column.name]
        for name in column.cat.remove_unused_categories().cat.categories.tolist():
            other = known.setdefault(as_read(name), name)
            if other != name:
                rows = [column == each for each in (other, name)]
                places = [source.place(int(of.idxmax())) if of.any() else "before" for of in rows]
                raise same_reading(f"{source}: column {column.name!r} has", (other, name), (places[0], places[1]))

    def _number(self, table: Frame) -> np.ndarray:
        """Return the number of each row's task, and count its rows."""
        import pandas as pd

        codes, naming = np.zeros(len(table), np.int64), [table[name] for name in self.columns.task]
        for column in naming:
            codes = pd.factorize(codes * len(column.cat.categories) + column.cat.codes.to_numpy())[0]
        first = np.empty(codes.max(initial=-1) + 1, np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]  # of repeated indices the last assignment counts
        cells = [column.iloc[first].tolist() for column in naming]
        names = cells[0] if len(cells) == 1 else list(zip(*cells, strict=True)) or [()] * len(first)
        tasks = _numbered(names, self.names)[codes]
        new = len(self.names) - len(self.counts)
        self.counts = np.pad(self.counts, (0, new)) + np.bincount(tasks, minlength=len(self.names))
        self.task_environments = np.pad(self.task_environments, (0, new), constant_values=-1)
        return tasks

    def _place(self, column: Any, tasks: np.ndarray, source: Source) -> None:
        """Record the environment of every task; raise if a task has rows in two."""
        column = column.cat.remove_unused_categories()
        texts = [as_text(value) for value in column.cat.categories.tolist()]
        found, known = _numbered(texts, self.environments)[column.cat.codes.to_numpy()], self.task_environments
        new = known[tasks] < 0
        known[tasks[new][::-1]] = found[new][::-1]  # that of the first row
        other = known[tasks] != found
        if other.any():
            row, names = int(other.argmax()), list(self.names)
            here, there = (list(self.environments)[e] for e in (known[tasks[row]], found[row]))
            where = f"{here!r} before and {there!r} in {source.place(int(column.index[row]))}"
            problem = (
                f"{source}: task {names[tasks[row]]!r} is in two environments, {where}. If these are different tasks, "
            )
            both = Argument("task", [column.name, *(name for name in self.columns.task if name != column.name)])
            raise ValueError(Message(problem, "name tasks by both columns: ", both, ". If not, fix the environment."))


def _numbered(values: Sequence[Any], known: dict[Any, int]) -> np.ndarray:
    """Return the numbers of values, new ones in the order in which they come."""
    return np.fromiter((known.setdefault(value, len(known)) for value in values), np.int64, len(values))


def _distinct(batch: Batch, drop: bool, source: Source) -> Batch:
    """Warn about rows that repeat an earlier one exactly, and drop them if asked."""
    import pandas as pd

    repeated = pd.DataFrame(dict(enumerate([batch.tasks, *batch.x.T, batch.y]))).duplicated().to_numpy()
    if not repeated.any():
        return batch
    n_repeated = int(repeated.sum())
    found = f"{counted(n_repeated, 'row')} that {'repeats' if n_repeated == 1 else 'repeat'} an earlier row exactly; "
    found = f"{found}the first is {source.place(int(batch.rows[repeated.argmax()]))}."
    keep: Any = ("Each counts as a sample; if they are copies, pass ", Argument("drop_duplicates", True), ".")
    warnings.warn(
        f"{source}: dropped {found}" if drop else Message(f"{source} has {found} ", *keep), TableWarning, stacklevel=4
    )
    return Batch(*(values[~repeated] for values in batch)) if drop else batch


def _split(values: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    """Return views of the rows of each task; `np.split` takes three times as long."""
    return [values[start:end] for start, end in pairwise([0, *ends.tolist()])]


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
