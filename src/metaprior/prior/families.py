"""Families of priors, from the simplest to the most flexible, each started from the one before; a mixed model."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from metaprior.likelihoods.base import Likelihood
from metaprior.likelihoods.gaussian import Gaussian
from metaprior.linalg import Array
from metaprior.prior.blocks import Block, Gaussians, make_blocks, place_points
from metaprior.prior.columns import Columns
from metaprior.prior.evidence import Collapsed, collapse, information, posterior_of_weights
from metaprior.prior.features import find_features, with_features
from metaprior.prior.fitted import FittedTerms, Prior, noise_parameters
from metaprior.prior.layout import Layout
from metaprior.prior.modes import (
    MAX_ITERATIONS,
    CommonCurve,
    Mode,
    checked_theta,
    climb,
    common_curve,
    find_mode,
    log_density,
    with_curve,
    with_mean_prior,
    with_prior_of_mean,
)
from metaprior.prior.process import NOISE_FLOOR, add_noise, mapped, with_ones
from metaprior.prior.shapes import ONE_SCALE, Shapes, learn_scales
from metaprior.prior.sites import Bound, HyperPrior, Observed, find_mode_with_sites
from metaprior.prior.terms import Bend, Curve, Curved, Deformation, Deviation, Environment, Features, Line, Shift, Term
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task, group_by_size, pad_to

VAGUE = 0.01  # how much the hyper-prior counts: enough for a mode where the likelihood has none


LINEAR, SMOOTH, CURVE, SHAPES, FEATURES = "linear", "smooth", "curve", "shapes", "features"
FAMILIES = (LINEAR, SMOOTH, CURVE, SHAPES)  # fitted always; features only where they may pay
# The terms of each family besides the line, and those that covariates and environments may add to any. Shapes have a
# full covariance of the deviations at the mode of the curve family.
TERMS: dict[str, tuple[Term, ...]] = {
    LINEAR: (),
    SMOOTH: (Curve(), Deviation()),
    CURVE: (Curve(), Deviation(), Deformation()),
    FEATURES: (Curve(), Deviation(), Features()),
}
# What covariates do to the common mean: nothing, shift it in proportion, along smooth curves too, or bend it too.
NO_COVARIATES, SHIFT, CURVED, BEND = "none", "shift", "curved", "bend"
COVARIATES: dict[str, tuple[Term, ...]] = {
    NO_COVARIATES: (),
    SHIFT: (Shift(),),
    CURVED: (Shift(), Curved()),
    BEND: (Shift(), Bend()),
}
NO_POINTS = np.zeros((0, 1))
NO_NOISE = -92.1  # logarithm of the standard deviation: sites have all of it


@dataclass(frozen=True, eq=False)
class FamilyFit:
    """The priors of all families fitted to the same tasks, and the modes to start similar fits from."""

    priors: dict[str, Any]
    modes: dict[str, Mode]


@dataclass(frozen=True, eq=False)
class TrainingTasks:
    """Standardized tasks and how much the evidence of each counts. Other outcomes than readings are y as they are."""

    scaling: Scaling
    tasks: Sequence[Task]
    counts: Array  # (tasks,)
    is_target: Array  # (tasks,)
    of_environment: Array | None = None  # (environments,): the count of a task of each
    likelihood: Likelihood = field(default_factory=Gaussian)
    hyper_prior: HyperPrior | None = None  # of the parameters of the likelihood, unless that is Gaussian
    offsets: Sequence[Array] = ()  # of each task, the logarithm of its exposures
    exposure: int | None = None  # column of X
    n_classes: Array | None = None  # (tasks,), of labels


def fit_families(
    training: TrainingTasks,
    environment: bool,
    noise_std: float | None = None,
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
    fitter = _Fitter(training, noise_std, near, max_iterations, separate)
    return FamilyFit(fitter.fit_all(environment, simple, covariates), fitter.modes)


def fit_features(
    training: TrainingTasks, environment: bool, noise_std: float | None, covariates: str = NO_COVARIATES
) -> Prior:
    """Fit the family of learned features; raise LinAlgError if it cannot be fitted.

    It is not among those of `fit_families`, because it takes much longer.
    """
    fitter = _Fitter(training, noise_std)
    layout = fitter.layout(terms_of(FEATURES, environment, covariates))
    mode, network = find_features(layout, fitter.blocks, fitter.points)
    fitter.blocks = with_features(fitter.blocks, network)
    fitter.collapse_at(FEATURES, mode)
    prior = fitter.priors[FEATURES]
    prior = replace(prior, terms=replace(prior.terms, network=network))
    if not _is_finite(prior):
        raise np.linalg.LinAlgError("the features are not finite")
    return prior


def terms_of(family: str, environment: bool = False, covariates: str = NO_COVARIATES) -> tuple[Term, ...]:
    """Return the terms of a family."""
    return (Line(), *TERMS[family], *COVARIATES[covariates], *((Environment(),) if environment else ()))


class _Fitter:
    """The fits of one family after another to the same tasks."""

    def __init__(
        self,
        training: TrainingTasks,
        noise_std: float | None,
        near: FamilyFit | None = None,
        max_iterations: int = MAX_ITERATIONS,
        separate: bool | None = None,
    ):
        self.training, self.near, self.max_iterations = training, near, max_iterations
        self.columns = Columns.of(training.tasks[0].x.shape[1], training.scaling.kinds, separate)
        self.points = place_points(training.tasks, self.columns.n_inputs)
        self.blocks = make_blocks(training.tasks, training.counts, training.is_target, self.points, self.columns)
        self.log_noise = None if noise_std is None else float(np.log(noise_std / training.scaling.y_std))
        self.curve: CommonCurve | None = None
        self.priors: dict[str, Prior] = {}
        self.modes: dict[str, Mode] = {}
        self.bound: Bound | None = None
        if training.hyper_prior is not None:
            self.log_noise, self.bound = NO_NOISE, Bound(self._observed(), training.hyper_prior)

    def fit_all(self, environment: bool, simple: bool, covariates: str) -> dict[str, Prior]:
        """Fit one family after another, or the simple ones; return those that could be fitted."""
        self.fit(LINEAR, terms_of(LINEAR, environment, covariates))
        # The families after one that cannot be fitted are left out, and the report names them.
        with suppress(np.linalg.LinAlgError):
            collapsed = self.fit(SMOOTH, terms_of(SMOOTH, environment, covariates))
            if not simple:
                self.curve = common_curve(self.checked_smooth, collapsed, self.points)
                self.blocks = with_curve(self.blocks, self.curve, self.modes[SMOOTH].layout)
                self.fit(CURVE, terms_of(CURVE, environment, covariates))
                self.fit_shapes()
        return {name: prior for name, prior in self.priors.items() if _is_finite(prior)}

    def fit(self, name: str, terms: tuple[Term, ...]) -> Collapsed:
        """Find the mode of theta; integrate the mean's weights out there, and the scales of tasks."""
        layout = self.layout(terms)
        known = [] if self.near is None or name not in self.near.modes else [self.near.modes[name]]
        if layout.has("deformation"):
            if not known or (self.bound is None and self.max_iterations == MAX_ITERATIONS):
                known.append(self.modes[SMOOTH])
            known = [with_mean_prior(mode, layout, self.checked_smooth) for mode in known]
        if self.bound is None:
            return self.collapse_at(name, find_mode(layout, self.blocks, self.points, known, self.max_iterations))
        mode = find_mode_with_sites(layout, self.bound, self.blocks, self.points, known, self.max_iterations)
        self.blocks = self.bound.with_sites(self.blocks)
        return self.collapse_at(name, mode)

    def layout(self, terms: tuple[Term, ...]) -> Layout:
        """Return where the parameters of some terms stand."""
        given = self.training.hyper_prior
        hyper_prior = ((), ()) if given is None else (tuple(given.center.tolist()), tuple(given.spread.tolist()))
        return Layout(terms, self.columns, self.log_noise, hyper_prior)

    def collapse_at(self, name: str, mode: Mode) -> Collapsed:
        """Integrate the mean's weights out at a mode, and keep the prior."""
        at, line = mode.layout.at(mode.theta, self.points), mode.layout.find("line")
        parts = [at.on(block) for block in self.blocks]
        lines = [mapped(part.block.line, line.own_map(at)) for part in parts]
        self.modes[name] = mode
        return self._keep(name, mode, [part.given() for part in parts], lines, mode.layout.noise_variance(mode.theta))

    @property
    def checked_smooth(self) -> Mode:
        """The mode of the smooth family, with the prior of the common curve that was checked."""
        return replace(self.modes[SMOOTH], theta=self.priors[SMOOTH].terms.theta)

    def fit_shapes(self) -> None:
        """Learn a full covariance of the deviations, from the mode of the curve family."""
        mode = self.modes[CURVE]
        shapes = Shapes(mode.layout.at(mode.theta, self.points), self.blocks)
        covariance, noise = shapes.learn()
        covariance += 1e-9 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        root, n_line = np.linalg.cholesky(covariance), 1 + self.columns.n_inputs
        lines = [(functions @ root)[..., :n_line] for functions in shapes.functions]
        self._keep(SHAPES, mode, shapes.given(covariance, noise), lines, noise, root)

    def _keep(
        self,
        name: str,
        mode: Mode,
        given: Sequence[Gaussians],
        lines: Sequence[Array],
        noise: float,
        shape_root: Array | None = None,
    ) -> Collapsed:
        collapsed, scales, layout, training = collapse(given), ONE_SCALE, mode.layout, self.training
        theta = self._checked(name, mode, given, collapsed)
        if theta is not mode.theta:
            at = layout.at(theta, self.points)
            pairs = zip(given, self.blocks, strict=True)
            given = [each._replace(features=at.on(block).features) for each, block in pairs]
            collapsed = collapse(given)
        if self.log_noise is None:
            masks, nearby = [block.mask for block in self.blocks], self._nearby(name)
            # Lines have no smooth deviation; else what the scales of tasks multiply is known from nearby, or compared.
            noise_only = True if name == LINEAR else None if nearby is None else nearby.scales.noise_only
            scales = learn_scales(given, lines, masks, collapsed, noise, noise_only)
        parameters = layout.likelihood_parameters(theta)
        if training.likelihood.normal:
            parameters = noise_parameters(noise, training.scaling)
        curve = self.curve if layout.has("deformation") else None
        fitted = training.scaling, layout, theta, self.points, collapsed.mean, collapsed.root
        terms = FittedTerms(*fitted, curve, shape_root, training.of_environment)
        self.priors[name] = Prior(terms, training.likelihood, parameters, scales, training.exposure)
        return collapsed

    def _nearby(self, name: str) -> Prior | None:
        """Return the prior of all tasks, whose choices a fit without a fold keeps; None in other fits."""
        without_a_fold = self.near is not None and self.max_iterations < MAX_ITERATIONS
        return self.near.priors.get(name) if self.near is not None and without_a_fold else None

    def _checked(self, name: str, mode: Mode, given: Sequence[Gaussians], collapsed: Collapsed) -> Array:
        """Return theta with the prior of the common curve that was checked, see `checked_theta`.

        Sites are no readings that a mean could be compared with.
        """
        layout, nearby = mode.layout, self._nearby(name)
        if self.bound is not None or not layout.has("curve") or layout.has("bend") or layout.has("features"):
            return mode.theta
        if nearby is not None:
            return with_prior_of_mean(layout, mode.theta, nearby.terms.layout, nearby.terms.theta)
        own = self.modes[SMOOTH].theta[self.modes[SMOOTH].layout.places["lengths"]]
        return checked_theta(mode, own, self.blocks, given, collapsed.precisions, self.points)

    def _observed(self) -> list[Observed]:
        """Return what was observed in the tasks of every block."""
        training, found = self.training, []
        units = float(training.scaling.y_mean), float(training.scaling.y_std)
        sizes = np.array([len(task.y) for task in training.tasks])
        for (size, members), block in zip(group_by_size(sizes, len(self.blocks)), self.blocks, strict=True):
            pairs = [Task(training.tasks[i].x, training.offsets[i]) for i in members.tolist()]
            _, offset, _ = pad_to(pairs, size, np.float64)
            found.append(Observed(training.likelihood, block.y, offset * block.mask, block.mask, *units))
        return found


