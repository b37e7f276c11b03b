"""What the columns of X are, and how they become columns of numbers: categories, and covariates of tasks.

A category becomes a column for each level that the fit has seen and one for all others. A covariate has one more
column, which says that its value is missing. Columns of levels are centered by the shares of the levels, so that a
missing value, and the part of an unseen level that is known, is the average.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ColumnKinds:
    """The kind of every column of X. In X, a level is its number, and the number of levels is an unseen level."""

    levels: tuple[int, ...]  # of every column the number of its levels; 0: the column holds numbers
    covariates: tuple[int, ...] = ()  # columns that are constant within a task; missing values are NaN

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Columns of X in the order in which they are expanded: numbers, then categories, then covariates."""
        inputs = [i for i in range(len(self.levels)) if i not in self.covariates]
        return (*sorted(inputs, key=lambda i: self.levels[i] > 0), *sorted(self.covariates))

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of columns after expansion, in their order."""
        return tuple((self.levels[i] + 1 if self.levels[i] else 1) + (i in self.covariates) for i in self.order)

    @property
    def input_widths(self) -> tuple[int, ...]:
        """Numbers of columns of each input that is no covariate: 1 for numbers, which come first."""
        return self.widths[: len(self.levels) - len(self.covariates)]

    @property
    def covariate_widths(self) -> tuple[int, ...]:
        """Numbers of columns of each covariate."""
        return self.widths[len(self.levels) - len(self.covariates) :]

    @property
    def is_number(self) -> np.ndarray:
        """Whether each column of X holds numbers."""
        return np.array(self.levels) == 0

    def place(self, column: int) -> int:
        """Return where a column of X begins after expansion."""
        return sum(self.widths[: self.order.index(column)])

    def with_number(self, column: int) -> "ColumnKinds":
        """Return the kinds of X with one more column of numbers, which becomes the one so called."""
        covariates = tuple(i + (i >= column) for i in self.covariates)
        return ColumnKinds((*self.levels[:column], 0, *self.levels[column:]), covariates)

    def expand(self, numbers: Any, x: Any, shares: Any, xp: Any = np) -> Any:
        """Return X (..., columns) as numbers (..., sum of widths), given its standardized numbers and shares of levels.

        `xp` is NumPy or torch; exported files contain this text, too.
        """
        parts: list[Any] = []
        starts = [sum(self.widths[:place]) for place in range(len(self.widths))]
        for i, start in zip(self.order, starts, strict=True):
            column, one = x[..., i : i + 1], xp.ones_like(numbers[..., i : i + 1])
            missing = xp.isnan(column)
            values = numbers[..., i : i + 1]
            if self.levels[i]:
                is_level = [xp.where(column == code, one, 0.0 * one) for code in range(self.levels[i] + 1)]
                values = xp.concatenate(is_level, -1) - shares[start : start + self.levels[i] + 1]
            parts.append(xp.where(missing, 0.0, values))
            if i in self.covariates:
                parts.append(xp.where(missing, one, 0.0 * one))
        return xp.concatenate(parts, -1)

    def shares(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return how frequent the levels are among rows with weights, (sum of widths,); 0 for other columns."""
        found = []
        for i, width in zip(self.order, self.widths, strict=True):
            share = np.zeros(width)
            if self.levels[i]:
                present = weights * ~np.isnan(x[:, i])
                total = present @ _is_level(x[:, i], self.levels[i])
                share[: self.levels[i] + 1] = total / max(total.sum(), 1e-300)
            found.append(share)
        return np.concatenate(found)


def without_column(kinds: ColumnKinds | None, column: int | None) -> ColumnKinds | None:
    """Return the kinds of X without a column, such as an exposure; None: all columns are numbers, or are kept."""
    if kinds is None or column is None:
        return kinds
    covariates = tuple(i - (i > column) for i in kinds.covariates if i != column)
    return ColumnKinds((*kinds.levels[:column], *kinds.levels[column + 1 :]), covariates)


def _is_level(codes: np.ndarray, n_levels: int) -> np.ndarray:
    """Return 1.0 where a code is that of a level, (n, levels + 1)."""
    return (codes[:, None] == np.arange(n_levels + 1)).astype(float)
