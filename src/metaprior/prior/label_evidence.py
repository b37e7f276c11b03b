"""The evidence of labels, with the latent functions of all tasks and the weights m of a common mean integrated out.

The latent functions of task i have the means F_i m_c, with m ~ N(0, I). With counts c_i the log Gibbs density

    psi = sum_i c_i (log p(y_i | t_i) - (t_i - F_i m)' K_i^-1 (t_i - F_i m) / 2) - |m|^2 / 2

is concave in all t and m. Laplace's approximation at its mode, with P = I + sum_i c_i F_i' R_i F_i, is

    J = psi - sum_i c_i log |I + K_i W_i| / 2 - log |P| / 2,

that of `collapse` with K_i + W_i^-1 in place of the covariance of readings.

Its derivatives by the covariances K_i and mean features F_i give the mode of the Gibbs density of theta. At fixed t and
m, J depends on K and F as the evidence of readings does (`collapse.slopes`). The mode moves with them
too: psi is stationary there, but the determinants are not. With Sigma = K - K R K + H P^-1 H', the posterior covariance
of t, where H = (I - K R) F, and their derivative g = -c tr(Sigma dW/dt) / 2, the mode adds

    dJ/dK: v a'    and    dJ/dF: v m' + c a w',    v = (I + W K)^-1 g - c R F w,    P w = sum_i F_i' (I + W K)^-1 g_i.

Families of priors of labels: linear or smooth, each with and without a rule that all tasks have in common.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from metaprior.likelihoods.softmax import (
    CHORD_STEPS,
    MAX_HALVINGS,
    MAX_STEPS,
    NEAR,
    STALLED,
    TOLERANCE,
    Curvature,
    Labels,
    find_modes,
    softmax,
)
from metaprior.prior.blocks import Block, make_blocks, place_points
from metaprior.prior.columns import Columns
from metaprior.prior.families import FamilyFit
from metaprior.prior.fitted import FittedTerms
from metaprior.prior.label_prior import LabelPrior, within_reach
from metaprior.prior.layout import Layout, OnBlock
from metaprior.prior.modes import MAX_ITERATIONS, Mode, climb, posterior_of_weights
from metaprior.prior.terms import Curve, Deviation, Line
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task, group_by_size


class LabelBlock(NamedTuple):
    """The labels of a block of tasks, the features of their common mean, and how much each task counts."""

    labels: Labels
    features: np.ndarray  # F, (tasks, n, p), zero for padding; p = 0: there is no common mean
    counts: np.ndarray  # c, (tasks,)

    def mean(self, weights: np.ndarray) -> np.ndarray:
        """Return F m, (tasks, classes, n), for weights (classes, p)."""
        return weights @ np.swapaxes(self.features, 1, 2)


class LabelEvidence(NamedTuple):
    """The evidence J at the mode of all latent functions and of m."""

    value: float  # J
    weights: np.ndarray  # m, (classes, p)
    root: np.ndarray  # Q with Q Q' = P^-1, (classes p, classes p)
    coefficients: list[np.ndarray]  # a of every block, (tasks, classes, n)
    curvatures: list[Curvature]
    converged: bool


def label_evidence(blocks: Sequence[LabelBlock], start: Sequence[np.ndarray] | None = None) -> LabelEvidence:
    """Find the mode, from coefficients a or from zero, and the evidence there."""
    if blocks[0].features.shape[-1]:
        weights, coefficients, converged = _joint_mode(blocks, start)
    else:
        starts = start or [None] * len(blocks)
        weights = np.zeros((blocks[0].labels.y.shape[1], 0))
        pairs = [find_modes(block.labels, block.mean(weights), a) for block, a in zip(blocks, starts, strict=True)]
        coefficients, converged = [a for a, _ in pairs], all(found.all() for _, found in pairs)
    value, curvatures = -0.5 * float(np.sum(weights**2)), []
    for block, a in zip(blocks, coefficients, strict=True):
        deviation = block.labels.deviation(a)
        t = block.mean(weights) + deviation
        found = Curvature.at(block.labels, t)
        evidence = block.labels.log_posterior(a, t, deviation) - 0.5 * found.log_determinant(block.labels)
        value += float(block.counts @ evidence)
        curvatures.append(found)
    if not weights.size:
        return LabelEvidence(value, weights, np.zeros((0, 0)), coefficients, curvatures, converged)
    _, root, log_determinant = posterior_of_weights(_precision(blocks, curvatures), np.zeros(weights.size))
    return LabelEvidence(value - 0.5 * log_determinant, weights, root, coefficients, curvatures, converged)


def _joint_mode(
    blocks: Sequence[LabelBlock], start: Sequence[np.ndarray] | None
) -> tuple[np.ndarray, list[np.ndarray], bool]:
    """Return m and the coefficients a of every block at the joint mode, by Newton's method."""
    coefficients = [np.zeros(block.labels.y.shape) for block in blocks] if start is None else list(start)
    # a determines m at the mode: m = sum_i c_i F_i' a_i. Far from one it is a start like any other.
    weights = np.sum([_pull(block, a) for block, a in zip(blocks, coefficients, strict=True)], axis=0)
    value = _psi(blocks, coefficients, weights)
    for _ in range(MAX_STEPS):
        curvatures = [
            Curvature.at(block.labels, block.mean(weights) + block.labels.deviation(a))
            for block, a in zip(blocks, coefficients, strict=True)
        ]
        along, steps = _newton(blocks, curvatures, coefficients, weights)
        fraction = 1.0
        for _ in range(MAX_HALVINGS):
            tried = [a + fraction * step for a, step in zip(coefficients, steps, strict=True)]
            after = _psi(blocks, tried, weights + fraction * along)
            if after >= value - TOLERANCE * (1.0 + abs(value)):
                break
            fraction *= 0.5
        else:
            return weights, coefficients, False
        gain, value, weights, coefficients = after - value, after, weights + fraction * along, tried
        moved = [block.mean(along) + block.labels.deviation(step) for block, step in zip(blocks, steps, strict=True)]
        if max(np.max(np.abs(part), initial=0.0) for part in moved) < NEAR:
            for _ in range(CHORD_STEPS):
                along, steps = _newton(blocks, curvatures, coefficients, weights)
                weights, coefficients = weights + along, [a + b for a, b in zip(coefficients, steps, strict=True)]
            return weights, coefficients, True
        if gain <= STALLED * (1.0 + abs(value)):
            return weights, coefficients, True
    return weights, coefficients, False


