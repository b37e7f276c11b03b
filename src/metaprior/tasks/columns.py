"""What the columns of X are, and how they become columns of numbers: categories, and covariates of tasks.

A category becomes a column for each level that the fit has seen and one for all others. A covariate has one more
column, which says that its value is missing. Columns of levels are centered by the shares of the levels, so that a
missing value, and the part of an unseen level that is known, is the average.

Input columns: how many X must have, what they are called, and the ranges that the tasks of a prior covered.
"""

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metaprior.checks import Argument, Message, warn_caller
from metaprior.tasks.categories import (
    Categories,
    ColumnKinds,
    alike_among,
    check_reading,
    column_places,
    plain,
    spelled_out,
    text_columns,
)

MAX_EXPOSURE = 1e6  # times the range of the fit: no unit of time or area is that far off
MARGIN = 0.1  # of a column's range, on either side: new tasks overshoot the range of a few others by about as much
ROUNDING = 1e-9  # of its value, for a column that is constant
MAX_NAMED = 3  # columns in a warning
MAX_LISTED = 8  # names, or levels, in a message
MAX_RANGED = 20  # columns: of more, as in an image or an embedding, some are always beyond what they ever were


class ExtrapolationWarning(UserWarning):
    """Given when predictions are asked for at inputs outside the range of the meta-training tasks."""


class ForecastWarning(UserWarning):
    """Given when a prior of forecasts is asked about what came before the last reading of a context."""


