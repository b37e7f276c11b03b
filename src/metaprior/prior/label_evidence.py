"""The evidence of labels, with the latent functions of all tasks and the weights m of a common mean integrated out.

The latent functions of task i have the means F_i m_c, with m ~ N(0, I). With counts c_i the log Gibbs density

    psi = sum_i c_i (log p(y_i | t_i) - (t_i - F_i m)' K_i^-1 (t_i - F_i m) / 2) - |m|^2 / 2

is concave in all t and m. Laplace's approximation at its mode, with P = I + sum_i c_i F_i' R_i F_i, is

    J = psi - sum_i c_i log |I + K_i W_i| / 2 - log |P| / 2,

that of `collapse` with K_i + W_i^-1 in place of the covariance of readings.

Its derivatives by the covariances K_i and mean features F_i give the mode of the Gibbs density of theta. At fixed t and
m, J depends on K and F as the evidence of readings does (`modes.slopes`). The mode moves with them too: psi is
stationary there, but the determinants are not. With Sigma = K - K R K + H P^-1 H', the posterior covariance of t, where
H = (I - K R) F, and their derivative g = -c tr(Sigma dW/dt) / 2, the mode adds

    dJ/dK: v a'    and    dJ/dF: v m' + c a w',    v = (I + W K)^-1 g - c R F w,    P w = sum_i F_i' (I + W K)^-1 g_i.

At the end are the families of priors of labels: linear or smooth, each with and without a common rule of all tasks.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
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
from metaprior.linalg import Array
from metaprior.prior.blocks import make_blocks, place_points
from metaprior.prior.columns import Columns
from metaprior.prior.evidence import posterior_of_weights
from metaprior.prior.families import FamilyFit, TrainingTasks
from metaprior.prior.fitted import FittedTerms
from metaprior.prior.label_prior import LabelPrior, within_reach
from metaprior.prior.layout import Layout, OnBlock
from metaprior.prior.modes import MAX_ITERATIONS, Evidence, Mode, find_mode
from metaprior.prior.terms import Curve, Deviation, Line
from metaprior.tasks.types import Task, group_by_size


class LabelBlock(NamedTuple):
    """The labels of a block of tasks, the features of their common mean, and how much each task counts."""

    labels: Labels
    features: Array  # F, (tasks, n, p), zero for padding; p = 0: there is no common mean
    counts: Array  # c, (tasks,)

    def mean(self, weights: Array) -> Array:
        """Return F m, (tasks, classes, n), for weights (classes, p)."""
        return weights @ np.swapaxes(self.features, 1, 2)


class LabelEvidence(NamedTuple):
    """The evidence J at the mode of all latent functions and of m."""

    value: float  # J
    weights: Array  # m, (classes, p)
    root: Array  # Q with Q Q' = P^-1, (classes p, classes p)
    coefficients: list[Array]  # a of every block, (tasks, classes, n)
    curvatures: list[Curvature]
    converged: bool


def label_evidence(blocks: Sequence[LabelBlock], start: Sequence[Array] | None = None) -> LabelEvidence:
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


def _joint_mode(blocks: Sequence[LabelBlock], start: Sequence[Array] | None) -> tuple[Array, list[Array], bool]:
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
    blocks: Sequence[LabelBlock], curvatures: Sequence[Curvature], coefficients: Sequence[Array], weights: Array
) -> tuple[Array, list[Array]]:
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


def _psi(blocks: Sequence[LabelBlock], coefficients: Sequence[Array], weights: Array) -> float:
    value = -0.5 * float(np.sum(weights**2))
    for block, a in zip(blocks, coefficients, strict=True):
        deviation = block.labels.deviation(a)
        value += float(block.counts @ block.labels.log_posterior(a, block.mean(weights) + deviation, deviation))
    return value


def _pull(block: LabelBlock, a: Array) -> Array:
    """Return sum_i c_i F_i' a_i, (classes, p)."""
    return np.tensordot(block.counts[:, None, None] * a, block.features, axes=((0, 2), (0, 1)))


def _precision(blocks: Sequence[LabelBlock], curvatures: Sequence[Curvature]) -> Array:
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


