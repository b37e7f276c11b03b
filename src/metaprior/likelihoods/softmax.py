"""Labels of any number of classes: Laplace's approximation given prior means and covariances, and class probabilities.

Class c of a task has a latent function t_c with mean mu_c and covariance K, the same for all classes, and
p(y = c | t) = softmax(t)_c. The log posterior log p(y | t) - (t - mu)' K^-1 (t - mu) / 2 is concave. At its mode
t = mu + K a with a = y - pi, and W = diag(pi) - pi pi' takes the place of the precision of Gaussian noise. Its algebra
is that of Rasmussen and Williams (2006), algorithm 3.3: with D_c = diag(pi_c) and E_c = (K + D_c^-1)^-1,

    R = (K + W^-1)^-1 = E - E (sum_c E_c)^-1 E    and    |I + K W| = |sum_c E_c| prod_c |I + K D_c|.

Two classes give the logistic model for t = t_2 - t_1, whose covariance is 2 K: W = pi_1 pi_2 and R = (2 K + W^-1)^-1.
That is a third of the work, and is how tasks of two classes are computed. Their arrays have one row, that of t.

K may have any size, and samples may repeat: matrices are scaled to a unit diagonal before they are inverted, and K has
a little more on its diagonal than rounding could take from it.

Class probabilities are the average of softmax(t) over Gaussian latent functions t of every class.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.special import expit, log_expit, log_ndtr, ndtri

from metaprior.linalg import Array, log_sum_exp, positive_inverses, stable_cholesky, triangular_inverses

SAMPLE_ROUNDING = 1e-11  # that a variance gains per sample, relative
LEAST = 1e-24  # probability, for which 1 - 1e-16 and 1 are the same
MAX_STEPS = 100
MAX_HALVINGS = 40
TOLERANCE = 1e-11  # of the log posterior, relative, below which steps may lose: far above its rounding
STALLED = 1e-14  # of the log posterior, relative: a step that gains no more ends the search
NEAR = 1e-2  # change of latent functions below which a few chord steps end Newton's method
STEEP = 1e-3  # slope by a latent function that no mode has: a search that ended there has failed
LARGE = 1e3  # size of latent functions above which NEAR is relative: rounding moves them too
CHORD_STEPS = 3  # with the curvature of the last step of Newton's method; each makes the error at most NEAR times it


class Labels(NamedTuple):
    """The labels of a block of tasks, and the covariance of their latent functions."""

    y: Array  # (tasks, classes, n), one where the sample is of the class; zero for padding
    possible: Array  # (tasks, classes): which classes a task has
    mask: Array  # (tasks, n), 1.0 where there is a sample
    covariance: Array  # K, or 2 K for two classes, (tasks, n, n); with a diagonal that rounding does not make less

    @classmethod
    def of(cls, y: Array, mask: Array, n_classes: Array, most: int, covariance: Array) -> "Labels":
        """Make them from classes 0, 1, ... (tasks, n) of tasks with some numbers of classes, at most `most`; and K."""
        one_hot = (y[:, None] == np.arange(most)[:, None]) * mask[:, None]
        covariance = (2.0 if most == 2 else 1.0) * covariance
        diagonal = np.arange(mask.shape[1])
        covariance[:, diagonal, diagonal] *= 1.0 + SAMPLE_ROUNDING * mask.sum(axis=1, keepdims=True)
        if most == 2:
            return cls(one_hot[:, 1:], np.ones((len(y), 1), bool), mask, covariance)
        return cls(one_hot, np.arange(most) < n_classes[:, None], mask, covariance)

    @property
    def is_binary(self) -> bool:
        """Whether there are two classes."""
        return self.y.shape[1] == 1

    def take(self, tasks: Array) -> "Labels":
        """Return some of the tasks."""
        return Labels(*(part[tasks] for part in self))

    def deviation(self, a: Array) -> Array:
        """Return K a, for a (tasks, classes, n)."""
        return a @ self.covariance  # which is symmetric

    def log_posterior(self, a: Array, t: Array, deviation: Array) -> Array:
        """Return log p(y | t) - (t - mu)' K^-1 (t - mu) / 2 of every task, with t - mu = K a."""
        if self.is_binary:
            total = np.logaddexp(0.0, t[:, 0])
        else:
            total = log_sum_exp(np.where(self.possible[:, :, None], t, -np.inf), axis=1)
        likelihood = np.sum(self.y * t, axis=(1, 2)) - np.sum(self.mask * total, axis=1)
        return likelihood - 0.5 * np.sum(a * deviation, axis=(1, 2))


