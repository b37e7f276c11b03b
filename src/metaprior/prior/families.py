"""An ordinary linear mixed model, by restricted maximum likelihood (REML).

Fixed effects are linear in the inputs and covariates. Every task has a random intercept and random slopes of the
numbers among its inputs, which are correlated if these are up to `MAX_CORRELATED`, and one noise is common to all: what
lme4 calls y ~ x + (1 + x | task). It is the linear family with correlated lines. Integrating the fixed effects out of
the evidence under a flat prior gives the restricted likelihood; here their prior is N(0, 9) in standardized units, and
the hyper-prior of variances and correlations counts a hundredth of that of the families.

Families of priors, from the simplest to the most flexible, each started from the one before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from metaprior.likelihoods.base import Likelihood
from metaprior.likelihoods.gaussian import Gaussian
from metaprior.prior.blocks import Block, Gaussians, make_blocks, place_points
from metaprior.prior.columns import Columns
from metaprior.prior.features import find_features, with_features
from metaprior.prior.fitted import FittedTerms, Prior, noise_parameters
from metaprior.prior.layout import Layout
from metaprior.prior.modes import (
    MAX_ITERATIONS,
    MEAN_PRIOR,
    Collapsed,
    CommonCurve,
    Mode,
    checked_theta,
    climb,
    collapse,
    common_curve,
    find_mode,
    information,
    log_density,
    posterior_of_weights,
    with_curve,
    with_mean_prior,
)
from metaprior.prior.process import NOISE_FLOOR, add_noise, with_ones
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
    counts: np.ndarray  # (tasks,)
    is_target: np.ndarray  # (tasks,)
    of_environment: np.ndarray | None = None  # (environments,): the count of a task of each
    likelihood: Likelihood = field(default_factory=Gaussian)
    hyper_prior: HyperPrior | None = None  # of the parameters of the likelihood, unless that is Gaussian
    offsets: Sequence[np.ndarray] = ()  # of each task, the logarithm of its exposures
    exposure: int | None = None  # column of X

    @property
    def kinds(self) -> Any:
        """What the columns are, None if all are numbers."""
        return self.scaling.kinds


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
    fitter = _Fitter(training, noise_std, None, MAX_ITERATIONS)
    fitter.fit_features(terms_of(FEATURES, environment, covariates))
    prior = fitter.priors[FEATURES]
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
        near: FamilyFit | None,
        max_iterations: int,
        separate: bool | None = None,
    ):
        self.training, self.near, self.max_iterations = training, near, max_iterations
        self.columns = Columns.of(training.tasks[0].x.shape[1], training.kinds, separate)
        self.points = place_points(training.tasks, self.columns.n_inputs)
        given = training.tasks, training.counts, training.is_target, self.points
        self.blocks = make_blocks(*given, self.columns)
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
        try:
            collapsed = self.fit(SMOOTH, terms_of(SMOOTH, environment, covariates))
            if not simple:
                self.curve = common_curve(self.checked_smooth, collapsed, self.points)
                self.blocks = with_curve(self.blocks, self.curve, self.modes[SMOOTH].layout)
                self.fit(CURVE, terms_of(CURVE, environment, covariates))
                self.fit_shapes()
        except np.linalg.LinAlgError:  # the families from there on are left out, and the report names them
            pass
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

    def fit_features(self, terms: tuple[Term, ...]) -> None:
        """Learn features together with theta."""
        mode, network = find_features(self.layout(terms), self.blocks, self.points)
        self.blocks = with_features(self.blocks, network)
        self.collapse_at(FEATURES, mode)
        prior = self.priors[FEATURES]
        self.priors[FEATURES] = replace(prior, terms=replace(prior.terms, network=network))

    def collapse_at(self, name: str, mode: Mode) -> Collapsed:
        """Integrate the mean's weights out at a mode, and keep the prior."""
        prior, line = mode.layout.at(mode.theta, self.points), mode.layout.find("line")
        parts = [prior.on(block) for block in self.blocks]
        lines = [own_lines(line, part) for part in parts]
        self.modes[name] = mode
        noise = mode.layout.noise_variance(mode.theta)
        return self._keep(name, mode, [part.given() for part in parts], lines, noise)

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
        lines: Sequence[np.ndarray],
        noise: float,
        shape_root: np.ndarray | None = None,
    ) -> Collapsed:
        collapsed, scales, layout, training = collapse(given), ONE_SCALE, mode.layout, self.training
        theta = self._checked(name, mode, given, collapsed)
        if theta is not mode.theta:
            prior = layout.at(theta, self.points)
            pairs = zip(given, self.blocks, strict=True)
            given = [each._replace(features=prior.on(block).features) for each, block in pairs]
            collapsed = collapse(given)
        if self.log_noise is None:
            masks = [block.mask for block in self.blocks]
            scales = learn_scales(given, lines, masks, collapsed, noise, self._noise_only(name))
        curve = self.curve if layout.has("deformation") else None
        terms = FittedTerms(
            *(training.scaling, layout, theta, self.points, collapsed.mean, collapsed.root),
            *(curve, shape_root, training.of_environment),
        )
        parameters = layout.likelihood_parameters(theta)
        if training.likelihood.normal:
            parameters = noise_parameters(noise, training.scaling)
        self.priors[name] = Prior(terms, training.likelihood, parameters, scales, training.exposure)
        return collapsed

    def _checked(self, name: str, mode: Mode, given: Sequence[Gaussians], collapsed: Collapsed) -> np.ndarray:
        """Return theta with the prior of the common curve that was checked, see `checked_theta`.

        Without a fold it is that of the fit nearby. Sites are no readings that a mean could be compared with.
        """
        layout = mode.layout
        if self.bound is not None or not layout.has("curve") or layout.has("bend") or layout.has("features"):
            return mode.theta
        if self.near is not None and self.max_iterations < MAX_ITERATIONS and name in self.near.priors:
            theta, near = mode.theta.copy(), self.near.priors[name].terms
            for group in MEAN_PRIOR:
                theta[layout.places[group]] = near.theta[near.layout.places[group]]
            return theta
        own = self.modes[SMOOTH].theta[self.modes[SMOOTH].layout.places["lengths"]]
        return checked_theta(mode, own, self.blocks, given, collapsed.precisions, self.points)

    def _noise_only(self, name: str) -> bool | None:
        """Return whether scales of tasks multiply the noise only, as in the fit nearby; None compares both."""
        if name == LINEAR:
            return True  # there is no smooth deviation
        if self.near is None or self.max_iterations == MAX_ITERATIONS or name not in self.near.priors:
            return None
        return self.near.priors[name].scales.noise_only

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


