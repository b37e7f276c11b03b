"""Tasks as users pass them, checked with errors that name the argument and the task.

Tasks of different sizes: concatenated rows, and padded, masked arrays in a few size buckets.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, counted
from metaprior.tasks.categories import Coded, is_missing
from metaprior.tasks.columns import Features

NUMERIC = set("biuf")  # dtype kinds
DATES = "; convert dates to numbers, such as days since a start"
OTHER_KINDS = {"U": "text", "S": "bytes", "c": "complex numbers", "M": f"datetime64{DATES}", "m": f"timedelta64{DATES}"}


class Task(NamedTuple):
    """One meta-training task: the samples D_i = (X_i, Y_i)."""

    x: np.ndarray  # (n_samples, input_dim)
    y: np.ndarray  # (n_samples,)


class TestTask(NamedTuple):
    """One test task: a context set to adapt to and a query set to predict."""

    x_context: np.ndarray  # (n_context, input_dim)
    y_context: np.ndarray  # (n_context,)
    x_query: np.ndarray  # (n_query, input_dim)
    y_query: np.ndarray  # (n_query,)

    __test__ = False  # pytest would take it for a test class


CheckOutputs = Callable[[Any, str], np.ndarray]  # checks y, named in errors as given: `as_numbers` or `as_labels`


def as_numbers(values: Any, name: str) -> np.ndarray:
    """Return the values as an array of finite floats."""
    if np.ma.is_masked(values):
        raise ValueError(f"{name} must not have masked values. Drop or impute these samples.")
    try:
        array = np.asarray(values)
        kinds = {np.asarray(item).dtype.kind for item in array.flat} if array.dtype.kind == "O" else {array.dtype.kind}
        if others := kinds - NUMERIC - {"O"}:
            raise TypeError(" and ".join(OTHER_KINDS.get(kind, kind) for kind in sorted(others)))
        array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be an array of numbers; got {type(values).__name__} ({error}).") from None
    bad = ~np.isfinite(array)
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name} must be finite; {int(bad.sum())} value{'s are' if bad.sum() > 1 else ' is'} NaN or infinite, "
            f"the first at {first if len(first) > 1 else (first[0] if first else 0)}. Drop or impute these samples."
        )
    return array


def as_inputs(x: Any, name: str, features: Features | int | None = None) -> np.ndarray:
    """Return inputs as floats of shape (n, d), named columns in the order of the features; images become rows."""
    features = Features.of(features)
    inputs, input_dim = _as_columns(features.in_order(x, name), name, features), features.count
    is_flat = inputs.ndim == 1
    if is_flat:
        # An empty list does not show its dimension; any other flat X is n inputs of one dimension.
        inputs = inputs.reshape(0, input_dim or 1) if inputs.size == 0 else inputs[:, None]
    if inputs.ndim < 2 or 0 in inputs.shape[1:]:
        raise ValueError(f"{name}: X must have shape (n, d), (n,) or (n, height, width, ...); got {inputs.shape}.")
    flat = inputs.reshape(len(inputs), math.prod(inputs.shape[1:]))
    if input_dim is not None and flat.shape[1] != input_dim:
        samples = f" in samples of shape {inputs.shape[1:]}" if inputs.ndim > 2 else ""
        one_row = "frame.iloc[[i]]" if hasattr(x, "iloc") else "[x]"
        advice = f" For one input of {input_dim} columns pass {one_row}, a table of one row." if is_flat else ""
        raise ValueError(
            f"{name}: X must have {counted(input_dim, 'column')}, like the other tasks; "
            f"got {flat.shape[1]}{samples}.{advice}"
        )
    features.check_exposure(flat, name)
    return flat


def _as_columns(x: Any, name: str, features: Features) -> np.ndarray:
    """Return X as finite floats; an error names the column of a data frame."""
    features.decide(x)
    if not features.are_numbers:
        return _as_mixed_columns(x, name, features)
    try:
        return _as_number_column(x, f"{name}: X", features)
    except ValueError:
        for i, column in enumerate(x.columns if hasattr(x, "iloc") and hasattr(x, "columns") else ()):
            _as_number_column(x.iloc[:, i], f"{name}: column {column!r} of X", features)
        raise


def _as_mixed_columns(x: Any, name: str, features: Features) -> np.ndarray:
    """Return X as floats, with codes of categories; covariates may be missing, which is NaN."""
    if isinstance(x, Coded):
        return x
    if hasattr(x, "iloc") and hasattr(x, "columns"):
        columns = [x.iloc[:, i] for i in range(x.shape[1])]
    else:
        cells = np.asarray(x, dtype=object)
        columns = list((cells[:, None] if cells.ndim == 1 else cells).T)
    if features.count is not None and len(columns) != features.count:
        return np.zeros((len(x), len(columns) if len(x) else features.count))  # `as_inputs` refuses it, if not empty
    coded, categories = [], features.categories
    for i, column in enumerate(columns):
        where = f"{name}: column {features.column_name(i)} of X"
        if i in categories.levels:
            values = categories.codes(i, column.tolist(), features.learning, where)
        elif i in categories.covariates:
            missing = np.array([is_missing(cell) for cell in column.tolist()], bool)
            values = np.full(len(missing), np.nan)
            values[~missing] = _as_number_column(np.array(column.tolist(), object)[~missing], where, features)
        else:
            values = _as_number_column(column, where, features)
        if i not in categories.covariates and np.isnan(values).any():
            first = int(np.isnan(values).argmax())
            raise ValueError(f"{where} has missing values, the first in row {first}. Drop or impute these samples.")
        coded.append(values)
    return np.stack(coded, axis=1).view(Coded)


def _as_number_column(values: Any, where: str, features: Features) -> np.ndarray:
    """Return numbers; text that was not recognized as categories in a fit, such as numerals, gets advice."""
    try:
        return as_numbers(values, where)
    except ValueError as error:
        if not (features.learning and _has_text(values)):
            raise
        advice = " Convert it to numbers or, if it holds categories, name it in "
        raise ValueError(Message(str(error), advice, Argument("categorical"), ".")) from None


def _has_text(values: Any) -> bool:
    try:
        return any(isinstance(cell, str) for cell in np.asarray(values, dtype=object).ravel())
    except ValueError:  # arrays of different shapes
        return False


def as_task(
    x: Any, y: Any, name: str, features: Features | int | None = None, outputs: CheckOutputs = as_numbers
) -> Task:
    """Check one (X, y) pair. X may be (n, d), (n,) or (n, height, width, ...), y may be (n,) or (n, 1)."""
    observed = outputs(y, f"{name}: y")
    if observed.ndim == 2 and observed.shape[1] == 1:
        observed = observed[:, 0]
    if observed.ndim != 1:
        raise ValueError(f"{name}: y must have shape (n,), one per sample; got shape {observed.shape}.")
    inputs = as_inputs(x, name, features)
    if len(inputs) != len(observed):
        raise ValueError(
            f"{name}: X and y must have the same number of samples; X has {len(inputs)} and y has {len(observed)}."
        )
    _check_same_order(x, y, name)
    if isinstance(features, Features):
        features.categories.check_constant(inputs, name, features.column_name)
    return Task(inputs, observed)


def _check_same_order(x: Any, y: Any, name: str) -> None:
    """Raise if X and y have the same row labels in different orders: rows are taken by position, as in scikit-learn."""
    of_x, of_y = (getattr(each, "index", None) if hasattr(each, "iloc") else None for each in (x, y))
    if of_x is None or of_y is None or of_x.equals(of_y):
        return
    if of_x.is_unique and of_y.is_unique and of_x.isin(of_y).all():  # other labels say nothing about the order
        raise ValueError(
            f"{name}: X and y have the same index in different orders, and rows are matched by position. Pass "
            "y.loc[X.index], or y.to_numpy() if the positions are right."
        )


def as_tasks(
    tasks: Iterable[Any] | None,
    name: str,
    features: Features | int | None = None,
    outputs: CheckOutputs = as_numbers,
) -> list[Task]:
    """Check a sequence of (X, y) pairs; `name` is the argument to name in errors. Features are learned on the way."""
    features = Features.of(features)
    checked: list[Task] = []
    for where, (x, y) in as_tuples(() if tasks is None else tasks, name, length=2, form="(X, y)"):
        task = as_task(x, y, where, features, outputs)
        if len(task.y) == 0:
            raise ValueError(f"{where} is empty: a meta-training task needs at least one sample. Drop the task.")
        features.learn(x, task.x.shape[1])
        checked.append(task)
    return checked


def as_test_tasks(
    tasks: Iterable[Any] | None, name: str, features: Features | int, outputs: CheckOutputs = as_numbers
) -> list[TestTask]:
    """Check a sequence of (X_context, y_context, X_query, y_query). An empty context stands for the prior."""
    checked: list[TestTask] = []
    form = "(X_context, y_context, X_query, y_query)"
    tuples = as_tuples(() if tasks is None else tasks, name, length=4, form=form)
    for where, (x_context, y_context, x_query, y_query) in tuples:
        context = as_task(x_context, y_context, f"{where} context", features, outputs)
        query = as_task(x_query, y_query, f"{where} query", features, outputs)
        if len(query.y) == 0:
            raise ValueError(f"{where} query is empty: there is nothing to predict. Drop the task.")
        if isinstance(features, Features):
            whole = np.concatenate([context.x, query.x])
            features.categories.check_constant(whole, f"{where} (context and query)", features.column_name)
        checked.append(TestTask(*context, *query))
    if not checked:
        raise ValueError(f"{name} is empty: expected at least one {form}.")
    return checked


def as_tuples(tasks: Iterable[Any], name: str, length: int, form: str) -> list[tuple[str, Sequence[Any]]]:
    """Return (name[index], parts) for every tuple of a sequence, which must have the given length."""
    if isinstance(tasks, np.ndarray | str | dict) or not isinstance(tasks, Iterable):
        raise ValueError(f"{name} must be a sequence of {form}; got {type(tasks).__name__}.")
    checked = []
    for index, parts in enumerate(tasks):
        where = f"{name}[{index}]"
        if not isinstance(parts, tuple | list) or len(parts) != length:
            found = f"{len(parts)} parts" if isinstance(parts, tuple | list) else type(parts).__name__
            is_whole = name == "test_tasks" and length == 4 and found == "2 parts"
            advice = " For whole tasks, (X, y), call evaluate or compare with context=5 or another one." * is_whole
            raise ValueError(f"{where} must be {form}; got {found}.{advice}")
        checked.append((where, parts))
    return checked


MIN_BUCKET_SAVING = 0.2  # of the work: a further bucket costs compilation and another pass over small arrays


@dataclass(frozen=True, eq=False)
class Ragged:
    """Arrays of different lengths, concatenated, followed by a row of zeros for padding."""

    rows: np.ndarray  # (all rows + 1, ...)
    sizes: np.ndarray  # (tasks,)

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray], shape: tuple[int, ...] = ()) -> "Ragged":
        """Concatenate arrays of rows with the given shape."""
        sizes = np.fromiter(map(len, arrays), np.int64, len(arrays))
        return cls.of_rows(np.concatenate([np.zeros((0, *shape)), *arrays]), sizes)

    @classmethod
    def of_rows(cls, rows: np.ndarray, sizes: np.ndarray) -> "Ragged":
        """Take rows that are already concatenated."""
        return cls(np.concatenate([rows, np.zeros((1, *rows.shape[1:]))], dtype=np.float64), sizes)

    @cached_property
    def starts(self) -> np.ndarray:
        """First row of each task, and the end of the last, (tasks + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def n_rows(self) -> int:
        """Number of rows of all tasks."""
        return len(self.rows) - 1

    def __getitem__(self, task: int) -> np.ndarray:
        return self.rows[self.starts[task] : self.starts[task + 1]]

    def take(self, tasks: np.ndarray) -> "Ragged":
        """Return the tasks with the given indices."""
        sizes = self.sizes[tasks]
        return Ragged(self.rows[np.append(ranges(self.starts[:-1][tasks], sizes), self.n_rows)], sizes)

    def joined(self, more: "Ragged") -> "Ragged":
        """Return the rows of every task followed by those that it has in another."""
        tasks = np.arange(len(self.sizes))
        order = np.argsort(np.concatenate([np.repeat(tasks, self.sizes), np.repeat(tasks, more.sizes)]), kind="stable")
        return Ragged.of_rows(np.concatenate([self.rows[:-1], more.rows[:-1]])[order], self.sizes + more.sizes)

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """Split values (..., all rows) by task."""
        return [values[..., start:end] for start, end in itertools.pairwise(self.starts.tolist())]

    def pad(self, starts: np.ndarray, sizes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ranges of rows padded to one size, and their row numbers, -1 for padding."""
        # Padding repeats the first row of a range (zeros for an empty one), so that its kernel is finite.
        steps = np.arange(size)
        indices = starts[:, None] + steps
        if (sizes == size).all():
            return self.rows[indices], indices
        is_sample = steps < sizes[:, None]
        first = np.where(sizes > 0, starts, self.n_rows)
        return self.rows[np.where(is_sample, indices, first[:, None])], np.where(is_sample, indices, -1)


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Concatenate the ranges that begin at `starts` and have `sizes` numbers."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - sizes), sizes)


def pad_to(tasks: Sequence[Task], size: int, dtype: np.typing.DTypeLike) -> tuple[np.ndarray, ...]:
    """Return x, y and mask of tasks padded to one size: x by its first row, y by zeros."""
    x = Ragged.of([task.x for task in tasks], tasks[0].x.shape[1:])
    y = Ragged.of([task.y for task in tasks])
    padded, indices = x.pad(x.starts[:-1], x.sizes, size)
    with np.errstate(over="ignore"):  # inputs 1e38 standard deviations away overflow float32: training reports it
        return padded.astype(dtype), y.rows[indices].astype(dtype), indices >= 0


def padded_size(n: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: few distinct sizes to compile, at most half wasted."""
    power = 1 << max(n - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and n <= power * 3 // 4 else power


def group_by_size(sizes: np.ndarray, max_buckets: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield buckets of similar sizes: the largest size of each, and the indices of its members."""
    lower = -1
    for upper in bucket_sizes(sizes, max_buckets):
        yield upper, np.flatnonzero((lower < sizes) & (sizes <= upper))
        lower = upper


def bucket_sizes(sizes: np.ndarray, max_buckets: int) -> list[int]:
    """Return the bucket sizes that minimize the padded work, the sum over tasks of (padded size)^2.

    Exact, by dynamic programming over the distinct sizes. A further bucket must save `MIN_BUCKET_SAVING` of the work.
    """
    distinct, counts = np.unique(sizes, return_counts=True)
    if len(distinct) > 256:  # merge neighbors: the dynamic program is quadratic in the number of sizes
        edges = np.unique(np.quantile(sizes, np.linspace(0, 1, 256), method="higher"))
        counts = np.diff(np.searchsorted(np.sort(sizes), edges, side="right"), prepend=0)
        distinct = edges
    tasks_up_to = np.concatenate([[0], np.cumsum(counts)])
    # cost[i, j]: all tasks with distinct sizes i..j padded to distinct[j]
    in_bucket = np.maximum(tasks_up_to[None, 1:] - tasks_up_to[:-1, None], 0)
    cost = np.where(np.tri(len(distinct), dtype=bool).T, in_bucket * distinct.astype(float) ** 2, np.inf)
    best, previous = cost[0], []
    chosen = [int(distinct[-1])]
    for _ in range(1, min(max_buckets, len(distinct))):
        # best[j] with one more bucket: the last bucket is i..j and the others end at i - 1
        candidates = np.concatenate([[np.inf], best[:-1]])[:, None] + cost
        previous.append(candidates.argmin(axis=0))
        new = candidates.min(axis=0)
        if new[-1] > (1.0 - MIN_BUCKET_SAVING) * best[-1]:
            break
        best = new
        chosen, last = [int(distinct[-1])], len(distinct) - 1
        for starts in reversed(previous):
            last = int(starts[last]) - 1
            chosen.insert(0, int(distinct[last]))
    return chosen


def as_contexts(
    contexts: Iterable[Any], name: str, features: Features | int, outputs: CheckOutputs = as_numbers
) -> tuple[Ragged, list[np.ndarray]]:
    """Check pairs (X, y) of many tasks; return all inputs, and y of each task."""
    pairs = [parts for _, parts in as_tuples(contexts, name, length=2, form="(X, y)")]
    return as_context_rows(pairs, f"{name}[{{}}]".format, features, outputs)


def as_new_tasks(
    tasks: Iterable[Any], name: str, features: Features | int, outputs: CheckOutputs = as_numbers
) -> tuple[Ragged, list[np.ndarray], Ragged]:
    """Check (X_context, y_context, X_query) of many tasks; return all inputs, y of each task, and all queries."""
    parts = [parts for _, parts in as_tuples(tasks, name, length=3, form="(X_context, y_context, X_query)")]
    contexts = as_context_rows([(x, y) for x, y, _ in parts], f"{name}[{{}}] context".format, features, outputs)
    return *contexts, as_input_rows([x for _, _, x in parts], f"{name}[{{}}] query".format, features)


def as_input_rows(values: Sequence[Any], name: Callable[[int], str], features: Features | int) -> Ragged:
    """Check the inputs of many tasks as `as_inputs` does; `name` gives the name of a task in errors."""
    features = Features.of(features)
    rows = _rows_of_arrays(values, features.count) if features.are_numbers else None
    if rows is not None and features.allow(rows.rows[:-1]):
        return rows
    return Ragged.of([as_inputs(x, name(i), features) for i, x in enumerate(values)], (features.count or 1,))


def as_context_rows(
    pairs: Sequence[Sequence[Any]],
    name: Callable[[int], str],
    features: Features | int,
    outputs: CheckOutputs = as_numbers,
) -> tuple[Ragged, list[np.ndarray]]:
    """Check pairs (X, y) of many tasks as `as_task` does; return all inputs, and y of each task."""
    features = Features.of(features)
    inputs, observed = [x for x, _ in pairs], [y for _, y in pairs]
    x, y = _rows_of_arrays(inputs, features.count) if features.are_numbers else None, _rows_of_arrays(observed)
    if x is not None and y is not None and np.array_equal(x.sizes, y.sizes) and features.allow(x.rows[:-1]):
        allow = getattr(outputs, "allow", None)  # of a likelihood
        if allow is None or allow(y.rows[:-1]):  # else one by one, for an error that names the task
            return x, observed
    tasks = [as_task(x, y, name(i), features, outputs) for i, (x, y) in enumerate(pairs)]
    return Ragged.of([task.x for task in tasks], (features.count or 1,)), [task.y for task in tasks]


def _rows_of_arrays(values: Sequence[Any], input_dim: int | None = None) -> Ragged | None:
    """Check numeric arrays of one shape all at once; return None if they must be checked one by one."""
    if set(map(type, values)) != {np.ndarray}:
        return None
    try:
        rows = np.concatenate(values)
    except ValueError:  # of different shapes
        return None
    if rows.dtype.kind not in "biuf" or not np.isfinite(rows).all():
        return None
    if input_dim == 1 and rows.ndim == 1:
        rows = rows[:, None]
    if rows.shape[1:] != (() if input_dim is None else (input_dim,)):
        return None
    return Ragged.of_rows(rows, np.fromiter(map(len, values), np.int64, len(values)))


def row_hashes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a hash of every row of x (rows, input_dim) and y (rows,), as unsigned 64-bit integers."""
    hashes = np.zeros(len(y), np.uint64)
    for column in (*x.T, y):
        values = np.asarray(column, np.float64) + 0.0  # -0.0 becomes 0.0
        hashes = _mix(hashes ^ values.view(np.uint64))
    return hashes


def sum_rows(hashes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the sum of the hashes of each task, modulo 2^64; a task without rows has zero."""
    totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    ends = np.cumsum(sizes)
    return totals[ends] - totals[ends - sizes]


def digest(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the digests of tasks, given the sums of their hashes and their numbers of rows."""
    return _mix(sums ^ _mix(np.asarray(sizes, np.uint64)))


def _mix(bits: np.ndarray) -> np.ndarray:
    """Scramble 64 bits so that every bit of the result depends on all of them."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
