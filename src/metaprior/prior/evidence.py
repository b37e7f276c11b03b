"""The weighted evidence of tasks, with the weights m of their common mean integrated out.

With y_i ~ N(F_i m, C_i), m ~ N(0, I) and counts c_i, the log Gibbs density is -|m|^2 / 2 + sum_i c_i log N(y_i | F_i m,
C_i) up to log p(theta). It is Gaussian in m: with P = I + sum_i c_i F_i' C_i^-1 F_i and b = sum_i c_i F_i' C_i^-1 y_i,
m is N(P^-1 b, P^-1), and integrating it out leaves the evidence

    J = -sum_i c_i (y_i' C_i^-1 y_i + log |C_i|) / 2 + b' P^-1 b / 2 - log |P| / 2.

The mode of log p(theta) + J is found by a quasi-Newton method. Other likelihoods have other evidences, which depend on
theta through the same C_i and F_i.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from metaprior.linalg import Array, cholesky, triangular_inverse
from metaprior.prior.blocks import Gaussians


class Collapsed(NamedTuple):
    """The collapsed evidence J and the Gaussian posterior of m."""

    value: float  # J, without the constant of the normal distribution
    mean: Array  # P^-1 b
    root: Array  # R with R R' = P^-1
    precisions: list[Array]  # C^-1 of every block
    projected: list[Array]  # C^-1 F of every block


def collapse(blocks: Sequence[Gaussians]) -> Collapsed:
    """Integrate m out of the weighted evidence; raise LinAlgError if a covariance is not positive definite."""
    n_features = blocks[0].features.shape[-1]
    precision, linear, value = np.eye(n_features), np.zeros(n_features), 0.0
    precisions, projected = [], []
    for block in blocks:
        root = np.linalg.cholesky(block.covariance)  # for the determinant, and because the inverse would not fail
        log_determinant = 2.0 * np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
        inverse = np.linalg.inv(block.covariance)
        solved = inverse @ block.features
        added = information(block, solved)
        precision, linear = precision + added[0], linear + added[1]
        squares = np.sum(block.y * (inverse @ block.y[..., None])[..., 0], axis=1)
        value -= 0.5 * float(block.counts @ (squares + log_determinant))
        precisions.append(inverse)
        projected.append(solved)
    mean, root, log_determinant = posterior_of_weights(precision, linear)
    value += 0.5 * float(linear @ mean) - 0.5 * log_determinant
    return Collapsed(value, mean, root, precisions, projected)


def information(block: Gaussians, solved: Array) -> tuple[Array, Array]:
    """Return what a block adds to P and b, given C^-1 F."""
    n_features = solved.shape[-1]
    weighted = (block.counts[:, None, None] * solved).reshape(-1, n_features)
    return weighted.T @ block.features.reshape(-1, n_features), block.y.ravel() @ weighted


def posterior_of_weights(precision: Array, linear: Array) -> tuple[Array, Array, float]:
    """Return P^-1 b, R with R R' = P^-1, and log |P|."""
    factor = cholesky(precision)
    root = triangular_inverse(factor).T
    return root @ (root.T @ linear), root, 2.0 * float(np.log(np.diagonal(factor)).sum())


def slopes(blocks: Sequence[Gaussians], collapsed: Collapsed) -> list[tuple[Array, Array]]:
    """Return the derivatives of J with respect to every C_i and F_i, for each block.

    With r_i = C_i^-1 (y_i - F_i P^-1 b): dJ/dC_i = c_i (r_i r_i' - C_i^-1 + C_i^-1 F_i P^-1 F_i' C_i^-1) / 2 and
    dJ/dF_i = c_i (r_i b' - C_i^-1 F_i) P^-1.
    """
    covariance_of_mean = collapsed.root @ collapsed.root.T
    found = []
    for block, inverse, solved in zip(blocks, collapsed.precisions, collapsed.projected, strict=True):
        counts = block.counts[:, None, None]
        residual = (inverse @ (block.y - block.features @ collapsed.mean)[..., None])[..., 0]
        spread = solved @ covariance_of_mean
        of_covariance = residual[:, :, None] * residual[:, None, :] - inverse + spread @ np.swapaxes(solved, 1, 2)
        of_features = residual[..., None] * collapsed.mean - spread
        found.append((0.5 * counts * of_covariance, counts * of_features))
    return found
