"""Laplace's approximation for tasks of any number of classes, given their prior means and covariances.

Class c of a task has a latent function t_c with mean mu_c and covariance K, the same for all classes, and
p(y = c | t) = softmax(t)_c. The log posterior log p(y | t) - (t - mu)' K^-1 (t - mu) / 2 is concave. At its mode
t = mu + K a with a = y - pi, and W = diag(pi) - pi pi' takes the place of the precision of Gaussian noise. Its algebra
is that of Rasmussen and Williams (2006), algorithm 3.3: with D_c = diag(pi_c) and E_c = (K + D_c^-1)^-1,

    R = (K + W^-1)^-1 = E - E (sum_c E_c)^-1 E    and    |I + K W| = |sum_c E_c| prod_c |I + K D_c|.

Two classes give the logistic model for t = t_2 - t_1, whose covariance is 2 K: W = pi_1 pi_2 and R = (2 K + W^-1)^-1.
That is a third of the work, and is how tasks of two classes are computed. Their arrays have one row, that of t.

K may have any size, and samples may repeat: matrices are scaled to a unit diagonal before they are inverted, and K has
a little more on its diagonal than rounding could take from it.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import expit

from metaprior.prior.linalg import (
    log_sum_exp,
    positive_inverses,
    stable_cholesky,
    triangular_inverses,
)

SAMPLE_ROUNDING = 1e-11  # that a variance gains per sample, relative
LEAST = 1e-24  # probability, for which 1 - 1e-16 and 1 are the same
MAX_STEPS = 100
MAX_HALVINGS = 40
TOLERANCE = 1e-11  # of the log posterior, relative, below which steps may lose: far above its rounding
STALLED = 1e-14  # of the log posterior, relative: a step that gains no more ends the search
NEAR = 1e-2  # change of latent functions from which on Newton's method has converged, but for a few chord steps
STEEP = 1e-3  # slope by a latent function that no mode has: a search that ended there has failed
LARGE = 1e3  # latent functions, from which on this is relative: with such variances rounding moves them too
CHORD_STEPS = 3  # with the curvature of the last step of Newton's method; each makes the error at most NEAR times it


class Labels(NamedTuple):
    """The labels of a block of tasks, and the covariance of their latent functions."""

    y: np.ndarray  # (tasks, classes, n), one where the sample is of the class; zero for padding
    possible: np.ndarray  # (tasks, classes): which classes a task has
    mask: np.ndarray  # (tasks, n), 1.0 where there is a sample
    covariance: np.ndarray  # K, or 2 K for two classes, (tasks, n, n); with a diagonal that rounding does not make less

    @classmethod
    def of(cls, y: np.ndarray, mask: np.ndarray, n_classes: np.ndarray, most: int, covariance: np.ndarray) -> "Labels":
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

    def take(self, tasks: np.ndarray) -> "Labels":
        """Return some of the tasks."""
        return Labels(*(part[tasks] for part in self))

    def deviation(self, a: np.ndarray) -> np.ndarray:
        """Return K a, for a (tasks, classes, n)."""
        return a @ self.covariance  # which is symmetric

    def log_posterior(self, a: np.ndarray, t: np.ndarray, deviation: np.ndarray) -> np.ndarray:
        """Return log p(y | t) - (t - mu)' K^-1 (t - mu) / 2 of every task, with t - mu = K a."""
        if self.is_binary:
            total = np.logaddexp(0.0, t[:, 0])
        else:
            total = log_sum_exp(np.where(self.possible[:, :, None], t, -np.inf), axis=1)
        likelihood = np.sum(self.y * t, axis=(1, 2)) - np.sum(self.mask * total, axis=1)
        return likelihood - 0.5 * np.sum(a * deviation, axis=(1, 2))