def own_lines(line: Line, part: Any) -> np.ndarray:
    """Return a root of the covariance of the tasks' own lines."""
    by = line.own_map(part.parameters)
    return part.block.line * by if by.ndim == 1 else part.block.line @ by


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
            added = information(Gaussians(readings, features, covariance, chunk.counts[members]))
            precision, linear = precision + added[0], linear + added[1]
    weights, root, _ = posterior_of_weights(precision, linear)
    return replace(prior, terms=replace(terms, weights=weights, weights_root=root))


def _is_finite(prior: Prior) -> bool:
    terms = prior.terms
    parts = (terms.theta, terms.weights, terms.weights_root, prior.scales.factors, terms.shape_root)
    parts += () if terms.network is None else tuple(terms.network)
    return all(np.isfinite(part).all() for part in parts if part is not None)


class Rotated(NamedTuple):
    """Tasks whose readings were rotated, so that most of them are noise alone and can be left out."""

    blocks: list[Block]
    n_left_out: float  # readings of noise alone, counted as the tasks are


def fit_mixed_model(training: TrainingTasks, noise_std: float | None, covariates: str = NO_COVARIATES) -> Prior:
    """Fit the model; raise LinAlgError if it cannot be fitted.

    `noise_std` is given in the units of y, or learned if None. `covariates` says if those of tasks shift the mean.
    """
    scaling = training.scaling
    columns = Columns.of(training.tasks[0].x.shape[1], scaling.kinds)
    log_noise = None if noise_std is None else float(np.log(noise_std / scaling.y_std))
    terms = (Line(correlated=True), *((Shift(),) if covariates != NO_COVARIATES else ()))
    layout = Layout(terms, columns, log_noise)
    rotated, points = rotate(training.tasks, training.counts, columns.n_inputs), np.zeros((1, columns.n_inputs))
    mode = climb(layout, lambda theta, gradient: restricted_likelihood(layout, theta, rotated, gradient))
    if not (np.isfinite(mode.value) and np.isfinite(mode.theta).all()):
        raise np.linalg.LinAlgError("the mixed model has no finite mode")
    prior = layout.at(mode.theta, points)
    collapsed = collapse([prior.on(block).given() for block in rotated.blocks])
    given = scaling, layout, mode.theta, points, collapsed.mean, collapsed.root
    noise = noise_parameters(layout.noise_variance(mode.theta), scaling)
    return Prior(FittedTerms(*given, counts=training.of_environment), training.likelihood, noise)


def restricted_likelihood(
    layout: Layout, theta: np.ndarray, rotated: Rotated, gradient: bool = True
) -> tuple[float, np.ndarray]:
    """Return the logarithm of the restricted likelihood, with a vague hyper-prior, and its derivative by theta."""
    found = log_density(layout, theta, rotated.blocks, np.zeros((1, layout.columns.n_inputs)), gradient)
    z = (theta - layout.center) / layout.spread
    slope = found.slope + (1.0 - VAGUE) * z / layout.spread
    noise = layout.noise_variance(theta)
    value = found.value + 0.5 * (1.0 - VAGUE) * float(z @ z) - 0.5 * rotated.n_left_out * np.log(noise + NOISE_FLOOR)
    if layout.log_noise is None:
        slope[layout.places["noise"]] -= rotated.n_left_out * noise / (noise + NOISE_FLOOR)
    return value, slope


def rotate(tasks: Sequence[Task], counts: np.ndarray, input_dim: int) -> Rotated:
    """Rotate the readings of every task so that all but the first few have a mean of zero and noise alone.

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
        n, some = rows.shape[1], counts[members]
        n_left_out += float(some @ (real.sum(axis=1) - n))  # less than zero where padding counts as readings
        ones, none = np.ones(rows.shape[:2]), np.zeros((*rows.shape[:2], 0, 1))
        given = rows[..., 1:-1], rows[..., -1], ones, some, np.zeros(len(members))
        blocks.append(Block(*given, rows[..., : 1 + input_dim], none, none))
    return Rotated(blocks, n_left_out)
