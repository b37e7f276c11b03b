"""Laplace's approximation for tasks of any number of classes, given their prior means and covariances.

Class c of a task has a latent function t_c with mean mu_c and covariance K, the same for all classes, and
p(y = c | t) = softmax(t)_c. The log posterior log p(y | t) - (t - mu)' K^-1 (t - mu) / 2 is concave. At its mode
t = mu + K a with a = y - pi, and W = diag(pi) - pi pi' takes the place of the precision of Gaussian noise. Its algebra
is that of Rasmussen and Williams (2006), algorithm 3.3: with D_c = diag(pi_c) and E_c = (K + D_c^-1)^-1,

    R = (K + W^-1)^-1 = E - E (sum_c E_c)^-1 E    and    |I + K W| = |sum_c E_c| prod_c |I + K D_c|.

Two classes give the logistic model for t = t_2 - t_1, whose covariance is 2 K: W = pi_1 pi_2 and R = (2 K + W^-1)^-1.
That is a third of the work, and is how tasks of two classes are computed. Their arrays have one row, that of t.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import expit

from metaprior.hierarchical.small_matrices import log_sum_exp

MAX_STEPS = 100
MAX_HALVINGS = 40
TOLERANCE = 1e-11  # of the log posterior, relative: the latent functions are then known to about its root


class Labels(NamedTuple):
    """The labels of a block of tasks, and the covariance of their latent functions."""

    y: np.ndarray  # (tasks, classes, n), one where the sample is of the class; zero for padding
    possible: np.ndarray  # (tasks, classes): which classes a task has
    mask: np.ndarray  # (tasks, n), 1.0 where there is a sample
    covariance: np.ndarray  # K, or 2 K for two classes, (tasks, n, n)

    @classmethod
    def of(cls, y: np.ndarray, mask: np.ndarray, n_classes: np.ndarray, most: int, covariance: np.ndarray) -> "Labels":
        """Make them from classes 0, 1, ... (tasks, n) of tasks with some numbers of classes, at most `most`; and K."""
        one_hot = (y[:, None] == np.arange(most)[:, None]) * mask[:, None]
        if most == 2:
            return cls(one_hot[:, 1:], np.ones((len(y), 1), bool), mask, 2.0 * covariance)
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
        root = np.sqrt(pi * (labels.mask[:, None] - pi) if labels.is_binary else pi)
        parts = root[..., :, None] * np.linalg.inv(_identity_plus(root, labels)) * root[..., None, :]
        if labels.is_binary:
            return cls(pi, parts, None)
        return cls(pi, parts, np.linalg.cholesky(np.linalg.inv(_sum_of(parts, labels.mask))))

    def log_determinant(self, labels: Labels) -> np.ndarray:
        """Return log |I + K W| of every task."""
        pi = self.probabilities
        root = np.sqrt(pi * (labels.mask[:, None] - pi) if labels.is_binary else pi)
        of_parts = np.linalg.slogdet(_identity_plus(root, labels))[1].sum(axis=1)
        return of_parts if labels.is_binary else of_parts + np.linalg.slogdet(_sum_of(self.parts, labels.mask))[1]

    def times(self, v: np.ndarray) -> np.ndarray:
        """Return W v, for v (tasks, classes, n)."""
        weighted = self.probabilities * v
        return weighted - self.probabilities * weighted.sum(axis=1, keepdims=True)

    def precision(self, v: np.ndarray) -> np.ndarray:
        """Return R v, for v (tasks, classes, n, columns)."""
        first = self.parts @ v
        if self.root_sum is None:
            return first
        shared = self.root_sum @ (np.swapaxes(self.root_sum, 1, 2) @ first.sum(axis=1))
        return first - self.parts @ shared[:, None]

    def newton(self, labels: Labels, target: np.ndarray) -> np.ndarray:
        """Return (I + W K)^-1 v = v - R K v, for v (tasks, classes, n)."""
        return target - self.precision(labels.deviation(target)[..., None])[..., 0]


def softmax(labels: Labels, t: np.ndarray) -> np.ndarray:
    """Return class probabilities (tasks, classes, n), of the second class if there are two; zero for padding."""
    if labels.is_binary:
        return expit(t) * labels.mask[:, None]
    t = np.where(labels.possible[:, :, None], t, -np.inf)
    relative = np.exp(t - t.max(axis=1, keepdims=True))
    return relative / relative.sum(axis=1, keepdims=True) * labels.mask[:, None]


def _identity_plus(root: np.ndarray, labels: Labels) -> np.ndarray:
    """Return I + D^1/2 K D^1/2 of every class, given D^1/2."""
    scaled = root[..., :, None] * labels.covariance[:, None] * root[..., None, :]
    diagonal = np.arange(scaled.shape[-1])
    scaled[..., diagonal, diagonal] += 1.0
    return scaled


def _sum_of(parts: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return sum_c E_c, one for padding."""
    total, diagonal = parts.sum(axis=1), np.arange(parts.shape[-1])
    total[..., diagonal, diagonal] += 1.0 - mask
    return total


def find_modes(labels: Labels, mean: np.ndarray, start: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return a of every task at its mode, and which have converged, by Newton's method with backtracking.

    `mean` is mu, (tasks, classes, n). Tasks that have converged are left alone.
    """
    a = np.zeros(labels.y.shape) if start is None else start.copy()
    converged, left = np.zeros(len(a), bool), np.arange(len(a))
    for _ in range(MAX_STEPS):
        some, mu, here = labels.take(left), mean[left], a[left]
        deviation = some.deviation(here)
        t = mu + deviation
        found = Curvature.at(some, t)
        target = found.times(deviation) + some.y - found.probabilities
        step = found.newton(some, target) - here
        value = some.log_posterior(here, t, deviation)
        a[left], after = _backtrack(some, mu, here, step, value)
        done = after - value <= TOLERANCE * (1.0 + np.abs(value))
        converged[left[done]] = True
        left = left[~done]
        if not len(left):
            break
    return a, converged


def _backtrack(
    labels: Labels, mean: np.ndarray, a: np.ndarray, step: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Halve the steps of tasks until none loses more than rounding; return the new a and log posteriors."""
    fraction, along = np.ones(len(a)), labels.deviation(step)
    deviation = labels.deviation(a)
    for _ in range(MAX_HALVINGS):
        new, moved = a + fraction[:, None, None] * step, deviation + fraction[:, None, None] * along
        after = labels.log_posterior(new, mean + moved, moved)
        worse = ~(after >= value - TOLERANCE * (1.0 + np.abs(value)))  # NaN is worse too
        if not worse.any():
            return new, after
        fraction[worse] *= 0.5
    stay = worse[:, None, None]
    return np.where(stay, a, new), np.where(worse, value, after)
