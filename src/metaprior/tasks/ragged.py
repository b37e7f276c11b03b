"""The rows of many tasks in one array: checked, scaled and padded all at once, however many tasks there are."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from metaprior.tasks.types import Outputs, as_inputs, as_numbers, as_task, entries


@dataclass(frozen=True, eq=False)
class Ragged:
    """Arrays of different lengths one after another, and behind them a row of zeros to pad with."""

    rows: np.ndarray  # (all rows + 1, ...)
    sizes: np.ndarray  # (tasks,)

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray], shape: tuple[int, ...] = ()) -> "Ragged":
        """Rows of floats, each of the given shape."""
        sizes = np.fromiter(map(len, arrays), np.int64, len(arrays))
        return cls.of_rows(np.concatenate([np.zeros((0, *shape)), *arrays]), sizes)

    @classmethod
    def of_rows(cls, rows: np.ndarray, sizes: np.ndarray) -> "Ragged":
        """Rows that lie one after another already."""
        return cls(np.concatenate([rows, np.zeros((1, *rows.shape[1:]))], dtype=np.float64), sizes)

    @cached_property
    def starts(self) -> np.ndarray:
        """(tasks + 1,): where each task begins, and the last one ends."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def n_rows(self) -> int:
        """Of all tasks."""
        return len(self.rows) - 1

    def __getitem__(self, task: int) -> np.ndarray:
        return self.rows[self.starts[task] : self.starts[task + 1]]

    def take(self, tasks: np.ndarray) -> "Ragged":
        """Some of the tasks, in the order given."""
        sizes = self.sizes[tasks]
        return Ragged(self.rows[np.append(ranges(self.starts[:-1][tasks], sizes), self.n_rows)], sizes)

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """Values (..., all rows), cut into those of each task."""
        edges = self.starts.tolist()
        return [values[..., start:end] for start, end in itertools.pairwise(edges)]

    def pad(self, starts: np.ndarray, sizes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Runs of rows padded to one size, by their own first row (zeros for an empty one); where they lie, -1 if not.

        Valid numbers, so that a kernel of padding is finite.
        """
        steps = np.arange(size)
        places = starts[:, None] + steps
        if (sizes == size).all():
            return self.rows[places], places
        real = steps < sizes[:, None]
        first = np.where(sizes > 0, starts, self.n_rows)
        return self.rows[np.where(real, places, first[:, None])], np.where(real, places, -1)


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """starts[0], starts[0] + 1, ... up to sizes[0] of them, then those of starts[1], ..."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - sizes), sizes)


def as_contexts(
    contexts: Iterable[Any], name: str, input_dim: int, outputs: Outputs = as_numbers
) -> tuple[Ragged, list[np.ndarray]]:
    """Check many pairs (X, y): all inputs, and the y of each."""
    pairs = [parts for _, parts in entries(contexts, name, length=2, form="(X, y)")]
    return as_context_rows(pairs, f"{name}[{{}}]".format, input_dim, outputs)


def as_new_tasks(
    tasks: Iterable[Any], name: str, input_dim: int, outputs: Outputs = as_numbers
) -> tuple[Ragged, list[np.ndarray], Ragged]:
    """Check many (X_context, y_context, X_query): all inputs, the y of each, and all queries."""
    parts = [parts for _, parts in entries(tasks, name, length=3, form="(X_context, y_context, X_query)")]
    contexts = as_context_rows([(x, y) for x, y, _ in parts], f"{name}[{{}}] context".format, input_dim, outputs)
    return *contexts, as_input_rows([x for _, _, x in parts], f"{name}[{{}}] query".format, input_dim)


def as_input_rows(values: Sequence[Any], name: Callable[[int], str], input_dim: int) -> Ragged:
    """Check the inputs of many tasks, as `as_inputs` does for one; `name` is what to call a task in an error."""
    if (rows := _at_once(values, input_dim)) is not None:
        return rows
    return Ragged.of([as_inputs(x, name(i), input_dim) for i, x in enumerate(values)], (input_dim,))


def as_context_rows(
    pairs: Sequence[Sequence[Any]], name: Callable[[int], str], input_dim: int, outputs: Outputs = as_numbers
) -> tuple[Ragged, list[np.ndarray]]:
    """Check many pairs (X, y), as `as_task` does one: all inputs, and the y of each."""
    inputs, observed = [x for x, _ in pairs], [y for _, y in pairs]
    x, y = _at_once(inputs, input_dim), _at_once(observed)
    if x is not None and y is not None and np.array_equal(x.sizes, y.sizes):
        return x, observed
    tasks = [as_task(x, y, name(i), input_dim, outputs) for i, (x, y) in enumerate(pairs)]
    return Ragged.of([task.x for task in tasks], (input_dim,)), [task.y for task in tasks]


def _at_once(values: Sequence[Any], input_dim: int | None = None) -> Ragged | None:
    """Checked rows, of inputs or of plain numbers. None where something needs, or deserves, to be looked at singly."""
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
    shape = () if input_dim is None else (input_dim,)
    if rows.shape[1:] != shape:
        return None
    return Ragged.of_rows(rows, np.fromiter(map(len, values), np.int64, len(values)))