def _newton(
    blocks: Sequence[LabelBlock],
    curvatures: Sequence[Curvature],
    coefficients: Sequence[np.ndarray],
    weights: np.ndarray,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the steps of m and a by Newton's method, with W of the latent functions t or of others nearby.

    With g = y - pi - a, the slope by t, and b = (I + W K)^-1 g, the step of m is P^-1 (sum_i c_i F_i' (a_i + b_i) - m),
    and that of a is b - R F times that of m.
    """
    slopes, linear = [], -weights
    for block, found, a in zip(blocks, curvatures, coefficients, strict=True):
        slope = block.labels.y - softmax(block.labels, block.mean(weights) + block.labels.deviation(a)) - a
        linear = linear + _pull(block, a + found.newton(block.labels, slope))
        slopes.append(slope)
    mean, *_ = posterior_of_weights(_precision(blocks, curvatures), linear.ravel())
    along = mean.reshape(weights.shape)
    steps = [
        found.newton(block.labels, slope - found.times(block.mean(along)))
        for block, found, slope in zip(blocks, curvatures, slopes, strict=True)
    ]
    return along, steps


def _psi(blocks: Sequence[LabelBlock], coefficients: Sequence[np.ndarray], weights: np.ndarray) -> float:
    value = -0.5 * float(np.sum(weights**2))
    for block, a in zip(blocks, coefficients, strict=True):
        deviation = block.labels.deviation(a)
        value += float(block.counts @ block.labels.log_posterior(a, block.mean(weights) + deviation, deviation))
    return value


def _pull(block: LabelBlock, a: np.ndarray) -> np.ndarray:
    """Return sum_i c_i F_i' a_i, (classes, p)."""
    return np.tensordot(block.counts[:, None, None] * a, block.features, axes=((0, 2), (0, 1)))


def _precision(blocks: Sequence[LabelBlock], curvatures: Sequence[Curvature]) -> np.ndarray:
    """Return P, with rows and columns by class and feature."""
    n_classes, n_features = blocks[0].labels.y.shape[1], blocks[0].features.shape[-1]
    precision = np.eye(n_classes * n_features).reshape(n_classes, n_features, n_classes, n_features)
    for block, found in zip(blocks, curvatures, strict=True):
        weighted, across = project(block, found)
        for c in range(n_classes):
            own = np.tensordot(block.counts[:, None, None] * block.features, weighted[:, c], axes=((0, 1), (0, 1)))
            precision[c, :, c] += own
        if across is not None:
            scaled = block.counts[:, None, None, None] * across
            precision -= np.tensordot(scaled, across, axes=((0, 2), (0, 2)))
    return precision.reshape(n_classes * n_features, n_classes * n_features)


def project(block: LabelBlock, found: Curvature) -> tuple[np.ndarray, np.ndarray | None]:
    """Return E_c F and L' E_c F: R F = E F - (L' E)' L' E F, by class. For two classes there is no second part."""
    weighted = found.parts @ block.features[:, None]
    if found.root_sum is None:
        return weighted, None
    return weighted, np.swapaxes(found.root_sum, 1, 2)[:, None] @ weighted


class _Parts(NamedTuple):
    """What the derivatives of one block share."""

    precision_features: np.ndarray  # R F Q, (tasks, classes, n, classes p)
    determinant: np.ndarray  # (I + W K)^-1 g, (tasks, classes, n)


def label_slopes(blocks: Sequence[LabelBlock], evidence: LabelEvidence) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return dJ/dK (tasks, n, n), summed over classes, and dJ/dF (tasks, n, p) of every block."""
    weights, root = evidence.weights, evidence.root
    parts = [_parts(block, found, root) for block, found in zip(blocks, evidence.curvatures, strict=True)]
    pulled = sum(
        np.tensordot(part.determinant, block.features, axes=((0, 2), (0, 1)))
        for block, part in zip(blocks, parts, strict=True)
    )
    along = root.T @ np.ravel(pulled)  # w = Q along
    moved = (root @ along).reshape(weights.shape)
    slopes = []
    for block, found, a, part in zip(blocks, evidence.curvatures, evidence.coefficients, parts, strict=True):
        counts = block.counts[:, None, None]
        v = part.determinant - counts * (part.precision_features @ along)
        spread = part.precision_features
        of_covariance = 0.5 * np.swapaxes(a, 1, 2) @ a + 0.5 * np.sum(spread @ np.swapaxes(spread, 2, 3), axis=1)
        of_covariance -= 0.5 * _precision_of_classes(found)
        of_mode = np.swapaxes(v, 1, 2) @ a
        of_covariance = counts * of_covariance + 0.5 * (of_mode + np.swapaxes(of_mode, 1, 2))
        by_class = root.reshape(*weights.shape, len(root))
        of_features = np.swapaxes(a, 1, 2) @ (weights + moved) - np.tensordot(spread, by_class, axes=((1, 3), (0, 2)))
        slopes.append((of_covariance, counts * of_features + np.swapaxes(v, 1, 2) @ weights))
    return slopes


def _parts(block: LabelBlock, found: Curvature, root: np.ndarray) -> _Parts:
    labels, pi, lower = block.labels, found.probabilities, found.root_sum
    covariance, (_, n_classes, _) = labels.covariance, pi.shape
    explained = covariance[:, None] @ found.parts  # K E_c
    own = np.diagonal(covariance, axis1=1, axis2=2)[:, None] - np.sum(explained * covariance[:, None], axis=-1)
    posterior = np.zeros((*labels.mask.shape, n_classes, n_classes))
    if lower is not None:
        shared = explained @ lower[:, None]
        posterior += _between_classes(shared)
    classes = np.arange(n_classes)
    posterior[..., classes, classes] += np.swapaxes(own, 1, 2)
    spread = np.zeros((*pi.shape, 0))
    if block.features.shape[-1]:
        weighted, across = project(block, found)
        by_class = root.reshape(n_classes, block.features.shape[-1], len(root))
        spread = weighted @ by_class
        if lower is not None and across is not None:
            of_all = np.tensordot(across, by_class, axes=((1, 3), (0, 1)))
            spread -= (found.parts @ lower[:, None]) @ of_all[:, None]
        of_mean = block.features[:, None] @ by_class - covariance[:, None] @ spread  # H Q
        posterior += _between_classes(of_mean)
    determinant = -0.5 * block.counts[:, None, None] * _third_cumulants(pi, posterior, labels.is_binary)
    return _Parts(spread, found.newton(block.labels, determinant))


def _between_classes(functions: np.ndarray) -> np.ndarray:
    """Return the products of classes at every sample, (tasks, n, classes, classes), summed over the last axis."""
    by_sample = np.ascontiguousarray(np.swapaxes(functions, 1, 2))
    return by_sample @ np.swapaxes(by_sample, 2, 3)


def _third_cumulants(pi: np.ndarray, posterior: np.ndarray, is_binary: bool) -> np.ndarray:
    """Return tr(S dW/dt_c) of every sample, for S (tasks, n, classes, classes).

    dW_ab/dt_c is the third cumulant of the one-hot label: tr(S dW/dt_c) = pi_c (q_c - sum_k pi_k q_k), where
    q_k = (e_k - pi)' S (e_k - pi). For two classes, dW/dt = pi (1 - pi) (1 - 2 pi).
    """
    if is_binary:
        return pi * (1.0 - pi) * (1.0 - 2.0 * pi) * posterior[:, None, :, 0, 0]
    q = np.diagonal(posterior, axis1=2, axis2=3) - 2.0 * (posterior @ np.swapaxes(pi, 1, 2)[..., None])[..., 0]
    q = np.swapaxes(q, 1, 2)
    return pi * (q - np.sum(pi * q, axis=1, keepdims=True))


def _precision_of_classes(found: Curvature) -> np.ndarray:
    """Return the sum over classes of the blocks R_cc = E_c - E_c (sum_c E_c)^-1 E_c."""
    if found.root_sum is None:
        return found.parts[:, 0]
    explained = found.parts @ found.root_sum[:, None]
    return np.sum(found.parts - explained @ np.swapaxes(explained, 2, 3), axis=1)


class LabelObjective:
    """The log Gibbs density of theta given the labels of some tasks.

    `blocks` have classes 0, 1, ... in place of readings, `n_classes` the number of classes of every task of each
    block. `common` says whether there is a common mean: only if classes mean the same in all tasks.
    """

    def __init__(
        self,
        layout: Layout,
        blocks: Sequence[Block],
        n_classes: Sequence[np.ndarray],
        points: np.ndarray,
        common: bool,
    ):
        self.layout, self.blocks, self.common, self.points = layout, blocks, common, points
        self.n_classes, self.most = n_classes, max(int(numbers.max()) for numbers in n_classes)
        self._start: list[np.ndarray] | None = None  # near the mode of the latent functions

    def given(self, parts: Sequence[OnBlock]) -> list[LabelBlock]:
        """Return the labels given theta."""
        found = []
        for part, n_classes in zip(parts, self.n_classes, strict=True):
            block = part.block
            labels = Labels.of(block.y, block.mask, n_classes, self.most, part.covariance())
            used = self._unit * part.features if self.common else part.features[..., :0]
            found.append(LabelBlock(labels, used, block.counts))
        return found

    def evidence(self, theta: np.ndarray) -> LabelEvidence:
        """Return the evidence and the mode of the latent functions."""
        prior = self.layout.at(theta, self.points)
        return label_evidence(self.given([prior.on(block) for block in self.blocks]), self._start)

    def __call__(self, theta: np.ndarray, gradient: bool = True) -> tuple[float, np.ndarray]:
        """Return log p(theta) + J, with its derivative by theta unless told otherwise."""
        layout = self.layout
        prior = layout.at(theta, self.points)
        parts = [prior.on(block) for block in self.blocks]
        given = self.given(parts)
        evidence = label_evidence(given, self._start)
        z = (theta - layout.center) / layout.spread
        value, slope = evidence.value - 0.5 * float(z @ z), -z / layout.spread
        if not (np.isfinite(value) and evidence.converged):
            return np.inf, slope  # keep the previous starting point
        self._start = evidence.coefficients
        if not gradient:
            return value, slope
        by_block = []
        for part, (by_covariance, by_features) in zip(parts, label_slopes(given, evidence), strict=True):
            by_mean = self._unit * by_features if self.common else np.zeros_like(part.features)
            by_block.append((self._unit**2 * by_covariance, by_mean))
        return value, slope + prior.gradient(parts, by_block)

    @property
    def _unit(self) -> float:
        """Standard deviation of the difference of two classes that t stands for, or of one class."""
        return 2.0**0.5 if self.most == 2 else 1.0

    def find_mode(self, near: Sequence[Mode], max_iterations: int) -> Mode:
        """Return the mode of theta."""
        return climb(self.layout, self, near, max_iterations)


PLAIN = {"linear": False, "smooth": True}  # families without a common rule, and whether latent functions are smooth
COMMON = {"common linear": "linear", "common smooth": "smooth"}  # with one, and the same without
RULE_EVIDENCE = 1.0  # nats for a common rule from which on one is considered (Kass and Raftery, 1995: "positive")
OVERWHELMING = 10.0  # nats for a common rule from which on only that is


@dataclass(frozen=True, eq=False)
class LabelTasks:
    """Standardized tasks with classes 0, 1, ..., and how much the evidence of each counts."""

    scaling: Scaling
    tasks: Sequence[Task]
    n_classes: np.ndarray  # (tasks,)
    counts: np.ndarray  # (tasks,)
    of_environment: np.ndarray | None = None  # (environments,): the count of a task of each


def fit_label_families(
    training: LabelTasks,
    shared: bool,
    near: FamilyFit | None = None,
    max_iterations: int = MAX_ITERATIONS,
    separate: bool | None = None,
    only: Collection[str] | None = None,
) -> FamilyFit:
    """Fit the families, `only` some of them or those that the evidence speaks for.

    Only classes that are `shared` by all tasks can follow a common rule. The evidence of all tasks tells whether they
    do where held-out tasks are too few to: a rule of many inputs also fits labels that mean nothing, and then predicts
    worse than none. `near` has fits to similar tasks; with almost the same tasks a few iterations are enough.
    """
    fitter = _Fitter(training, near, max_iterations, separate)
    for name in PLAIN if only is None else only:
        fitter.fit(name)
    for name, plain in COMMON.items() if shared and only is None else ():
        if not (fitter.fit(name) and plain in fitter.modes):
            continue
        gain = fitter.modes[name].value - fitter.modes[plain].value
        if gain < RULE_EVIDENCE:
            fitter.drop(name)
            break  # a smooth rule is not worth the time then
        if gain > OVERWHELMING:
            fitter.drop(plain)
    return FamilyFit(fitter.priors, fitter.modes)


class _Fitter:
    """The fits of one family after another to the same tasks."""

    def __init__(self, training: LabelTasks, near: FamilyFit | None, max_iterations: int, separate: bool | None):
        self.training, self.near, self.max_iterations = training, near, max_iterations
        tasks = [Task(within_reach(task.x), task.y) for task in training.tasks]
        self.points = place_points(tasks)
        self.columns = Columns(self.points.shape[1], separate)
        self.blocks = make_blocks(tasks, training.counts, np.zeros(len(tasks)), self.points, self.columns)
        sizes = np.array([len(task.y) for task in tasks])
        self.n_classes = [training.n_classes[members] for _, members in group_by_size(sizes, 3)]
        self.priors: dict[str, LabelPrior] = {}
        self.modes: dict[str, Mode] = {}

    def fit(self, name: str) -> bool:
        """Find the mode of theta, and the prior there; return whether it was found."""
        smooth, common = PLAIN[COMMON.get(name, name)], name in COMMON
        terms = Line(learned_trend=True), *((Curve(), Deviation()) if smooth else ())
        layout = Layout(terms, self.columns, 0.0)
        objective = LabelObjective(layout, self.blocks, self.n_classes, self.points, common)
        known = [self.near.modes[name]] if self.near is not None and name in self.near.modes else []
        if not known and common and COMMON[name] in self.modes:
            known = [self.modes[COMMON[name]]]
        try:
            mode = objective.find_mode(known, self.max_iterations)
            evidence = objective.evidence(mode.theta)
        except np.linalg.LinAlgError:
            return False
        if not (np.isfinite(mode.value) and evidence.converged):
            return False
        self.priors[name] = _prior(self.training, mode, self.points, evidence, common)
        self.modes[name] = mode
        return True

    def drop(self, name: str) -> None:
        """Leave a family out; its mode stays, to start similar fits from."""
        del self.priors[name]


def _prior(training: LabelTasks, mode: Mode, points: np.ndarray, evidence: LabelEvidence, common: bool) -> LabelPrior:
    n_weights = mode.layout.n_weights(len(points))
    nothing = np.zeros(n_weights), np.zeros((n_weights, n_weights))
    given = training.scaling, mode.layout, mode.theta, points, *nothing
    prior = LabelPrior(FittedTerms(*given, counts=training.of_environment), np.zeros((0, n_weights)))
    return _with_rule(prior, evidence) if common else prior


def with_rule_of(prior: LabelPrior, tasks: Sequence[Task], counts: np.ndarray) -> LabelPrior:
    """Return the prior with its common rule learned from other tasks; all else stays as it is.

    Tasks must be standardized by the prior's scaling.
    """
    layout, points = prior.terms.layout, prior.terms.points
    tasks = [Task(within_reach(task.x), task.y) for task in tasks]
    blocks = make_blocks(tasks, counts, np.zeros(len(tasks)), points, layout.columns)
    most = max(len(prior.weights), 2)
    n_classes = [np.full(len(block.counts), most) for block in blocks]
    evidence = LabelObjective(layout, blocks, n_classes, points, common=True).evidence(prior.terms.theta)
    return _with_rule(prior, evidence) if evidence.converged else prior


def _with_rule(prior: LabelPrior, evidence: LabelEvidence) -> LabelPrior:
    # The features of the difference of two classes are larger by the root of two.
    weights = evidence.weights * (2.0**0.5 if len(evidence.weights) == 1 else 1.0)
    return replace(prior, terms=replace(prior.terms, weights_root=contrast_root(evidence)), weights=weights)


def contrast_root(evidence: LabelEvidence) -> np.ndarray:
    """Return Q with Q Q' = V, the uncertainty of a class's mean weights that differences between classes have.

    Labels say nothing about a shift of all classes. V is what the covariances V_cd of the weights of classes c and d
    would be if all classes were alike and independent: the differences of two have the covariance 2 V. With two classes
    that is exact.
    """
    n_classes, n_weights = evidence.weights.shape
    if n_classes == 1:
        return evidence.root  # of the difference in units of sqrt(2)
    covariance = (evidence.root @ evidence.root.T).reshape(n_classes, n_weights, n_classes, n_weights)
    own = np.einsum("cpcq->pq", covariance)
    alike = (own - covariance.sum(axis=(0, 2)) / n_classes) / (n_classes - 1)
    eigenvalues, vectors = np.linalg.eigh(0.5 * (alike + alike.T))
    return vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
