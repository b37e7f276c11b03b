"""Input columns: how many X must have, what they are called, and the ranges that the tasks of a prior covered."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message, warn_caller

MARGIN = 0.1  # of a column's range, on either side: new tasks overshoot the range of a few others by about as much
ROUNDING = 1e-9  # of its value, for a column that is constant
MAX_NAMED = 3  # columns in a warning
MAX_RANGED = 20  # columns: of more, as in an image or an embedding, some are always beyond what they ever were


class ExtrapolationWarning(UserWarning):
    """Given when predictions are asked for at inputs outside the range of the meta-training tasks."""


@dataclass
class Features:
    """The input columns of a prior. While tasks are read for a fit, the first ones decide what is not known yet."""

    count: int | None = None
    names: tuple[str, ...] | None = None  # None: X came as arrays
    range: np.ndarray | None = None  # (2, count): the smallest and the largest value in the meta-training tasks
    n_unnamed: int = 0  # tasks whose X came without names

    @classmethod
    def of(cls, given: "Features | int | None") -> "Features":
        """Return features, given them or their number."""
        return given if isinstance(given, Features) else cls(given)

    def learn(self, x: Any, count: int) -> None:
        """Take the number of columns, and their names if X has any, from an X that has been checked."""
        self.count, names = count, _names(x)
        self.names, self.n_unnamed = self.names or names, self.n_unnamed + (names is None)

    def in_order(self, x: Any, where: str) -> Any:
        """Return X with the columns of a data frame in the order of the fit; raise if they have other names.

        An array says nothing about the order of its columns, so it is taken as it is. scikit-learn warns about that;
        here arrays and data frames are mixed all the time, and the warning would come with every other call.
        """
        names = _names(x) if self.names is not None else None
        if names is None or self.names is None or names == self.names:
            return x
        unseen = [name for name in names if name not in self.names]
        missing = [name for name in self.names if name not in names]
        if unseen or missing or len(names) != len(self.names):
            details = f" Unseen at fit time: {_listed(unseen)}." if unseen else ""
            details += f" Seen at fit time, yet now missing: {_listed(missing)}." if missing else ""
            details = details or f" Got {_listed(names)}."
            expected = "the feature names of X should match those that were passed during fit"
            raise ValueError(f"{where}: {expected}, {_listed(self.names)}.{details}")
        return x[list(self.names)]

    def outside(self, x: np.ndarray) -> np.ndarray:
        """Return whether each input of (rows, count) is outside its range by more than the margin, (rows, count)."""
        if self.range is None or self.range.shape[1] > MAX_RANGED:
            return np.zeros(x.shape, bool)
        lower, upper = self.range
        with np.errstate(over="ignore"):  # of a range from -1e308 to 1e308
            allowed = np.maximum(MARGIN * (upper - lower), ROUNDING * np.maximum(np.abs(lower), np.abs(upper)))
            return (x < lower - allowed) | (x > upper + allowed)

    def warn_outside(self, x: np.ndarray, task_sizes: np.ndarray | None = None) -> None:
        """Warn if any input is outside its range, and name the columns, the farthest first.

        With the sizes of tasks, whose inputs follow each other in x, the warning also counts the tasks.
        """
        outside = self.outside(x)
        if self.range is None or not outside.any():
            return
        lower, upper = self.range
        with np.errstate(over="ignore"):
            span = np.where(upper > lower, upper - lower, 1.0)
            beyond = np.where(outside, np.maximum(lower - x, x - upper), 0.0) / span
        farthest = np.argmax(beyond, axis=0)  # row of each column
        columns = np.argsort(-beyond.max(axis=0), kind="stable")[: outside.any(axis=0).sum()].tolist()
        found = [
            f"{self._name(column)} is {x[farthest[column], column]:.6g} and was {lower[column]:.6g} to "
            f"{upper[column]:.6g}"
            for column in columns[:MAX_NAMED]
        ]
        found += [f"{len(columns) - MAX_NAMED} more columns are outside too"] * (len(columns) > MAX_NAMED)
        rows = outside.any(axis=1)
        where = f"{int(rows.sum())} of {len(x)} inputs"
        if task_sizes is not None:
            task = np.repeat(np.arange(len(task_sizes)), task_sizes)
            where += f", in {len(np.unique(task[rows]))} of {len(task_sizes)} tasks"
        said = f"Predictions extrapolate at {where}: {'; '.join(found)}. The ranges are those of the tasks that the "
        which = "prior was fitted to. ", Argument("extrapolates(X)"), " tells which inputs these are."
        warn_caller(Message(said, *which), ExtrapolationWarning)

    def warn_if_mixed(self) -> None:
        """Warn if some tasks of a fit came with names of their columns, and others as arrays, without."""
        if self.names is not None and self.n_unnamed and len(self.names) > 1:
            tasks = "1 task has" if self.n_unnamed == 1 else f"{self.n_unnamed} tasks have"
            warn_caller(
                f"{tasks} an X without column names, others are data frames: its columns are taken to be "
                f"{_listed(self.names)}, in this order. Pass data frames for all tasks, or arrays for all."
            )

    def _name(self, column: int) -> str:
        return f"X[:, {column}]" if self.names is None else repr(self.names[column])


@contextmanager
def no_extrapolation_warnings() -> Iterator[None]:
    """Silence the warning where inputs outside the range are expected, as on the grid of a plot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExtrapolationWarning)
        yield


def _names(x: Any) -> tuple[str, ...] | None:
    """Return the names of the columns of a data frame, or None if X has no names that are text."""
    columns = getattr(x, "columns", None)
    if columns is None or not hasattr(x, "__getitem__"):
        return None
    names = tuple(columns)
    is_text = [isinstance(name, str) for name in names]
    if any(is_text) and not all(is_text):
        raise TypeError(
            "The column names of X must all be strings, or none of them: otherwise they cannot be checked. Call "
            "X.columns = X.columns.astype(str)."
        )
    return names if names and all(is_text) else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*map(repr, names[:8]), *["..."] * (len(names) > 8)])