def project(block: LabelBlock, found: Curvature) -> tuple[Array, Array | None]:
    """Return E_c F and L' E_c F: R F = E F - (L' E)' L' E F, by class. For two classes there is no second part."""
    weighted = found.parts @ block.features[:, None]
    if found.root_sum is None:
        return weighted, None
    return weighted, np.swapaxes(found.root_sum, 1, 2)[:, None] @ weighted


class _Parts(NamedTuple):
    """What the derivatives of one block share."""

    precision_features: Array  # R F Q, (tasks, classes, n, classes p)
    determinant: Array  # (I + W K)^-1 g, (tasks, classes, n)


def label_slopes(blocks: Sequence[LabelBlock], evidence: LabelEvidence) -> list[tuple[Array, Array]]:
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


def _parts(block: LabelBlock, found: Curvature, root: Array) -> _Parts:
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


def _between_classes(functions: Array) -> Array:
    """Return the products of classes at every sample, (tasks, n, classes, classes), summed over the last axis."""
    by_sample = np.ascontiguousarray(np.swapaxes(functions, 1, 2))
    return by_sample @ np.swapaxes(by_sample, 2, 3)


def _third_cumulants(pi: Array, posterior: Array, is_binary: bool) -> Array:
    """Return tr(S dW/dt_c) of every sample, for S (tasks, n, classes, classes).

    dW_ab/dt_c is the third cumulant of the one-hot label: tr(S dW/dt_c) = pi_c (q_c - sum_k pi_k q_k), where
    q_k = (e_k - pi)' S (e_k - pi). For two classes, dW/dt = pi (1 - pi) (1 - 2 pi).
    """
    if is_binary:
        return pi * (1.0 - pi) * (1.0 - 2.0 * pi) * posterior[:, None, :, 0, 0]
    q = np.diagonal(posterior, axis1=2, axis2=3) - 2.0 * (posterior @ np.swapaxes(pi, 1, 2)[..., None])[..., 0]
    q = np.swapaxes(q, 1, 2)
    return pi * (q - np.sum(pi * q, axis=1, keepdims=True))


def _precision_of_classes(found: Curvature) -> Array:
    """Return the sum over classes of the blocks R_cc = E_c - E_c (sum_c E_c)^-1 E_c."""
    if found.root_sum is None:
        return found.parts[:, 0]
    explained = found.parts @ found.root_sum[:, None]
    return np.sum(found.parts - explained @ np.swapaxes(explained, 2, 3), axis=1)


class EvidenceOfLabels:
    """The evidence of the labels of some tasks, as a function of what terms say of their blocks at a theta.

    Blocks have classes 0, 1, ... in place of readings; `n_classes` are the numbers of classes of the tasks of each.
    `common` says whether there is a common mean: only if classes mean the same in all tasks.
    """

    def __init__(self, n_classes: Sequence[Array], common: bool):
        self.common, self.n_classes = common, n_classes
        self.most = max(int(numbers.max()) for numbers in n_classes)
        # Standard deviation of the difference of two classes that t stands for, or of one class.
        self.unit = 2.0**0.5 if self.most == 2 else 1.0
        self.start: list[Array] | None = None  # near the mode of the latent functions

    def __call__(self, parts: Sequence[OnBlock], gradient: bool = True) -> Evidence:
        """Return the evidence, with its derivatives unless told otherwise."""
        given, found = self.at(parts)
        if not (np.isfinite(found.value) and found.converged):
            raise np.linalg.LinAlgError("the mode of the latent functions was not found")
        self.start = found.coefficients
        if not gradient:
            return Evidence(found.value, [])
        slopes = []
        for part, (by_covariance, by_features) in zip(parts, label_slopes(given, found), strict=True):
            by_mean = self.unit * by_features if self.common else np.zeros_like(part.features)
            slopes.append((self.unit**2 * by_covariance, by_mean))
        return Evidence(found.value, slopes)

    def at(self, parts: Sequence[OnBlock]) -> tuple[list[LabelBlock], LabelEvidence]:
        """Return the labels given theta, and their evidence."""
        given = []
        for part, n_classes in zip(parts, self.n_classes, strict=True):
            labels = Labels.of(part.block.y, part.block.mask, n_classes, self.most, part.covariance())
            features = self.unit * part.features if self.common else part.features[..., :0]
            given.append(LabelBlock(labels, features, part.block.counts))
        return given, label_evidence(given, self.start)


