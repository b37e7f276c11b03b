"""The parameters theta of a hierarchical prior: logarithms of scales, their hyper-prior, and where each one stands.

A reading of task i is

    y_i(x) = l(x) . beta + mu(x) + l(x) . b_i + g_i(x) + (mu(x), mu'(x)) . s_i + phi(x) . (m + u_i)
             + z_i . (c + D (x, psi(x))) + e(z_i) + noise,

where l(x) = (1, x), with a common line beta and a smooth common curve mu; the task's own line b_i and smooth deviation
g_i; s_i, by which the task scales the common curve and shifts it along each input; and features phi(x) of a network,
which all tasks share, with common weights m and the task's own u_i. The covariates z_i of a task shift the mean by c,
bend it by D, the weights of their products with the inputs and with the first functions psi of the common curve, and
shift it along smooth curves e of each (`covariate_curves`). In the target environment the common mean may have a
deviation of its own.

Columns of x belong to variables: a number has one column, and a category one for each level (`tasks.column_kinds`).
Columns of a variable share their scales, so that levels are equal a priori, and different from each other alike.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from metaprior.prior.correlations import correlation_root, n_correlations
from metaprior.prior.covariate_curves import N_FUNCTIONS

MAX_ARD = 6  # input columns up to which each has its own length scale and its own scale of slopes, unless told
MAX_CORRELATED = 5  # numbers among the inputs up to which their slopes may be correlated
N_FEATURES = 8  # that a network computes
NUMBER_WIDTH = 2  # columns of a covariate that is a number: its value, and whether that is missing
N_BENT = 8  # functions of the common curve that covariates multiply
COMMON_STD = 3.0  # prior standard deviation of the common intercept and slopes, in standardized units


def sums_of_groups(values: np.ndarray, widths: tuple[int, ...]) -> np.ndarray:
    """Return sums over groups of entries of the last axis."""
    return np.add.reduceat(values, np.cumsum([0, *widths])[:-1], axis=-1)


def is_separate(input_dim: int, separate: bool | None) -> bool:
    """Return whether every input column has its own scales."""
    return input_dim <= MAX_ARD if separate is None else separate


@dataclass(frozen=True)
class Parts:
    """The terms of a prior besides the common line, the tasks' own lines and the noise."""

    smooth: bool = False  # mu, and with it g
    curve: bool = False  # tasks scale and shift mu
    environment: bool = False  # the target's common mean deviates from the sources'
    features: bool = False  # phi
    covariates: bool = False  # c
    bend: bool = False  # D
    curved: bool = False  # e
    correlated: bool = False  # intercept and slopes of numbers, in b


