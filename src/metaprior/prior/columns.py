"""What the columns of standardized inputs are: which share scales, and which are covariates."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from metaprior.tasks.categories import ColumnKinds

MAX_ARD = 6  # input columns up to which each has its own length scale and its own scale of slopes, unless told
MANY_INPUTS = 32  # columns whose differences would need too much memory
NUMBER_WIDTH = 2  # columns of a covariate that is a number: its value, and whether that is missing


@dataclass(frozen=True)
class Columns:
    """Columns of inputs belong to variables: a number has one column, a category one for each level.

    Columns of a variable share their scales, so that levels are equal a priori, and different from each other alike.
    """

    n_inputs: int
    separate: bool | None = None  # whether every variable has its own scales; None: if they are few
    widths: tuple[int, ...] | None = None  # columns of each input variable, numbers first; None: all are numbers
    covariates: tuple[int, ...] = ()  # columns of each covariate; they follow those of the inputs

    @classmethod
    def of(cls, n_inputs: int, kinds: ColumnKinds | None, separate: bool | None = None) -> "Columns":
        """Return the columns of tasks of some kinds, or of `n_inputs` numbers."""
        if kinds is None:
            return cls(n_inputs, separate)
        return cls(sum(kinds.input_widths), separate, kinds.input_widths, kinds.covariate_widths)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without what is cached

    @property
    def ard(self) -> bool:
        """Whether every input variable has its own length scale."""
        return self.n_variables <= MAX_ARD if self.separate is None else self.separate

    @property
    def n_variables(self) -> int:
        """Number of input variables."""
        return self.n_inputs if self.widths is None else len(self.widths)

    @property
    def n_numbers(self) -> int:
        """Number of input variables that are numbers."""
        return self.n_inputs if self.widths is None else self.widths.count(1)

    @property
    def n_lengths(self) -> int:
        """Number of length scales."""
        return self.n_variables if self.ard else 1

    def by_column(self, values: np.ndarray) -> np.ndarray:
        """Return values of the input variables, or one for all of them, for their columns, (n_inputs,)."""
        values = values if len(values) == self.n_variables else np.full(self.n_variables, values[0])
        return values if self.widths is None else np.repeat(values, self.widths)

    def lengths_by_column(self, lengths: np.ndarray) -> np.ndarray:
        """Return length scales of variables for their columns; one that all share stays one."""
        return self.by_column(lengths) if self.ard else lengths

    def by_variable(self, by_column: np.ndarray) -> np.ndarray:
        """Return the sums of numbers (n_inputs,) over the columns of each variable."""
        return by_column if self.widths is None else group_sums(by_column, self.widths)

    @cached_property
    def bent(self) -> np.ndarray:
        """Columns of covariates that bend the mean: not those of unseen levels and missing values."""
        starts = np.cumsum([0, *self.covariates])[:-1].tolist()
        pairs = zip(starts, self.bent_widths, strict=True)
        return np.concatenate([np.zeros(0, int), *(np.arange(start, start + width) for start, width in pairs)])

    @property
    def bent_widths(self) -> tuple[int, ...]:
        """Number of these columns of each covariate."""
        return tuple(max(width - 2, 1) for width in self.covariates)

    @cached_property
    def curved(self) -> np.ndarray:
        """Columns of covariates that are numbers, along which the mean may be curved."""
        starts = np.cumsum([0, *self.covariates])[:-1]
        return starts[np.array(self.covariates, int) == NUMBER_WIDTH]

    def squared_distances(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return squared distances (..., n, m, lengths) along every variable, or in all that share a length scale."""
        if self.widths is None:
            if not self.ard:
                return _summed_distances(x, z)
            return (x[..., :, None, :] - z[..., None, :, :]) ** 2
        ends = np.cumsum(self.widths)[:-1]
        pairs = zip(np.split(x, ends, axis=-1), np.split(z, ends, axis=-1), strict=True)
        parts = [_summed_distances(*pair) for pair in pairs]
        return np.concatenate(parts, axis=-1) if self.ard else np.sum(parts, axis=0)


def group_sums(values: np.ndarray, widths: tuple[int, ...]) -> np.ndarray:
    """Return sums over groups of entries of the last axis."""
    return np.add.reduceat(values, np.cumsum([0, *widths])[:-1], axis=-1)


def _summed_distances(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return squared distances in all columns, (..., n, m, 1)."""
    if x.shape[-1] <= MANY_INPUTS:
        return np.sum((x[..., :, None, :] - z[..., None, :, :]) ** 2, axis=-1, keepdims=True)
    norms = np.sum(x**2, axis=-1)[..., :, None] + np.sum(z**2, axis=-1)[..., None, :]
    return np.maximum(norms - 2.0 * x @ np.swapaxes(z, -1, -2), 0.0)[..., None]
