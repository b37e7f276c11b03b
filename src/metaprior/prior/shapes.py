"""How tasks deviate from the common mean, learned without a form: a full covariance of weights, by EM.

The deviation of a task is psi(x) . u_i + r_i(x), where psi are the line, the functions of the common curve and whitened
functions of the smooth deviation at inducing points; r_i is the part of the smooth deviation that these do not
represent. u_i ~ N(0, S). Without the tasks, S is diagonal, as in the prior of few parameters. It is learned with an
inverse Wishart hyper-prior around that diagonal S_0 which counts as much as `PRIOR_TASKS` tasks.
"""

from collections.abc import Sequence

import numpy as np

from metaprior.linalg import cholesky, triangular_inverse
from metaprior.prior.blocks import Block
from metaprior.prior.collapse import Gaussians, collapse, slopes
from metaprior.prior.layout import AtTheta, OnBlock
from metaprior.prior.process import KERNELS, add_noise
from metaprior.prior.terms import JITTER, Parameters, kernel_of_distances

PRIOR_TASKS = 5.0
N_ITERATIONS = 12


class Shapes:
    """The functions psi of the tasks of all blocks, and the covariances of r."""

    def __init__(self, prior: AtTheta, blocks: Sequence[Block]):
        self.prior, self.parts = prior, [prior.on(block) for block in blocks]
        self.map = whitening(prior.parameters, prior.layout.find("deviation").kernel)
        self.functions, self.rests = [], []
        for part in self.parts:
            functions, rest = self._of_block(part)
            self.functions.append(functions)
            self.rests.append(rest)

    def _of_block(self, part: OnBlock) -> tuple[np.ndarray, np.ndarray]:
        block, at = part.block, part.parameters
        kernel, variance = KERNELS[self.prior.layout.find("deviation").kernel], at.scale("deviation")[0] ** 2
        whitened = kernel_of_distances(kernel, block.to_points, at.scale("lengths")) @ self.map
        whitened *= block.mask[..., None]
        smooth = variance * kernel_of_distances(kernel, block.between, at.scale("lengths"))
        rest = smooth - variance * whitened @ np.swapaxes(whitened, 1, 2)
        parts = [block.line, whitened] if block.curve is None else [block.line, block.curve, whitened]
        return np.concatenate(parts, axis=-1), rest * block.mask[:, :, None] * block.mask[:, None, :]

    @property
    def initial(self) -> np.ndarray:
        """The diagonal of S_0, (functions,)."""
        layout, at = self.prior.layout, self.prior.parameters
        line, deformation = layout.find("line").stds(at), layout.find("deformation")
        curve = np.zeros(0) if deformation is None else deformation.own_map(at)
        return np.concatenate([line, curve, np.full(len(self.map), at.scale("deviation")[0])]) ** 2

    def given(self, covariance: np.ndarray, noise: float) -> list[Gaussians]:
        """Return the readings given S and the noise variance."""
        found = []
        for part, functions, rest in zip(self.parts, self.functions, self.rests, strict=True):
            total, block = functions @ covariance @ np.swapaxes(functions, 1, 2) + rest, part.block
            known = noise if block.noise is None else noise + block.noise
            found.append(Gaussians(block.y, part.features, add_noise(total, block.mask, known), block.counts))
        return found

    def learn(self) -> tuple[np.ndarray, float]:
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


def whitening(at: Parameters, kernel: str) -> np.ndarray:
    """Return L^-T, where L L' is the deviation's kernel between the inducing points: k(x, Z) L^-T is whitened."""
    between = kernel_of_distances(KERNELS[kernel], at.distances, at.scale("lengths"))
    return triangular_inverse(cholesky(between + JITTER * np.eye(len(between)))).T


def _flat(functions: np.ndarray) -> np.ndarray:
    return functions.reshape(-1, functions.shape[-1])