class Curvature(NamedTuple):
    """W of a block of tasks, and R."""

    probabilities: Array  # pi, (tasks, classes, n); zero for padding
    parts: Array  # E_c, (tasks, classes, n, n)
    root_sum: Array | None  # L with L L' = (sum_c E_c)^-1, (tasks, n, n); None for two classes, where E is R

    @classmethod
    def at(cls, labels: Labels, t: Array) -> "Curvature":
        """Compute W at the latent functions t."""
        pi = softmax(labels, t)
        scaled, scale, _ = _scaled(labels, pi)
        parts = scale[..., :, None] * positive_inverses(scaled) * scale[..., None, :]
        if labels.is_binary:
            return cls(pi, parts, None)
        return cls(pi, parts, _root_of_sum(parts, labels.mask))

    def log_determinant(self, labels: Labels) -> Array:
        """Return log |I + K W| of every task."""
        scaled, _, diagonal = _scaled(labels, self.probabilities)
        value = np.sum(np.linalg.slogdet(scaled)[1] + np.log(diagonal).sum(axis=-1), axis=1)
        if labels.is_binary:
            return value
        total, size = _sum_of(self.parts, labels.mask)
        return value + np.linalg.slogdet(total)[1] + 2.0 * np.log(size).sum(axis=-1)

    def take(self, tasks: Array) -> "Curvature":
        """Return some of the tasks."""
        return Curvature(*(None if part is None else part[tasks] for part in self))  # type: ignore[arg-type]

    def times(self, v: Array) -> Array:
        """Return W v, for v (tasks, classes, n)."""
        weighted = self.probabilities * v
        return weighted - self.probabilities * weighted.sum(axis=1, keepdims=True)

    def newton(self, labels: Labels, v: Array) -> Array:
        """Return (I + W K)^-1 v, for v (tasks, classes, n) that is zero for padding and for classes a task lacks.

        That is v - R K v. Since E_c K = I - E_c D_c^-1, it is also E_c D_c^-1 v_c and what classes have in common,
        without a difference of large numbers if K is large.
        """
        d = _diagonal(labels, self.probabilities)
        own = (self.parts @ (v / np.where(d > 0.0, d, 1.0))[..., None])[..., 0]
        if self.root_sum is None:
            return own
        rest = np.sum(v - own, axis=1)[..., None]
        shared = self.root_sum @ (np.swapaxes(self.root_sum, 1, 2) @ rest)
        return own + (self.parts @ shared[:, None])[..., 0]


def softmax(labels: Labels, t: Array) -> Array:
    """Return class probabilities (tasks, classes, n), of the second class if there are two; zero for padding."""
    if labels.is_binary:
        return expit(t) * labels.mask[:, None]
    t = np.where(labels.possible[:, :, None], t, -np.inf)
    relative = np.exp(t - t.max(axis=1, keepdims=True))
    return relative / relative.sum(axis=1, keepdims=True) * labels.mask[:, None]


def _diagonal(labels: Labels, pi: Array) -> Array:
    """Return D_c, or W for two classes; zero for padding and for classes that a task does not have."""
    d = np.maximum(pi * (1.0 - pi) if labels.is_binary else pi, LEAST)
    return d * (labels.possible[..., None] * labels.mask[:, None])


def _scaled(labels: Labels, pi: Array) -> tuple[Array, Array, Array]:
    """Return B = I + D^1/2 K D^1/2 of every class with a unit diagonal, its scale, and the diagonal that it had.

    (K + D^-1)^-1 = D^1/2 B^-1 D^1/2 is the inverse of the first, times the scale from both sides.
    """
    d = _diagonal(labels, pi)
    diagonal = 1.0 + d * np.diagonal(labels.covariance, axis1=1, axis2=2)[:, None]
    scale, places = np.sqrt(d / diagonal), np.arange(d.shape[-1])
    scaled = scale[..., :, None] * labels.covariance[:, None] * scale[..., None, :]
    scaled[..., places, places] = 1.0
    return scaled, scale, diagonal


def _sum_of(parts: Array, mask: Array) -> tuple[Array, Array]:
    """Return sum_c E_c, one for padding, with a unit diagonal, and the roots of the diagonal that it had."""
    total, places = parts.sum(axis=1), np.arange(parts.shape[-1])
    total[..., places, places] += 1.0 - mask
    size = np.sqrt(total[..., places, places])
    return total / (size[..., :, None] * size[..., None, :]), size


def _root_of_sum(parts: Array, mask: Array) -> Array:
    """Return L with L L' = (sum_c E_c)^-1."""
    total, size = _sum_of(parts, mask)
    return np.swapaxes(triangular_inverses(stable_cholesky(total)), 1, 2) / size[..., None]


def precision_roots(labels: Labels, t: Array) -> tuple[Array, Array | None]:
    """Return V_c with V_c' V_c = E_c at t, (tasks, classes, n, n), and the root L of `Curvature`.

    What a sample explains of a variance is known more exactly from these than from E_c itself, if K is large.
    """
    scaled, scale, _ = _scaled(labels, softmax(labels, t))
    inverses = triangular_inverses(stable_cholesky(scaled))
    inverses *= scale[..., None, :]
    if labels.is_binary:
        return inverses, None
    return inverses, _root_of_sum(np.swapaxes(inverses, 2, 3) @ inverses, labels.mask)


