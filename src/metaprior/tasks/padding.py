"""Tasks of different sizes: concatenated rows, and padded, masked arrays in a few size buckets."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from metaprior.tasks.input_columns import Features
from metaprior.tasks.types import CheckOutputs, Task, as_inputs, as_numbers, as_task, as_tuples

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