class Curvature(NamedTuple):
    """W of a block of tasks, and R."""

    probabilities: np.ndarray  # pi, (tasks, classes, n); zero for padding
    parts: np.ndarray  # E_c, (tasks, classes, n, n)
    root_sum: np.ndarray | None  # L with L L' = (sum_c E_c)^-1, (tasks, n, n); None for two classes, where E is R

    @classmethod
    def at(cls, labels: Labels, t: np.ndarray) -> "Curvature":
        """Compute W at the latent functions t."""
        pi = softmax(labels, t)
        scaled, scale, _ = _scaled(labels, pi)
        parts = scale[..., :, None] * positive_inverses(scaled) * scale[..., None, :]
        if labels.is_binary:
            return cls(pi, parts, None)
        return cls(pi, parts, _root_of_sum(parts, labels.mask))

    def log_determinant(self, labels: Labels) -> np.ndarray:
        """Return log |I + K W| of every task."""
        scaled, _, diagonal = _scaled(labels, self.probabilities)
        value = np.sum(np.linalg.slogdet(scaled)[1] + np.log(diagonal).sum(axis=-1), axis=1)
        if labels.is_binary:
            return value
        total, size = _sum_of(self.parts, labels.mask)
        return value + np.linalg.slogdet(total)[1] + 2.0 * np.log(size).sum(axis=-1)

    def take(self, tasks: np.ndarray) -> "Curvature":
        """Return some of the tasks."""
        return Curvature(*(None if part is None else part[tasks] for part in self))  # type: ignore[arg-type]

    def times(self, v: np.ndarray) -> np.ndarray:
        """Return W v, for v (tasks, classes, n)."""
        weighted = self.probabilities * v
        return weighted - self.probabilities * weighted.sum(axis=1, keepdims=True)

    def newton(self, labels: Labels, v: np.ndarray) -> np.ndarray:
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


def softmax(labels: Labels, t: np.ndarray) -> np.ndarray:
    """Return class probabilities (tasks, classes, n), of the second class if there are two; zero for padding."""
    if labels.is_binary:
        return expit(t) * labels.mask[:, None]
    t = np.where(labels.possible[:, :, None], t, -np.inf)
    relative = np.exp(t - t.max(axis=1, keepdims=True))
    return relative / relative.sum(axis=1, keepdims=True) * labels.mask[:, None]


def _diagonal(labels: Labels, pi: np.ndarray) -> np.ndarray:
    """Return D_c, or W for two classes; zero for padding and for classes that a task does not have."""
    d = np.maximum(pi * (1.0 - pi) if labels.is_binary else pi, LEAST)
    return d * (labels.possible[..., None] * labels.mask[:, None])


def _scaled(labels: Labels, pi: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return B = I + D^1/2 K D^1/2 of every class with a unit diagonal, its scale, and the diagonal that it had.

    (K + D^-1)^-1 = D^1/2 B^-1 D^1/2 is the inverse of the first, times the scale from both sides.
    """
    d = _diagonal(labels, pi)
    diagonal = 1.0 + d * np.diagonal(labels.covariance, axis1=1, axis2=2)[:, None]
    scale, places = np.sqrt(d / diagonal), np.arange(d.shape[-1])
    scaled = scale[..., :, None] * labels.covariance[:, None] * scale[..., None, :]
    scaled[..., places, places] = 1.0
    return scaled, scale, diagonal


def _sum_of(parts: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sum_c E_c, one for padding, with a unit diagonal, and the roots of the diagonal that it had."""
    total, places = parts.sum(axis=1), np.arange(parts.shape[-1])
    total[..., places, places] += 1.0 - mask
    size = np.sqrt(total[..., places, places])
    return total / (size[..., :, None] * size[..., None, :]), size


def _root_of_sum(parts: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return L with L L' = (sum_c E_c)^-1."""
    total, size = _sum_of(parts, mask)
    return np.swapaxes(triangular_inverses(stable_cholesky(total)), 1, 2) / size[..., None]


def precision_roots(labels: Labels, t: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return V_c with V_c' V_c = E_c at t, (tasks, classes, n, n), and the root L of `Curvature`.

    What a sample explains of a variance is known more exactly from these than from E_c itself, if K is large.
    """
    scaled, scale, _ = _scaled(labels, softmax(labels, t))
    inverses = triangular_inverses(stable_cholesky(scaled))
    inverses *= scale[..., None, :]
    if labels.is_binary:
        return inverses, None
    return inverses, _root_of_sum(np.swapaxes(inverses, 2, 3) @ inverses, labels.mask)


def find_modes(labels: Labels, mean: np.ndarray, start: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
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


def _first_step(labels: Labels, mean: np.ndarray) -> np.ndarray:
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


def _chord(labels: Labels, found: Curvature, mean: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Take steps from near the mode with a curvature that was found nearby: a cheap end of Newton's method."""
    new = a
    for _ in range(CHORD_STEPS):
        new = new + found.newton(labels, labels.y - softmax(labels, mean + labels.deviation(new)) - new)
    return np.where(np.isfinite(new), new, a)


def _backtrack(
    labels: Labels, mean: np.ndarray, a: np.ndarray, step: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
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
