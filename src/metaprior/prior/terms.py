"""The terms of a prior. A reading of task i is

    y_i(x) = l(x) . beta + mu(x) + l(x) . b_i + g_i(x) + (mu(x), mu'(x)) . s_i + phi(x) . (m + u_i)
             + z_i . (c + D (x, psi(x))) + e(z_i) + noise,

where l(x) = (1, x), with a common line beta and a task's own line b_i (`Line`); a smooth common curve mu (`Curve`) and
smooth deviation g_i (`Deviation`); s_i, by which the task scales the common curve and shifts it along each input
(`Deformation`); and features phi(x) of a network, which all tasks share, with common weights m and the task's own u_i
(`Features`). The covariates z_i of a task shift the mean by c (`Shift`), bend it by D, the weights of their products
with the inputs and with the first functions psi of the common curve (`Bend`), and shift it along smooth curves e
(`Curved`). In the target environment the common mean may have a deviation of its own (`Environment`).

A term has columns of the common mean, whose weights are integrated out, columns of a task's own functions, or a kernel.
`mean_map` and `own_map` take weights of variance one to those of the columns: a scale of each, or a matrix. Derivatives
by theta are written by hand, which makes a fit take seconds.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from metaprior.linalg import Array, cholesky, triangular_inverse
from metaprior.prior.blocks import Block
from metaprior.prior.columns import Columns, group_sums
from metaprior.prior.process import KERNELS, N_CURVE_FUNCTIONS, RBF, covariate_curves, products

COMMON_STD = 3.0  # prior standard deviation of the common intercept and slopes, in standardized units
MAX_CORRELATED = 5  # numbers among the inputs up to which their slopes may be correlated
N_FEATURES = 8  # that a network computes
N_BENT = 8  # functions of the common curve that covariates multiply
JITTER = 1e-6  # of the kernel between inducing points, relative to its variance


class Group(NamedTuple):
    """Parameters of one kind, with independent normal hyper-priors. All but correlations are logarithms of scales."""

    name: str
    number: int
    mean: float | Array
    std: float | Array


class Parameters(NamedTuple):
    """Theta by the names of groups, and what the terms share at it."""

    columns: Columns
    theta: Array
    places: dict[str, slice]
    distances: Array  # squared, between the inducing points, (points, points, lengths)

    def scale(self, name: str) -> Array:
        """Return the scales of a group, exp(theta)."""
        return np.exp(self.theta[self.places[name]])


class Basis:
    """The common curve mu as mean weights of whitened functions: s k(x, Z) L^-T, where L L' = k(Z, Z)."""

    def __init__(self, at: Parameters):
        self.lengths, self.scale = at.scale("mean_lengths"), float(at.scale("mean")[0])
        self.kernel = kernel_of_distances(RBF, at.distances, self.lengths)  # k(Z, Z) without jitter
        self.root = cholesky(self.kernel + JITTER * np.eye(len(self.kernel)))  # L
        self.inverse_root = triangular_inverse(self.root)
        self.map = self.scale * self.inverse_root.T  # from kernels k(x, Z) to the functions


@dataclass(eq=False)
class AtBlock:
    """What the terms compute for a block of tasks, kept for their derivatives."""

    parameters: Parameters
    basis: Basis | None  # of the common curve
    block: Block
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> Columns:
        """What the columns of x are."""
        return self.parameters.columns

    @property
    def places(self) -> dict[str, slice]:
        """The slice of theta of every group."""
        return self.parameters.places

    def scale(self, name: str) -> Array:
        """Return the scales of a group, exp(theta)."""
        return self.parameters.scale(name)

    @cached_property
    def kernel(self) -> Array:
        """k(x, Z) of the common curve; zero for padding."""
        assert self.basis is not None
        return kernel_of_distances(RBF, self.block.to_points, self.basis.lengths) * self.block.mask[..., None]

    @cached_property
    def functions(self) -> Array:
        """The whitened functions of the common curve."""
        assert self.basis is not None
        return self.kernel @ self.basis.map


class Slopes(NamedTuple):
    """Derivatives of the evidence: by theta, to be filled, and by what it is a function of."""

    gradient: Array
    by_covariance: Array  # (tasks, n, n)
    by_functions: Array  # (tasks, n, points): by the functions of the common curve through other terms; () if none
    by_basis: Array  # (points, points): by the root L of the common curve, which the blocks share; to be filled


