"""Derivatives of the evidence J of labels with respect to the covariances K_i and mean features F_i.

At fixed t and m, J depends on K and F as the evidence of readings does (`collapse.slopes`). The mode moves with them
too: psi is stationary there, but the determinants are not. With Sigma = K - K R K + H P^-1 H', the posterior covariance
of t, where H = (I - K R) F, and their derivative g = -c tr(Sigma dW/dt) / 2, the mode adds

    dJ/dK: v a'    and    dJ/dF: v m' + c a w',    v = (I + W K)^-1 g - c R F w,    P w = sum_i F_i' (I + W K)^-1 g_i.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from metaprior.prior.label_evidence import LabelBlock, LabelEvidence, project
from metaprior.prior.softmax import Curvature


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
