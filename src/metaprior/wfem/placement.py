"""Inducing points and base length scale of the inducing prior, chosen from the tasks before training."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.tasks.farthest_points import farthest_points
from metaprior.wfem.inducing import InducingBasis
from metaprior.wfem.likelihoods import Bernoulli
from metaprior.wfem.parameters import Fixed
from metaprior.wfem.prior import GPPrior
from metaprior.wfem.task_sets import TaskSet

LENGTH_SCALES = 0.2 * np.sqrt(2.0) ** np.arange(9)  # candidates, 0.2 to 3.2 in standardized inputs
LENGTH_SCALE_FACTOR = 1.25  # times the candidate with the largest evidence
DEVIATION_VARIANCES = (0.003, 0.03, 0.3)  # of tasks from their mean, along every function
LINE_VARIANCE, MEAN_STD = 0.1, 2.0
LEARNED_NOISE_STDS = (0.1, 0.3, 0.6)  # candidates where the noise is learned, relative to the spread of y
MIN_NOISE_STD = 1e-3  # below, rounding decides whether a covariance has a Cholesky factor
LABEL_NOISE_STD = 1.0  # for labels treated as outputs -1 and 1
RANK_TOLERANCE = 1e-6  # eigenvalues smaller than this, relative to the largest, are rounding errors
MAX_TASKS, MAX_SAMPLES = 40, 20  # subsample sizes: tasks, and samples per task


class TaskSample(NamedTuple):
    """Tasks padded to one size."""

    x: np.ndarray  # (tasks, samples, d)
    y: np.ndarray  # (tasks, samples)
    mask: np.ndarray  # (tasks, samples)
    counts: np.ndarray  # (tasks,): the exponent of each task's likelihood, gamma w_i / M_i


def has_basis(rest: GPPrior) -> bool:
    """Return whether the prior has inducing points to place."""
    return bool(_bases(rest))


def place_points(rest: GPPrior, tasks: TaskSet, counts: Sequence[Any]) -> GPPrior:
    """Return the prior with every inducing basis filled in, from tasks with counts gamma w_i / M_i above zero.

    Labels are taken for readings of -1 and 1.
    """
    samples = list(_subsample(tasks, counts))
    if isinstance(rest.likelihood, Bernoulli):
        samples = [sample._replace(y=2.0 * sample.y - 1.0) for sample in samples]
    buckets = zip(tasks.buckets, counts, strict=True)
    inputs = [np.asarray(b.x, float)[count > 0][np.asarray(b.mask)[count > 0]] for b, count in buckets]
    filled: dict[tuple[int, float | None], InducingBasis] = {}
    for basis in _bases(rest):
        if (key := _key(basis)) not in filled:
            points = farthest_points(np.concatenate(inputs), key[0])
            length_scale = basis.length_scale or choose_length_scale(points, samples, _noise_stds(rest))
            filled[key] = _fill(basis, points, length_scale)
    return jax.tree.map(lambda node: filled[_key(node)] if _is_basis(node) else node, rest, is_leaf=_is_basis)


def whitening_matrix(points: np.ndarray, length_scale: float) -> np.ndarray:
    """Return W of `InducingBasis`."""
    eigenvalues, vectors = np.linalg.eigh(_rbf(points, points, length_scale))
    eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
    kept = eigenvalues > RANK_TOLERANCE * eigenvalues[0]
    return np.where(kept, 1.0 / np.sqrt(np.where(kept, eigenvalues, 1.0)), 0.0)[:, None] * vectors.T


def choose_length_scale(points: np.ndarray, samples: Sequence[TaskSample], noise_stds: Sequence[float]) -> float:
    """Return a length scale slightly above the one with the largest evidence, if task = common mean + deviation.

    Both are draws of the base GP, at several scales. A longer length scale trains better: training can rescale the
    functions of the basis but not reduce their number.
    """
    evidence = []
    for length_scale in LENGTH_SCALES.tolist():
        whitening = whitening_matrix(points, length_scale)
        phi = [_rbf(s.x, points, length_scale) @ whitening.T * s.mask[..., None] for s in samples]
        grid = itertools.product(DEVIATION_VARIANCES, noise_stds)
        evidence.append(max(_log_evidence(samples, phi, variance, noise_std) for variance, noise_std in grid))
    return float(LENGTH_SCALE_FACTOR * LENGTH_SCALES[int(np.argmax(evidence))])


def _log_evidence(
    samples: Sequence[TaskSample], functions: Sequence[np.ndarray], variance: float, noise_std: float
) -> float:
    """Return the log of the integral over m of N(m | 0, I) prod_i N(y_i | F_i m, C_i)^count_i, up to constants.

    C_i is the covariance of deviations and noise, F_i the functions at the inputs times the scale of the mean.
    """
    n_functions = functions[0].shape[2] + samples[0].x.shape[2] + 1
    precision, projected, total = np.eye(n_functions), np.zeros(n_functions), 0.0
    for (x, y, mask, counts), phi in zip(samples, functions, strict=True):
        line = np.concatenate([np.ones_like(x[..., :1]), x], axis=2) * mask[..., None]
        covariance = LINE_VARIANCE * line @ line.mT + variance * phi @ phi.mT
        covariance = covariance + np.where(mask, noise_std**2, 1.0)[..., None] * np.eye(x.shape[1])
        factor = np.linalg.cholesky(covariance)
        right = np.concatenate([line, MEAN_STD * phi, (y * mask)[..., None]], axis=2)
        whitened = np.linalg.solve(factor, right) * np.sqrt(counts)[:, None, None]
        inputs, outputs = whitened[..., :-1].reshape(-1, n_functions), whitened[..., -1].ravel()
        precision += inputs.T @ inputs
        projected += inputs.T @ outputs
        total -= 0.5 * np.sum(outputs**2) + counts @ np.sum(np.log(np.diagonal(factor, axis1=1, axis2=2)), axis=1)
    log_determinant = np.linalg.slogdet(precision)[1]
    return float(total + 0.5 * projected @ np.linalg.solve(precision, projected) - 0.5 * log_determinant)


def _subsample(tasks: TaskSet, counts: Sequence[Any]) -> Iterator[TaskSample]:
    """Yield at most MAX_TASKS tasks and evenly spaced samples of each.

    More tasks are sampled systematically, in proportion to their counts. How often a task is drawn stands for its
    count, so that the sum over the sample estimates the sum over all tasks.
    """
    every = np.concatenate([np.asarray(count, float) for count in counts])
    if np.count_nonzero(every) > MAX_TASKS:
        quantiles = (np.arange(MAX_TASKS) + 0.5) / MAX_TASKS
        drawn = np.searchsorted(np.cumsum(every), quantiles * every.sum())
        every = np.bincount(drawn, minlength=len(every)) * every.sum() / MAX_TASKS
    by_bucket = np.split(every, np.cumsum([len(count) for count in counts])[:-1])
    for bucket, count in zip(tasks.buckets, by_bucket, strict=True):
        rows, size = np.flatnonzero(count), np.shape(bucket.y)[1]
        columns = np.unique(np.linspace(0, size - 1, min(size, MAX_SAMPLES)).astype(int))
        if len(rows):
            x, y, mask = (np.asarray(leaf)[rows][:, columns] for leaf in (bucket.x, bucket.y, bucket.mask))
            yield TaskSample(x.astype(float), y.astype(float), mask, count[rows])


def _noise_stds(rest: GPPrior) -> tuple[float, ...]:
    """Return the candidates for the noise."""
    if isinstance(rest.likelihood, Bernoulli):
        return (LABEL_NOISE_STD,)
    log_noise_std = rest.likelihood.log_noise_std
    if not isinstance(log_noise_std, Fixed):
        return LEARNED_NOISE_STDS
    return (max(float(np.exp(log_noise_std.value)), MIN_NOISE_STD),)


def _fill(basis: InducingBasis, points: np.ndarray, length_scale: float) -> InducingBasis:
    dtype = jnp.asarray(basis.points.value).dtype
    values = (points, whitening_matrix(points, length_scale), np.log(length_scale))
    z, whitening, log_length_scale = (Fixed(jnp.asarray(value, dtype)) for value in values)
    return InducingBasis(z, whitening, log_length_scale, basis.length_scale)


def _bases(rest: GPPrior) -> list[InducingBasis]:
    return [node for node in jax.tree.leaves(rest, is_leaf=_is_basis) if _is_basis(node)]


def _is_basis(node: Any) -> TypeGuard[InducingBasis]:
    return isinstance(node, InducingBasis)


def _key(basis: InducingBasis) -> tuple[int, float | None]:
    return len(basis.points.value), basis.length_scale


def _rbf(x: np.ndarray, points: np.ndarray, length_scale: float) -> np.ndarray:
    return np.exp(-0.5 * np.sum((x[..., None, :] - points) ** 2, axis=-1) / length_scale**2)