def with_mean_of(prior: Prior, chunks: Iterable[TrainingTasks]) -> Prior:
    """Return the prior with the common mean learned from other tasks, in one pass; all else stays as it is.

    Tasks must be scaled by the prior's scaling, and have its exposure. Sites are those of each task alone.
    """
    terms = prior.terms
    precision, linear = np.eye(len(terms.weights)), np.zeros(len(terms.weights))
    for chunk in chunks:
        for size, members in group_by_size(np.array([len(task.y) for task in chunk.tasks]), 3):
            x, y, mask = pad_to([chunk.tasks[i] for i in members.tolist()], size, np.float64)
            inputs, offset = prior.split(x)
            real = mask.astype(np.float64)
            described = prior.process.describe(inputs, real)
            features = terms.mean_features(described, chunk.is_target[members])
            covariance, noise = np.add(*prior.process.deviations(described, described)), prior.noise_variance
            readings = y * real
            if not prior.likelihood.normal:
                of_mean = features @ terms.weights_root
                total = covariance + of_mean @ np.swapaxes(of_mean, 1, 2)
                sites = prior.sites(y, offset, real, (features @ terms.weights) * real, total).sites
                readings, noise = sites.reading * real, sites.variance
            covariance = add_noise(covariance, real, noise)
            given = Gaussians(readings, features, covariance, chunk.counts[members])
            added = information(given, np.linalg.solve(covariance, features))
            precision, linear = precision + added[0], linear + added[1]
    weights, root, _ = posterior_of_weights(precision, linear)
    return replace(prior, terms=replace(terms, weights=weights, weights_root=root))


