"""Exported tasks of labels: class probabilities with NumPy alone, by the formulas of `class_probabilities`."""

import math
from statistics import NormalDist

import numpy as np

from metaprior.prior.plain_process import erfc

N_NODES, N_POINTS = 32, 512  # of quadrature for two classes, and about that many points for more
WIDE = math.pi  # variance from which on the roles of the latent function and the logistic are swapped
MOVED, HALF_MOVED = 0.05, 30.0  # share of large variances that softmax takes over, and the variance with half of it


def of_two(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return log probabilities of two classes, whose latent functions differ by N(mean, spread)."""
    found = np.stack([log_logistic(-mean, spread), log_logistic(mean, spread)], axis=1)
    return found - log_sum_exp(found, axis=1)[:, None]


def log_logistic(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return log E[sigmoid(t)] for t ~ N(mean, spread), by Gauss-Hermite quadrature over t or over the logistic."""
    in_tail = mean < -0.5 * spread
    offset, mean = np.where(in_tail, mean + 0.5 * spread, 0.0), np.where(in_tail, -mean - spread, mean)
    nodes, weights = np.polynomial.hermite.hermgauss(N_NODES)
    std, logistic = np.sqrt(spread)[:, None], math.sqrt(2.0 * WIDE) * nodes
    with np.errstate(all="ignore"):
        narrow = log_expit(mean[:, None] + math.sqrt(2.0) * std * nodes) + np.log(weights)
        ratio = np.log(weights) + nodes**2 + log_expit(logistic) + log_expit(-logistic)
        wide = log_normal_cdf((mean[:, None] - logistic) / std) + ratio
        narrow, wide = log_sum_exp(narrow, axis=1), log_sum_exp(wide, axis=1)
    return offset + np.where(spread < WIDE, narrow - 0.5 * math.log(math.pi), wide + 0.5 * math.log(2.0 * WIDE))


def of_many(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return log E[softmax(t)] for t ~ N(mean, spread) of several classes, by quasi-random points."""
    size = np.maximum(np.max(np.abs(mean), axis=-1, keepdims=True), 1.0)
    order = np.argsort(-np.round(mean / size, 6), axis=-1, kind="stable")
    mean, spread = np.take_along_axis(mean, order, -1), np.take_along_axis(spread, order[..., None], -2)
    spread = np.take_along_axis(spread, order[..., None, :], -1)
    total = np.mean(np.diagonal(spread, axis1=-2, axis2=-1), axis=-1) - np.mean(spread, axis=(-2, -1))
    moved = MOVED * total / (total + HALF_MOVED)
    scale = np.sqrt(1.0 + 6.0 / math.pi**2 * moved * total)[..., None]
    mean, spread = mean / scale, spread * ((1.0 - moved)[..., None] / scale**2)[..., None]
    eigenvalues, vectors = np.linalg.eigh(spread)
    root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))[..., None, :] @ np.swapaxes(vectors, -1, -2)
    points, found = normal_points(mean.shape[-1]).T, np.empty(mean.shape)
    for i in range(len(mean)):
        t = mean[i, :, None] + root[i] @ points
        found[i] = log_sum_exp(t - log_sum_exp(t, axis=0), axis=1) - math.log(points.shape[1])
    named = np.empty(mean.shape)
    np.put_along_axis(named, order, found, axis=-1)
    return named


def normal_points(n_dimensions: int) -> np.ndarray:
    """Return standard normal points that fill space evenly (Roberts, 2018), (points, dimensions)."""
    g = 2.0
    for _ in range(50):
        g = (1.0 + g) ** (1.0 / (n_dimensions + 1.0))
    steps = np.arange(1, max(N_POINTS // (2 * n_dimensions), 1) + 1)[:, None]
    even = (0.5 + steps * g ** -np.arange(1.0, n_dimensions + 1.0)) % 1.0
    first = np.vectorize(NormalDist().inv_cdf, otypes=[float])(even)
    points = np.concatenate([sign * np.roll(first, by, axis=1) for by in range(n_dimensions) for sign in (1.0, -1.0)])
    return points / np.sqrt(np.mean(points**2))


def log_sum_exp(values: np.ndarray, axis: int) -> np.ndarray:
    """Return log sum exp along an axis."""
    largest = np.max(values, axis=axis, keepdims=True)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore", under="ignore"):
        return np.log(np.sum(np.exp(values - largest), axis=axis)) + np.squeeze(largest, axis)


def log_expit(t: np.ndarray) -> np.ndarray:
    """Return log(1 / (1 + exp(-t)))."""
    return -np.logaddexp(0.0, -t)


def log_normal_cdf(z: np.ndarray) -> np.ndarray:
    """Return the log of the standard normal distribution function, by its asymptotic series far in the tail."""
    w = 1.0 / np.minimum(z, -35.0) ** 2
    series = 1.0 - w * (1.0 - 3.0 * w * (1.0 - 5.0 * w * (1.0 - 7.0 * w)))
    tail = -0.5 / w + 0.5 * np.log(w / (2.0 * math.pi)) + np.log(series)
    return np.where(z < -35.0, tail, np.log(0.5 * erfc(-np.maximum(z, -35.0) / math.sqrt(2.0))))
