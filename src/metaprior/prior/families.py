"""Families of hierarchical priors, from the simplest to the most flexible, each started from the one before."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from metaprior.prior.blocks import make_blocks, place_points, squared_distances
from metaprior.prior.collapse import Collapsed, Gaussians, collapse, information, posterior_of_weights
from metaprior.prior.common_mean import checked_theta
from metaprior.prior.features import find_features, with_features
from metaprior.prior.hierarchical_prior import HierarchicalPrior
from metaprior.prior.layout import Layout, Parts
from metaprior.prior.modes import (
    MAX_ITERATIONS,
    MEAN_PRIOR,
    CommonCurve,
    Mode,
    common_curve,
    find_mode,
    hold_mean,
    with_curve,
)
from metaprior.prior.shapes import learn_shapes, residual, shape_functions
from metaprior.prior.task_scales import ONE_SCALE, learn_scales
from metaprior.prior.terms import add_noise, gaussians, make_basis, mean_features, noise_of
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task

LINEAR, SMOOTH, CURVE, SHAPES, FEATURES = "linear", "smooth", "curve", "shapes", "features"
# What covariates do to the common mean: nothing, shift it in proportion, along smooth curves too, or bend it too.
NO_COVARIATES, SHIFT, CURVED, BEND = COVARIATES = ("none", "shift", "curved", "bend")
FAMILIES = (LINEAR, SMOOTH, CURVE, SHAPES)  # fitted always; features only where they may pay


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
    separate: bool | None = None,
    covariates: str = NO_COVARIATES,
    simple: bool = False,
) -> FamilyFit:
    """Fit every family, or the `simple` ones, linear and smooth.

    `near` has fits to similar tasks; with almost the same tasks a few iterations are enough.
    With `environment` the target's mean deviates from that of the sources. `noise_std` is given in the units of y, or
    learned if None. `separate` says whether every input has its own scales; None: if they are few. `covariates` is one
    of COVARIATES.
    """
    fitter = Fitter(training, noise_std, near, max_iterations, separate)
    return FamilyFit(fitter.fit_all(environment, simple, covariates), fitter.modes)


def fit_features(
    training: TrainingTasks, environment: bool, noise_std: float | None, covariates: str = NO_COVARIATES
) -> HierarchicalPrior:
    """Fit the family of learned features; raise LinAlgError if it cannot be fitted.

    It is not among those of `fit_families`, because it takes much longer.
    """
    fitter = Fitter(training, noise_std, None, MAX_ITERATIONS)
    fitter.fit_features(Parts(smooth=True, features=True, environment=environment, **_parts_of(covariates)))
    prior = fitter.priors[FEATURES]
    if not _is_finite(prior):
        raise np.linalg.LinAlgError("the features are not finite")
    return prior


def _parts_of(covariates: str) -> dict[str, bool]:
    """Return which terms of covariates the common mean has."""
    used = covariates != NO_COVARIATES
    return {"covariates": used, "bend": covariates == BEND, "curved": covariates == CURVED}


class Fitter:
    """The fits of one family after another to the same tasks."""

    def __init__(
        self,
        training: TrainingTasks,
        noise_std: float | None,
        near: FamilyFit | None,
        max_iterations: int,
        separate: bool | None = None,
    ):
        self.training, self.near, self.max_iterations, self.separate = training, near, max_iterations, separate
        kinds = training.scaling.kinds
        self.widths, self.covariates = (None, ()) if kinds is None else (kinds.input_widths, kinds.covariate_widths)
        self.points = place_points(training.tasks, None if self.widths is None else sum(self.widths))
        self.point_distances = squared_distances(self.points, self.points, separate, self.widths)
        given = training.tasks, training.counts, training.is_target, self.points
        self.blocks = make_blocks(*given, separate=separate, widths=self.widths)
        self.log_noise = None if noise_std is None else float(np.log(noise_std / training.scaling.y_std))
        self.curve: CommonCurve | None = None
        self.priors: dict[str, HierarchicalPrior] = {}
        self.modes: dict[str, Mode] = {}

    def fit_all(
        self, environment: bool, simple: bool = False, covariates: str = NO_COVARIATES
    ) -> dict[str, HierarchicalPrior]:
        """Fit one family after another, or the simple ones; return those that could be fitted."""
        common = {"environment": environment, **_parts_of(covariates)}
        self.fit(LINEAR, Parts(**common))
        try:
            collapsed = self.fit(SMOOTH, Parts(smooth=True, **common))
            if not simple:
                self.add_curve(collapsed)
                self.fit(CURVE, Parts(smooth=True, curve=True, **common))
                self.fit_shapes()
        except np.linalg.LinAlgError:  # the families from there on are left out, and the report names them
            pass
        return {name: prior for name, prior in self.priors.items() if _is_finite(prior)}

    def fit(self, name: str, parts: Parts) -> Collapsed:
        """Find the mode of theta; integrate the mean's weights out there, and the scales of tasks."""
        layout = self.layout(parts)
        known = [] if self.near is None or name not in self.near.modes else [self.near.modes[name]]
        if parts.curve and (self.max_iterations == MAX_ITERATIONS or not known):
            known.append(self.modes[SMOOTH])
        if parts.curve:
            known = [hold_mean(mode, layout, self.checked_smooth) for mode in known]
        return self.collapse_at(name, find_mode(layout, self.blocks, self.points, known, self.max_iterations))

    def layout(self, parts: Parts) -> Layout:
        """Return where the parameters of some parts stand."""
        kinds = self.widths, self.covariates
        return Layout(parts, self.points.shape[1], self.log_noise, self.separate, False, *kinds)

    def fit_features(self, parts: Parts) -> None:
        """Learn features together with theta."""
        layout = self.layout(parts)
        mode, network = find_features(layout, self.blocks, self.points)
        self.blocks = with_features(self.blocks, network)
        self.collapse_at(FEATURES, mode)
        self.priors[FEATURES] = replace(self.priors[FEATURES], network=network)

    def collapse_at(self, name: str, mode: Mode) -> Collapsed:
        """Integrate the mean's weights out at a mode, and keep the prior."""
        layout = mode.layout
        basis = make_basis(layout, mode.theta, self.point_distances)
        given = [gaussians(layout, mode.theta, basis, block)[0] for block in self.blocks]
        lines = [layout.own_lines(mode.theta, block.line) for block in self.blocks]
        self.modes[name] = mode
        return self._keep(name, mode, given, lines, layout.noise_variance(mode.theta))

    def add_curve(self, collapsed: Collapsed) -> None:
        """Let tasks deform the common curve of the smooth family."""
        self.curve = common_curve(self.checked_smooth, collapsed, self.points)
        n_functions = self.layout(Parts(smooth=True, curve=True)).n_curve
        self.blocks = with_curve(self.blocks, self.curve, n_functions)

    @property
    def checked_smooth(self) -> Mode:
        """The mode of the smooth family, with the prior of the common curve that was checked."""
        return replace(self.modes[SMOOTH], theta=self.priors[SMOOTH].theta)

    def fit_shapes(self) -> None:
        """Learn a full covariance of the deviations, from the mode of the curve family."""
        mode = self.modes[CURVE]
        layout, theta = mode.layout, mode.theta
        covariance, noise = learn_shapes(mode, self.blocks, self.points)
        jitter = 1e-9 * np.trace(covariance) / len(covariance)
        root = np.linalg.cholesky(covariance + jitter * np.eye(len(covariance)))
        basis = make_basis(layout, theta, self.point_distances)
        given, lines = [], []
        for block in self.blocks:
            functions = shape_functions(layout, theta, self.points, block)
            rest = residual(layout, theta, functions, block.between, len(self.points))
            rest *= block.mask[:, :, None] * block.mask[:, None, :]
            own = functions @ root
            total = add_noise(own @ np.swapaxes(own, 1, 2) + rest, block.mask, noise_of(block, noise))
            given.append(Gaussians(block.y, mean_features(layout, theta, basis, block), total, block.counts))
            lines.append(own[..., : 1 + layout.input_dim])
        self._keep(SHAPES, mode, given, lines, noise, root)

    def _keep(
        self,
        name: str,
        mode: Mode,
        given: Sequence[Gaussians],
        lines: Sequence[np.ndarray],
        noise: float,
        shape_root: np.ndarray | None = None,
    ) -> Collapsed:
        collapsed, scales = collapse(given), ONE_SCALE
        theta = self._checked(name, mode, given, collapsed)
        if theta is not mode.theta:
            basis = make_basis(mode.layout, theta, self.point_distances)
            features = [mean_features(mode.layout, theta, basis, block) for block in self.blocks]
            given = [each._replace(features=of_block) for each, of_block in zip(given, features, strict=True)]
            collapsed = collapse(given)
        if self.log_noise is None:
            masks = [block.mask for block in self.blocks]
            scales = learn_scales(given, lines, masks, collapsed, noise, self._noise_only(name))
        curve = self.curve if mode.layout.parts.curve else None
        self.priors[name] = HierarchicalPrior(
            *(self.training.scaling, mode.layout, theta, self.points, collapsed.mean, collapsed.root),
            *(noise, scales, curve, shape_root, self.training.of_environment),
        )
        return collapsed

    def _checked(self, name: str, mode: Mode, given: Sequence[Gaussians], collapsed: Collapsed) -> np.ndarray:
        """Return theta with the prior of the common curve that was checked, see `common_mean`.

        Without a fold it is that of the fit nearby.
        """
        layout, parts = mode.layout, mode.layout.parts
        if not parts.smooth or parts.bend or parts.features:
            return mode.theta
        if self.near is not None and self.max_iterations < MAX_ITERATIONS and name in self.near.priors:
            theta, prior = mode.theta.copy(), self.near.priors[name]
            for group in MEAN_PRIOR:
                theta[layout.places[group]] = prior.theta[prior.layout.places[group]]
            return theta
        own = self.modes[SMOOTH].theta[self.modes[SMOOTH].layout.places["lengths"]]
        return checked_theta(mode, own, self.blocks, given, collapsed.precisions, self.point_distances)

    def _noise_only(self, name: str) -> bool | None:
        """Return whether scales of tasks multiply the noise only, as in the fit nearby; None compares both."""
        if name == LINEAR:
            return True  # there is no smooth deviation
        if self.near is None or self.max_iterations == MAX_ITERATIONS or name not in self.near.priors:
            return None
        return self.near.priors[name].scales.noise_only


def with_mean_of(prior: HierarchicalPrior, chunks: Iterable[TrainingTasks]) -> HierarchicalPrior:
    """Return the prior with the common mean learned from other tasks, in one pass; all else stays as it is.

    Tasks must be standardized by the prior's scaling.
    """
    precision, linear = np.eye(len(prior.weights)), np.zeros(len(prior.weights))
    for chunk in chunks:
        for block in make_blocks(chunk.tasks, chunk.counts, chunk.is_target, prior.points, separate=False):
            described = prior.describe(block.x, block.mask, block.is_target)
            lines, rest = prior.deviations(described, described)
            covariance = add_noise(lines + rest, block.mask, prior.noise_variance)
            added = information(Gaussians(block.y, described.features, covariance, block.counts))
            precision, linear = precision + added[0], linear + added[1]
    weights, root, _ = posterior_of_weights(precision, linear)
    return replace(prior, weights=weights, weights_root=root)


def _is_finite(prior: HierarchicalPrior) -> bool:
    parts = (prior.theta, prior.weights, prior.weights_root, prior.scales.factors, prior.shape_root)
    parts += () if prior.network is None else tuple(prior.network)
    return all(np.isfinite(part).all() for part in parts if part is not None)