def _is_finite(prior: Prior) -> bool:
    terms = prior.terms
    parts = (terms.theta, terms.weights, terms.weights_root, prior.scales.factors, terms.shape_root)
    parts += () if terms.network is None else tuple(terms.network)
    return all(np.isfinite(part).all() for part in parts if part is not None)


def fit_mixed_model(training: TrainingTasks, noise_std: float | None, covariates: str = NO_COVARIATES) -> Prior:
    """Fit an ordinary linear mixed model, by restricted maximum likelihood; raise LinAlgError if it cannot be fitted.

    It is the linear family with correlated lines: what lme4 calls y ~ x + (1 + x | task). Covariates may shift it.
    Integrating the fixed effects out of the evidence under a flat prior gives the restricted likelihood. Here their
    prior is N(0, 9) in standardized units, and the hyper-prior of variances and correlations hardly counts.
    """
    scaling = training.scaling
    columns = Columns.of(training.tasks[0].x.shape[1], scaling.kinds)
    log_noise = None if noise_std is None else float(np.log(noise_std / scaling.y_std))
    layout = Layout((Line(correlated=True), *((Shift(),) if covariates != NO_COVARIATES else ())), columns, log_noise)
    blocks, n_left_out = rotate(training.tasks, training.counts, columns.n_inputs)
    mode = climb(layout, partial(restricted_likelihood, layout, blocks, n_left_out))
    if not (np.isfinite(mode.value) and np.isfinite(mode.theta).all()):
        raise np.linalg.LinAlgError("the mixed model has no finite mode")
    at = layout.at(mode.theta, NO_POINTS)
    collapsed = collapse([at.on(block).given() for block in blocks])
    given = scaling, layout, mode.theta, np.zeros((1, columns.n_inputs)), collapsed.mean, collapsed.root
    noise = noise_parameters(layout.noise_variance(mode.theta), scaling)
    return Prior(FittedTerms(*given, counts=training.of_environment), training.likelihood, noise)


