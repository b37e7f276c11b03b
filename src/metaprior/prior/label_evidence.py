"""The evidence of labels, with the latent functions of all tasks and the weights m of a common mean integrated out.

The latent functions of task i have the means F_i m_c, with m ~ N(0, I). With counts c_i the log Gibbs density

    psi = sum_i c_i (log p(y_i | t_i) - (t_i - F_i m)' K_i^-1 (t_i - F_i m) / 2) - |m|^2 / 2

is concave in all t and m. Laplace's approximation at its mode, with P = I + sum_i c_i F_i' R_i F_i, is

    J = psi - sum_i c_i log |I + K_i W_i| / 2 - log |P| / 2,

that of `collapse` with K_i + W_i^-1 in place of the covariance of readings.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from metaprior.prior.collapse import posterior_of_weights
from metaprior.prior.softmax import (
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
