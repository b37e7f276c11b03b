"""The mode of the collapsed Gibbs density of theta, by a quasi-Newton method."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from metaprior.prior.blocks import Block, squared_distances
from metaprior.prior.collapse import Collapsed, Gaussians, collapse, slopes
from metaprior.prior.layout import Layout
from metaprior.prior.terms import Basis, gaussians, make_basis, point_slopes, pull_back, rbf_between

MAX_ITERATIONS = 60
GRADIENT_TOLERANCE = 1e-2  # nats: far below the differences between candidates
MEAN_PRIOR = ("mean", "mean_lengths")  # parameters of the common curve
FARTHEST = 8.0  # standard deviations of the hyper-prior that theta may lie from its mean


@dataclass(frozen=True, eq=False)
class Mode:
    """The mode of theta given some tasks."""

    layout: Layout
    theta: np.ndarray
    value: float  # log Gibbs density, up to a constant
    inverse_hessian: np.ndarray  # of minus the log density, approximated by the quasi-Newton method


@dataclass(frozen=True, eq=False)
class CommonCurve:
    """The posterior mean of the common line and curve of the target, as a function of standardized inputs."""

    line: np.ndarray  # (1 + input_dim,)
    weights: np.ndarray  # (points,)
    points: np.ndarray  # (points, input_dim)
    lengths: np.ndarray  # (input_dim or 1,)

    def __call__(self, x: np.ndarray, n_functions: int) -> np.ndarray:
        """Return the curve, and its slope along every input if `n_functions` asks for them, (..., n_functions)."""
        kernel = rbf_between(x, self.points, self.lengths)
        curve = kernel @ self.weights
        functions = [self.line[0] + x @ self.line[1:] + curve]
        for j in range(n_functions - 1):  # of numbers, the first: d k(x, z) / d x = -k(x, z) (x - z) / length^2
            pulled = curve * x[..., j] - kernel @ (self.weights * self.points[:, j])
            functions.append(self.line[1 + j] - pulled / self.lengths[j] ** 2)
        return np.stack(functions, axis=-1)


class Density(NamedTuple):
    """The log Gibbs density at one theta."""

    value: float
    slope: np.ndarray  # by theta
    collapsed: Collapsed
    by_block: list[tuple[np.ndarray, np.ndarray]]  # derivatives by the covariances and mean features of every block


def log_density(
    layout: Layout, theta: np.ndarray, blocks: Sequence[Block], points: np.ndarray, gradient: bool = True
) -> Density:
    """Return log p(theta) + J up to constants, with its derivatives unless told otherwise."""
    point_distances = squared_distances(points, points, layout.ard, layout.widths)
    basis = make_basis(layout, theta, point_distances)
    parts = [gaussians(layout, theta, basis, block) for block in blocks]
    given = [part for part, _ in parts]
    collapsed = collapse(given)
    z = (theta - layout.center) / layout.spread
    value, slope = collapsed.value - 0.5 * float(z @ z), -z / layout.spread
    if not gradient:
        return Density(value, slope, collapsed, [])
    by_block = slopes(given, collapsed)
    slope += slope_by_theta(layout, theta, basis, blocks, parts, by_block, point_distances)
    return Density(value, slope, collapsed, by_block)


def slope_by_theta(
    layout: Layout,
    theta: np.ndarray,
    basis: Basis | None,
    blocks: Sequence[Block],
    parts: Sequence[tuple[Gaussians, np.ndarray | None]],
    by_block: Sequence[tuple[np.ndarray, np.ndarray]],
    point_distances: np.ndarray,
) -> np.ndarray:
    """Return the derivative of J by theta, given those by the covariances and mean features of every block."""
    slope, of_root = np.zeros(len(theta)), 0.0
    for block, (given, smooth), found in zip(blocks, parts, by_block, strict=True):
        by_theta, by_root = pull_back(layout, theta, basis, block, given.features, smooth, *found)
        slope += by_theta
        of_root = of_root + by_root
    if basis is not None:
        slope[layout.places["mean_lengths"]] += point_slopes(basis, np.asarray(of_root), point_distances)
    return slope


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
        value, slope, *_ = log_density(layout, theta, blocks, points, gradient)
        return value, free * slope

    return climb(layout, density, near, max_iterations)


def climb(
    layout: Layout,
    density: Callable[[np.ndarray, bool], tuple[float, np.ndarray]],
    near: Sequence[Mode] = (),
    max_iterations: int = MAX_ITERATIONS,
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
        options: dict[str, object] = {"maxiter": max_iterations, "gtol": GRADIENT_TOLERANCE}
        if inverse_hessian is not None:
            options["hess_inv0"] = inverse_hessian
        with np.errstate(all="ignore"):  # steps of the line search may overshoot into infinity
            found = minimize(loss, start, jac=True, method="BFGS", options=options)
        theta = found.x if np.isfinite(found.fun) else start
        hessian = 0.5 * (found.hess_inv + found.hess_inv.T) + 1e-8 * np.eye(len(theta))
        return Mode(layout, theta, -float(found.fun), hessian)

    known = [extended(mode, layout) for mode in near if mode.layout.parts.smooth == layout.parts.smooth]
    if not known:  # few tasks have several modes, and the highest is not always near the best start
        return max((climb_from(start, None) for start in layout.starts()), key=lambda mode: mode.value)
    nearest = min(known, key=lambda mode: loss(mode.theta, gradient=False)[0]) if len(known) > 1 else known[0]
    return climb_from(nearest.theta, nearest.inverse_hessian)


def extended(mode: Mode, layout: Layout) -> Mode:
    """Return a mode as a starting point for a prior with other parts: new parameters start at their hyper-prior."""
    if mode.layout.places == layout.places:
        return mode
    theta, hessian = layout.center.copy(), np.diag(layout.spread**2)
    pairs = [(layout.places[name], place) for name, place in mode.layout.places.items() if name in layout.places]
    for to, of in pairs:
        theta[to] = mode.theta[of]
        for to_column, of_column in pairs:
            hessian[to, to_column] = mode.inverse_hessian[of, of_column]
    return Mode(layout, theta, mode.value, hessian)


def free_parameters(layout: Layout) -> np.ndarray:
    """Return 1 for parameters of theta that are found, 0 for those that stay as they are.

    Tasks deform a curve that was found in their own readings. Given it, the evidence would prefer a common mean that is
    flat: the tasks' own multiples of that curve explain all that they have in common.
    """
    free = np.ones(len(layout.center))
    for group in MEAN_PRIOR if layout.parts.curve else ():
        free[layout.places[group]] = 0.0
    return free


def hold_mean(mode: Mode, layout: Layout, smooth: Mode) -> Mode:
    """Return a mode as a start for the curve family, with the prior of the common curve of the smooth one."""
    found, free = extended(mode, layout), free_parameters(layout)
    theta = found.theta.copy()
    for group in MEAN_PRIOR:
        theta[layout.places[group]] = smooth.theta[smooth.layout.places[group]]
    hessian = free[:, None] * found.inverse_hessian * free + 1e-8 * np.eye(len(free))
    return replace(found, theta=theta, inverse_hessian=hessian)


def common_curve(mode: Mode, collapsed: Collapsed, points: np.ndarray) -> CommonCurve:
    """Return the posterior mean of the common curve in the target environment."""
    layout, theta, weights = mode.layout, mode.theta, collapsed.mean
    if layout.parts.environment:
        half = len(weights) // 2
        weights = weights[:half] + layout.scale(theta, "environment")[0] * weights[half:]
    basis = make_basis(layout, theta, squared_distances(points, points, layout.ard, layout.widths))
    assert basis is not None
    places = layout.mean_slices(len(points))
    of_points = basis.scale * (basis.inverse_root.T @ weights[places["curve"]])
    line, lengths = layout.trend_stds(theta) * weights[places["line"]], layout.column_lengths(basis.lengths)
    return CommonCurve(line, of_points, points, lengths)


def with_curve(blocks: Sequence[Block], curve: CommonCurve, n_functions: int) -> list[Block]:
    """Return the blocks with the functions by which tasks deform the common curve."""
    return [replace(block, curve=curve(block.inputs, n_functions) * block.mask[..., None]) for block in blocks]
