"""How tasks deviate from the common mean, learned without a form: a full covariance of weights, by EM.

The deviation of a task is psi(x) . u_i + r_i(x), where psi are the line, the functions of the common curve and whitened
functions of the smooth deviation at inducing points; r_i is the part of the smooth deviation that these do not
represent. u_i ~ N(0, S). Without the tasks, S is diagonal, as in the prior of few parameters. It is learned with an
inverse Wishart hyper-prior around that diagonal S_0 which counts as much as `PRIOR_TASKS` tasks.
"""

from collections.abc import Sequence

import numpy as np

from metaprior.prior.blocks import Block, squared_distances
from metaprior.prior.collapse import Gaussians, collapse, slopes
from metaprior.prior.layout import Layout
from metaprior.prior.modes import Mode
from metaprior.prior.terms import add_noise, make_basis, mean_features, noise_of, rbf, whitening

PRIOR_TASKS = 5.0
N_ITERATIONS = 12


def shape_functions(layout: Layout, theta: np.ndarray, points: np.ndarray, block: Block) -> np.ndarray:
    """Return psi, (tasks, n, functions)."""
    lengths = layout.scale(theta, "lengths")
    whitened = rbf(block.to_points, lengths) @ whitening(_distances(layout, points), lengths)
    whitened *= block.mask[..., None]
    parts = [block.line, whitened] if block.curve is None else [block.line, block.curve, whitened]
    return np.concatenate(parts, axis=-1)


def initial_variances(layout: Layout, theta: np.ndarray, n_points: int) -> np.ndarray:
    """Return the diagonal of S_0, (functions,)."""
    curve = layout.scale(theta, "curve") ** 2 if layout.parts.curve else np.zeros(0)
    smooth = np.full(n_points, layout.scale(theta, "deviation")[0] ** 2)
    return np.concatenate([layout.line_stds(theta) ** 2, curve, smooth])


def residual(
    layout: Layout, theta: np.ndarray, functions: np.ndarray, between: np.ndarray, n_points: int
) -> np.ndarray:
    """Return the covariance of r, the smooth deviation that the whitened functions do not represent, (tasks, n, n)."""
    whitened = functions[..., -n_points:]
    smooth = rbf(between, layout.scale(theta, "lengths"))
    return layout.scale(theta, "deviation")[0] ** 2 * (smooth - whitened @ np.swapaxes(whitened, 1, 2))


def learn_shapes(mode: Mode, blocks: Sequence[Block], points: np.ndarray) -> tuple[np.ndarray, float]:
    """Return S and the noise variance.

    The E step needs the derivative G of the collapsed evidence by the covariance of a task only: with B = 2 sum psi' G
    psi, the expected sum of u u' over tasks is n S + S B S. The M step averages it with S_0.
    """
    layout, theta = mode.layout, mode.theta
    basis = make_basis(layout, theta, _distances(layout, points))
    features = [mean_features(layout, theta, basis, block) for block in blocks]
    functions = [shape_functions(layout, theta, points, block) for block in blocks]
    rests = []
    for block, of_block in zip(blocks, functions, strict=True):
        real = block.mask[:, :, None] * block.mask[:, None, :]
        rests.append(residual(layout, theta, of_block, block.between, len(points)) * real)
    initial = np.diag(initial_variances(layout, theta, len(points)))
    covariance, noise = initial, layout.noise_variance(theta)
    n_tasks = float(sum(block.counts.sum() for block in blocks))
    n_readings = float(sum(block.counts @ block.mask.sum(axis=1) for block in blocks))
    for _ in range(N_ITERATIONS):
        given = []
        for block, of_block, rest, feature in zip(blocks, functions, rests, features, strict=True):
            total = of_block @ covariance @ np.swapaxes(of_block, 1, 2) + rest
            total = add_noise(total, block.mask, noise_of(block, noise))
            given.append(Gaussians(block.y, feature, total, block.counts))
        found = [of_covariance for of_covariance, _ in slopes(given, collapse(given))]
        pairs = list(zip(functions, found, strict=True))
        information = 2.0 * sum(_flat(psi).T @ _flat(slope @ psi) for psi, slope in pairs)
        updated = PRIOR_TASKS * initial + n_tasks * covariance + covariance @ information @ covariance
        covariance = 0.5 * (updated + updated.T) / (PRIOR_TASKS + n_tasks)
        if layout.log_noise is None:
            masked = zip(found, blocks, strict=True)
            trace = 2.0 * sum(np.sum(np.diagonal(slope, axis1=1, axis2=2) * block.mask) for slope, block in masked)
            noise = max(noise + noise**2 * float(trace) / n_readings, 1e-8)
    return covariance, noise


def _distances(layout: Layout, points: np.ndarray) -> np.ndarray:
    return squared_distances(points, points, layout.ard, layout.widths)


def _flat(functions: np.ndarray) -> np.ndarray:
    return functions.reshape(-1, functions.shape[-1])
