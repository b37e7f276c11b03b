"""Laplace's approximation for tasks of any number of classes, given their prior means and covariances.

Class c of a task has a latent function t_c with mean mu_c and covariance K, the same for all classes, and
p(y = c | t) = softmax(t)_c. The log posterior log p(y | t) - (t - mu)' K^-1 (t - mu) / 2 is concave. At its mode
t = mu + K a with a = y - pi, and W = diag(pi) - pi pi' takes the place of the precision of Gaussian noise. Its algebra
is that of Rasmussen and Williams (2006), algorithm 3.3: with D_c = diag(pi_c) and E_c = (K + D_c^-1)^-1,

    R = (K + W^-1)^-1 = E - E (sum_c E_c)^-1 E    and    |I + K W| = |sum_c E_c| prod_c |I + K D_c|.

Two classes give the logistic model, with the covariance 2 K of t_2 - t_1.
"""

from typing import NamedTuple

import numpy as np

from metaprior.hierarchical.small_matrices import log_sum_exp

MAX_STEPS = 100
MAX_HALVINGS = 40
TOLERANCE = 1e-11  # of the log posterior, relative: the latent functions are then known to about its root


class Labels(NamedTuple):
    """The labels of a block of tasks, and the covariance of their latent functions."""

    y: np.ndarray  # (tasks, classes, n), one where the sample is of the class; zero for padding
    possible: np.ndarray  # (tasks, classes): which classes a task has
    mask: np.ndarray  # (tasks, n), 1.0 where there is a sample
    covariance: np.ndarray  # K, (tasks, n, n)

    def take(self, tasks: np.ndarray) -> "Labels":
        """Return some of the tasks."""
        return Labels(*(part[tasks] for part in self))

    def deviation(self, a: np.ndarray) -> np.ndarray:
        """Return K a, for a (tasks, classes, n)."""
        return a @ self.covariance  # which is symmetric

    def log_posterior(self, a: np.ndarray, t: np.ndarray, deviation: np.ndarray) -> np.ndarray:
        """Return log p(y | t) - (t - mu)' K^-1 (t - mu) / 2 of every task, with t - mu = K a."""
        total = log_sum_exp(np.where(self.possible[:, :, None], t, -np.inf), axis=1)
        likelihood = np.sum(self.y * t, axis=(1, 2)) - np.sum(self.mask * total, axis=1)
        return likelihood - 0.5 * np.sum(a * deviation, axis=(1, 2))


class Curvature(NamedTuple):
    """W of a block of tasks, and R."""

    probabilities: np.ndarray  # pi, (tasks, classes, n); zero for padding
    parts: np.ndarray  # E_c, (tasks, classes, n, n)
    inverse_sum: np.ndarray  # (sum_c E_c)^-1, (tasks, n, n)
    log_determinant: np.ndarray  # log |I + K W|, (tasks,)

    @classmethod
    def at(cls, labels: Labels, t: np.ndarray) -> "Curvature":
        """Compute W at the latent functions t."""
        pi, diagonal = softmax(labels, t), np.arange(t.shape[-1])
        root = np.sqrt(pi)
        scaled = root[..., :, None] * labels.covariance[:, None] * root[..., None, :]
        scaled[..., diagonal, diagonal] += 1.0
        parts = root[..., :, None] * np.linalg.inv(scaled) * root[..., None, :]
        total = parts.sum(axis=1)
        total[..., diagonal, diagonal] += 1.0 - labels.mask
        log_determinant = np.linalg.slogdet(scaled)[1].sum(axis=1) + np.linalg.slogdet(total)[1]
        return cls(pi, parts, np.linalg.inv(total), log_determinant)

    def times(self, v: np.ndarray) -> np.ndarray:
        """Return W v, for v (tasks, classes, n)."""
        weighted = self.probabilities * v
        return weighted - self.probabilities * weighted.sum(axis=1, keepdims=True)

    def precision(self, v: np.ndarray) -> np.ndarray:
        """Return R v, for v (tasks, classes, n, columns)."""
        first = self.parts @ v
        return first - self.parts @ (self.inverse_sum @ first.sum(axis=1))[:, None]

    def newton(self, labels: Labels, target: np.ndarray) -> np.ndarray:
        """Return (I + W K)^-1 v = v - R K v, for v (tasks, classes, n)."""
        return target - self.precision(labels.deviation(target)[..., None])[..., 0]


def softmax(labels: Labels, t: np.ndarray) -> np.ndarray:
    """Return class probabilities (tasks, classes, n); zero for padding."""
    t = np.where(labels.possible[:, :, None], t, -np.inf)
    relative = np.exp(t - t.max(axis=1, keepdims=True))
    return relative / relative.sum(axis=1, keepdims=True) * labels.mask[:, None]


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
