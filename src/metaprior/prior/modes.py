"""The mode of theta given tasks: the most probable parameters of a prior."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from metaprior.linalg import Array
from metaprior.prior.blocks import Block, Gaussians
from metaprior.prior.evidence import Collapsed, collapse, slopes
from metaprior.prior.layout import Layout, OnBlock
from metaprior.prior.process import deformations
from metaprior.prior.terms import n_deformations

MAX_ITERATIONS = 60
GRADIENT_TOLERANCE = 1e-2  # nats: far below the differences between candidates
MEAN_PRIOR = ("mean", "mean_lengths")  # parameters of the common curve
FARTHEST = 8.0  # standard deviations of the hyper-prior that theta may lie from its mean
LIKELIHOOD_VARIANCE = 0.1  # of its parameters at the start, in squared standard deviations of the hyper-prior


@dataclass(frozen=True, eq=False)
class Mode:
    """The mode of theta given some tasks."""

    layout: Layout
    theta: Array
    value: float  # log Gibbs density, up to a constant
    inverse_hessian: Array  # of minus the log density, approximated by the quasi-Newton method


class CommonCurve(NamedTuple):
    """The posterior mean of the common line and curve of the target, as a function of standardized inputs."""

    line: Array  # (1 + n_inputs,)
    weights: Array  # (points,)
    points: Array  # (points, n_inputs)
    lengths: Array  # (n_inputs or 1,)


class Evidence(NamedTuple):
    """The evidence J of tasks at one theta."""

    value: float
    slopes: Sequence[tuple[Array, Array]]  # dJ/dC and dJ/dF of every block; none if not asked for
    by_parameters: Array | None = None  # dJ by the parameters of the likelihood


class Density(NamedTuple):
    """The log Gibbs density at one theta."""

    value: float
    slope: Array  # by theta
    parts: list[OnBlock]


def evidence_of_readings(parts: Sequence[OnBlock], gradient: bool = True) -> Evidence:
    """Return the evidence of readings with Gaussian noise."""
    given = [part.given() for part in parts]
    collapsed = collapse(given)
    return Evidence(collapsed.value, slopes(given, collapsed) if gradient else [])


def log_density(
    layout: Layout,
    theta: Array,
    blocks: Sequence[Block],
    points: Array,
    gradient: bool = True,
    evidence: Callable[[Sequence[OnBlock], bool], Evidence] = evidence_of_readings,
) -> Density:
    """Return log p(theta) + J up to constants, with its derivatives unless told otherwise."""
    at = layout.at(theta, points)
    parts = [at.on(block) for block in blocks]
    found = evidence(parts, gradient)
    value, slope = layout.log_prior(theta)
    if gradient:
        slope = slope + at.gradient(parts, found.slopes)
    if found.by_parameters is not None:
        slope[layout.places["likelihood"]] += found.by_parameters
    return Density(value + found.value, slope, parts)


def find_mode(
    layout: Layout,
    blocks: Sequence[Block],
    points: Array,
    near: Sequence[Mode] = (),
    max_iterations: int = MAX_ITERATIONS,
    evidence: Callable[[Sequence[OnBlock], bool], Evidence] = evidence_of_readings,
    tolerance: float = GRADIENT_TOLERANCE,
) -> Mode:
    """Return the mode of theta given tasks; if these deform the common curve, given its prior at the start too."""
    free = free_parameters(layout)

    def density(theta: Array, gradient: bool = True) -> tuple[float, Array]:
        value, slope, _ = log_density(layout, theta, blocks, points, gradient, evidence)
        return value, free * slope

    return climb(layout, density, near, max_iterations, tolerance)


def climb(
    layout: Layout,
    density: Callable[..., tuple[float, Array]],
    near: Sequence[Mode] = (),
    max_iterations: int = MAX_ITERATIONS,
    tolerance: float = GRADIENT_TOLERANCE,
) -> Mode:
    """Return the mode of a log density of theta, by BFGS. `density(theta, gradient)` returns its value and slope.

    It starts from the best of `near`, modes of similar tasks or of a similar prior; without any, from all general
    starting points, and the highest mode is kept.
    """
    loss = loss_of(layout, density)

    def climb_from(start: Array, inverse_hessian: Array | None) -> Mode:
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
    nearest = min(known, key=lambda mode: loss(mode.theta, False)[0]) if len(known) > 1 else known[0]
    return climb_from(nearest.theta, nearest.inverse_hessian)


def loss_of(layout: Layout, density: Callable[..., tuple[float, Array]]) -> Callable[..., tuple[float, Array]]:
    """Return minus a log density of theta and perhaps more, infinite where it cannot be computed or theta is far."""

    def loss(theta: Array, *options: bool) -> tuple[float, Array]:
        own = theta[: len(layout.center)]
        if np.max(np.abs(own - layout.center) / layout.spread) < FARTHEST:
            with suppress(np.linalg.LinAlgError):
                value, slope = density(theta, *options)
                if np.isfinite(value) and np.isfinite(slope).all():
                    return -value, -slope
        return np.inf, np.zeros(len(theta))

    return loss


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


def _with_new_likelihood(hessian: Array, layout: Layout) -> Array:
    """Reset the inverse Hessian of the likelihood's parameters, which move with the other terms; return it."""
    if place := layout.places.get("likelihood"):
        hessian[place], hessian[:, place] = 0.0, 0.0
        hessian[place, place] = np.diag(LIKELIHOOD_VARIANCE * layout.spread[place] ** 2)
    return hessian


