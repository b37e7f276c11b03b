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
MAX_RANGED = 100  # columns: in an image, some pixel is always brighter than it ever was


class ExtrapolationWarning(UserWarning):
    """Given when predictions are asked for at inputs outside the range of the meta-training tasks."""


@dataclass
class Features:
    """The input columns of a prior. While tasks are read for a fit, the first ones decide what is not known yet."""

    count: int | None = None
    names: tuple[str, ...] | None = None  # None: X came as arrays
    range: np.ndarray | None = None  # (2, count): the smallest and the largest value in the meta-training tasks

    @classmethod
    def of(cls, given: "Features | int | None") -> "Features":
        """Return features, given them or their number."""
        return given if isinstance(given, Features) else cls(given)

    def learn(self, x: Any, count: int) -> None:
        """Take the number of columns, and their names if X has any, from an X that has been checked."""
        self.count = count
        self.names = self.names or _names(x)

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

    def warn_outside(self, x: np.ndarray) -> None:
        """Warn if any input is outside its range, and name the column that is farthest outside."""
        outside = self.outside(x)
        if self.range is None or not outside.any():
            return
        lower, upper = self.range
        with np.errstate(over="ignore"):
            beyond = np.where(outside, np.maximum(lower - x, x - upper), 0.0)
            span = np.where(upper > lower, upper - lower, 1.0)
            row, column = np.unravel_index(np.argmax(beyond / span), x.shape)
        n_rows, others = int(outside.any(axis=1).sum()), int(outside.any(axis=0).sum()) - 1
        name = f"X[:, {column}]" if self.names is None else repr(self.names[column])
        also = f" (and {others} more column{'s' * (others > 1)})" if others else ""
        found, fitted = f"{x[row, column]:.6g}", f"{lower[column]:.6g} to {upper[column]:.6g}"
        where = (
            f"Predictions extrapolate at {n_rows} of {len(x)} inputs: {name}{also} is {found} and was {fitted} in the "
        )
        which = Argument("extrapolates(X)"), " tells which inputs these are."
        warn_caller(Message(where, "tasks that the prior was fitted to. ", *which), ExtrapolationWarning)


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
