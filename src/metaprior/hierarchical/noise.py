"""Noise that differs between tasks: the noise of a task is the common noise times a factor of its own.

The logarithm of the factor is normal between tasks, with a mean and a spread that are learned. It is integrated out on
a few nodes, so that a task is a mixture of Gaussians whose weights follow from its readings.
"""

from collections.abc import Sequence

import numpy as np

from metaprior.hierarchical.collapse import Collapsed, Gaussians
from metaprior.hierarchical.linalg import log_sum_exp
from metaprior.hierarchical.terms import NOISE_FLOOR, add_noise

GRID = np.arange(-3.0, 3.01, 0.5)  # log factors of the noise standard deviation at which tasks are compared
SPREADS = np.array([0.05, 0.2, 0.35, 0.5, 0.7, 0.9, 1.2])
SHIFTS = np.arange(-1.5, 0.76, 0.25)
SPREAD_SCALE, SHIFT_SCALE = 0.5, 0.5  # standard deviations of their normal hyper-priors
NODES = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])  # of the mixture, in spreads


def learn_noise(
    blocks: Sequence[Gaussians], masks: Sequence[np.ndarray], collapsed: Collapsed, noise_variance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return noise variances and their log weights, (nodes,); a single one if tasks do not differ.

    `noise_variance` is contained in the covariances of the blocks. The mean's weights are at their posterior.
    """
    pairs = zip(blocks, masks, strict=True)
    evidence = np.concatenate([_evidence(block, mask, collapsed, noise_variance) for block, mask in pairs], axis=1)
    counts = np.concatenate([block.counts for block in blocks])
    spread, shift = (grid.ravel() for grid in np.meshgrid(SPREADS, SHIFTS, indexing="ij"))
    log_weights = -0.5 * ((GRID - shift[:, None]) / spread[:, None]) ** 2
    log_weights -= log_sum_exp(log_weights, axis=1)[:, None]
    mixed = log_sum_exp(log_weights[:, :, None] + evidence, axis=1) @ counts
    best = int(np.argmax(mixed - 0.5 * (spread / SPREAD_SCALE) ** 2 - 0.5 * (shift / SHIFT_SCALE) ** 2))
    if spread[best] == SPREADS[0]:
        return np.array([noise_variance]), np.zeros(1)
    log_factors = shift[best] + spread[best] * NODES
    log_weights = -0.5 * NODES**2
    return noise_variance * np.exp(2.0 * log_factors), log_weights - log_sum_exp(log_weights, axis=0)


def _evidence(block: Gaussians, mask: np.ndarray, collapsed: Collapsed, noise_variance: float) -> np.ndarray:
    """Return the log evidence of every task at every noise of GRID, (grid, tasks), up to a constant.

    One eigendecomposition of the covariance without noise serves all of them. Padding adds eigenvalues of zero.
    """
    root = block.features @ collapsed.root
    covariance = add_noise(-block.covariance, mask, noise_variance)
    values, vectors = np.linalg.eigh(root @ np.swapaxes(root, 1, 2) - covariance)
    deviation = block.y - block.features @ collapsed.mean
    projected = (np.swapaxes(vectors, 1, 2) @ deviation[..., None])[..., 0] ** 2
    noises = noise_variance * np.exp(2.0 * GRID) + NOISE_FLOOR
    total = np.maximum(values, 0.0) + noises[:, None, None]
    n_padding = np.sum(1.0 - mask, axis=1)
    return -0.5 * (np.sum(np.log(total) + projected / total, axis=-1) - n_padding * np.log(noises)[:, None])
