"""How tasks deviate from the common mean: a full covariance of their deviations, and a scale of each task.

The deviation of a task is psi(x) . u_i + r_i(x), where psi are the functions of the task's own that terms have, and
whitened functions of the smooth deviation at inducing points; r_i is the part of the smooth deviation that these do not
represent. u_i ~ N(0, S). Without the tasks, S is diagonal, as in the prior of few parameters. It is learned by EM, with
an inverse Wishart hyper-prior around that diagonal S_0 which counts as much as `PRIOR_TASKS` tasks.

The scale of a task multiplies its noise, or its noise and its smooth deviation, whichever explains the tasks better.
Its logarithm is normal between tasks, with a mean and a spread that are learned. It is integrated out on a few nodes,
so that a task is a mixture of Gaussians whose weights follow from its readings.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from metaprior.linalg import Array, cholesky, log_sum_exp, triangular_inverse
from metaprior.prior.blocks import Block, Gaussians
from metaprior.prior.evidence import Collapsed, collapse, slopes
from metaprior.prior.layout import JITTER, AtTheta, OnBlock, kernel_of_distances
from metaprior.prior.process import KERNELS

PRIOR_TASKS = 5.0
N_ITERATIONS = 12


class Shapes:
    """The functions psi of the tasks of all blocks, and the covariances of r."""

    def __init__(self, prior: AtTheta, blocks: Sequence[Block]):
        self.prior, self.parts = prior, [prior.on(block) for block in blocks]
        self.map = whitening(prior)
        self.functions, self.rests = zip(*(self._of_block(part) for part in self.parts), strict=True)

    def _of_block(self, part: OnBlock) -> tuple[Array, Array]:
        block, lengths, variance = part.block, self.prior.scale("lengths"), self.prior.scale("deviation")[0] ** 2
        kernel = KERNELS[self.prior.layout.find("deviation").kernel]
        whitened = kernel_of_distances(kernel, block.to_points, lengths) @ self.map
        whitened *= block.mask[..., None]
        smooth = variance * kernel_of_distances(kernel, block.between, lengths)
        rest = smooth - variance * whitened @ np.swapaxes(whitened, 1, 2)
        own = [functions for term in part.layout.terms if (functions := term.own(part)) is not None]
        return np.concatenate([*own, whitened], axis=-1), rest * block.mask[:, :, None] * block.mask[:, None, :]

    @property
    def initial(self) -> Array:
        """The diagonal of S_0, (functions,)."""
        own = [term.own_map(self.prior) for term in self.prior.layout.terms]
        return np.concatenate([*own, np.full(len(self.map), self.prior.scale("deviation")[0])]) ** 2

    def given(self, covariance: Array, noise: float) -> list[Gaussians]:
        """Return the readings given S and the noise variance."""
        functions = zip(self.parts, self.functions, self.rests, strict=True)
        return [part.given(noise, psi @ covariance @ np.swapaxes(psi, 1, 2) + rest) for part, psi, rest in functions]

    def learn(self) -> tuple[Array, float]:
        """Return S and the noise variance.

        The E step needs the derivative G of the collapsed evidence by the covariance of a task only: with
        B = 2 sum psi' G psi, the expected sum of u u' over tasks is n S + S B S. The M step averages it with S_0.
        """
        layout, blocks, initial = self.prior.layout, [part.block for part in self.parts], np.diag(self.initial)
        covariance, noise = initial, layout.noise_variance(self.prior.theta)
        n_tasks = float(sum(block.counts.sum() for block in blocks))
        n_readings = float(sum(block.counts @ block.mask.sum(axis=1) for block in blocks))
        for _ in range(N_ITERATIONS):
            given = self.given(covariance, noise)
            found = [by_covariance for by_covariance, _ in slopes(given, collapse(given))]
            pairs = zip(self.functions, found, strict=True)
            information = 2.0 * sum(_flat(psi).T @ _flat(slope @ psi) for psi, slope in pairs)
            updated = PRIOR_TASKS * initial + n_tasks * covariance + covariance @ information @ covariance
            covariance = 0.5 * (updated + updated.T) / (PRIOR_TASKS + n_tasks)
            if layout.log_noise is None:
                masked = zip(found, blocks, strict=True)
                trace = 2.0 * sum(np.sum(np.diagonal(slope, axis1=1, axis2=2) * block.mask) for slope, block in masked)
                noise = max(noise + noise**2 * float(trace) / n_readings, 1e-8)
        return covariance, noise


def whitening(at: AtTheta) -> Array:
    """Return L^-T, where L L' is the deviation's kernel between the inducing points: k(x, Z) L^-T is whitened."""
    between = kernel_of_distances(KERNELS[at.layout.find("deviation").kernel], at.distances, at.scale("lengths"))
    return triangular_inverse(cholesky(between + JITTER * np.eye(len(between)))).T


def _flat(functions: Array) -> Array:
    return functions.reshape(-1, functions.shape[-1])


GRID = np.arange(-3.0, 3.01, 0.5)  # log factors at which tasks are compared
SPREADS = np.array([0.05, 0.2, 0.35, 0.5, 0.7, 0.9, 1.2])
SHIFTS = np.arange(-1.5, 0.76, 0.25)
SPREAD_SCALE, SHIFT_SCALE = 0.5, 0.5  # standard deviations of their normal hyper-priors
NODES = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])  # of the mixture, in spreads


class TaskScales(NamedTuple):
    """The distribution of the factor between tasks, on nodes."""

    factors: Array  # (nodes,), of standard deviations
    log_weights: Array  # (nodes,)
    noise_only: bool  # else the factor multiplies the smooth deviation too


ONE_SCALE = TaskScales(np.ones(1), np.zeros(1), True)


def learn_scales(
    blocks: Sequence[Gaussians],
    lines: Sequence[Array],
    masks: Sequence[Array],
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


def _noise(mask: Array, noise_variance: float) -> Array:
    return (mask * noise_variance + (1.0 - mask))[..., None] * np.eye(mask.shape[1])


def _best(evidence: Array, counts: Array, noise_only: bool) -> tuple[float, TaskScales]:
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


def _evidence(fixed: Array, scaled: Array, deviation: Array, mask: Array) -> Array:
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
