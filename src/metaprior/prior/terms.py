"""The terms of a prior. A reading of task i is

    y_i(x) = l(x) . beta + mu(x) + l(x) . b_i + g_i(x) + (mu(x), mu'(x)) . s_i + phi(x) . (m + u_i)
             + z_i . (c + D (x, psi(x))) + e(z_i) + noise,

where l(x) = (1, x), with a common line beta and a task's own line b_i (`Line`); a smooth common curve mu (`Curve`) and
smooth deviation g_i (`Deviation`); s_i, by which the task scales the common curve and shifts it along each input
(`Deformation`); and features phi(x) of a network, which all tasks share, with common weights m and the task's own u_i
(`Features`). The covariates z_i of a task shift the mean by c (`Shift`), bend it by D, the weights of their products
with the inputs and with the first functions psi of the common curve (`Bend`), and shift it along smooth curves e
(`Curved`). In the target environment the common mean may have a deviation of its own (`Environment`).

Weights of the common mean are integrated out. Derivatives by theta are written by hand: fits take seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from metaprior.linalg import Array
from metaprior.prior.columns import Columns
from metaprior.prior.layout import AtTheta, Group, OnBlock, Slopes, Term, column_sums, total
from metaprior.prior.process import KERNELS, N_CURVE_FUNCTIONS, covariate_curves, products

COMMON_STD = 3.0  # prior standard deviation of the common intercept and slopes, in standardized units
MAX_CORRELATED = 5  # numbers among the inputs up to which their slopes may be correlated
N_FEATURES = 8  # that a network computes
N_BENT = 8  # functions of the common curve that covariates multiply


@dataclass(frozen=True)
class Line(Term):
    """A common line, and lines of the tasks' own."""

    correlated: bool = False  # intercept and slopes of numbers of a task
    learned_trend: bool = False  # whether the scale of common slopes is learned even if they are few
    name: ClassVar[str] = "line"

    def n_correlated(self, columns: Columns) -> int:
        """Return the number of a task's own intercept and slopes that are correlated, 0 if none."""
        return 1 + columns.n_numbers if self.correlated and 0 < columns.n_numbers <= MAX_CORRELATED else 0

    def groups(self, columns: Columns) -> list[Group]:
        """Scales of intercepts and slopes, of common slopes if they are many, and of common effects of levels."""
        found, size = [Group("line", 1 + columns.n_lengths, -1.0, 1.5)], self.n_correlated(columns)
        if size:
            found.append(Group("correlations", size * (size - 1) // 2, 0.0, 1.5))
        if self.learned_trend or not columns.ard:
            found.append(Group("trend", 1, -1.0, 1.0))
        if columns.n_variables > columns.n_numbers:
            found.append(Group("levels", columns.n_variables - columns.n_numbers, -1.0, 1.5))
        return found

    def widths(self, columns: Columns, n_points: int) -> Sequence[int]:
        return (1 + columns.n_inputs,)

    def mean_map(self, at: AtTheta) -> Array:
        """Return the prior standard deviations of the common intercept and slopes."""
        columns = at.columns
        stds = np.full(1 + columns.n_inputs, COMMON_STD)
        if "trend" in at.places:
            stds[1:] = at.scale("trend")[0]
        if columns.widths is not None and "levels" in at.places:
            stds[1 + columns.n_numbers :] = np.repeat(at.scale("levels"), columns.widths[columns.n_numbers :])
        return stds

    def mean_functions(self, on: OnBlock) -> Array:
        return on.block.line

    def own(self, on: OnBlock) -> Array:
        return on.block.line

    def stds(self, at: AtTheta) -> Array:
        """Return the standard deviations of intercept and slopes between tasks, (1 + n_inputs,)."""
        stds = at.scale("line")
        return np.concatenate([stds[:1], at.columns.by_column(stds[1:])])

    def own_map(self, at: AtTheta) -> Array:
        """Return these standard deviations, or a root of the covariance if some are correlated."""
        stds, size = self.stds(at), self.n_correlated(at.columns)
        if not size:
            return stds  # of very many inputs the product with a matrix would take long
        root = np.diag(stds)
        root[:size, :size] = stds[:size, None] * correlation_root(at.theta[at.places["correlations"]], size)
        return root

    def pull_back(self, on: OnBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """With the root R = diag(s) C of the covariance: dJ/dlog s_i = sum_j (dJ/dR)_ij R_ij, and dJ/dC = s dJ/dR."""
        columns, places, line = on.at.columns, on.at.places, on.block.line
        own, size = self.own_map(on.at), self.n_correlated(columns)
        if size:
            by_root = 2.0 * np.tensordot(line, slopes.by_covariance @ line, axes=((0, 1), (0, 1))) @ own
            by_line, theta = np.sum(by_root * own, axis=1), on.at.theta[places["correlations"]]
            by_correlations = (self.stds(on.at)[:, None] * by_root)[:size, :size]
            slopes.gradient[places["correlations"]] += correlation_slopes(theta, size, by_correlations)
        else:
            by_line = 2.0 * own**2 * column_sums(slopes.by_covariance, line)
        by_variable = columns.by_variable(by_line[1:])
        slopes.gradient[places["line"]] += [by_line[0], *(by_variable if columns.ard else [by_variable.sum()])]
        if "trend" in places:
            slopes.gradient[places["trend"]] += by_weight[1:][: columns.n_numbers].sum()
        if "levels" in places:
            slopes.gradient[places["levels"]] += columns.by_variable(by_weight[1:])[columns.n_numbers :]


@dataclass(frozen=True)
class Curve(Term):
    """A smooth common curve."""

    name: ClassVar[str] = "curve"
    needs: ClassVar[str] = "deviation"

    def groups(self, columns: Columns) -> list[Group]:
        lengths = Group("mean_lengths", columns.n_lengths, log_length(columns), 1.0)
        return [Group("mean", 1, -0.5, 1.0), lengths]

    def widths(self, columns: Columns, n_points: int) -> Sequence[int]:
        return (n_points,)

    def mean_map(self, at: AtTheta) -> Array:
        return at.basis.map

    def common(self, on: OnBlock) -> Array:
        return on.functions

    def pull_back(self, on: OnBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """With W = s K L^-T: dJ/dK = s H L^-1, and dJ/dL = -L^-T (s H'K) L^-T."""
        basis, places, n_points = on.at.basis, on.at.places, on.at.n_points
        by_mean = by_mean + slopes.by_functions
        slopes.gradient[places["mean"]] += np.sum(by_mean * on.functions)
        weighted = basis.scale * (by_mean @ basis.inverse_root) * on.kernel
        slopes.gradient[places["mean_lengths"]] += total(weighted, on.block.to_points) / basis.lengths**2
        by_inverse = basis.scale * (by_mean.reshape(-1, n_points).T @ on.kernel.reshape(-1, n_points))
        slopes.by_basis[...] -= basis.inverse_root.T @ by_inverse @ basis.inverse_root.T

    def process_fields(self, at: AtTheta, fitted: Any) -> dict[str, Any]:
        return {"points": fitted.points, "mean_lengths": at.columns.lengths_by_column(at.basis.lengths)}


@dataclass(frozen=True)
class Deviation(Term):
    """Smooth deviations of the tasks' own."""

    kernel: str = "rbf"
    name: ClassVar[str] = "deviation"
    needs: ClassVar[str] = "curve"

    def groups(self, columns: Columns) -> list[Group]:
        lengths = Group("lengths", columns.n_lengths, log_length(columns), 1.0)
        return [Group("deviation", 1, -1.0, 1.5), lengths]

    def covariance(self, on: OnBlock) -> Array:
        real = on.block.mask[:, :, None] * on.block.mask[:, None, :]
        squared = on.block.between @ on.at.scale("lengths") ** -2.0
        smooth = on.at.scale("deviation")[0] ** 2 * KERNELS[self.kernel].value(squared) * real
        on.kept[self.name] = squared, smooth
        return smooth

    def pull_back(self, on: OnBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """With k = exp v(r^2) and r^2 = sum_j d_j^2 / l_j^2: dk/dlog l_j = -2 k v'(r^2) d_j^2 / l_j^2."""
        (squared, smooth), places = on.kept[self.name], on.at.places
        slopes.gradient[places["deviation"]] += 2.0 * np.sum(slopes.by_covariance * smooth)
        of_kernel = slopes.by_covariance * smooth * KERNELS[self.kernel].slope(squared)
        slopes.gradient[places["lengths"]] += -2.0 * total(of_kernel, on.block.between) / on.at.scale("lengths") ** 2

    def process_fields(self, at: AtTheta, fitted: Any) -> dict[str, Any]:
        lengths = at.columns.lengths_by_column(at.scale("lengths"))
        return {"kernel": self.kernel, "smooth_variance": float(at.scale("deviation")[0] ** 2), "lengths": lengths}


@dataclass(frozen=True)
class Deformation(Term):
    """Tasks scale the common curve, and shift it along each number."""

    name: ClassVar[str] = "deformation"
    needs: ClassVar[str] = "curve"
    own_group: ClassVar[str] = "deformation"

    def groups(self, columns: Columns) -> list[Group]:
        return [Group("deformation", n_deformations(columns), -1.5, 1.0)]

    def own(self, on: OnBlock) -> Array | None:
        return on.block.curve

    def process_fields(self, at: AtTheta, fitted: Any) -> dict[str, Any]:
        found = {f"curve_{name}": value for name, value in fitted.curve._asdict().items()}
        return {**found, "n_slopes": n_deformations(at.columns) - 1}


@dataclass(frozen=True)
class Features(Term):
    """Features of a network that all tasks share, with common weights and the tasks' own."""

    name: ClassVar[str] = "features"
    needs: ClassVar[str] = "curve"
    mean_group: ClassVar[str] = "feature_mean"
    own_group: ClassVar[str] = "features"

    def groups(self, columns: Columns) -> list[Group]:
        return [Group("feature_mean", 1, 0.0, 1.5), Group("features", N_FEATURES, 0.0, 1.5)]

    def widths(self, columns: Columns, n_points: int) -> Sequence[int]:
        return (N_FEATURES,)

    def mean_functions(self, on: OnBlock) -> Any:
        return on.block.features

    def own(self, on: OnBlock) -> Any:
        return on.block.features

    def pull_back(self, on: OnBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """Keep the derivative by the features, which are in C as phi diag(s^2) phi' and in F as t phi."""
        super().pull_back(on, slopes, by_mean, by_weight)
        by_own = 2.0 * (slopes.by_covariance @ self.own(on)) * on.at.scale("features") ** 2
        on.kept[self.name] = (by_own + on.at.scale("feature_mean")[0] * by_mean) * on.block.mask[..., None]

    def process_fields(self, at: AtTheta, fitted: Any) -> dict[str, Any]:
        return {} if fitted.network is None else fitted.network._asdict()


@dataclass(frozen=True)
class Shift(Term):
    """Covariates shift the common mean."""

    name: ClassVar[str] = "shift"
    mean_group: ClassVar[str] = "shift"

    def groups(self, columns: Columns) -> list[Group]:
        return [Group("shift", len(columns.covariates), -1.0, 1.5)]

    def widths(self, columns: Columns, n_points: int) -> Sequence[int]:
        return columns.covariates

    def mean_functions(self, on: OnBlock) -> Array:
        return on.block.covariates

    def process_fields(self, at: AtTheta, fitted: Any) -> dict[str, Any]:
        return {"covariates": True}


@dataclass(frozen=True)
class Bend(Term):
    """Covariates times the inputs, and times the first functions of the common curve."""

    name: ClassVar[str] = "bend"
    needs: ClassVar[str] = "shift"
    mean_group: ClassVar[str] = "bend"

    def groups(self, columns: Columns) -> list[Group]:
        return [Group("bend", len(columns.covariates), -1.5, 1.0)]

    def widths(self, columns: Columns, n_points: int) -> Sequence[int]:
        n_functions = columns.n_numbers + min(n_points, N_BENT)
        return [width * n_functions for width in columns.bent_widths]

    def mean_functions(self, on: OnBlock) -> Array:
        columns, functions = on.at.columns, on.block.inputs[..., : on.at.columns.n_numbers]
        if on.at.n_points:
            functions = np.concatenate([functions, on.functions[..., :N_BENT]], axis=-1)
        return products(on.block.covariates[..., columns.bent], functions)

    def pull_back(self, on: OnBlock, slopes: Slopes, by_mean: Array, by_weight: Array) -> None:
        """Add the derivative by the functions of the common curve."""
        super().pull_back(on, slopes, by_mean, by_weight)
        if on.at.n_points:
            covariates = on.block.covariates[..., on.at.columns.bent]
            by_each = (by_mean * self.mean_map(on.at)).reshape(*covariates.shape, -1)[..., on.at.columns.n_numbers :]
            slopes.by_functions[..., : by_each.shape[-1]] += np.sum(covariates[..., None] * by_each, axis=-2)

    def process_fields(self, at: AtTheta, fitted: Any) -> dict[str, Any]:
        bend_map = None if at.basis is None else at.basis.map[:, :N_BENT]
        return {"bent": at.columns.bent.tolist(), "n_numbers": at.columns.n_numbers, "bend_map": bend_map}


@dataclass(frozen=True)
class Curved(Term):
    """Smooth curves of covariates that are numbers."""

    name: ClassVar[str] = "curved"
    needs: ClassVar[str] = "shift"
    mean_group: ClassVar[str] = "curved"

    def groups(self, columns: Columns) -> list[Group]:
        return [Group("curved", len(columns.curved), -1.0, 1.0)]

    def widths(self, columns: Columns, n_points: int) -> Sequence[int]:
        return [N_CURVE_FUNCTIONS] * len(columns.curved)

    def mean_functions(self, on: OnBlock) -> Array:
        """Return the curves, which are not zero where covariates are."""
        return covariate_curves(on.block.covariates, on.at.columns.curved.tolist()) * on.block.mask[..., None]

    def process_fields(self, at: AtTheta, fitted: Any) -> dict[str, Any]:
        return {"curved": at.columns.curved.tolist()}


@dataclass(frozen=True)
class Environment(Term):
    """In the target environment, all functions of the common mean once more, with weights of its own.

    It comes last: `double` and `fold_back` are about the functions of all other terms.
    """

    name: ClassVar[str] = "environment"

    def groups(self, columns: Columns) -> list[Group]:
        """Return the scale of the deviation, relative to that of the common mean."""
        return [Group("environment", 1, -1.5, 1.0)]

    def double(self, on: OnBlock, features: Array) -> Array:
        """Return F and, for tasks of the target, F again."""
        own = on.at.scale("environment")[0] * on.block.is_target[:, None, None] * features
        return np.concatenate([features, own], axis=-1)

    def fold_back(self, on: OnBlock, slopes: Slopes, features: Array, by_features: Array) -> Array:
        """Return the derivative by the functions of all environments, given that by both halves."""
        scale = on.at.scale("environment")[0]
        common, own = np.split(by_features, 2, axis=-1)
        own = own * on.block.is_target[:, None, None]
        slopes.gradient[on.at.places["environment"]] += scale * np.sum(own * features)
        return common + scale * own


TERMS = {each.name: each for each in Term.__subclasses__()}


def log_length(columns: Columns) -> float:
    """Return the hyper-prior mean of the logarithm of length scales."""
    return 0.0 if columns.n_variables == 1 else 0.5


def n_deformations(columns: Columns) -> int:
    """Return the number of functions by which tasks deform the common curve: its value, its slope along each number."""
    return 1 + columns.n_numbers if columns.ard else 1


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
    rows, root = _correlation_rows(t, size), correlation_root(t, size)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    by_rows = (by_root - root * np.sum(root * by_root, axis=1, keepdims=True)) / norms
    return by_rows[np.tril_indices(size, -1)] * np.cosh(t)


def _correlation_rows(t: Array, size: int) -> Array:
    rows = np.eye(size)
    rows[np.tril_indices(size, -1)] = np.sinh(t)
    return rows
