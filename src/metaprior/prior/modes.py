"""The tasks of a fit, padded in blocks of similar sizes with all that does not depend on theta; inducing points.

Integrating the weights m of a linear mean out of the weighted evidence of many tasks (docs/method.md).

With y_i ~ N(F_i m, C_i), m ~ N(0, I) and counts c_i, the log Gibbs density is -|m|^2 / 2 + sum_i c_i log N(y_i | F_i m,
C_i) up to log p(theta). It is Gaussian in m: with P = I + sum_i c_i F_i' C_i^-1 F_i and b = sum_i c_i F_i' C_i^-1 y_i,
m is N(P^-1 b, P^-1), and integrating it out leaves

    J = -sum_i c_i (y_i' C_i^-1 y_i + log |C_i|) / 2 + b' P^-1 b / 2 - log |P| / 2.

The mode of the collapsed Gibbs density of theta, by a quasi-Newton method.

The prior of the common curve is checked against what the mean predicts of tasks that it has not seen.
The evidence tells little about a curve that all tasks share: their own deviations can explain the same readings. So it
may shrink the common curve to a flat line although the average of the tasks is far from one. Readings of a new task
hide this, but without any it is predicted by the common mean alone. Groups of tasks are therefore left out in turn. If
that predicts them better, the prior of the common curve is made wider, and its length scales those of the
tasks' own curves: then the common mean is about the average of these.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from metaprior.linalg import cholesky, triangular_inverse
from metaprior.prior.blocks import Block, Gaussians
from metaprior.prior.layout import Layout
from metaprior.prior.process import deformations
from metaprior.prior.terms import n_deformations


class Collapsed(NamedTuple):
    """The collapsed evidence J and the Gaussian posterior of m."""

    value: float  # J, without the constant of the normal distribution
    mean: np.ndarray  # P^-1 b
    root: np.ndarray  # R with R R' = P^-1
    precisions: list[np.ndarray]  # C^-1 of every block
    projected: list[np.ndarray]  # C^-1 F of every block


def collapse(blocks: Sequence[Gaussians]) -> Collapsed:
    """Integrate m out of the weighted evidence; raise LinAlgError if a covariance is not positive definite."""
    n_features = blocks[0].features.shape[-1]
    precision, linear, value = np.eye(n_features), np.zeros(n_features), 0.0
    precisions, projected = [], []
    for block in blocks:
        root = np.linalg.cholesky(block.covariance)  # for the determinant, and because the inverse would not fail
        log_determinant = 2.0 * np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
        inverse = np.linalg.inv(block.covariance)
        solved = inverse @ block.features
        added = _information(block, solved)
        precision, linear = precision + added[0], linear + added[1]
        squares = np.sum(block.y * (inverse @ block.y[..., None])[..., 0], axis=1)
        value -= 0.5 * float(block.counts @ (squares + log_determinant))
        precisions.append(inverse)
        projected.append(solved)
    mean, root, log_determinant = posterior_of_weights(precision, linear)
    value += 0.5 * float(linear @ mean) - 0.5 * log_determinant
    return Collapsed(value, mean, root, precisions, projected)


def information(block: Gaussians) -> tuple[np.ndarray, np.ndarray]:
    """Return what a block adds to P and b."""
    return _information(block, np.linalg.solve(block.covariance, block.features))


def posterior_of_weights(precision: np.ndarray, linear: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return P^-1 b, R with R R' = P^-1, and log |P|."""
    factor = cholesky(precision)
    root = triangular_inverse(factor).T
    return root @ (root.T @ linear), root, 2.0 * float(np.log(np.diagonal(factor)).sum())


