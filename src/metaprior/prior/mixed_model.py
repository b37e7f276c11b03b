"""An ordinary linear mixed model, by restricted maximum likelihood (REML).

Fixed effects are linear in the inputs and covariates. Every task has a random intercept and random slopes of the
numbers among its inputs, which are correlated if these are up to `MAX_CORRELATED`, and one noise is common to all: what
lme4 calls y ~ x + (1 + x | task). It is the linear family with correlated lines. Integrating the fixed effects out of
the evidence under a flat prior gives the restricted likelihood; here their prior is N(0, 9) in standardized units, and
the hyper-prior of variances and correlations counts a hundredth of that of the families.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from metaprior.prior.blocks import Block
from metaprior.prior.collapse import collapse
from metaprior.prior.columns import Columns
from metaprior.prior.families import NO_COVARIATES, TrainingTasks
from metaprior.prior.fitted import FittedTerms, Prior, noise_parameters
from metaprior.prior.layout import Layout
from metaprior.prior.modes import climb, log_density
from metaprior.prior.process import NOISE_FLOOR, with_ones
from metaprior.prior.terms import Line, Shift
from metaprior.tasks.padding import group_by_size, pad_to
from metaprior.tasks.types import Task

VAGUE = 0.01  # how much the hyper-prior counts: enough for a mode where the likelihood has none


class Rotated(NamedTuple):
    """Tasks whose readings were rotated, so that most of them are noise alone and can be left out."""

    blocks: list[Block]
    n_left_out: float  # readings of noise alone, counted as the tasks are


def fit_mixed_model(training: TrainingTasks, noise_std: float | None, covariates: str = NO_COVARIATES) -> Prior:
    """Fit the model; raise LinAlgError if it cannot be fitted.

    `noise_std` is given in the units of y, or learned if None. `covariates` says if those of tasks shift the mean.
    """
    scaling = training.scaling
    columns = Columns.of(training.tasks[0].x.shape[1], scaling.kinds)
    log_noise = None if noise_std is None else float(np.log(noise_std / scaling.y_std))
    terms = (Line(correlated=True), *((Shift(),) if covariates != NO_COVARIATES else ()))
    layout = Layout(terms, columns, log_noise)
    rotated, points = rotate(training.tasks, training.counts, columns.n_inputs), np.zeros((1, columns.n_inputs))
    mode = climb(layout, lambda theta, gradient: restricted_likelihood(layout, theta, rotated, gradient))
    if not (np.isfinite(mode.value) and np.isfinite(mode.theta).all()):
        raise np.linalg.LinAlgError("the mixed model has no finite mode")
    prior = layout.at(mode.theta, points)
    collapsed = collapse([prior.on(block).given() for block in rotated.blocks])
    given = scaling, layout, mode.theta, points, collapsed.mean, collapsed.root
    noise = noise_parameters(layout.noise_variance(mode.theta), scaling)
    return Prior(FittedTerms(*given, counts=training.of_environment), training.likelihood, noise)


def restricted_likelihood(
    layout: Layout, theta: np.ndarray, rotated: Rotated, gradient: bool = True
) -> tuple[float, np.ndarray]:
    """Return the logarithm of the restricted likelihood, with a vague hyper-prior, and its derivative by theta."""
    found = log_density(layout, theta, rotated.blocks, np.zeros((1, layout.columns.n_inputs)), gradient)
    z = (theta - layout.center) / layout.spread
    slope = found.slope + (1.0 - VAGUE) * z / layout.spread
    noise = layout.noise_variance(theta)
    value = found.value + 0.5 * (1.0 - VAGUE) * float(z @ z) - 0.5 * rotated.n_left_out * np.log(noise + NOISE_FLOOR)
    if layout.log_noise is None:
        slope[layout.places["noise"]] -= rotated.n_left_out * noise / (noise + NOISE_FLOOR)
    return value, slope


def rotate(tasks: Sequence[Task], counts: np.ndarray, input_dim: int) -> Rotated:
    """Rotate the readings of every task so that all but the first few have a mean of zero and noise alone.

    Effects are linear in the k columns of (1, x, z), and noise is the same in all directions: if (1, x, z, y) = Q R,
    the k + 1 rows of R say as much as all readings.
    """
    blocks, n_left_out = [], 0.0
    for size, members in group_by_size(np.array([len(task.y) for task in tasks]), 3):
        x, y, mask = pad_to([tasks[i] for i in members.tolist()], size, np.float64)
        real = mask.astype(np.float64)
        rows = np.concatenate([with_ones(x) * real[..., None], (y * real)[..., None]], axis=-1)
        if size > rows.shape[-1]:
            rows = np.asarray(np.linalg.qr(rows, mode="r"))
        n, some = rows.shape[1], counts[members]
        n_left_out += float(some @ (real.sum(axis=1) - n))  # less than zero where padding counts as readings
        ones, none = np.ones(rows.shape[:2]), np.zeros((*rows.shape[:2], 0, 1))
        given = rows[..., 1:-1], rows[..., -1], ones, some, np.zeros(len(members))
        blocks.append(Block(*given, rows[..., : 1 + input_dim], none, none))
    return Rotated(blocks, n_left_out)
