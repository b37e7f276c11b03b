"""Predictions of a fitted prior for many new tasks, of any sizes, in chunks that fit into memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from metaprior.checks import check_choice
from metaprior.gp.likelihoods import Gaussian
from metaprior.gp.parameters import merge
from metaprior.memory import in_chunks
from metaprior.meta.adaptation import Prediction, Queries, label_log_probabilities, predict_in
from metaprior.prediction.ensemble import Ensemble, Model, average_log, observations, padded_size
from metaprior.prediction.mixtures import GaussianMixture
from metaprior.tasks.padding import group_by_size
from metaprior.tasks.ragged import Ragged, ranges
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import TestTask

MAX_QUERIES = 1024  # of one task at once: more are predicted in pieces
# What is adapted to at once: bytes of one layer of the networks, for all tasks. Four times as many no longer stay in
# the cache of a processor and take twice as long; an accelerator needs many to be status.
CHUNK_BYTES = 2**22
ACCELERATOR_CHUNK_BYTES = 2**28
FEW_CHUNKS = 8  # take less time than compiling for their exact sizes would
MAX_SINGLE = 1e15  # scaled numbers whose squares float32 can add up


class NewTasks(NamedTuple):
    """Tasks to adapt to, in the units of the user: contexts, and inputs to predict."""

    x_context: Ragged
    y_context: Ragged  # numbers; labels as 0 and 1
    x_query: Ragged

    @classmethod
    def of(cls, tasks: Sequence[TestTask]) -> "NewTasks":
        """Checked tasks."""
        shape = tasks[0].x_context.shape[1:]
        return cls(
            Ragged.of([task.x_context for task in tasks], shape),
            Ragged.of([task.y_context for task in tasks]),
            Ragged.of([task.x_query for task in tasks], shape),
        )


def predict_rows(
    model: Ensemble,
    tasks: NewTasks,
    wanted: Callable[[GaussianMixture, np.ndarray], np.ndarray],
    latent: bool = False,
    dtype: Any = np.float64,
) -> np.ndarray:
    """What is wanted of the predictive of every query row, (..., rows).

    `wanted` is given the predictive of some rows, and their places, and its last axis is that of the rows: so of many
    particles no more is kept than is wanted.
    """
    log_weights = np.log(model.particle_weights)

    def observed(member: Model, prediction: Prediction) -> np.ndarray:
        return np.stack(observations(prediction, member.scaling, latent))

    nothing = GaussianMixture(np.empty((len(log_weights), 0)), np.empty((len(log_weights), 0)), log_weights)
    rows = np.empty((*wanted(nothing, np.empty(0, np.int64)).shape[:-1], tasks.x_query.n_rows))
    for places, parts in _predicted(model, tasks, observed, dtype):
        means, variances = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        rows[..., _as_slice(places)] = wanted(GaussianMixture(means, variances, log_weights), places)
    return rows


def predict_label_rows(model: Ensemble, tasks: NewTasks, dtype: Any = np.float64) -> np.ndarray:
    """Log probabilities of the two labels for every query row, (2, rows)."""

    def observed(_: Model, prediction: Prediction) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(label_log_probabilities(prediction), np.float64)

    rows = np.empty((2, tasks.x_query.n_rows))
    for places, parts in _predicted(model, tasks, observed, dtype):
        rows[:, places] = average_log(parts, model.weights)
    return rows


def predict_tasks(model: Ensemble, tasks: Sequence[TestTask]) -> tuple[GaussianMixture, np.ndarray, np.ndarray]:
    """Predictive of observations, y and mask, all (tasks, queries); what a task does not fill is NaN and masked."""
    rows = predict_rows(model, NewTasks.of(tasks), lambda predictive, _: components(predictive))
    (means, variances), y, mask = _padded(rows, tasks)
    return GaussianMixture(means, variances, np.log(model.particle_weights)), y, mask


def predict_labels(model: Ensemble, tasks: Sequence[TestTask]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log probabilities (2, tasks, queries) of labels, y and mask; NaN and masked as above."""
    return _padded(predict_label_rows(model, NewTasks.of(tasks)), tasks)


def _as_slice(places: np.ndarray) -> np.ndarray | slice:
    """Places in rising order as a slice where there is no gap, which is much faster to write to."""
    whole = places[-1] - places[0] + 1 == len(places)
    return slice(int(places[0]), int(places[-1]) + 1) if whole else places


def components(predictive: GaussianMixture) -> np.ndarray:
    """Means and variances, (2, components, rows)."""
    return np.stack([predictive.means, predictive.variances])