def _information(block: Gaussians, solved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n_features = solved.shape[-1]
    weighted = (block.counts[:, None, None] * solved).reshape(-1, n_features)
    return weighted.T @ block.features.reshape(-1, n_features), block.y.ravel() @ weighted


def slopes(blocks: Sequence[Gaussians], collapsed: Collapsed) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the derivatives of J with respect to every C_i and F_i, for each block.

    With r_i = C_i^-1 (y_i - F_i P^-1 b): dJ/dC_i = c_i (r_i r_i' - C_i^-1 + C_i^-1 F_i P^-1 F_i' C_i^-1) / 2 and
    dJ/dF_i = c_i (r_i b' - C_i^-1 F_i) P^-1.
    """
    covariance_of_mean = collapsed.root @ collapsed.root.T
    found = []
    for block, inverse, solved in zip(blocks, collapsed.precisions, collapsed.projected, strict=True):
        counts = block.counts[:, None, None]
        residual = (inverse @ (block.y - block.features @ collapsed.mean)[..., None])[..., 0]
        spread = solved @ covariance_of_mean
        of_covariance = residual[:, :, None] * residual[:, None, :] - inverse + spread @ np.swapaxes(solved, 1, 2)
        of_features = residual[..., None] * collapsed.mean - spread
        found.append((0.5 * counts * of_covariance, counts * of_features))
    return found


MAX_ITERATIONS = 60
GRADIENT_TOLERANCE = 1e-2  # nats: far below the differences between candidates
MEAN_PRIOR = ("mean", "mean_lengths")  # parameters of the common curve
FARTHEST = 8.0  # standard deviations of the hyper-prior that theta may lie from its mean
LIKELIHOOD_VARIANCE = 0.1  # of its parameters at the start, in squared standard deviations of the hyper-prior


@dataclass(frozen=True, eq=False)
class Mode:
    """The mode of theta given some tasks."""

    layout: Layout
    theta: np.ndarray
    value: float  # log Gibbs density, up to a constant
    inverse_hessian: np.ndarray  # of minus the log density, approximated by the quasi-Newton method


class CommonCurve(NamedTuple):
    """The posterior mean of the common line and curve of the target, as a function of standardized inputs."""

    line: np.ndarray  # (1 + n_inputs,)
    weights: np.ndarray  # (points,)
    points: np.ndarray  # (points, n_inputs)
    lengths: np.ndarray  # (n_inputs or 1,)


class Density(NamedTuple):
    """The log Gibbs density at one theta."""

    value: float
    slope: np.ndarray  # by theta
    collapsed: Collapsed


def log_density(
    layout: Layout, theta: np.ndarray, blocks: Sequence[Block], points: np.ndarray, gradient: bool = True
) -> Density:
    """Return log p(theta) + J up to constants, with its derivatives unless told otherwise."""
    prior = layout.at(theta, points)
    parts = [prior.on(block) for block in blocks]
    given = [part.given() for part in parts]
    collapsed = collapse(given)
    z = (theta - layout.center) / layout.spread
    value, slope = collapsed.value - 0.5 * float(z @ z), -z / layout.spread
    if gradient:
        slope += prior.gradient(parts, slopes(given, collapsed))
    return Density(value, slope, collapsed)


def find_mode(
    layout: Layout,
    blocks: Sequence[Block],
    points: np.ndarray,
    near: Sequence[Mode] = (),
    max_iterations: int = MAX_ITERATIONS,
) -> Mode:
    """Return the mode of theta given readings; if tasks deform the common curve, given its prior at the start too."""
    free = free_parameters(layout)

    def density(theta: np.ndarray, gradient: bool) -> tuple[float, np.ndarray]:
        value, slope, _ = log_density(layout, theta, blocks, points, gradient)
        return value, free * slope

    return climb(layout, density, near, max_iterations)


def climb(
    layout: Layout,
    density: Callable[[np.ndarray, bool], tuple[float, np.ndarray]],
    near: Sequence[Mode] = (),
    max_iterations: int = MAX_ITERATIONS,
    tolerance: float = GRADIENT_TOLERANCE,
) -> Mode:
    """Return the mode of a log density of theta, by BFGS. `density(theta, gradient)` returns its value and slope.

    It starts from the best of `near`, modes of similar tasks or of a similar prior; without any, from all general
    starting points, and the highest mode is kept.
    """

    def loss(theta: np.ndarray, gradient: bool = True) -> tuple[float, np.ndarray]:
        if np.max(np.abs(theta - layout.center) / layout.spread) < FARTHEST:
            try:
                value, slope = density(theta, gradient)
            except np.linalg.LinAlgError:
                return np.inf, np.zeros(len(theta))
            if np.isfinite(value) and np.isfinite(slope).all():
                return -value, -slope
        return np.inf, np.zeros(len(theta))

    def climb_from(start: np.ndarray, inverse_hessian: np.ndarray | None) -> Mode:
        options: dict[str, object] = {"maxiter": max_iterations, "gtol": tolerance}
        if inverse_hessian is not None:
            options["hess_inv0"] = inverse_hessian
        with np.errstate(all="ignore"):  # steps of the line search may overshoot into infinity
            found = minimize(loss, start, jac=True, method="BFGS", options=options)
        theta = found.x if np.isfinite(found.fun) else start
        hessian = 0.5 * (found.hess_inv + found.hess_inv.T) + 1e-8 * np.eye(len(theta))
        return Mode(layout, theta, -float(found.fun), hessian)

    known = [extended(mode, layout) for mode in near if mode.layout.has("curve") == layout.has("curve")]
    if not known:  # few tasks have several modes, and the highest is not always near the best start
        return max((climb_from(start, None) for start in layout.starts()), key=lambda mode: mode.value)
    nearest = min(known, key=lambda mode: loss(mode.theta, gradient=False)[0]) if len(known) > 1 else known[0]
    return climb_from(nearest.theta, nearest.inverse_hessian)


def extended(mode: Mode, layout: Layout) -> Mode:
    """Return a mode as a starting point for a prior with other terms: new parameters start at their hyper-prior."""
    if mode.layout.places == layout.places:
        return mode
    theta, hessian = layout.center.copy(), np.diag(layout.spread**2)
    pairs = [(layout.places[name], place) for name, place in mode.layout.places.items() if name in layout.places]
    for to, of in pairs:
        theta[to] = mode.theta[of]
        for to_column, of_column in pairs:
            hessian[to, to_column] = mode.inverse_hessian[of, of_column]
    return Mode(layout, theta, mode.value, _with_new_likelihood(hessian, layout))


def _with_new_likelihood(hessian: np.ndarray, layout: Layout) -> np.ndarray:
    """Return an inverse Hessian that knows nothing of the likelihood's parameters: they move with the other terms."""
    if place := layout.places.get("likelihood"):
        hessian[place], hessian[:, place] = 0.0, 0.0
        hessian[place, place] = np.diag(LIKELIHOOD_VARIANCE * layout.spread[place] ** 2)
    return hessian


def free_parameters(layout: Layout) -> np.ndarray:
    """Return 1 for parameters of theta that are found, 0 for those that stay as they are.

    Tasks deform a curve that was found in their own readings. Given it, the evidence would prefer a common mean that is
    flat: the tasks' own multiples of that curve explain all that they have in common.
    """
    free = np.ones(len(layout.center))
    for group in MEAN_PRIOR if layout.has("deformation") else ():
        free[layout.places[group]] = 0.0
    return free


def with_mean_prior(mode: Mode, layout: Layout, smooth: Mode) -> Mode:
    """Return a mode as a start for the curve family, with the prior of the common curve of the smooth one."""
    found, free = extended(mode, layout), free_parameters(layout)
    theta = found.theta.copy()
    for group in MEAN_PRIOR:
        theta[layout.places[group]] = smooth.theta[smooth.layout.places[group]]
    hessian = free[:, None] * found.inverse_hessian * free + 1e-8 * np.eye(len(free))
    return replace(found, theta=theta, inverse_hessian=_with_new_likelihood(hessian, layout))


def common_curve(mode: Mode, collapsed: Collapsed, points: np.ndarray) -> CommonCurve:
    """Return the posterior mean of the common curve in the target environment."""
    layout, weights = mode.layout, collapsed.mean
    if layout.has("environment"):
        common, own = np.split(weights, 2)
        weights = common + layout.scale(mode.theta, "environment")[0] * own
    at, n_line = layout.at(mode.theta, points), 1 + layout.columns.n_inputs
    assert at.basis is not None
    line = layout.find("line").mean_map(at.parameters, at.basis) * weights[:n_line]
    of_points = at.basis.map @ weights[n_line : n_line + len(points)]
    return CommonCurve(line, of_points, points, layout.columns.lengths_by_column(at.basis.lengths))


def with_curve(blocks: Sequence[Block], curve: CommonCurve, layout: Layout) -> list[Block]:
    """Return the blocks with the functions by which tasks deform the common curve."""
    n_slopes = n_deformations(layout.columns) - 1
    curves = [deformations(block.inputs, *curve, n_slopes) * block.mask[..., None] for block in blocks]
    return [replace(block, curve=functions) for block, functions in zip(blocks, curves, strict=True)]


SCALES = (1.0, 2.0, 4.0, 8.0)  # times that of the common curve
N_GROUPS = 10  # of tasks, each left out once


def checked_theta(
    mode: Mode,
    own_lengths: np.ndarray,
    blocks: Sequence[Block],
    given: Sequence[Gaussians],
    precisions: Sequence[np.ndarray],
    points: np.ndarray,
) -> np.ndarray:
    """Return theta with another prior of the common curve if tasks that are left out ask for it.

    `own_lengths` are the logarithms of the length scales of the tasks' own curves, `precisions` the inverse covariances
    of their readings.
    """
    layout, counts = mode.layout, np.concatenate([block.counts for block in given])
    if len(counts) < 2:
        return mode.theta
    choices, errors = [], []
    for lengths in (mode.theta[layout.places["mean_lengths"]], own_lengths):
        for scale in SCALES:
            theta = mode.theta.copy()
            theta[layout.places["mean"]] += np.log(scale)
            theta[layout.places["mean_lengths"]] = lengths
            prior = layout.at(theta, points)
            features = [prior.on(block).features for block in blocks]
            pairs = zip(given, features, strict=True)
            choices.append(theta)
            errors.append(left_out_errors([each._replace(features=f) for each, f in pairs], blocks, precisions))
    return choices[int(np.argmin(np.array(errors) @ counts))]


def left_out_errors(
    given: Sequence[Gaussians], blocks: Sequence[Block], precisions: Sequence[np.ndarray]
) -> np.ndarray:
    """Return the root mean squared error of the mean for every task, learned without the group it is in, (tasks,)."""
    information, linear = [], []
    for each, precision in zip(given, precisions, strict=True):
        solved = each.counts[:, None, None] * (precision @ each.features)
        information.append(np.swapaxes(each.features, 1, 2) @ solved)
        linear.append((each.y[:, None] @ solved)[:, 0])
    of_tasks, of_readings = np.concatenate(information), np.concatenate(linear)
    n_tasks = len(of_tasks)
    groups = np.eye(min(n_tasks, N_GROUPS))[np.arange(n_tasks) % N_GROUPS]
    left = np.eye(of_tasks.shape[1]) + of_tasks.sum(axis=0) - np.tensordot(groups, of_tasks, axes=(0, 0))
    weights = groups @ np.linalg.solve(left, (of_readings.sum(axis=0) - groups.T @ of_readings)[..., None])[..., 0]
    ends = np.cumsum([len(each.y) for each in given])
    errors = []
    for each, block, own in zip(given, blocks, np.split(weights, ends[:-1]), strict=True):
        off = (each.y - (each.features @ own[..., None])[..., 0]) * block.mask
        errors.append(np.sqrt(np.sum(off**2, axis=1) / np.maximum(block.mask.sum(axis=1), 1.0)))
    return np.concatenate(errors)
