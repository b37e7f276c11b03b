"""Where the inducing prior's points lie and how smooth its base kernel is: found from the tasks, before training."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.gp.inducing import InducingBasis
from metaprior.gp.likelihoods import Gaussian
from metaprior.gp.parameters import Fixed
from metaprior.gp.prior import GPPrior
from metaprior.tasks.padding import TaskSet

LENGTH_SCALES = 0.2 * np.sqrt(2.0) ** np.arange(9)  # 0.2 to 3.2, of standardized inputs
LENGTHENED = 1.25  # the length scale taken over the one of most evidence
DEVIATION_VARIANCES = (0.003, 0.03, 0.3)  # of tasks from their mean, along every function
LINE_VARIANCE, MEAN_STD = 0.1, 2.0
LEARNED_NOISES = (0.1, 0.3, 0.6)  # of the spread of y
LEAST_NOISE = 1e-3  # with less, rounding decides whether a covariance has a Cholesky factor
LABEL_NOISE = 1.0  # of labels read as -1 and 1
RANK_TOLERANCE = 1e-6  # eigenvalues this much smaller than the largest are rounding
MOST_INPUTS, MOST_TASKS, MOST_SAMPLES = 5000, 40, 20  # looked at


class Sample(NamedTuple):
    """Tasks padded to one size."""

    x: np.ndarray  # (tasks, samples, d)
    y: np.ndarray  # (tasks, samples)
    mask: np.ndarray  # (tasks, samples)
    counts: np.ndarray  # (tasks,): how often each task counts


def has_basis(rest: GPPrior) -> bool:
    """Whether there is anything to place."""
    return bool(_bases(rest))


def place(rest: GPPrior, tasks: TaskSet, counts: Sequence[Any]) -> GPPrior:
    """The prior with every basis in it filled in. `counts`, gamma w_i / M_i, say how often a task counts.

    Tasks that do not count (held out, or of an environment of weight zero) leave no trace.
    """
    samples = list(_samples(tasks, counts))
    if not isinstance(rest.likelihood, Gaussian):  # labels
        samples = [sample._replace(y=2.0 * sample.y - 1.0) for sample in samples]
    inputs = np.concatenate(
        [
            np.asarray(b.x, float)[count > 0][np.asarray(b.mask)[count > 0]]
            for b, count in zip(tasks.buckets, counts, strict=True)
        ]
    )
    chosen: dict[tuple[int, float | None], InducingBasis] = {}
    for basis in _bases(rest):
        n_points = len(basis.points.value)
        if (n_points, basis.length_scale) not in chosen:
            points = spread_points(inputs, n_points)
            length_scale = basis.length_scale or choose_length_scale(points, samples, _noises(rest))
            chosen[n_points, basis.length_scale] = _filled(basis, points, length_scale)
    fill = lambda node: chosen[len(node.points.value), node.length_scale] if _is_basis(node) else node  # noqa: E731
    return jax.tree.map(fill, rest, is_leaf=_is_basis)


def spread_points(inputs: np.ndarray, n_points: int) -> np.ndarray:
    """Inputs far from each other: the one nearest to the middle, then always the farthest from those taken.

    Where there are fewer different inputs than points, the last is repeated, which adds no function.
    """
    if len(inputs) > MOST_INPUTS:
        inputs = inputs[np.linspace(0, len(inputs) - 1, MOST_INPUTS).astype(int)]
    distance = np.sum((inputs - inputs.mean(axis=0)) ** 2, axis=1)
    taken = [int(distance.argmin())]
    distance = np.full(len(inputs), np.inf)
    for _ in range(n_points - 1):
        distance = np.minimum(distance, np.sum((inputs - inputs[taken[-1]]) ** 2, axis=1))
        taken.append(int(distance.argmax()))
    return inputs[taken]


def whitening_of(points: np.ndarray, length_scale: float) -> np.ndarray:
    """W of `InducingBasis`."""
    eigenvalues, vectors = np.linalg.eigh(_base(points, points, length_scale))
    eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
    counted = eigenvalues > RANK_TOLERANCE * eigenvalues[0]
    return np.where(counted, 1.0 / np.sqrt(np.where(counted, eigenvalues, 1.0)), 0.0)[:, None] * vectors.T


def choose_length_scale(points: np.ndarray, samples: Sequence[Sample], noises: Sequence[float]) -> float:
    """A little above the length scale of most evidence, when every task is one smooth mean plus its own deviation.

    Mean and deviations are draws of the base GP, of several sizes; all of it is Gaussian, and the mean is integrated
    out in closed form. Longer than that is better: training can make single functions larger, but not fewer.
    """
    evidence = []
    for length_scale in LENGTH_SCALES.tolist():
        whitening = whitening_of(points, length_scale)
        phi = [_base(s.x, points, length_scale) @ whitening.T * s.mask[..., None] for s in samples]
        sizes = itertools.product(DEVIATION_VARIANCES, noises)
        evidence.append(max(_log_evidence(samples, phi, variance, noise) for variance, noise in sizes))
    return float(LENGTHENED * LENGTH_SCALES[int(np.argmax(evidence))])


def _log_evidence(samples: Sequence[Sample], functions: Sequence[np.ndarray], variance: float, noise: float) -> float:
    """log of the integral over m of N(m | 0, I) prod_i N(y_i | F_i m, C_i)^count_i, less constants.

    C_i is the covariance of deviations and noise, F_i the functions at the inputs times the size of the mean.
    """
    n_functions = functions[0].shape[2] + samples[0].x.shape[2] + 1
    precision, projected, total = np.eye(n_functions), np.zeros(n_functions), 0.0
    for (x, y, mask, counts), phi in zip(samples, functions, strict=True):
        line = np.concatenate([np.ones_like(x[..., :1]), x], axis=2) * mask[..., None]
        covariance = LINE_VARIANCE * line @ line.mT + variance * phi @ phi.mT
        covariance = covariance + np.where(mask, noise**2, 1.0)[..., None] * np.eye(x.shape[1])
        factor = np.linalg.cholesky(covariance)
        right = np.concatenate([line, MEAN_STD * phi, (y * mask)[..., None]], axis=2)
        whitened = np.linalg.solve(factor, right) * np.sqrt(counts)[:, None, None]
        inputs, outputs = whitened[..., :-1].reshape(-1, n_functions), whitened[..., -1].ravel()
        precision += inputs.T @ inputs
        projected += inputs.T @ outputs
        total -= 0.5 * np.sum(outputs**2) + counts @ np.sum(np.log(np.diagonal(factor, axis1=1, axis2=2)), axis=1)
    log_determinant = np.linalg.slogdet(precision)[1]
    return float(total + 0.5 * projected @ np.linalg.solve(precision, projected) - 0.5 * log_determinant)


def _samples(tasks: TaskSet, counts: Sequence[Any]) -> Iterator[Sample]:
    """Some of the tasks that count, the likelier the more they do, and some of the samples of each, evenly taken."""
    every = np.concatenate([np.asarray(count, float) for count in counts])
    taken = every > 0
    if np.count_nonzero(taken) > MOST_TASKS:
        places = np.searchsorted(np.cumsum(every) / every.sum(), (np.arange(MOST_TASKS) + 0.5) / MOST_TASKS)
        taken = np.isin(np.arange(len(every)), places)
    of_bucket = np.split(taken, np.cumsum([len(count) for count in counts])[:-1])
    for bucket, count, chosen in zip(tasks.buckets, counts, of_bucket, strict=True):
        rows = np.flatnonzero(chosen)
        size = np.shape(bucket.y)[1]
        columns = np.unique(np.linspace(0, size - 1, min(size, MOST_SAMPLES)).astype(int))
        if len(rows):
            x, y, mask = (np.asarray(leaf)[rows][:, columns] for leaf in (bucket.x, bucket.y, bucket.mask))
            yield Sample(x.astype(float), y.astype(float), mask, np.asarray(count, float)[rows])


def _noises(rest: GPPrior) -> tuple[float, ...]:
    """Standard deviations of the noise to reckon with."""
    if not isinstance(rest.likelihood, Gaussian):
        return (LABEL_NOISE,)
    log_noise_std = rest.likelihood.log_noise_std
    if not isinstance(log_noise_std, Fixed):
        return LEARNED_NOISES
    return (max(float(np.exp(log_noise_std.value)), LEAST_NOISE),)


def _filled(basis: InducingBasis, points: np.ndarray, length_scale: float) -> InducingBasis:
    dtype = jnp.asarray(basis.points.value).dtype
    values = (points, whitening_of(points, length_scale), np.log(length_scale))
    z, whitening, log_length_scale = (Fixed(jnp.asarray(value, dtype)) for value in values)
    return InducingBasis(z, whitening, log_length_scale, basis.length_scale)


def _bases(rest: GPPrior) -> list[InducingBasis]:
    return [node for node in jax.tree.leaves(rest, is_leaf=_is_basis) if _is_basis(node)]


def _is_basis(node: Any) -> TypeGuard[InducingBasis]:
    return isinstance(node, InducingBasis)


def _base(x: np.ndarray, points: np.ndarray, length_scale: float) -> np.ndarray:
    return np.exp(-0.5 * np.sum((x[..., None, :] - points) ** 2, axis=-1) / length_scale**2)