PLAIN = {"linear": False, "smooth": True}  # families without a common rule, and whether latent functions are smooth
COMMON = {"common linear": "linear", "common smooth": "smooth"}  # with one, and the same without
RULE_EVIDENCE = 1.0  # nats for a common rule, below which it is dropped (Kass and Raftery, 1995: "positive")
OVERWHELMING = 10.0  # nats for a common rule, above which the family without it is dropped


def fit_label_families(
    training: TrainingTasks,
    shared: bool,
    near: FamilyFit | None = None,
    max_iterations: int = MAX_ITERATIONS,
    separate: bool | None = None,
    only: Collection[str] | None = None,
) -> FamilyFit:
    """Fit families to labels: those named in `only`, or those that the evidence supports.

    Only classes that are `shared` by all tasks can follow a common rule. The evidence of all tasks tells whether they
    do where held-out tasks are too few to: a rule of many inputs also fits labels that mean nothing, and then predicts
    worse than none. `near` has fits to similar tasks; with almost the same tasks a few iterations are enough.
    """
    tasks = [Task(within_reach(task.x), task.y) for task in training.tasks]
    points = place_points(tasks)
    columns = Columns(points.shape[1], separate)
    blocks = make_blocks(tasks, training.counts, training.is_target, points, columns)
    sizes, numbers = np.array([len(task.y) for task in tasks]), np.asarray(training.n_classes)
    n_classes = [numbers[members] for _, members in group_by_size(sizes, 3)]
    fit = FamilyFit({}, {})
    for name in (*PLAIN, *(COMMON if shared else ())) if only is None else only:
        plain = COMMON.get(name, "")
        terms = Line(learned_trend=True), *((Curve(), Deviation()) if PLAIN[plain or name] else ())
        layout, evidence = Layout(terms, columns, 0.0), EvidenceOfLabels(n_classes, bool(plain))
        known = [fits.modes[of] for fits, of in ((near, name), (fit, plain)) if fits is not None and of in fits.modes]
        try:
            mode = find_mode(layout, blocks, points, known[:1], max_iterations, evidence)
            at = layout.at(mode.theta, points)
            _, found = evidence.at([at.on(block) for block in blocks])
        except np.linalg.LinAlgError:
            continue
        if not (np.isfinite(mode.value) and found.converged):
            continue
        fit.modes[name] = mode
        gain = mode.value - fit.modes[plain].value if only is None and plain in fit.modes else RULE_EVIDENCE
        if gain < RULE_EVIDENCE:
            break  # a smooth rule is not worth the time then
        if gain > OVERWHELMING:
            del fit.priors[plain]
        fit.priors[name] = _prior(training, mode, points, found if plain else None)
    return fit


def _prior(training: TrainingTasks, mode: Mode, points: Array, rule: LabelEvidence | None) -> LabelPrior:
    n_weights = mode.layout.n_weights(len(points))
    nothing = np.zeros(n_weights), np.zeros((n_weights, n_weights))
    terms = FittedTerms(training.scaling, mode.layout, mode.theta, points, *nothing, counts=training.of_environment)
    prior = LabelPrior(terms, np.zeros((0, n_weights)))
    return prior if rule is None else _with_rule(prior, rule)


def with_rule_of(prior: LabelPrior, tasks: Sequence[Task], counts: Array) -> LabelPrior:
    """Return the prior with its common rule learned from other tasks; all else stays as it is.

    Tasks must be standardized by the prior's scaling.
    """
    terms = prior.terms
    tasks = [Task(within_reach(task.x), task.y) for task in tasks]
    blocks = make_blocks(tasks, counts, np.zeros(len(tasks)), terms.points, terms.layout.columns)
    n_classes = [np.full(len(block.counts), max(len(prior.weights), 2)) for block in blocks]
    _, found = EvidenceOfLabels(n_classes, common=True).at([terms.at.on(block) for block in blocks])
    return _with_rule(prior, found) if found.converged else prior


def _with_rule(prior: LabelPrior, found: LabelEvidence) -> LabelPrior:
    # The features of the difference of two classes are larger by the root of two.
    weights = found.weights * (2.0**0.5 if len(found.weights) == 1 else 1.0)
    return replace(prior, terms=replace(prior.terms, weights_root=contrast_root(found)), weights=weights)


def contrast_root(evidence: LabelEvidence) -> Array:
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