def _padded(rows: np.ndarray, tasks: Sequence[TestTask]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is known of all query rows, and y, as (..., tasks, queries), NaN where there is none; and where there is."""
    y = Ragged.of([task.y_query for task in tasks])
    padded, places = y.pad(y.starts[:-1], y.sizes, int(y.sizes.max()))
    mask = places >= 0
    return np.where(mask, rows[..., places], np.nan), np.where(mask, padded, np.nan), mask


class _Pieces(NamedTuple):
    """Queries that are predicted together: those of one task, or some of them where they are very many."""

    task: np.ndarray
    start: np.ndarray  # among all query rows
    size: np.ndarray


def _predicted(
    model: Ensemble, tasks: NewTasks, observed: Callable[[Model, Prediction], np.ndarray], dtype: Any
) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Places among all query rows, and for every member what `observed` (..., tasks, queries) is there."""
    pieces = _pieces(tasks.x_query)
    for chosen, sizes, at_once in _batches(model, tasks, pieces, np.dtype(dtype).itemsize):

        def run(part: np.ndarray, at_once: int, sizes: tuple[int, int] = sizes) -> tuple[np.ndarray, list[np.ndarray]]:
            filled = np.pad(part, (0, at_once - len(part)), mode="edge")  # one shape, one program
            queries, places = _gather(tasks, _Pieces(*(of[filled] for of in pieces)), sizes)
            real = np.flatnonzero(places[: len(part)] >= 0)
            every = slice(None) if len(real) == places.size else real
            values = (observed(member, _predict_chunk(member, queries, dtype)) for member in model.members)
            return places.ravel()[every], [value.reshape(*value.shape[:-2], -1)[..., every] for value in values]

        yield from in_chunks(run, chosen, at_once, "new tasks", "Adapt to fewer context points, or in float32.")


def _gather(tasks: NewTasks, pieces: _Pieces, sizes: tuple[int, int]) -> tuple[Queries, np.ndarray]:
    """Padded queries, not scaled yet, and their places among all query rows, -1 for padding."""
    contexts = tasks.x_context
    x_context, known = contexts.pad(contexts.starts[pieces.task], contexts.sizes[pieces.task], sizes[0])
    x_query, places = tasks.x_query.pad(pieces.start, pieces.size, sizes[1])
    return Queries(x_context, tasks.y_context.rows[known], known >= 0, x_query), places


def _predict_chunk(member: Model, queries: Queries, dtype: Any) -> Prediction:
    scaling = member.scaling
    x_context, x_query = _scaled(scaling, queries.x_context), _scaled(scaling, queries.x_query)
    y_context = scaling.outputs(queries.y_context)
    largest = max(float(np.max(np.abs(part), initial=0.0)) for part in (x_context, y_context, x_query))
    if np.dtype(dtype) == np.float32 and largest > MAX_SINGLE:
        raise ValueError(
            f"dtype='float32' cannot hold numbers {MAX_SINGLE:g} standard deviations off. Take dtype='float64', the "
            "default, or check the units of X and y."
        )
    scaled = Queries(x_context.astype(dtype), y_context.astype(dtype), queries.context_mask, x_query.astype(dtype))
    with jax.enable_x64(True):
        return predict_in(member.particles, member.rest, scaled)


def _scaled(scaling: Scaling, x: np.ndarray) -> np.ndarray:
    return scaling.inputs(x.reshape(-1, x.shape[-1])).reshape(x.shape)


def _pieces(queries: Ragged) -> _Pieces:
    counts = -(-queries.sizes // MAX_QUERIES)  # none of a task without queries
    task = np.repeat(np.arange(len(counts)), counts)
    offset = MAX_QUERIES * ranges(np.zeros_like(counts), counts)
    return _Pieces(task, queries.starts[task] + offset, np.minimum(queries.sizes[task] - offset, MAX_QUERIES))


def _batches(
    model: Ensemble, tasks: NewTasks, pieces: _Pieces, itemsize: int
) -> Iterator[tuple[np.ndarray, tuple[int, int], int]]:
    """Pieces of like sizes, the sizes (of context, of queries) to pad them to, and how many to predict at once.

    A few chunks are one batch, padded to one of few sizes, so that little is ever compiled. More come in up to three
    sizes of contexts and for each three of queries, of exactly what is needed.
    """
    if not len(pieces.task):
        return
    n_context, n_query = tasks.x_context.sizes[pieces.task], pieces.size
    sizes = (padded_size(int(n_context.max())), padded_size(int(n_query.max())))
    at_once = _tasks_at_once(model, sizes, itemsize)
    if len(pieces.task) <= FEW_CHUNKS * at_once:
        yield np.arange(len(pieces.task)), sizes, min(at_once, padded_size(len(pieces.task)))
        return
    for context_size, of_context in group_by_size(n_context, 3):
        for query_size, chosen in group_by_size(n_query[of_context], 3):
            sizes = (max(context_size, 1), query_size)
            at_once = _tasks_at_once(model, sizes, itemsize)
            yield of_context[chosen], sizes, min(at_once, padded_size(len(chosen)))


def _tasks_at_once(model: Ensemble, sizes: tuple[int, int], itemsize: int) -> int:
    """How many tasks make a chunk: see CHUNK_BYTES."""
    of_input = 8 if model.members[0].rest.encoder is not None else 1  # a convolution makes many of one
    numbers = sum(sizes) * max(32, sizes[0], of_input * model.input_dim) * model.n_particles
    most = CHUNK_BYTES if jax.default_backend() == "cpu" else ACCELERATOR_CHUNK_BYTES
    return max(most // (numbers * itemsize), 1)


def check_precision(dtype: str, model: Ensemble, contexts: Ragged, standardized: bool = True) -> None:
    """Refuse float32 where it could not resolve the noise: the rule by which training chooses its precision.

    `gp.linalg` floors the noise variance at 4 eps n, and it should stay well above that. Labels have no noise: what
    float32 can do there depends on the size of a context, and on inputs of moderate size.
    """
    if check_choice("dtype", dtype, ("float64", "float32")) == "float64":
        return
    largest, eps = int(contexts.sizes.max(initial=0)), float(np.finfo(np.float32).eps)
    for member in model.members:
        likelihood = merge(member.particles, member.rest).likelihood
        if isinstance(likelihood, Gaussian):
            noise_std = float(np.min(np.exp(np.asarray(likelihood.log_noise_std, np.float64))))
            possible = noise_std**2 > 100 * eps * largest
            why = f"noise of {noise_std:.1g} of the spread of y and contexts of {largest} samples"
        else:
            possible, why = largest <= 100 and standardized, "contexts of over 100 samples, or inputs as they came"
        if not possible:
            raise ValueError(f"dtype='float32' is too coarse for {why}. Take dtype='float64', the default.")
