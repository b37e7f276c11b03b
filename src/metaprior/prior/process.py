"""The Gaussian process of a new task: the terms of a prior at a theta, all that does not depend on x multiplied in.

This is the one formula of a new task. Predictions use it with NumPy, `metaprior.botorch` with torch, and exported files
contain the text of this module: it imports NumPy alone, and what it calls of an array namespace `xp` both have.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from metaprior.linalg import ROUNDING, Array, invert_roots, log_sum_exp

NOISE_FLOOR = 1e-8  # of the noise variance, relative to the variance of y


class RBF:
    """exp(-r^2 / 2), for a squared distance r^2 in units of the length scales."""

    @staticmethod
    def value(squared: Any, xp: Any = np) -> Any:
        """Return the kernel."""
        scaled = -0.5 * squared
        return np.exp(scaled, out=scaled) if xp is np else xp.exp(scaled)

    @staticmethod
    def slope(squared: Any) -> Any:
        """Return the derivative of its logarithm by r^2."""
        return -0.5


class Matern32:
    """(1 + 3^1/2 r) exp(-3^1/2 r): functions with one derivative."""

    @staticmethod
    def value(squared: Any, xp: Any = np) -> Any:
        """Return the kernel."""
        scaled = xp.sqrt(3.0 * squared + 1e-30)  # whose derivative exists at zero
        return (1.0 + scaled) * xp.exp(-scaled)

    @staticmethod
    def slope(squared: Any) -> Any:
        """Return the derivative of its logarithm by r^2."""
        return -1.5 / (1.0 + np.sqrt(3.0 * squared))


KERNELS = {"rbf": RBF, "matern32": Matern32}


class Points(NamedTuple):
    """What a prior says about inputs: the covariance is A A' + f^2 (B B' + v k(x, x') - C C'), with a factor f."""

    x: Any  # (..., n, inputs), standardized
    common: Any  # columns of the mean that all tasks have in common
    fixed: Any  # A
    scaled: Any  # B
    removed: Any  # C
    mask: Any = None  # (..., n): zero for padding, where all but x is zero too; None: there is none


class Posterior(NamedTuple):
    """A process conditioned on readings, for each factor of a mixture."""

    context: Points
    inverse_root: Any  # (factors, tasks, n, n): L^-1, where L L' is the covariance of the readings
    residual: Any  # (factors, tasks, n): L^-1 (y - mean)
    log_weights: Any  # (factors, tasks): log probability of the factor given the readings
    converged: Any = None  # (1, tasks), of approximations
    site_variances: Any = None  # (1, tasks, n): of Gaussian readings that stand for others


class Process(NamedTuple):
    """The Gaussian process of a new task. Fields of terms that not every prior has are None by default."""

    n_inputs: int  # columns of x; those of covariates follow
    common_mean: Any  # (k,): the mean is common @ common_mean; of labels (classes, k)
    common_root: Any  # (k, r): R, where R R' is the covariance of the weights of `common`
    own: Any  # (functions,) or (functions, functions): scales or a map of the functions of a task's own, lines first
    points: Any = None  # (points, inputs): inducing points
    mean_lengths: Any = None  # of the common curve
    kernel: str = "rbf"  # of the smooth deviation
    lengths: Any = None  # of the smooth deviation
    smooth_variance: float = 0.0
    removed: Any = None  # (points, points): what `own` has of the smooth deviation already, if it has a full covariance
    curve_line: Any = None  # of the common curve that tasks scale and shift
    curve_weights: Any = None
    curve_points: Any = None
    curve_lengths: Any = None
    n_slopes: int = 0
    first: Any = None  # layers of the network of features
    first_bias: Any = None
    second: Any = None
    second_bias: Any = None
    last: Any = None
    covariates: bool = False  # whether they shift the common mean
    bent: list[int] | None = None  # columns of them that are multiplied with inputs and functions of the common curve
    n_numbers: int = 0
    bend_map: Any = None  # (points, functions): from kernels to these functions
    curved: list[int] | None = None  # columns of covariates with curves of their own

    def describe(self, x: Any, mask: Any = None, xp: Any = np) -> Points:
        """Return what the prior says about standardized inputs (..., n, columns)."""
        covariates, x = x[..., self.n_inputs :], x[..., : self.n_inputs]
        lines, nothing = with_ones(x, xp), x[..., :0]
        features = nothing if self.first is None else network(x, *self.layers, xp=xp)[0]
        columns = [lines, *self.mean_columns(x, covariates, features, xp)]
        functions = [lines]
        if self.curve_line is not None:
            curve = self.curve_line, self.curve_weights, self.curve_points, self.curve_lengths
            functions.append(deformations(x, *curve, n_slopes=self.n_slopes, xp=xp))
        functions.append(features)
        removed = nothing
        if self.removed is not None:
            functions.append(self.smooth(x, self.points, xp))
            removed = functions[-1] @ self.removed
        own = mapped(xp.concatenate(functions, -1), self.own)
        common, n_lines = xp.concatenate(columns, -1), lines.shape[-1]
        fixed = xp.concatenate([common @ self.common_root, own[..., :n_lines]], -1)
        found = Points(x, common, fixed, own[..., n_lines:], removed, mask)
        if mask is None:
            return found
        return Points(x, *(part * mask[..., None] for part in found[1:5]), mask=mask)

    @property
    def layers(self) -> tuple[Any, ...]:
        """The network of features."""
        return self.first, self.first_bias, self.second, self.second_bias, self.last

    def mean_columns(self, x: Any, covariates: Any, features: Any, xp: Any = np) -> list[Any]:
        """Return the columns of the common mean but for its line."""
        columns = [features]
        if self.mean_lengths is not None:
            columns.insert(0, RBF.value(squared_distances(x, self.points, self.mean_lengths), xp))
        if self.covariates:
            columns.append(covariates)
        if self.bent is not None:
            functions = x[..., : self.n_numbers]
            if self.bend_map is not None:
                functions = xp.concatenate([functions, columns[0] @ self.bend_map], -1)
            columns.append(products(covariates[..., self.bent], functions))
        if self.curved is not None:
            columns.append(covariate_curves(covariates, self.curved, xp))
        return columns

    def smooth(self, x: Any, z: Any, xp: Any = np) -> Any:
        """Return the kernel of the smooth deviation."""
        return KERNELS[self.kernel].value(squared_distances(x, z, self.lengths), xp)

    def deviations(self, left: Points, right: Points, xp: Any = np) -> tuple[Any, Any]:
        """Return the covariance around the common mean, without noise: of lines, and what factors may multiply."""
        n_root = self.common_root.shape[-1]
        return left.fixed[..., n_root:] @ right.fixed[..., n_root:].mT, self._scaled(left, right, xp)

    def covariance(self, left: Points, right: Points, xp: Any = np) -> tuple[Any, Any]:
        """Return the same for a new task: the uncertainty of the common mean adds to the fixed part."""
        return left.fixed @ right.fixed.mT, self._scaled(left, right, xp)

    def _scaled(self, left: Points, right: Points, xp: Any) -> Any:
        scaled = left.scaled @ right.scaled.mT
        if self.lengths is not None:
            variance = self.smooth_variance if left.mask is None else self.smooth_variance * left.mask[..., :, None]
            smooth = self.smooth(left.x, right.x, xp) * variance
            scaled += smooth if right.mask is None else smooth * right.mask[..., None, :]
        if left.removed.shape[-1]:
            scaled -= left.removed @ right.removed.mT
        return scaled

    def variance(self, points: Points) -> tuple[Any, Any]:
        """Return the diagonals of `covariance`, (..., n) each; of padding too."""
        scaled = (points.scaled**2).sum(-1) - (points.removed**2).sum(-1)
        return (points.fixed**2).sum(-1), scaled + self.smooth_variance


class Factors(NamedTuple):
    """The Gaussians whose mixture a new task is: how much its own functions and its noise are scaled in each."""

    scales: Array  # (factors,): of standard deviations of the scaled part
    noise: Array  # (factors,): variances
    log_weights: Array  # (factors,)


def condition(process: Process, factors: Factors, x: Array, y: Array, mask: Array) -> Posterior:
    """Condition on standardized readings y (tasks, n) at x (tasks, n, columns)."""
    x, y, mask = far_first(x, y, mask)
    context = process.describe(x, mask)
    fixed, scaled = process.covariance(context, context)
    deviation = (y - context.common @ process.common_mean) * mask
    inverse = np.empty((len(factors.scales), *fixed.shape))
    for k in range(len(inverse)):
        np.multiply(scaled, factors.scales[k] ** 2, out=inverse[k])
        inverse[k] += fixed
        add_noise(inverse[k], mask, factors.noise[k], ROUNDING * mask.sum(axis=1, keepdims=True))
    del fixed, scaled  # of thousands of readings these take gigabytes
    invert_roots(inverse)
    residual = (inverse @ deviation[..., None])[..., 0]
    evidence = np.log(np.diagonal(inverse, axis1=2, axis2=3)).sum(axis=-1) - 0.5 * np.sum(residual**2, axis=-1)
    log_weights = factors.log_weights[:, None] + evidence
    return Posterior(context, inverse, residual, log_weights - log_sum_exp(log_weights, axis=0))


def moments(process: Process, scales: Array, posterior: Posterior, x: Array) -> tuple[Array, Array]:
    """Return posterior means and variances of the latent function at x (tasks, n, columns), (factors, tasks, n)."""
    queries, of_factors = process.describe(x), scales[:, None, None] ** 2
    fixed, scaled = process.covariance(posterior.context, queries)
    cross = fixed + scaled if (scales == 1.0).all() else fixed + of_factors[..., None] * scaled
    solved = posterior.inverse_root @ cross
    mean = queries.common @ process.common_mean + (posterior.residual[:, :, None, :] @ solved)[:, :, 0]
    fixed, scaled = process.variance(queries)
    variance = fixed + of_factors * scaled
    explained = np.sum(np.square(solved, out=solved), axis=2)
    return mean, np.maximum(variance - explained, ROUNDING * variance)


def add_noise(covariance: Array, mask: Array, noise: float | Array, relative_floor: float | Array = 0.0) -> Array:
    """Add noise, of all readings or (tasks, n), to the diagonal of covariances, and make that of padding one; in place.

    `relative_floor` is the least noise of a reading as a share of its variance, for all tasks or (tasks, 1).
    """
    places = np.arange(covariance.shape[1])
    noise = np.maximum(noise + NOISE_FLOOR, relative_floor * covariance[:, places, places])
    covariance[:, places, places] += mask * noise + (1.0 - mask)
    return covariance


def far_first(x: Array, y: Array, mask: Array) -> list[Array]:
    """Sort the readings of every task: with large variances first rounding is least, and no order is special."""
    mask = np.asarray(mask, np.float64)
    order = np.argsort(np.where(mask > 0, -np.sum(np.square(x, dtype=np.float64), axis=-1), np.inf), axis=1)
    sorted_x = np.take_along_axis(np.asarray(x, np.float64), order[..., None], 1)
    return [sorted_x, *(np.take_along_axis(np.asarray(part, np.float64), order, 1) for part in (y, mask))]


def with_ones(x: Any, xp: Any = np) -> Any:
    """Return (1, x)."""
    return xp.concatenate([xp.ones_like(x[..., :1]), x], -1)


def mapped(columns: Any, by: Any) -> Any:
    """Return columns times a matrix, or times a scale of each."""
    return columns * by if by.ndim == 1 else columns @ by


def squared_distances(x: Any, z: Any, lengths: Any) -> Any:
    """Return squared distances (..., n, m) of inputs x (..., n, d) and z (..., m, d), in units of length scales."""
    scale = 1.0 / lengths
    x, z, total = x * scale, z * scale, None
    for j in range(x.shape[-1]):
        difference = x[..., :, None, j] - z[..., None, :, j]
        if isinstance(difference, Array):
            np.square(difference, out=difference)
        else:
            difference = difference * difference
        total = difference if total is None else total + difference
    return total


def network(x: Any, first: Any, first_bias: Any, second: Any, second_bias: Any, last: Any, xp: Any = np) -> Any:
    """Return the features of a network with two hidden layers of tanh units, and both layers.

    Inputs of a layer are divided by the root of their number.
    """
    hidden = xp.tanh(x @ first / math.sqrt(len(first)) + first_bias)
    deep = xp.tanh(hidden @ second / math.sqrt(len(second)) + second_bias)
    return deep @ last / math.sqrt(len(last)), hidden, deep


def deformations(x: Any, line: Any, weights: Any, points: Any, lengths: Any, n_slopes: int, xp: Any = np) -> Any:
    """Return the common curve, and its slopes along the first inputs: by these tasks scale and shift it.

    d k(x, z) / d x = -k(x, z) (x - z) / length^2.
    """
    kernel = RBF.value(squared_distances(x, points, lengths), xp)
    curve = (kernel @ weights)[..., None]
    value = line[0] + (x @ line[1:])[..., None] + curve
    pulled = curve * x[..., :n_slopes] - kernel @ (weights[:, None] * points[:, :n_slopes])
    return xp.concatenate([value, line[1 : 1 + n_slopes] - pulled / lengths[:n_slopes] ** 2], -1)


def products(covariates: Any, functions: Any) -> Any:
    """Return the products of covariates (..., n, c) and functions (..., n, f), (..., n, c f)."""
    pairs = covariates[..., :, None] * functions[..., None, :]
    return pairs.reshape((*pairs.shape[:-2], covariates.shape[-1] * functions.shape[-1]))


# Curves along covariates z that are numbers: few smooth functions make the mean a Gaussian process of z with the RBF
# kernel of length one between points that cover standardized values. The functions are those of the kernel less their
# average over z ~ N(0, 1), so that a task without the covariate, for which they are zero, gets about the average, and a
# function of its own makes its band wider.
CURVE_POINTS = np.linspace(-2.4, 2.4, 7)
CURVE_RANK = 5  # functions of the largest eigenvalues of the kernel between the points
N_CURVE_FUNCTIONS = CURVE_RANK + 1  # the last for tasks without the covariate, whose curve may be anywhere


def curve_whitening() -> Array:
    """Return the map from kernels to functions with independent weights of variance one, (points, CURVE_RANK)."""
    eigenvalues, vectors = np.linalg.eigh(np.exp(-0.5 * np.subtract.outer(CURVE_POINTS, CURVE_POINTS) ** 2))
    return vectors[:, -CURVE_RANK:] / np.sqrt(eigenvalues[-CURVE_RANK:])


CURVE_WHITENING = curve_whitening()
CURVE_AVERAGES = math.sqrt(0.5) * np.exp(-0.25 * CURVE_POINTS**2)


def covariate_curves(covariates: Any, columns: Any, xp: Any = np) -> Any:
    """Return these functions of covariates, each a column of values followed by one that marks missing values."""
    points, averages, whitening = (xp.asarray(each) for each in (CURVE_POINTS, CURVE_AVERAGES, CURVE_WHITENING))
    parts = []
    for column in columns:
        z, missing = covariates[..., column, None], covariates[..., column + 1, None]
        kernels = xp.exp(-0.5 * (z - points) ** 2) - averages
        parts += [(kernels * (1.0 - missing)) @ whitening, missing]
    return xp.concatenate(parts, -1)