@dataclass
class Features:
    """The input columns of a prior. While tasks are read for a fit, the first ones decide what is not known yet."""

    count: int | None = None
    names: tuple[str, ...] | None = None  # None: X came as arrays
    range: np.ndarray | None = None  # (2, count): the smallest and the largest value in the meta-training tasks
    n_unnamed: int = 0  # tasks whose X came without names
    exposure: int | None = None  # a column that is no input, but the exposure of counts: positive, of any size
    categories: Categories = field(default_factory=Categories)
    forecasts: bool = False  # whether the prior is calibrated for queries after the context, along the first column
    asked: tuple[Any, Any] | None = None  # `covariates` and `categorical` of a fit; None: of a fitted prior

    @classmethod
    def of(cls, given: "Features | int | None") -> "Features":
        """Return features, given them or their number."""
        return given if isinstance(given, Features) else cls(given)

    @property
    def learning(self) -> bool:
        """Whether the tasks of a fit are being read."""
        return self.asked is not None

    @property
    def are_numbers(self) -> bool:
        """Whether all columns are known to hold numbers that may vary within a task."""
        return not (self.categories.levels or self.categories.covariates)

    @property
    def kinds(self) -> ColumnKinds | None:
        """What the columns are; None if all are numbers."""
        return self.categories.kinds(self.count or 0)

    def decide(self, x: Any) -> None:
        """With the first X of a fit, decide which columns are categories and which covariates."""
        if self.asked is None or self.count is not None:
            return
        names, (covariates, categorical) = _names(x), self.asked
        if covariates is None and categorical is None and names is None and not hasattr(x, "iloc"):
            return
        shape = x.x.shape if hasattr(x, "offsets") else np.shape(x)  # of stored tasks
        count = shape[1] if len(shape) > 1 else 1
        self.names = names  # for messages
        places = {*column_places(categorical, "categorical", names, count), *text_columns(x)}
        self.categories.levels = {i: {} for i in sorted(places)}
        self.categories.covariates = tuple(sorted(column_places(covariates, "covariates", names, count)))

    def learned(self) -> None:
        """Raise if a category tells nothing or too much; from now on new levels are unseen ones."""
        self.categories.check_learned(self.column_name)
        self.asked = None

    def learn(self, x: Any, count: int) -> None:
        """Take the number of columns, and their names if X has any, from an X that has been checked."""
        self.count, names = count, _names(x)
        if names is not None and len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"X has {names.count(twice)} columns named {twice!r}. Rename all but one.")
        check_reading(names or (), "column", "X has the ")
        self.names, self.n_unnamed = self.names or names, self.n_unnamed + (names is None)

    def in_order(self, x: Any, where: str) -> Any:
        """Return X with the columns of a data frame in the order of the fit; raise if they have other names.

        An array says nothing about the order of its columns, so it is taken as it is. scikit-learn warns about that;
        here arrays and data frames are mixed all the time, and the warning would come with every other call.
        """
        names = _names(x)
        if names is None or self.names is None or names == self.names:
            return x
        unseen = [name for name in names if name not in self.names]
        missing = [name for name in self.names if name not in names]
        if unseen or missing or len(names) != len(self.names):
            details = f" Unseen at fit time: {_listed(unseen)}." if unseen else ""
            details += f" Seen at fit time, yet now missing: {_listed(missing)}." if missing else ""
            details = details or f" Got {_listed(names)}."
            pairs = ((alike_among(name, missing), name) for name in unseen)
            same = (spelled_out(name, known) for known, name in pairs if known is not None)
            details += "".join(f" Is {name} the same as {known}?" for name, known in same)
            expected = "the feature names of X should match those that were passed during fit"
            raise ValueError(f"{where}: {expected}, {_listed(self.names)}.{details}")
        return x.iloc[:, [names.index(name) for name in self.names]] if hasattr(x, "iloc") else x[list(self.names)]

    def allow(self, x: np.ndarray) -> bool:
        """Return whether the exposure of all rows, if there is one, is positive, and as large as those of the fit."""
        if self.exposure is None:
            return True
        exposure = x[:, self.exposure]
        lower, upper = (0.0, np.inf) if self.range is None else self.range[:, self.exposure]
        within = (exposure >= lower / MAX_EXPOSURE) & (exposure <= MAX_EXPOSURE * upper)
        return bool(((exposure > 0.0) & within).all())

    def check_exposure(self, x: np.ndarray, where: str) -> None:
        """Raise unless the exposure of all rows is positive, and not far from those of the fit."""
        if self.exposure in self.categories.levels and len(x):  # its values are codes
            named = self.column_name(self.exposure)
            raise ValueError(f"{where}: {named} is the exposure and must hold positive numbers; it holds categories.")
        if self.exposure is None or self.allow(x):
            return
        found = x[:, self.exposure]
        if not (found > 0.0).all():
            found = found[~(found > 0.0)][0]
            raise ValueError(
                f"{where}: {self.column_name(self.exposure)} is the exposure and must be positive; got {found:g}. "
                "Leave out rows without exposure."
            )
        lower, upper = np.asarray(self.range)[:, self.exposure]
        found = found[(found > MAX_EXPOSURE * upper) | (found < lower / MAX_EXPOSURE)][0]
        raise ValueError(
            f"{where}: {self.column_name(self.exposure)} is the exposure, {lower:.6g} to {upper:.6g} in the fit; got "
            f"{found:g}, more than {MAX_EXPOSURE:g} times outside. Check its units."
        )

    def find_exposure(self, exposure: Any) -> int:
        """Return the column that is named, or counted from 0, as the exposure; the tasks must have been read."""
        count = self.count or 0
        if isinstance(exposure, str) and self.names is not None and exposure in self.names:
            column = self.names.index(exposure)
        elif isinstance(exposure, int | np.integer) and not isinstance(exposure, bool) and -count <= exposure < count:
            column = int(exposure) % count
        else:
            known = f"one of {_listed(self.names)}" if self.names is not None else "X has no names: pass its number"
            expected = f" must be a column of X, by name or number from 0 to {count - 1} ({known}); got {exposure!r}."
            raise ValueError(Message(Argument("exposure"), expected))
        self._check_no_input(column)
        return column

    def _check_no_input(self, column: int) -> None:
        """Raise if the exposure is a category or a covariate, or if X has no input beside it and the covariates."""
        given, named = Argument("exposure"), self.column_name(column)
        if column in self.categories.levels:
            wrong = (
                f" must be a column of positive numbers; {named} holds categories. Name another one, or take it out of "
            )
            raise ValueError(Message(given, wrong, Argument("categorical"), "."))
        if column in self.categories.covariates:
            twice = f" names {named}, which is a covariate too: an exposure is no input. Take it out of "
            raise ValueError(Message(given, twice, Argument("covariates"), ", or repeat the column."))
        if (self.count or 0) - len(self.categories.covariates) < 2:
            others = " and covariates" if self.categories.covariates else ""
            raise ValueError(
                Message("X must have an input column beside that of the ", given, f"{others}; it has none.")
            )

    def outside(self, x: np.ndarray) -> np.ndarray:
        """Return whether each input of (rows, count) is outside its range by more than the margin, (rows, count).

        Of a category, unseen levels are. An exposure never is.
        """
        outside = np.zeros(x.shape, bool)
        if self.range is not None and self.range.shape[1] <= MAX_RANGED:
            lower, upper = self.range
            with np.errstate(over="ignore"):  # of a range from -1e308 to 1e308
                allowed = np.maximum(MARGIN * (upper - lower), ROUNDING * np.maximum(np.abs(lower), np.abs(upper)))
                outside = (x < lower - allowed) | (x > upper + allowed)
        for column, levels in self.categories.levels.items():
            outside[:, column] = x[:, column] == len(levels)
        if self.exposure is not None:
            outside[:, self.exposure] = False
        return outside

    def warn_outside(self, x: np.ndarray, task_sizes: np.ndarray | None = None) -> None:
        """Warn if any input is outside its range, and name the columns, the farthest first.

        With the sizes of tasks, whose inputs follow each other in x, the warning also counts the tasks.
        """
        self._warn_unseen()
        outside = self.outside(x)
        outside[:, list(self.categories.levels)] = False
        if self.range is None or not outside.any():
            return
        lower, upper = self.range
        with np.errstate(over="ignore"):
            span = np.where(upper > lower, upper - lower, 1.0)
            beyond = np.where(outside, np.maximum(lower - x, x - upper), 0.0) / span
        farthest = np.argmax(beyond, axis=0)  # row of each column
        columns = np.argsort(-beyond.max(axis=0), kind="stable")[: outside.any(axis=0).sum()].tolist()
        found = [
            f"{self.column_name(column)} is {x[farthest[column], column]:.6g} and was {lower[column]:.6g} to "
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

    def _warn_unseen(self) -> None:
        """Warn about levels that the fit has not seen, and were met since the last warning."""
        found, self.categories.unseen = self.categories.unseen, {}
        if found:
            words = [
                f"{self.column_name(column)} is {self._levels(column, levels)}" for column, levels in found.items()
            ]
            warn_caller(
                f"Levels that the prior was not fitted to: {'; '.join(words)}. They are taken for new levels, which "
                "differ from the average as the known ones do, so that bands are wider. Check their spelling.",
                ExtrapolationWarning,
            )

    def _levels(self, column: int, levels: Iterable[Any]) -> str:
        """Return new levels in words, with the known one that each may be."""
        known = self.categories.levels[column]
        pairs = [(level, alike_among(level, known)) for level in itertools.islice(levels, MAX_LISTED + 1)]
        of_fit = "{} (the fit has {})"
        words = [repr(level) if near is None else of_fit.format(*spelled_out(level, near)) for level, near in pairs]
        return ", ".join([*words[:MAX_LISTED], *["..."] * (len(words) > MAX_LISTED)])

    def warn_if_mixed(self) -> None:
        """Warn if some tasks of a fit came with names of their columns, and others as arrays, without."""
        if self.names is not None and self.n_unnamed and len(self.names) > 1:
            tasks = "1 task has" if self.n_unnamed == 1 else f"{self.n_unnamed} tasks have"
            warn_caller(
                f"{tasks} an X without column names, others are data frames: its columns are taken to be "
                f"{_listed(self.names)}, in this order. Pass data frames for all tasks, or arrays for all."
            )

    def column_name(self, column: int) -> str:
        """Return what messages call a column."""
        return f"X[:, {column}]" if self.names is None else repr(self.names[column])


@contextmanager
def no_extrapolation_warnings() -> Iterator[None]:
    """Silence warnings where inputs outside the range, or in the past, are expected, as on the grid of a plot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExtrapolationWarning)
        warnings.simplefilter("ignore", ForecastWarning)
        yield


def _names(x: Any) -> tuple[str, ...] | None:
    """Return the names of the columns of a data frame, or None if X has none.

    The numbers 0, 1, ..., which pandas gives to the columns of an array, are no names. Others that are no text are
    refused: columns would be taken by position, in whatever order they are.
    """
    columns = getattr(x, "columns", None)
    if columns is None or not hasattr(x, "__getitem__"):
        return None
    names = tuple(map(plain, columns))
    if all(type(name) is int for name in names) and names == tuple(range(len(names))):
        return None
    if not all(isinstance(name, str) for name in names):
        several = any(isinstance(name, tuple) for name in names)
        text = '[" ".join(map(str, name)) for name in X.columns]' if several else "X.columns.astype(str)"
        raise TypeError(
            f"The column names of X must all be strings, as columns are matched by name; got {_listed(names)}. Call "
            f"X.columns = {text}, in the fit and for new tasks."
        )
    return names


def _listed(names: Sequence[Any]) -> str:
    return ", ".join([*map(repr, names[:MAX_LISTED]), *["..."] * (len(names) > MAX_LISTED)])
