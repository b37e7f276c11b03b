"""Families of hierarchical priors, from the simplest to the most flexible, each started from the one before."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from metaprior.hierarchical.blocks import Block, make_blocks, place_points, squared_distances
from metaprior.hierarchical.collapse import Collapsed, Gaussians, collapse, information, posterior_of_weights
from metaprior.hierarchical.modes import MAX_ITERATIONS, CommonCurve, Mode, common_curve, find_mode, with_curve
from metaprior.hierarchical.noise import learn_noise
from metaprior.hierarchical.parameters import Layout, Parts
from metaprior.hierarchical.prior import HierarchicalPrior
from metaprior.hierarchical.shapes import learn_shapes, residual, shape_functions
from metaprior.hierarchical.terms import add_noise, gaussians, make_basis, mean_features
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task

LINEAR, SMOOTH, CURVE, SHAPES = "linear", "smooth", "curve", "shapes"
FAMILIES = (LINEAR, SMOOTH, CURVE, SHAPES)


@dataclass(frozen=True, eq=False)
class FamilyFit:
    """The priors of all families fitted to the same tasks, and the modes to start similar fits from."""

    priors: dict[str, HierarchicalPrior]
    modes: dict[str, Mode]


@dataclass(frozen=True, eq=False)
class TrainingTasks:
    """Standardized tasks and how much the evidence of each counts."""

    scaling: Scaling
    tasks: Sequence[Task]
    counts: np.ndarray  # (tasks,)
    is_target: np.ndarray  # (tasks,)
    of_environment: np.ndarray | None = None  # (environments,): the count of a task of each


def fit_families(
    training: TrainingTasks,
    environment: bool,
    noise_std: float | None,
    near: FamilyFit | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> FamilyFit:
    """Fit every family. `near` has fits to similar tasks; with almost the same tasks a few iterations are enough.

    With `environment` the target's mean deviates from that of the sources. `noise_std` is given in the units of y, or
    learned if None.
    """
    points = place_points(training.tasks)
    blocks = make_blocks(training.tasks, training.counts, training.is_target, points)
    log_noise = None if noise_std is None else float(np.log(noise_std / training.scaling.y_std))
    priors: dict[str, HierarchicalPrior] = {}
    modes: dict[str, Mode] = {}

    def fit(name: str, parts: Parts, blocks: Sequence[Block], curve: CommonCurve | None = None) -> Collapsed:
        layout = Layout(parts, points.shape[1], log_noise)
        known = [] if near is None or name not in near.modes else [near.modes[name]]
        if curve is not None and (max_iterations == MAX_ITERATIONS or not known):
            known.append(modes[SMOOTH])
        modes[name] = find_mode(layout, blocks, points, known, max_iterations)
        basis = make_basis(layout, modes[name].theta, squared_distances(points, points))
        given = [gaussians(layout, modes[name].theta, basis, block)[0] for block in blocks]
        collapsed, noise = collapse(given), layout.noise_variance(modes[name].theta)
        priors[name] = _prior(training, modes[name], points, blocks, given, collapsed, noise, curve)
        return collapsed

    fit(LINEAR, Parts(environment=environment), blocks)
    try:
        collapsed = fit(SMOOTH, Parts(smooth=True, environment=environment), blocks)
        curve = common_curve(modes[SMOOTH], collapsed, points)
        parts = Parts(smooth=True, curve=True, environment=environment)
        blocks = with_curve(blocks, curve, Layout(parts, points.shape[1]).n_curve)
        fit(CURVE, parts, blocks, curve)
        priors[SHAPES] = _fit_shapes(training, modes[CURVE], points, blocks, curve)
    except np.linalg.LinAlgError:  # the families from there on are left out, and the report names them
        pass
    return FamilyFit({name: prior for name, prior in priors.items() if _is_finite(prior)}, modes)


def _fit_shapes(
    training: TrainingTasks, mode: Mode, points: np.ndarray, blocks: Sequence[Block], curve: CommonCurve
) -> HierarchicalPrior:
    layout, theta = mode.layout, mode.theta
    covariance, noise = learn_shapes(mode, blocks, points)
    basis = make_basis(layout, theta, squared_distances(points, points))
    given = []
    for block in blocks:
        functions = shape_functions(layout, theta, points, block)
        rest = residual(layout, theta, functions, block.between, len(points))
        rest = rest * (block.mask[:, :, None] * block.mask[:, None, :])
        total = add_noise(functions @ covariance @ np.swapaxes(functions, 1, 2) + rest, block.mask, noise)
        given.append(Gaussians(block.y, mean_features(layout, theta, basis, block), total, block.counts))
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return _prior(training, mode, points, blocks, given, collapse(given), noise, curve, root)


def _prior(
    training: TrainingTasks,
    mode: Mode,
    points: np.ndarray,
    blocks: Sequence[Block],
    given: Sequence[Gaussians],
    collapsed: Collapsed,
    noise: float,
    curve: CommonCurve | None,
    shape_root: np.ndarray | None = None,
) -> HierarchicalPrior:
    noises, log_weights = np.array([noise]), np.zeros(1)
    if mode.layout.log_noise is None:
        noises, log_weights = learn_noise(given, [block.mask for block in blocks], collapsed, noise)
    return HierarchicalPrior(
        training.scaling,
        mode.layout,
        mode.theta,
        points,
        collapsed.mean,
        collapsed.root,
        noise,
        noises,
        log_weights,
        curve,
        shape_root,
        training.of_environment,
    )


def with_mean_of(prior: HierarchicalPrior, chunks: Iterable[TrainingTasks]) -> HierarchicalPrior:
    """Return the prior with the common mean learned from other tasks, in one pass; all else stays as it is.

    Tasks must be standardized by the prior's scaling.
    """
    precision, linear = np.eye(len(prior.weights)), np.zeros(len(prior.weights))
    for chunk in chunks:
        for block in make_blocks(chunk.tasks, chunk.counts, chunk.is_target, prior.points):
            described = prior.describe(block.x, block.mask, block.is_target)
            covariance = add_noise(prior.deviations(described, described), block.mask, prior.noise_variance)
            added = information(Gaussians(block.y, described.features, covariance, block.counts))
            precision, linear = precision + added[0], linear + added[1]
    weights, root, _ = posterior_of_weights(precision, linear)
    return replace(prior, weights=weights, weights_root=root)


def _is_finite(prior: HierarchicalPrior) -> bool:
    parts = (prior.theta, prior.weights, prior.weights_root, prior.noise_variances, prior.shape_root)
    return all(np.isfinite(part).all() for part in parts if part is not None)