def free_parameters(layout: Layout) -> Array:
    """Return 1 for parameters of theta that are found, 0 for those that are kept.

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
    hessian = free[:, None] * found.inverse_hessian * free + 1e-8 * np.eye(len(free))
    theta = with_prior_of_mean(layout, found.theta, smooth.layout, smooth.theta)
    return replace(found, theta=theta, inverse_hessian=_with_new_likelihood(hessian, layout))


def with_prior_of_mean(layout: Layout, theta: Array, of: Layout, other: Array) -> Array:
    """Return theta with the prior of the common curve that another theta has, of another layout."""
    theta = theta.copy()
    for group in MEAN_PRIOR:
        theta[layout.places[group]] = other[of.places[group]]
    return theta


def common_curve(mode: Mode, collapsed: Collapsed, points: Array) -> CommonCurve:
    """Return the posterior mean of the common curve in the target environment."""
    layout, weights = mode.layout, collapsed.mean
    if layout.has("environment"):
        common, own = np.split(weights, 2)
        weights = common + layout.scale(mode.theta, "environment")[0] * own
    at, n_line = layout.at(mode.theta, points), 1 + layout.columns.n_inputs
    line = layout.find("line").mean_map(at) * weights[:n_line]
    of_points = at.basis.map @ weights[n_line : n_line + len(points)]
    return CommonCurve(line, of_points, points, layout.columns.lengths_by_column(at.basis.lengths))


def with_curve(blocks: Sequence[Block], curve: CommonCurve, layout: Layout) -> list[Block]:
    """Return the blocks with the functions by which tasks deform the common curve."""
    n_slopes = n_deformations(layout.columns) - 1
    curves = [deformations(block.inputs, *curve, n_slopes) * block.mask[..., None] for block in blocks]
    return [replace(block, curve=functions) for block, functions in zip(blocks, curves, strict=True)]


# The evidence tells little about a curve that all tasks share: their own deviations can explain the same readings. So
# it may shrink the common curve to a flat line although the average of the tasks is far from one. Readings of a new
# task hide this, but without any it is predicted by the common mean alone. Groups of tasks are therefore left out in
# turn. If that predicts them better, the prior of the common curve is made wider, and its length scales those of the
# tasks' own curves: then the common mean is about the average of these.
SCALES = (1.0, 2.0, 4.0, 8.0)  # times that of the common curve
N_GROUPS = 10  # of tasks, each left out once


def checked_theta(
    mode: Mode,
    own_lengths: Array,
    blocks: Sequence[Block],
    given: Sequence[Gaussians],
    precisions: Sequence[Array],
    points: Array,
) -> Array:
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


def left_out_errors(given: Sequence[Gaussians], blocks: Sequence[Block], precisions: Sequence[Array]) -> Array:
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
