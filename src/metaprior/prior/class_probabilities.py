"""Class probabilities, the average of softmax(t) over Gaussian latent functions t of every class."""

import math
from functools import cache

import numpy as np
from scipy.special import log_expit, log_ndtr, ndtri

from metaprior.prior.linalg import log_sum_exp

NODES, NODE_WEIGHTS = np.polynomial.hermite.hermgauss(32)  # of Gauss-Hermite quadrature, for two classes
N_POINTS = 512  # of a quasi-random sequence, for more; about that many
CACHED = 2**17  # latent functions at these points that are computed at once, and stay in the processor's cache
TINY = 1e-200  # average probability from which on it is computed by logarithms: it may be less than the least number
# Variance from which the roles of t and the logistic are swapped in the quadrature; about the variance of the logistic.
MAX_NARROW_VARIANCE = math.pi
MOVED, HALF_MOVED = 0.05, 30.0  # share of large variances that softmax takes over, and the variance with half of it


def log_probabilities(mean: np.ndarray, covariance: np.ndarray | None) -> np.ndarray:
    """Return log E[softmax(t)], (..., classes), for t ~ N(mean, covariance) of every class.

    Classes that are not possible come last and have a mean of minus infinity. Without a covariance t is its mean.
    """
    if covariance is None:
        return mean - log_sum_exp(mean, axis=-1)[..., None]
    n_classes = np.isfinite(mean).sum(axis=-1)
    if (n_classes == mean.shape[-1]).all():
        return (_of_two if mean.shape[-1] == 2 else _of_many)(mean, covariance)
    found = np.full(mean.shape, -np.inf)
    for k in np.unique(n_classes).tolist():  # as if there were no others
        rows = n_classes == k
        found[rows, :k] = log_probabilities(mean[rows, :k], covariance[rows, :k, :k])
    return found


def _of_many(mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the log probabilities of several classes, by quasi-random points.

    Classes are sorted by their means: what they are called must not matter. With large variances softmax is a step
    between points. A share of the variance is moved into it, since softmax is the probability that t plus Gumbel noise
    is largest: with noise of the standard deviation s pi / sqrt(6) it is softmax(t / s).
    """
    size = np.maximum(np.max(np.abs(mean), axis=-1, keepdims=True), 1.0)
    order = np.argsort(-np.round(mean / size, 6), axis=-1, kind="stable")  # rounded, lest rounding decides
    mean, covariance = np.take_along_axis(mean, order, -1), np.take_along_axis(covariance, order[..., None], -2)
    covariance = np.take_along_axis(covariance, order[..., None, :], -1)
    variance = np.mean(np.diagonal(covariance, axis1=-2, axis2=-1), axis=-1) - np.mean(covariance, axis=(-2, -1))
    moved = MOVED * variance / (variance + HALF_MOVED)
    scale = np.sqrt(1.0 + 6.0 / math.pi**2 * moved * variance)[..., None]
    mean, covariance = mean / scale, covariance * ((1.0 - moved)[..., None] / scale**2)[..., None]
    eigenvalues, vectors = np.linalg.eigh(covariance)
    # The symmetric root, with points that are the same for all classes: equal classes get equal probabilities.
    root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))[..., None, :] @ np.swapaxes(vectors, -1, -2)
    points, n_classes = _points(mean.shape[-1]).T, mean.shape[-1]
    found, rows, roots = np.empty(mean.shape), mean.reshape(-1, n_classes), root.reshape(-1, n_classes, n_classes)
    flat, step = found.reshape(rows.shape), max(CACHED // points.size, 1)
    for first in range(0, len(rows), step):
        some = slice(first, first + step)
        flat[some] = _average(rows[some, :, None] + roots[some] @ points)
    named = np.empty(mean.shape)
    np.put_along_axis(named, order, found, axis=-1)
    return named


def _average(t: np.ndarray) -> np.ndarray:
    """Return the log of the average of softmax(t) over points, (rows, classes), for t (rows, classes, points)."""
    relative = np.exp(t - t.max(axis=1, keepdims=True))
    average = np.mean(relative / relative.sum(axis=1, keepdims=True), axis=-1)
    tiny = np.min(average, axis=1) < TINY
    with np.errstate(divide="ignore"):
        found = np.log(average)
    if tiny.any():
        logs = t[tiny] - log_sum_exp(t[tiny], axis=1)[:, None]
        found[tiny] = log_sum_exp(logs, axis=-1) - math.log(t.shape[-1])
    return found


def _of_two(mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the log probabilities of two classes, by quadrature over t_2 - t_1, accurate in the tails."""
    difference = mean[..., 1] - mean[..., 0]
    variance = covariance[..., 0, 0] + covariance[..., 1, 1] - 2.0 * covariance[..., 0, 1]
    found = np.stack([log_logistic(-difference, variance), log_logistic(difference, variance)], axis=-1)
    return found - log_sum_exp(found, axis=-1)[..., None]


def log_logistic(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return log E[sigmoid(t)] for t ~ N(mean, variance), by Gauss-Hermite quadrature.

    For a narrow t the nodes are those of t. For a wide t they are too coarse for the sigmoid. Then the roles are
    swapped: sigmoid(t) = p(l < t) for a logistic l, whose nodes come from N(0, pi), and t is integrated out.

    In the lower tail, where these nodes end too early, sigmoid(t) = e^t sigmoid(-t) moves the mean to where they do
    not: E[sigmoid(t)] = e^(mean + variance / 2) E[sigmoid(s)] with s ~ N(-mean - variance, variance).
    """
    in_tail = mean < -0.5 * variance
    offset, mean = np.where(in_tail, mean + 0.5 * variance, 0.0), np.where(in_tail, -mean - variance, mean)
    nodes, weights = NODES, NODE_WEIGHTS
    std = np.sqrt(np.maximum(variance, 0.0))[..., None]
    with np.errstate(all="ignore"):
        narrow = log_expit(mean[..., None] + math.sqrt(2.0) * std * nodes) + np.log(weights)
        logistic = math.sqrt(2.0 * MAX_NARROW_VARIANCE) * nodes
        # The density of the logistic over that of N(0, pi), times sqrt(2 pi) and the scale of the nodes.
        log_ratio = np.log(weights) + nodes**2 + log_expit(logistic) + log_expit(-logistic)
        wide = log_ndtr((mean[..., None] - logistic) / std) + log_ratio
    is_narrow = variance < MAX_NARROW_VARIANCE
    narrow, wide = log_sum_exp(narrow, axis=-1), log_sum_exp(wide, axis=-1)
    narrow, wide = narrow - 0.5 * math.log(math.pi), wide + 0.5 * math.log(2.0 * MAX_NARROW_VARIANCE)
    return offset + np.where(is_narrow, narrow, wide)


@cache
def _points(n_dimensions: int) -> np.ndarray:
    """Return standard normal points (points, dimensions), in pairs of opposite signs and with rotated coordinates.

    The additive recurrence with the powers of 1 / g, where g^(d + 1) = g + 1 (Roberts, 2018), fills the unit cube
    evenly in every number of dimensions.
    """
    g = 2.0
    for _ in range(50):
        g = (1.0 + g) ** (1.0 / (n_dimensions + 1.0))
    steps = np.arange(1, max(N_POINTS // (2 * n_dimensions), 1) + 1)[:, None]
    first = ndtri((0.5 + steps * g ** -np.arange(1.0, n_dimensions + 1.0)) % 1.0)
    points = np.concatenate([sign * np.roll(first, by, axis=1) for by in range(n_dimensions) for sign in (1.0, -1.0)])
    return points / np.sqrt(np.mean(points**2))  # of unit variance
