"""Small tasks with labels, and Laplace's approximation of them by dense algebra."""

import itertools
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.optimize import minimize
from scipy.special import logsumexp

from metaprior.likelihoods.softmax import Labels
from metaprior.prior.label_evidence import LabelBlock


def make_block(seed=0, sizes=(6, 6, 4), n_classes=(3, 3, 3), n_features=0, scale=2.0, counts=None, n=None):
    """Tasks of the given sizes and numbers of classes, padded to the largest; K is `scale` times a smooth kernel."""
    rng, n, most = np.random.default_rng(seed), n or max(sizes), max(n_classes)
    x = rng.normal(size=(len(sizes), n, 2))
    mask = (np.arange(n) < np.array(sizes)[:, None]).astype(float)
    both = mask[:, :, None] * mask[:, None]
    covariance = scale * both * kernel(x, x) + 1e-3 * scale * both * np.eye(n)
    codes = rng.integers(0, 2**31, (len(sizes), n)) % np.array(n_classes)[:, None]
    features = rng.normal(size=(len(sizes), n, n_features)) * mask[..., None]
    labels = Labels.of(codes, mask, np.array(n_classes), most, covariance)
    return LabelBlock(labels, features, np.ones(len(sizes)) if counts is None else np.array(counts))


def kernel(x, other):
    """Return exp(-|x - x'|^2 / 2)."""
    return np.exp(-0.5 * np.sum((x[..., :, None, :] - other[..., None, :, :]) ** 2, axis=-1))


class Task(NamedTuple):
    """One task without padding. Latent functions are vectors, class after class.

    With a single row the first of two classes has a latent function of zero.
    """

    y: np.ndarray  # (classes, n)
    possible: np.ndarray  # (classes,)
    covariance: np.ndarray  # (classes n, classes n)
    features: np.ndarray  # (classes n, classes p)
    count: float

    def log_likelihood(self, t):
        return np.sum(self.y.ravel() * t.ravel()) - np.sum(logsumexp(self.of_all(t), axis=0))

    def probabilities(self, t):
        t = self.of_all(t)
        return np.exp(t - logsumexp(t, axis=0))[-len(self.y) :]

    def of_all(self, t):
        """The latent functions of all classes, (classes, n)."""
        t = np.where(self.possible[:, None], t.reshape(self.y.shape), -np.inf)
        return t if len(t) > 1 else np.pad(t, [(1, 0), (0, 0)])

    def curvature(self, t):
        """W, with -d^2 log p(y | t) of every sample in its place."""
        pi = self.probabilities(t)
        n = pi.shape[1]
        return np.diag(pi.ravel()) - np.einsum("ci,dj,ij->cidj", pi, pi, np.eye(n)).reshape(pi.size, pi.size)


def as_tasks(block):
    """Return the tasks of a block, without their padding."""
    tasks, n_classes = [], block.labels.y.shape[1]
    for y, possible, mask, covariance, features, count in zip(*block.labels, *block[1:], strict=True):
        kept, identity = mask > 0, np.eye(n_classes)
        dense = np.kron(identity, covariance[kept][:, kept]), np.kron(identity, features[kept])
        tasks.append(Task(y[:, kept], possible, *dense, count))
    return tasks


class Dense(NamedTuple):
    """Laplace's approximation around the joint mode of m and all latent functions."""

    value: float
    weights: np.ndarray  # m, (classes p,)
    precision: np.ndarray  # P, (classes p, classes p)
    latent: list[np.ndarray]  # t of every task, (classes n,)


def dense_evidence(tasks):
    """Maximize psi over m and u, where t = F m + L u, and compute J from its dense Hessian."""
    n_weights = tasks[0].features.shape[1]
    roots = [np.linalg.cholesky(task.covariance) for task in tasks]
    maps = [np.concatenate([task.features, root], axis=1) for task, root in zip(tasks, roots, strict=True)]
    ends = n_weights + np.cumsum([0, *map(len, roots)])

    def latent(v):
        inner = [np.append(v[:n_weights], v[a:b]) for a, b in itertools.pairwise(ends)]
        return [to_latent @ each for to_latent, each in zip(maps, inner, strict=True)]

    weights = np.concatenate([np.ones(n_weights), *(np.full(len(t.covariance), t.count) for t in tasks)])

    def psi(v):
        terms = [task.count * task.log_likelihood(t) for task, t in zip(tasks, latent(v), strict=True)]
        return sum(terms) - 0.5 * np.sum(weights * v**2)

    def gradient(v):
        slope = -weights * v
        for i, (task, t) in enumerate(zip(tasks, latent(v), strict=True)):
            pulled = task.count * maps[i].T @ (task.y - task.probabilities(t)).ravel()
            slope[:n_weights] += pulled[:n_weights]
            slope[ends[i] : ends[i + 1]] += pulled[n_weights:]
        return slope

    def hessian(v):
        total = np.diag(weights)
        for i, (task, t) in enumerate(zip(tasks, latent(v), strict=True)):
            places = np.append(np.arange(n_weights), np.arange(ends[i], ends[i + 1]))
            total[np.ix_(places, places)] += task.count * maps[i].T @ task.curvature(t) @ maps[i]
        return total

    found = minimize(
        lambda v: -psi(v), np.zeros(ends[-1]), jac=lambda v: -gradient(v), hess=hessian, method="trust-exact",
        options={"gtol": 1e-10},
    )  # fmt: skip
    v = found.x - np.linalg.solve(hessian(found.x), -gradient(found.x))  # the optimizer stops at rounding of psi
    whole, value = hessian(v), psi(v)
    inner = block_diag(*(whole[a:b, a:b] for a, b in itertools.pairwise(ends)))
    across = whole[:n_weights, n_weights:]
    precision = whole[:n_weights, :n_weights] - across @ np.linalg.solve(inner, across.T)
    for task, a, b in zip(tasks, ends[:-1], ends[1:], strict=True):
        value -= 0.5 * task.count * np.linalg.slogdet(whole[a:b, a:b] / task.count)[1]
    return Dense(value - 0.5 * np.linalg.slogdet(precision)[1], v[:n_weights], precision, latent(v))
