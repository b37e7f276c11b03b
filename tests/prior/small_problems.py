"""Small tasks and layouts that the tests of priors share."""

import numpy as np

from hand_made_priors import make_curve
from metaprior.prior.blocks import make_blocks, place_points
from metaprior.prior.columns import Columns
from metaprior.prior.features import draw_network, with_features
from metaprior.prior.layout import Layout
from metaprior.prior.modes import with_curve
from metaprior.prior.terms import N_FEATURES
from metaprior.tasks.categories import ColumnKinds
from metaprior.tasks.types import Task

SIZES = (1, 3, 7, 2, 3, 6)
COUNTS = np.array([1.0, 0.4, 1.0, 2.5, 0.1, 1.0])
IS_TARGET = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
KINDS = ColumnKinds((0, 2, 0, 3), (2, 3))  # inputs: a number, a category; covariates: a number, a category
MIXED = Columns.of(4, KINDS, True)


def as_columns(columns):
    return columns if isinstance(columns, Columns) else Columns(columns)


def make_tasks(columns, sizes=SIZES, seed=0):
    """Tasks of several sizes; those of two and more readings have two at the same inputs."""
    rng, columns = np.random.default_rng(seed), as_columns(columns)
    tasks = []
    for size in sizes:
        x = rng.normal(size=(size, columns.n_inputs))
        x[-1] = x[0]
        y = np.sin(2.0 * x[:, 0]) + x.sum(axis=1) * rng.normal(0.3, 0.2) + rng.normal(0.0, 0.3)
        y = y + 0.2 * rng.normal(size=size)
        covariates = np.repeat(rng.normal(size=(1, sum(columns.covariates))), size, axis=0)
        tasks.append(Task(np.concatenate([x, covariates], axis=1), y))
    return tasks


def make_theta(layout, seed=0):
    """Draw theta near its hyper-prior mean."""
    return layout.center + 0.3 * layout.spread * np.random.default_rng(seed).normal(size=len(layout.center))


def make_problem(terms, columns, log_noise=None, tasks=None, counts=COUNTS, is_target=IS_TARGET, max_blocks=3):
    """Return the layout, theta, blocks and inducing points of a small problem."""
    columns = as_columns(columns)
    points = place_points(make_tasks(columns), columns.n_inputs)
    layout = Layout(terms, columns, log_noise)
    given = make_tasks(columns) if tasks is None else tasks, counts, is_target
    return layout, make_theta(layout), blocks_of(layout, points, *given, max_blocks), points


def blocks_of(layout, points, tasks, counts, is_target, max_blocks=3):
    """Return tasks in blocks, with a common curve and features if terms need them."""
    blocks = make_blocks(tasks, counts, is_target, points, layout.columns, max_blocks)
    if layout.has("deformation"):
        blocks = with_curve(blocks, make_curve(np.random.default_rng(0), points, layout.columns), layout)
    if layout.has("features"):
        blocks = with_features(blocks, draw_network(layout.columns.n_inputs, N_FEATURES))
    return blocks
