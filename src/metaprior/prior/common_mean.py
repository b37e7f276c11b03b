"""The prior of the common curve, checked against what the mean predicts of tasks that it has not seen.

The evidence tells little about a curve that all tasks share: their own deviations can explain the same readings. So it
may shrink the common curve to a flat line although the average of the tasks is far from one. Readings of a new task
hide this, but without any it is predicted by the common mean alone. Groups of tasks are therefore left out in turn. If
that predicts them better, the prior of the common curve is made wider, and its length scales those of the
tasks' own curves: then the common mean is about the average of these.
"""

from collections.abc import Sequence

import numpy as np

from metaprior.prior.blocks import Block
from metaprior.prior.collapse import Gaussians
from metaprior.prior.modes import Mode

SCALES = (1.0, 2.0, 4.0, 8.0)  # times that of the common curve
N_GROUPS = 10  # of tasks, each left out once


def checked_theta(
    mode: Mode,
    own_lengths: np.ndarray,
    blocks: Sequence[Block],
    given: Sequence[Gaussians],
    precisions: Sequence[np.ndarray],
    points: np.ndarray,
) -> np.ndarray:
    """Return theta with another prior of the common curve if tasks that are left out ask for it.

    `own_lengths` are the logarithms of the length scales of the tasks' own curves, `precisions` the inverse covariances
    of their readings.
    """
    layout, counts = mode.layout, np.concatenate([block.counts for block in given])
    if len(counts) < 2:
        return mode.theta
    choices, errors = [], []
    for lengths in (mode.theta[layout.places["mean_lengths"]], own_lengths):
        for scale in SCALES:
            theta = mode.theta.copy()
            theta[layout.places["mean"]] += np.log(scale)
            theta[layout.places["mean_lengths"]] = lengths
            prior = layout.at(theta, points)
            features = [prior.on(block).features for block in blocks]
            pairs = zip(given, features, strict=True)
            choices.append(theta)
            errors.append(left_out_errors([each._replace(features=f) for each, f in pairs], blocks, precisions))
    return choices[int(np.argmin(np.array(errors) @ counts))]


def left_out_errors(
    given: Sequence[Gaussians], blocks: Sequence[Block], precisions: Sequence[np.ndarray]
) -> np.ndarray:
    """Return the root mean squared error of the mean for every task, learned without the group it is in, (tasks,)."""
    information, linear = [], []
    for each, precision in zip(given, precisions, strict=True):
        solved = each.counts[:, None, None] * (precision @ each.features)
        information.append(np.swapaxes(each.features, 1, 2) @ solved)
        linear.append((each.y[:, None] @ solved)[:, 0])
    of_tasks, of_readings = np.concatenate(information), np.concatenate(linear)
    n_tasks = len(of_tasks)
    groups = np.eye(min(n_tasks, N_GROUPS))[np.arange(n_tasks) % N_GROUPS]
    left = np.eye(of_tasks.shape[1]) + of_tasks.sum(axis=0) - np.tensordot(groups, of_tasks, axes=(0, 0))
    weights = groups @ np.linalg.solve(left, (of_readings.sum(axis=0) - groups.T @ of_readings)[..., None])[..., 0]
    ends = np.cumsum([len(each.y) for each in given])
    errors = []
    for each, block, own in zip(given, blocks, np.split(weights, ends[:-1]), strict=True):
        off = (each.y - (each.features @ own[..., None])[..., 0]) * block.mask
        errors.append(np.sqrt(np.sum(off**2, axis=1) / np.maximum(block.mask.sum(axis=1), 1.0)))
    return np.concatenate(errors)
