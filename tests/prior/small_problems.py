"""Small tasks and layouts that the tests of hierarchical priors share."""

from itertools import product

import numpy as np

from metaprior.prior.blocks import make_blocks, place_points
from metaprior.prior.features import draw_network, with_features
from metaprior.prior.layout import Layout, Parts
from metaprior.prior.modes import CommonCurve, with_curve
from metaprior.tasks.types import Task

FEATURES = [Parts(smooth=True, features=True, environment=own) for own in (False, True)]
CORRELATED = [Parts(correlated=True), Parts(smooth=True, curve=True, environment=True, correlated=True)]
ALL_PARTS = [Parts(*flags) for flags in product([False, True], repeat=3)] + FEATURES + CORRELATED
SIZES = (1, 3, 7, 2, 3, 6)
COUNTS = np.array([1.0, 0.4, 1.0, 2.5, 0.1, 1.0])
IS_TARGET = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])


def make_tasks(input_dim, sizes=SIZES, seed=0):
    """Tasks of several sizes; those of two and more readings have two at the same inputs."""
    rng = np.random.default_rng(seed)
    tasks = []
    for size in sizes:
        x = rng.normal(size=(size, input_dim))
        x[-1] = x[0]
        y = np.sin(2.0 * x[:, 0]) + x.sum(axis=1) * rng.normal(0.3, 0.2) + rng.normal(0.0, 0.3)
        tasks.append(Task(x, y + 0.2 * rng.normal(size=size)))
    return tasks


def make_theta(layout, seed=0):
    """Draw theta near its hyper-prior mean."""
    return layout.center + 0.3 * layout.spread * np.random.default_rng(seed).normal(size=len(layout.center))


def make_curve(points, seed=0):
    rng = np.random.default_rng(seed)
    input_dim = points.shape[1]
    lengths = np.exp(0.3 * rng.normal(size=input_dim if input_dim <= 6 else 1))
    return CommonCurve(rng.normal(size=1 + input_dim), rng.normal(size=len(points)), points, lengths)


def make_problem(parts, input_dim, log_noise=None, tasks=None, counts=COUNTS, is_target=IS_TARGET, max_blocks=3):
    """Return the layout, theta, blocks and inducing points of a small problem."""
    tasks = make_tasks(input_dim) if tasks is None else tasks
    points = place_points(make_tasks(input_dim))
    layout = Layout(parts, input_dim, log_noise)
    blocks = make_blocks(tasks, counts, is_target, points, max_blocks)
    if parts.curve:
        blocks = with_curve(blocks, make_curve(points), layout.n_curve)
    if parts.features:
        blocks = with_features(blocks, draw_network(input_dim, layout.n_features))
    return layout, make_theta(layout), blocks, points