class Term:
    """A part of the prior. By default it has no parameters, and is in neither the mean nor the covariance."""

    name: ClassVar[str]

    def groups(self, columns: Columns) -> list[Group]:
        """Return its parameters, with the hyper-prior."""
        return []

    def n_weights(self, columns: Columns, n_points: int) -> int:
        """Return the number of its weights in the common mean."""
        return 0

    def mean_map(self, at: Parameters, basis: Basis | None) -> Array:
        """Return the map from weights of variance one to those of its columns of the common mean."""
        return np.zeros(0)

    def common(self, at: AtBlock) -> Array | None:
        """Return its functions in the common mean F, with weights of variance one, (tasks, n, weights)."""
        return None

    def own_map(self, at: Parameters) -> Array:
        """Return the map from weights of variance one to those of a task's own functions."""
        return np.zeros(0)

    def own(self, at: AtBlock) -> Array | None:
        """Return the functions, whose weights differ between tasks, (tasks, n, functions)."""
        return None

    def covariance(self, at: AtBlock) -> Array | None:
        """Return a covariance that is no product of few functions, (tasks, n, n)."""
        return None

    def pull_back(self, at: AtBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """Fill the gradient, and what other terms need.

        `by_mean` is the derivative by its functions in the mean, `by_weight` its product with them, summed over
        readings: the derivative by the logarithms of their scales.
        """


@dataclass(frozen=True)
class Line(Term):
    """A common line, and lines of the tasks' own."""

    correlated: bool = False  # intercept and slopes of numbers of a task
    learned_trend: bool = False  # whether the scale of common slopes is learned even if they are few
    name: ClassVar[str] = "line"

    def has_trend(self, columns: Columns) -> bool:
        """Return whether theta has the scale of the common slopes."""
        return self.learned_trend or not columns.ard

    def n_correlated(self, columns: Columns) -> int:
        """Return the number of a task's own intercept and slopes that are correlated, 0 if none."""
        return 1 + columns.n_numbers if self.correlated and 0 < columns.n_numbers <= MAX_CORRELATED else 0

    def groups(self, columns: Columns) -> list[Group]:
        """Scales of intercepts and slopes, of common slopes if they are many, and of common effects of levels."""
        found, size = [Group("line", 1 + columns.n_lengths, -1.0, 1.5)], self.n_correlated(columns)
        if size:
            found.append(Group("correlations", size * (size - 1) // 2, 0.0, 1.5))
        if self.has_trend(columns):
            found.append(Group("trend", 1, -1.0, 1.0))
        if columns.n_variables > columns.n_numbers:
            found.append(Group("levels", columns.n_variables - columns.n_numbers, -1.0, 1.5))
        return found

    def n_weights(self, columns: Columns, n_points: int) -> int:
        """An intercept and a slope of each column."""
        return 1 + columns.n_inputs

    def mean_map(self, at: Parameters, basis: Basis | None) -> Array:
        """The prior standard deviations of the common intercept and slopes."""
        columns = at.columns
        stds = np.full(1 + columns.n_inputs, COMMON_STD)
        if "trend" in at.places:
            stds[1:] = at.scale("trend")[0]
        if columns.widths is not None and "levels" in at.places:
            stds[1 + columns.n_numbers :] = np.repeat(at.scale("levels"), columns.widths[columns.n_numbers :])
        return stds

    def common(self, at: AtBlock) -> Array | None:
        """(1, x)."""
        return at.block.line * self.mean_map(at.parameters, at.basis)

    def stds(self, at: Parameters) -> Array:
        """Return the standard deviations of intercept and slopes between tasks, (1 + n_inputs,)."""
        stds = at.scale("line")
        return np.concatenate([stds[:1], at.columns.by_column(stds[1:])])

    def own_map(self, at: Parameters) -> Array:
        """These standard deviations, or a root of the covariance if some are correlated."""
        stds, size = self.stds(at), self.n_correlated(at.columns)
        if not size:
            return stds  # of very many inputs the product with a matrix would take long
        root = np.diag(stds)
        root[:size, :size] = stds[:size, None] * correlation_root(at.theta[at.places["correlations"]], size)
        return root

    def own(self, at: AtBlock) -> Array | None:
        """(1, x)."""
        return at.block.line

    def pull_back(self, at: AtBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """The root of the covariance of lines is R = diag(s) C.

        So dJ/dlog s_i = sum_j (dJ/dR)_ij R_ij, and dJ/dC = s dJ/dR.
        """
        columns, places, line = at.columns, at.places, at.block.line
        own, size = self.own_map(at.parameters), self.n_correlated(columns)
        if size:
            by_root = 2.0 * np.tensordot(line, slopes.by_covariance @ line, axes=((0, 1), (0, 1))) @ own
            by_line, theta = np.sum(by_root * own, axis=1), at.parameters.theta[places["correlations"]]
            by_correlations = (self.stds(at.parameters)[:, None] * by_root)[:size, :size]
            slopes.gradient[places["correlations"]] = correlation_slopes(theta, size, by_correlations)
        else:
            by_line = 2.0 * own**2 * column_sums(slopes.by_covariance, line)
        by_variable = columns.by_variable(by_line[1:])
        slopes.gradient[places["line"]] = [by_line[0], *(by_variable if columns.ard else [by_variable.sum()])]
        if "trend" in places:
            slopes.gradient[places["trend"]] = by_weight[1:][: columns.n_numbers].sum()
        if "levels" in places:
            slopes.gradient[places["levels"]] = columns.by_variable(by_weight[1:])[columns.n_numbers :]


@dataclass(frozen=True)
class Curve(Term):
    """A smooth common curve."""

    name: ClassVar[str] = "curve"

    def groups(self, columns: Columns) -> list[Group]:
        """Its scale and length scales."""
        lengths = Group("mean_lengths", columns.n_lengths, log_length(columns), 1.0)
        return [Group("mean", 1, -0.5, 1.0), lengths]

    def n_weights(self, columns: Columns, n_points: int) -> int:
        """One of each inducing point."""
        return n_points

    def mean_map(self, at: Parameters, basis: Basis | None) -> Array:
        """The whitening of kernels."""
        assert basis is not None
        return basis.map

    def common(self, at: AtBlock) -> Array | None:
        """Whitened functions."""
        return at.functions

    def pull_back(self, at: AtBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """With W = s K L^-T: dJ/dK = s H L^-1, and dJ/dL = -L^-T (s H'K) L^-T."""
        basis, places = at.basis, at.places
        assert basis is not None
        by_mean = by_mean + slopes.by_functions
        slopes.gradient[places["mean"]] = np.sum(by_mean * at.functions)
        weighted = basis.scale * (by_mean @ basis.inverse_root) * at.kernel
        slopes.gradient[places["mean_lengths"]] += total(weighted, at.block.to_points) / basis.lengths**2
        n_points = len(basis.root)
        by_inverse = basis.scale * (by_mean.reshape(-1, n_points).T @ at.kernel.reshape(-1, n_points))
        slopes.by_basis[...] = -basis.inverse_root.T @ by_inverse @ basis.inverse_root.T


@dataclass(frozen=True)
class Deviation(Term):
    """Smooth deviations of the tasks' own."""

    kernel: str = "rbf"
    name: ClassVar[str] = "deviation"

    def groups(self, columns: Columns) -> list[Group]:
        """Its scale and length scales."""
        lengths = Group("lengths", columns.n_lengths, log_length(columns), 1.0)
        return [Group("deviation", 1, -1.0, 1.5), lengths]

    def covariance(self, at: AtBlock) -> Array | None:
        """The kernel."""
        real = at.block.mask[:, :, None] * at.block.mask[:, None, :]
        squared = at.block.between @ at.scale("lengths") ** -2.0
        smooth = at.scale("deviation")[0] ** 2 * KERNELS[self.kernel].value(squared) * real
        at.kept[self.name] = squared, smooth
        return smooth

    def pull_back(self, at: AtBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """With k = exp v(r^2) and r^2 = sum_j d_j^2 / l_j^2: dk/dlog l_j = -2 k v'(r^2) d_j^2 / l_j^2."""
        (squared, smooth), places = at.kept[self.name], at.places
        slopes.gradient[places["deviation"]] = 2.0 * np.sum(slopes.by_covariance * smooth)
        of_kernel = slopes.by_covariance * smooth * KERNELS[self.kernel].slope(squared)
        lengths = at.scale("lengths")
        slopes.gradient[places["lengths"]] = -2.0 * total(of_kernel, at.block.between) / lengths**2


@dataclass(frozen=True)
class Deformation(Term):
    """Tasks scale the common curve, and shift it along each number."""

    name: ClassVar[str] = "deformation"

    def groups(self, columns: Columns) -> list[Group]:
        """The scale of every function."""
        return [Group("deformation", n_deformations(columns), -1.5, 1.0)]

    def own_map(self, at: Parameters) -> Array:
        """These scales."""
        return at.scale("deformation")

    def own(self, at: AtBlock) -> Array | None:
        """The common curve and its slopes."""
        return at.block.curve

    def pull_back(self, at: AtBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """By the logarithms of the scales."""
        own_slopes(self, "deformation", at, slopes)


@dataclass(frozen=True)
class Features(Term):
    """Features of a network that all tasks share, with common weights and the tasks' own."""

    name: ClassVar[str] = "features"

    def groups(self, columns: Columns) -> list[Group]:
        """The scale of common weights, and those of the tasks' own."""
        return [Group("feature_mean", 1, 0.0, 1.5), Group("features", N_FEATURES, 0.0, 1.5)]

    def n_weights(self, columns: Columns, n_points: int) -> int:
        """One of each feature."""
        return N_FEATURES

    def mean_map(self, at: Parameters, basis: Basis | None) -> Array:
        """One scale for all."""
        return np.repeat(at.scale("feature_mean"), N_FEATURES)

    def common(self, at: AtBlock) -> Array | None:
        """The features."""
        assert at.block.features is not None
        return at.scale("feature_mean")[0] * at.block.features

    def own_map(self, at: Parameters) -> Array:
        """A scale of each."""
        return at.scale("features")

    def own(self, at: AtBlock) -> Array | None:
        """The features."""
        return at.block.features

    def pull_back(self, at: AtBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """By the logarithms of the scales; by the features, which are in C as phi diag(s^2) phi' and in F as t phi."""
        slopes.gradient[at.places["feature_mean"]] = by_weight.sum()
        own_slopes(self, "features", at, slopes)
        assert at.block.features is not None
        by_own = 2.0 * (slopes.by_covariance @ at.block.features) * at.scale("features") ** 2
        at.kept[self.name] = (by_own + at.scale("feature_mean")[0] * by_mean) * at.block.mask[..., None]


@dataclass(frozen=True)
class Shift(Term):
    """Covariates shift the common mean."""

    name: ClassVar[str] = "shift"

    def groups(self, columns: Columns) -> list[Group]:
        """A scale for each covariate."""
        return [Group("shift", len(columns.covariates), -1.0, 1.5)]

    def n_weights(self, columns: Columns, n_points: int) -> int:
        """One of each column."""
        return sum(columns.covariates)

    def mean_map(self, at: Parameters, basis: Basis | None) -> Array:
        """The scales of columns."""
        return np.repeat(at.scale("shift"), at.columns.covariates)

    def common(self, at: AtBlock) -> Array | None:
        """The covariates."""
        return at.block.covariates * self.mean_map(at.parameters, at.basis)

    def pull_back(self, at: AtBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """By the logarithms of the scales."""
        slopes.gradient[at.places["shift"]] = group_sums(by_weight, at.columns.covariates)


@dataclass(frozen=True)
class Bend(Term):
    """Covariates times the inputs, and times the first functions of the common curve."""

    name: ClassVar[str] = "bend"

    def groups(self, columns: Columns) -> list[Group]:
        """A scale for each covariate."""
        return [Group("bend", len(columns.covariates), -1.5, 1.0)]

    def n_weights(self, columns: Columns, n_points: int) -> int:
        """One of each product."""
        return len(columns.bent) * (columns.n_numbers + min(n_points, N_BENT))

    def mean_map(self, at: Parameters, basis: Basis | None) -> Array:
        """The scales of products."""
        n_functions = at.columns.n_numbers + (0 if basis is None else min(len(basis.root), N_BENT))
        return np.repeat(self._scales(at), n_functions)

    def _scales(self, at: Parameters) -> Array:
        return np.repeat(at.scale("bend"), at.columns.bent_widths)

    def common(self, at: AtBlock) -> Array | None:
        """The products."""
        columns, functions = at.columns, at.block.inputs[..., : at.columns.n_numbers]
        if at.basis is not None:
            functions = np.concatenate([functions, at.functions[..., :N_BENT]], axis=-1)
        return products(at.block.covariates[..., columns.bent] * self._scales(at.parameters), functions)

    def pull_back(self, at: AtBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """By the logarithms of the scales, and by the functions of the common curve."""
        columns = at.columns
        by_column = by_weight.reshape(len(columns.bent), -1).sum(axis=1)
        slopes.gradient[at.places["bend"]] = group_sums(by_column, columns.bent_widths)
        if at.basis is not None:
            scaled = at.block.covariates[..., columns.bent] * self._scales(at.parameters)
            by_each = by_mean.reshape(*scaled.shape, -1)[..., columns.n_numbers :]
            slopes.by_functions[..., : by_each.shape[-1]] += np.sum(scaled[..., None] * by_each, axis=-2)


@dataclass(frozen=True)
class Curved(Term):
    """Smooth curves of covariates that are numbers."""

    name: ClassVar[str] = "curved"

    def groups(self, columns: Columns) -> list[Group]:
        """A scale for each curve."""
        return [Group("curved", len(columns.curved), -1.0, 1.0)]

    def n_weights(self, columns: Columns, n_points: int) -> int:
        """One of each function."""
        return N_CURVE_FUNCTIONS * len(columns.curved)

    def mean_map(self, at: Parameters, basis: Basis | None) -> Array:
        """The scales of functions."""
        return np.repeat(at.scale("curved"), N_CURVE_FUNCTIONS)

    def common(self, at: AtBlock) -> Array | None:
        """The curves, which are not zero where covariates are."""
        curves = covariate_curves(at.block.covariates, at.columns.curved.tolist())
        return curves * at.block.mask[..., None] * self.mean_map(at.parameters, at.basis)

    def pull_back(self, at: AtBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """By the logarithms of the scales."""
        slopes.gradient[at.places["curved"]] = by_weight.reshape(-1, N_CURVE_FUNCTIONS).sum(axis=1)


@dataclass(frozen=True)
class Environment(Term):
    """In the target environment, all functions of the common mean once more, with weights of its own.

    It comes last: `double` and `fold_back` are about the functions of all other terms.
    """

    name: ClassVar[str] = "environment"

    def groups(self, columns: Columns) -> list[Group]:
        """The scale of the deviation, relative to that of the common mean."""
        return [Group("environment", 1, -1.5, 1.0)]

    def double(self, at: AtBlock, features: Array) -> Array:
        """Return F and, for tasks of the target, F again."""
        own = at.scale("environment")[0] * at.block.is_target[:, None, None] * features
        return np.concatenate([features, own], axis=-1)

    def fold_back(self, at: AtBlock, slopes: Slopes, features: Array, by_features: Array) -> Array:
        """Return the derivative by the functions of all environments, given that by both halves."""
        scale = at.scale("environment")[0]
        common, own = np.split(by_features, 2, axis=-1)
        own = own * at.block.is_target[:, None, None]
        slopes.gradient[at.places["environment"]] = scale * np.sum(own * features)
        return common + scale * own


TERMS = {each.name: each for each in Term.__subclasses__()}


def log_length(columns: Columns) -> float:
    """Return the hyper-prior mean of the logarithm of length scales."""
    return 0.0 if columns.n_variables == 1 else 0.5


def n_deformations(columns: Columns) -> int:
    """Return the number of functions by which tasks deform the common curve: its value, its slope along each number."""
    return 1 + columns.n_numbers if columns.ard else 1


def kernel_of_distances(kernel: Any, squared_distances: Array, lengths: Array) -> Array:
    """Return a kernel from squared distances along every variable, or in all."""
    return kernel.value(squared_distances @ lengths**-2.0)


def correlation_root(t: Array, size: int) -> Array:
    """Return the lower triangular root of a correlation matrix, whose parameters t may have any value.

    It has rows r_i = u_i / |u_i|, where u_i = (sinh t_i1, ..., sinh t_i,i-1, 1, 0, ..., 0). Any t gives a correlation
    matrix, and t = 0 the identity. Of two, the correlation is tanh t, so that t is Fisher's z.
    """
    rows = _correlation_rows(t, size)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def correlation_slopes(t: Array, size: int, by_root: Array) -> Array:
    """Return the derivative by t, given that by the root.

    With r = u / |u|: dJ/du = (g - r (r . g)) / |u|, where g = dJ/dr.
    """
    rows = _correlation_rows(t, size)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    root = rows / norms
    by_rows = (by_root - root * np.sum(root * by_root, axis=1, keepdims=True)) / norms
    return by_rows[np.tril_indices(size, -1)] * np.cosh(t)


def _correlation_rows(t: Array, size: int) -> Array:
    rows = np.eye(size)
    rows[np.tril_indices(size, -1)] = np.sinh(t)
    return rows


def own_slopes(term: Term, name: str, at: AtBlock, slopes: Slopes) -> None:
    """Fill the derivative by the logarithms of the scales of a task's own functions."""
    functions = term.own(at)
    assert functions is not None
    slopes.gradient[at.places[name]] = 2.0 * at.scale(name) ** 2 * column_sums(slopes.by_covariance, functions)


def column_sums(by_covariance: Array, functions: Array) -> Array:
    """Return f' G f for every function f, summed over tasks."""
    return np.sum((by_covariance @ functions) * functions, axis=(0, 1))


def total(weights: Array, squared_distances: Array) -> Array:
    """Return the weighted sum of squared distances along every variable."""
    return weights.ravel() @ squared_distances.reshape(weights.size, -1)
