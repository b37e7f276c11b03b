"""Tasks that vary more or less than others: the scale of a task is a factor of its own.

The factor multiplies the noise of a task, or its noise and its smooth deviation, whichever explains the tasks better.
Its logarithm is normal between tasks, with a mean and a spread that are learned. It is integrated out on a few nodes,
so that a task is a mixture of Gaussians whose weights follow from its readings.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from metaprior.linalg import log_sum_exp
from metaprior.prior.collapse import Collapsed, Gaussians

GRID = np.arange(-3.0, 3.01, 0.5)  # log factors at which tasks are compared
SPREADS = np.array([0.05, 0.2, 0.35, 0.5, 0.7, 0.9, 1.2])
SHIFTS = np.arange(-1.5, 0.76, 0.25)
SPREAD_SCALE, SHIFT_SCALE = 0.5, 0.5  # standard deviations of their normal hyper-priors
NODES = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])  # of the mixture, in spreads


class TaskScales(NamedTuple):
    """The distribution of the factor between tasks, on nodes."""

    factors: np.ndarray  # (nodes,), of standard deviations
    log_weights: np.ndarray  # (nodes,)
    noise_only: bool  # else the factor multiplies the smooth deviation too


ONE_SCALE = TaskScales(np.ones(1), np.zeros(1), True)


def learn_scales(
    blocks: Sequence[Gaussians],
    lines: Sequence[np.ndarray],
    masks: Sequence[np.ndarray],
    collapsed: Collapsed,
    noise_variance: float,
    noise_only: bool | None = None,
) -> TaskScales:
    """Return the distribution of the factor; a single one if tasks do not differ.

    `lines` are roots of the parts of the covariances that the factor never multiplies, (tasks, n, functions). The
    mean's weights are at their posterior. `noise_only` says what the factor multiplies; None compares both.
    """
    counts = np.concatenate([block.counts for block in blocks])
    found = []
    for kind in (True, False) if noise_only is None else (noise_only,):
        parts = []
        try:
            for block, line, mask in zip(blocks, lines, masks, strict=True):
                scaled = _noise(mask, noise_variance) if kind else block.covariance - line @ np.swapaxes(line, 1, 2)
                root = block.features @ collapsed.root
                fixed = block.covariance - scaled + root @ np.swapaxes(root, 1, 2)
                parts.append(_evidence(fixed, scaled, block.y - block.features @ collapsed.mean, mask))
        except np.linalg.LinAlgError:  # lines so large that what they leave is lost to rounding
            continue
        found.append(_best(np.concatenate(parts, axis=1), counts, kind))
    return max(found, key=lambda pair: pair[0])[1] if found else ONE_SCALE


def _noise(mask: np.ndarray, noise_variance: float) -> np.ndarray:
    return (mask * noise_variance + (1.0 - mask))[..., None] * np.eye(mask.shape[1])


def _best(evidence: np.ndarray, counts: np.ndarray, noise_only: bool) -> tuple[float, TaskScales]:
    spread, shift = (grid.ravel() for grid in np.meshgrid(SPREADS, SHIFTS, indexing="ij"))
    log_weights = -0.5 * ((GRID - shift[:, None]) / spread[:, None]) ** 2
    log_weights -= log_sum_exp(log_weights, axis=1)[:, None]
    mixed = log_sum_exp(log_weights[:, :, None] + evidence, axis=1) @ counts
    values = mixed - 0.5 * (spread / SPREAD_SCALE) ** 2 - 0.5 * (shift / SHIFT_SCALE) ** 2
    best = int(np.argmax(values))
    if spread[best] == SPREADS[0]:
        return float(values[best]), ONE_SCALE
    nodes = -0.5 * NODES**2
    factors = np.exp(shift[best] + spread[best] * NODES)
    return float(values[best]), TaskScales(factors, nodes - log_sum_exp(nodes, axis=0), noise_only)


def _evidence(fixed: np.ndarray, scaled: np.ndarray, deviation: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the log evidence N(deviation | 0, fixed + t^2 scaled) at every t of GRID, (grid, tasks).

    With scaled = L L', one eigendecomposition of L^-1 fixed L^-T serves all t. Padding adds eigenvalues of zero.
    """
    root = np.linalg.cholesky(scaled)
    inverse = np.linalg.inv(root)
    values, vectors = np.linalg.eigh(inverse @ fixed @ np.swapaxes(inverse, 1, 2))
    projected = (np.swapaxes(vectors, 1, 2) @ (inverse @ deviation[..., None]))[..., 0] ** 2
    squares = np.exp(2.0 * GRID)
    total = np.maximum(values, 0.0) + squares[:, None, None]
    log_determinant = 2.0 * np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    n_padding = np.sum(1.0 - mask, axis=1)
    terms = np.sum(np.log(total) + projected / total, axis=-1) - n_padding * np.log(squares)[:, None]
    return -0.5 * (log_determinant + terms)
