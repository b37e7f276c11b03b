"""Small tasks with categories and covariates, and the covariances of the linear family written out."""

import numpy as np

from metaprior.prior.terms import COMMON_STD
from metaprior.tasks.types import Task

IS_TARGET = np.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
NOISE = 0.3


def make_tasks(n=6, seed=0):
    """Draw tasks whose readings depend on a number, a category and a covariate."""
    rng, tasks = np.random.default_rng(seed), []
    for i in range(n):
        m, age, unit = 3 + i % 4, rng.normal(), float(rng.integers(3))
        x = np.column_stack([rng.normal(size=m), rng.integers(2, size=m), np.full(m, age), np.full(m, unit)])
        tasks.append(Task(x, x[:, 0] + 0.5 * x[:, 1] + age + rng.normal() + NOISE * rng.normal(size=m)))
    return tasks


def common_kernel(prior, left, right):
    """Covariance of the common mean of the linear family, written out: line, levels, covariates and their products."""
    layout, theta = prior.terms.layout, prior.terms.theta
    number, level, z = slice(0, 1), slice(1, 4), slice(4, 11)
    shift = np.repeat(layout.scale(theta, "shift"), (2, 5))
    total = COMMON_STD**2 * (1.0 + left[:, number] @ right[:, number].T)
    total = total + layout.scale(theta, "levels")[0] ** 2 * left[:, level] @ right[:, level].T
    total = total + (left[:, z] * shift**2) @ right[:, z].T
    if layout.has("bend"):
        bend = np.array([1, 0, 1, 1, 1, 0, 0]) * np.repeat(layout.scale(theta, "bend"), (2, 5))
        total = total + ((left[:, z] * bend**2) @ right[:, z].T) * (left[:, number] @ right[:, number].T)
    if layout.has("curved"):
        total = total + layout.scale(theta, "curved")[0] ** 2 * curve_kernel(left[:, 4:6], right[:, 4:6])
    return total


def curve_kernel(left, right):
    """Covariance of a curve along a covariate (value, missing): an RBF through seven points, less its average."""
    points = np.linspace(-2.4, 2.4, 7)
    between = np.exp(-0.5 * (points[:, None] - points) ** 2)
    values, vectors = np.linalg.eigh(between)
    inverse = (vectors[:, 2:] / values[2:]) @ vectors[:, 2:].T
    grid = np.linspace(-9, 9, 20_001)
    weights = np.exp(-0.5 * grid**2) / np.exp(-0.5 * grid**2).sum()
    averages = weights @ np.exp(-0.5 * (grid[:, None] - points) ** 2)
    sides = [(np.exp(-0.5 * (z[:, :1] - points) ** 2) - averages) * (1.0 - z[:, 1:]) for z in (left, right)]
    return sides[0] @ inverse @ sides[1].T + left[:, 1:] @ right[:, 1:].T


def own_kernel(prior, left, right):
    """Covariance of a task around the common mean of the linear family."""
    intercept, slope, levels = prior.terms.layout.scale(prior.terms.theta, "line") ** 2
    return intercept + slope * left[:, :1] @ right[:, :1].T + levels * left[:, 1:4] @ right[:, 1:4].T