@dataclass(frozen=True)
class Layout:
    """Where each parameter stands in theta, with independent normal hyper-priors."""

    parts: Parts
    input_dim: int
    log_noise: float | None = None  # if the noise is given, in standardized units
    separate: bool | None = None  # whether every input column has its own scales; None: if they are few
    learned_trend: bool = False  # whether the scale of common slopes is learned even if they are few
    widths: tuple[int, ...] | None = None  # columns of each input variable, numbers first; None: all are numbers
    covariates: tuple[int, ...] = ()  # columns of each covariate; they follow those of the inputs

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without what is cached

    @property
    def has_trend(self) -> bool:
        """Whether theta has the scale of the common slopes."""
        return self.learned_trend or not self.ard

    @property
    def ard(self) -> bool:
        """Whether every input variable has its own length scale."""
        return is_separate(self.n_variables, self.separate)

    @property
    def n_variables(self) -> int:
        """Number of input variables."""
        return self.input_dim if self.widths is None else len(self.widths)

    @property
    def n_numbers(self) -> int:
        """Number of input variables that are numbers."""
        return self.input_dim if self.widths is None else self.widths.count(1)

    @property
    def n_correlated(self) -> int:
        """Number of a task's own intercept and slopes that are correlated: 0, or 1 and the number of numbers."""
        return 1 + self.n_numbers if self.parts.correlated and self.n_numbers <= MAX_CORRELATED else 0

    @property
    def n_curve(self) -> int:
        """Number of functions by which tasks deform the common curve: its value, and its slope along each number."""
        return (1 + self.n_numbers if self.ard else 1) if self.parts.curve else 0

    @property
    def n_features(self) -> int:
        """Number of features that a network computes."""
        return N_FEATURES if self.parts.features else 0

    @cached_property
    def groups(self) -> list[tuple[str, int, float, float]]:
        """(name, number, hyper-prior mean, hyper-prior standard deviation), in the order of theta."""
        n_lengths = self.n_variables if self.ard else 1
        log_length = 0.0 if self.n_variables == 1 else 0.5
        groups = [("noise", 1, -1.0, 1.5)] if self.log_noise is None else []
        groups.append(("line", 1 + n_lengths, -1.0, 1.5))  # b: intercept, slopes
        if self.n_correlated > 1:
            groups.append(("correlations", n_correlations(self.n_correlated), 0.0, 1.5))  # between parts of b
        if self.has_trend:
            groups.append(("trend", 1, -1.0, 1.0))  # the scale of many common slopes is learned
        if self.n_variables > self.n_numbers:
            groups.append(("levels", self.n_variables - self.n_numbers, -1.0, 1.5))  # beta, of levels
        if self.parts.smooth:
            groups += [("mean", 1, -0.5, 1.0), ("mean_lengths", n_lengths, log_length, 1.0)]  # mu
            groups += [("deviation", 1, -1.0, 1.5), ("lengths", n_lengths, log_length, 1.0)]  # g
        if self.parts.curve:
            groups.append(("curve", self.n_curve, -1.5, 1.0))  # s
        if self.parts.features:
            groups += [("feature_mean", 1, 0.0, 1.5), ("features", self.n_features, 0.0, 1.5)]  # m, u
        if self.parts.covariates:
            groups.append(("covariates", len(self.covariates), -1.0, 1.5))  # c
        if self.parts.bend:
            groups.append(("bend", len(self.covariates), -1.5, 1.0))  # D
        if self.parts.curved:
            groups.append(("curved", len(self.curved), -1.0, 1.0))  # e
        if self.parts.environment:
            groups.append(("environment", 1, -1.5, 1.0))
        return groups

    @cached_property
    def places(self) -> dict[str, slice]:
        """The slice of theta of every group."""
        ends = np.cumsum([number for _, number, _, _ in self.groups]).tolist()
        return {name: slice(end - n, end) for (name, n, _, _), end in zip(self.groups, ends, strict=True)}

    @cached_property
    def center(self) -> np.ndarray:
        """Mean of the hyper-prior."""
        return np.concatenate([np.full(n, mean) for _, n, mean, _ in self.groups])

    @cached_property
    def spread(self) -> np.ndarray:
        """Standard deviation of the hyper-prior."""
        return np.concatenate([np.full(n, std) for _, n, _, std in self.groups])

    def scale(self, theta: np.ndarray, name: str) -> np.ndarray:
        """Return the scales of a group, exp(theta)."""
        return np.exp(theta[self.places[name]])

    def noise_variance(self, theta: np.ndarray) -> float:
        """Return the noise variance."""
        return float(np.exp(2.0 * (theta[0] if self.log_noise is None else self.log_noise)))

    def line_stds(self, theta: np.ndarray) -> np.ndarray:
        """Return the standard deviations of intercept and slopes between tasks, (1 + input_dim,)."""
        stds = self.scale(theta, "line")
        return np.concatenate([stds[:1], self.by_column(stds[1:])])

    def line_root(self, theta: np.ndarray) -> np.ndarray:
        """Return a root of the covariance of intercept and slopes between tasks, (1 + input_dim, 1 + input_dim)."""
        stds, size = self.line_stds(theta), self.n_correlated
        root = np.diag(stds)
        if size > 1:
            root[:size, :size] = stds[:size, None] * correlation_root(theta[self.places["correlations"]], size)
        return root

    def own_lines(self, theta: np.ndarray, line: np.ndarray) -> np.ndarray:
        """Return l(x) (..., 1 + input_dim) times that root."""
        if self.n_correlated > 1:
            return line @ self.line_root(theta)
        return line * self.line_stds(theta)  # of very many inputs the product would take long

    def trend_stds(self, theta: np.ndarray) -> np.ndarray:
        """Return the prior standard deviations of the common intercept and slopes, (1 + input_dim,)."""
        stds = np.full(1 + self.input_dim, COMMON_STD)
        if self.has_trend:
            stds[1:] = self.scale(theta, "trend")[0]
        if self.widths is not None and "levels" in self.places:
            stds[1 + self.n_numbers :] = np.repeat(self.scale(theta, "levels"), self.widths[self.n_numbers :])
        return stds

    def by_column(self, values: np.ndarray) -> np.ndarray:
        """Return values of the input variables, or one for all of them, for their columns, (input_dim,)."""
        values = values if len(values) == self.n_variables else np.full(self.n_variables, values[0])
        return values if self.widths is None else np.repeat(values, self.widths)

    def column_lengths(self, lengths: np.ndarray) -> np.ndarray:
        """Return length scales of variables for their columns; one that all share stays one."""
        return self.by_column(lengths) if self.ard else lengths

    def by_variable(self, of_columns: np.ndarray) -> np.ndarray:
        """Return the sums of numbers (input_dim,) over the columns of each variable."""
        return of_columns if self.widths is None else sums_of_groups(of_columns, self.widths)

    @cached_property
    def bent(self) -> np.ndarray:
        """Columns of covariates that bend the mean: not those of unseen levels and missing values."""
        starts = np.cumsum([0, *self.covariates])[:-1].tolist()
        pairs = zip(starts, self.covariates, strict=True)
        return np.concatenate([np.arange(start, start + max(width - 2, 1)) for start, width in pairs])

    @property
    def bent_widths(self) -> tuple[int, ...]:
        """Of each covariate the number of these columns."""
        return tuple(max(width - 2, 1) for width in self.covariates)

    @cached_property
    def curved(self) -> np.ndarray:
        """Columns of covariates that are numbers, along which the mean may be curved."""
        starts = np.cumsum([0, *self.covariates])[:-1]
        return starts[np.array(self.covariates) == NUMBER_WIDTH]

    def mean_slices(self, n_points: int) -> dict[str, slice]:
        """Return where each part of the common mean stands among its features, those of an environment left out."""
        n_curve = n_points if self.parts.smooth else 0
        n_bent = len(self.bent) * (self.n_numbers + min(n_curve, N_BENT)) if self.parts.bend else 0
        n_shifts = sum(self.covariates) if self.parts.covariates else 0
        n_curved = N_FUNCTIONS * len(self.curved) if self.parts.curved else 0
        sizes = (1 + self.input_dim, n_curve, self.n_features, n_shifts, n_bent, n_curved)
        ends = np.cumsum(sizes).tolist()
        names = ("line", "curve", "features", "covariates", "bend", "curved")
        return {name: slice(end - size, end) for name, size, end in zip(names, sizes, ends, strict=True)}

    def n_weights(self, n_points: int) -> int:
        """Return the number of weights of the common mean."""
        return self.mean_slices(n_points)["curved"].stop * (2 if self.parts.environment else 1)

    def starts(self) -> list[np.ndarray]:
        """Return starting points: the hyper-prior mean, with length scales from a quarter to twice as long."""
        if not self.parts.smooth:
            return [self.center]
        starts = []
        for shift in (0.0, -1.4, -0.7, 0.7):
            start = self.center.copy()
            start[self.places["mean_lengths"]] += shift
            start[self.places["lengths"]] += shift
            starts.append(start)
        return starts