def restricted_likelihood(
    layout: Layout, blocks: Sequence[Block], n_left_out: float, theta: Array, gradient: bool = True
) -> tuple[float, Array]:
    """Return the logarithm of the restricted likelihood, with a vague hyper-prior, and its derivative by theta.

    `n_left_out` readings of noise alone are not in the blocks.
    """
    value, slope, _ = log_density(layout, theta, blocks, NO_POINTS, gradient)
    (log_prior, of_prior), noise = layout.log_prior(theta), layout.noise_variance(theta)
    if layout.log_noise is None:
        slope[layout.places["noise"]] -= n_left_out * noise / (noise + NOISE_FLOOR)
    value -= (1.0 - VAGUE) * log_prior + 0.5 * n_left_out * float(np.log(noise + NOISE_FLOOR))
    return value, slope - (1.0 - VAGUE) * of_prior


def rotate(tasks: Sequence[Task], counts: Array, n_inputs: int) -> tuple[list[Block], float]:
    """Rotate readings so that all but the first few of a task are noise alone, and leave these out: return how many.

    Effects are linear in the k columns of (1, x, z), and noise is the same in all directions: if (1, x, z, y) = Q R,
    the k + 1 rows of R say as much as all readings.
    """
    blocks, n_left_out = [], 0.0
    for size, members in group_by_size(np.array([len(task.y) for task in tasks]), 3):
        x, y, mask = pad_to([tasks[i] for i in members.tolist()], size, np.float64)
        real = mask.astype(np.float64)
        rows = np.concatenate([with_ones(x) * real[..., None], (y * real)[..., None]], axis=-1)
        if size > rows.shape[-1]:
            rows = np.asarray(np.linalg.qr(rows, mode="r"))
        n_left_out += float(counts[members] @ (real.sum(axis=1) - rows.shape[1]))  # less if padding counts as readings
        ones, none = np.ones(rows.shape[:2]), np.zeros((*rows.shape[:2], 0, 1))
        given = rows[..., 1:-1], rows[..., -1], ones, counts[members], np.zeros(len(members))
        blocks.append(Block(*given, rows[..., : 1 + n_inputs], none, none))
    return blocks, n_left_out