def find_modes(labels: Labels, mean: Array, start: Array | None = None) -> tuple[Array, Array]:
    """Return a of every task at its mode, and which have converged, by Newton's method with backtracking.

    `mean` is mu, (tasks, classes, n). Tasks that have converged are left alone.
    """
    a = _first_step(labels, mean) if start is None else start.copy()
    converged, left = np.zeros(len(a), bool), np.arange(len(a))
    for _ in range(MAX_STEPS):
        some, mu, here = labels.take(left), mean[left], a[left]
        deviation = some.deviation(here)
        t = mu + deviation
        found = Curvature.at(some, t)
        step = found.newton(some, some.y - found.probabilities - here)
        value = some.log_posterior(here, t, deviation)
        a[left], after = _backtrack(some, mu, here, step, value)
        moved, size = (np.max(np.abs(part), axis=(1, 2), initial=0.0) for part in (some.deviation(a[left] - here), t))
        near = moved < NEAR * np.maximum(1.0, size / LARGE)
        if near.any():
            a[left[near]] = _chord(some.take(near), found.take(near), mu[near], a[left[near]])
        done = near | (after - value <= STALLED * (1.0 + np.abs(value)))
        converged[left[done]] = True
        left = left[~done]
        if not len(left):
            break
    slope = labels.y - softmax(labels, mean + labels.deviation(a)) - a
    return a, converged & (np.max(np.abs(slope), axis=(1, 2), initial=0.0) < STEEP)


def _first_step(labels: Labels, mean: Array) -> Array:
    """Return a after a step of Newton's method from t = 0, or zero if t = mu is more probable.

    All classes of a task have the same W there, and none has a probability of nearly zero, with which Newton's method
    goes astray: the mean of a common rule at far inputs may be of any size.
    """
    share = 0.5 if labels.is_binary else (1.0 / labels.possible.sum(axis=1))[:, None, None]
    w = 0.25 if labels.is_binary else share
    real = labels.possible[..., None] * labels.mask[:, None]
    centered = mean if labels.is_binary else (mean - share * np.sum(mean * real, axis=1, keepdims=True)) * real
    target = labels.y - share * real - w * centered
    whole = np.eye(labels.mask.shape[1]) + w * labels.covariance
    a = np.swapaxes(np.linalg.solve(whole, np.swapaxes(target, 1, 2)), 1, 2)
    deviation = labels.deviation(a)
    nothing = np.zeros(a.shape)
    better = labels.log_posterior(a, mean + deviation, deviation) > labels.log_posterior(nothing, mean, nothing)
    return np.where(better[:, None, None], a, 0.0)


def _chord(labels: Labels, found: Curvature, mean: Array, a: Array) -> Array:
    """Take steps from near the mode with a curvature that was found nearby: a cheap end of Newton's method."""
    new = a
    for _ in range(CHORD_STEPS):
        new = new + found.newton(labels, labels.y - softmax(labels, mean + labels.deviation(new)) - new)
    return np.where(np.isfinite(new), new, a)


def _backtrack(labels: Labels, mean: Array, a: Array, step: Array, value: Array) -> tuple[Array, Array]:
    """Halve the steps of tasks until none loses more than rounding; return the new a and log posteriors."""
    deviation, along = labels.deviation(a), labels.deviation(step)
    fraction, after = np.ones((len(a), 1, 1)), value
    for halvings in range(MAX_HALVINGS + 1):
        moved = deviation + fraction * along
        after = labels.log_posterior(a + fraction * step, mean + moved, moved)
        worse = ~(after >= value - TOLERANCE * (1.0 + np.abs(value)))  # NaN is worse too
        if not worse.any():
            break
        fraction[worse] *= 0.5 if halvings < MAX_HALVINGS else 0.0
        after = np.where(worse, value, after)
    return np.where(fraction > 0.0, a + fraction * step, a), after


NODES, NODE_WEIGHTS = np.polynomial.hermite.hermgauss(32)  # of Gauss-Hermite quadrature, for two classes
N_POINTS = 512  # of a quasi-random sequence, for more; about that many
CACHED = 2**17  # latent functions at these points that are computed at once, and stay in the processor's cache
TINY = 1e-200  # smaller average probabilities are computed by logarithms, lest they underflow
# Variance from which the roles of t and the logistic are swapped in the quadrature; about the variance of the logistic.
MAX_NARROW_VARIANCE = math.pi
MOVED, HALF_MOVED = 0.05, 30.0  # share of large variances that softmax takes over, and the variance with half of it


def log_probabilities(mean: Array, covariance: Array | None) -> Array:
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


def _of_many(mean: Array, covariance: Array) -> Array:
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


def _average(t: Array) -> Array:
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


def _of_two(mean: Array, covariance: Array) -> Array:
    """Return the log probabilities of two classes, by quadrature over t_2 - t_1, accurate in the tails."""
    difference = mean[..., 1] - mean[..., 0]
    variance = covariance[..., 0, 0] + covariance[..., 1, 1] - 2.0 * covariance[..., 0, 1]
    found = np.stack([log_logistic(-difference, variance), log_logistic(difference, variance)], axis=-1)
    return found - log_sum_exp(found, axis=-1)[..., None]


def log_logistic(mean: Array, variance: Array) -> Array:
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
def _points(n_dimensions: int) -> Array:
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
