"""Contexts of thousands of labels: conditioned on some of them, and users told so.

Large contexts, of readings too, are announced if they take minutes, and refused if they do not fit into memory.

Posteriors of many new tasks of any sizes, computed once and in chunks that fit into memory; their predictions.
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np
from scipy.special import logsumexp

from metaprior.checks import check_choice, counted, warn_caller
from metaprior.conventions import convergence_warning
from metaprior.likelihoods.base import Prediction
from metaprior.memory import blocks, check_available, in_chunks
from metaprior.predict.ensemble import Ensemble, Member, NumberMember, mixture
from metaprior.tasks.splits import typical_labels
from metaprior.tasks.types import Ragged, TestTask, group_by_size, padded_size

LARGE, SLOW = 500, 60.0  # readings of a task that count, and seconds from which on users are told what to expect
ADVICE = "Adapt to a part of the readings, such as every tenth: adapt(X[::10], y[::10])."


def limit_labels(model: Ensemble, x: Ragged, y: Ragged, n_classes: np.ndarray) -> tuple[Ragged, Ragged]:
    """Return contexts with at most as many labels as the members can condition on; warn if some have more.

    What is left of a task depends on nothing but the task.
    """
    limits = [member.most_labels(n_classes) for member in model.members if hasattr(member, "most_labels")]  # type: ignore[attr-defined]
    if not limits:
        return x, y
    most = np.min(limits, axis=0)
    large = np.flatnonzero(x.sizes > most)
    if not len(large):
        return x, y
    kept = [typical_labels(x[task], y[task], int(most[task])) for task in large.tolist()]
    is_kept = np.ones(x.n_rows + 1, bool)
    sizes = x.sizes.copy()
    for task, places in zip(large.tolist(), kept, strict=True):
        of_task = is_kept[x.starts[task] : x.starts[task + 1]]
        of_task[:] = False
        of_task[places] = True
        sizes[task] = len(places)
    _warn_if_thinned(x.sizes[large], sizes[large], most[large])
    return Ragged(x.rows[is_kept], sizes), Ragged(y.rows[is_kept], sizes)


def _warn_if_thinned(given: np.ndarray, used: np.ndarray, most: np.ndarray) -> None:
    largest = int(np.argmax(given))
    which = f"A context has {given[0]:,} labels"
    if len(given) > 1:
        which = f"{counted(len(given), 'context')} have up to {given[largest]:,} labels, {given.sum():,} in all"
    warn_caller(
        f"{which}: predictions use {used.sum():,} of them, because time and memory grow fast with their number. They "
        "are random ones of every class, in its share, and always the same. To choose them yourself, give at most "
        f"{most[largest]:,} labels of a task."
    )


def warn_if_slow(model: Ensemble, sizes: np.ndarray, n_classes: np.ndarray | None) -> None:
    """Warn before many large contexts: the work grows with the cube of their readings, or labels of some classes."""
    large, what = sizes >= LARGE, "reading" if n_classes is None else "label"
    given = sizes[large], None if n_classes is None else n_classes[large]
    costs = (m.expected_seconds(*given) for m in model.members if hasattr(m, "expected_seconds"))  # type: ignore[attr-defined]
    seconds = sum(costs)
    if seconds > SLOW:
        contexts = f"{counted(int(large.sum()), 'context')} of up to {counted(int(given[0].max()), what)}"
        warn_caller(
            f"{contexts} will take about {counted(round(seconds / 60.0), 'minute')} on one core: the work grows with "
            f"the cube of the {what}s of a task. Adapt to fewer than {LARGE} {what}s of each to save time."
        )


def check_memory(model: Ensemble, size: int) -> None:
    """Raise if a context of so many readings does not fit into memory."""
    if size < LARGE:
        return
    needed = max((m.expected_bytes(size) for m in model.members if hasattr(m, "expected_bytes")), default=0.0)  # type: ignore[attr-defined]
    check_available(f"A context of {size:,} readings", needed, ADVICE)


def check_covariances(what: str, queries: np.ndarray, contexts: np.ndarray, advice: str) -> None:
    """Raise if covariances at so many inputs of tasks do not fit into memory; `what` has a place for their number."""
    n_bytes = 8.0 * (queries @ queries + np.max(2.0 * queries**2 + 4.0 * queries * contexts, initial=0.0))
    check_available(what.format(int(queries.sum())), float(n_bytes), advice)


MAX_QUERIES = 1024  # of one task in one chunk
SMALL = 128  # samples and queries that few tasks of compiled members are padded to. Compiling for a size takes seconds
# Size of a chunk: bytes of one layer of the networks for all its tasks. On a CPU four times as much no longer stays in
# the cache and takes twice as long; an accelerator needs much to be busy.
CHUNK_BYTES = 2**22
ACCELERATOR_CHUNK_BYTES = 2**28
FEW_CHUNKS = 8  # take less time than compiling for their exact sizes would
KEPT_BYTES = 2**29  # of posteriors, for later predictions
THREADED_TASKS = 64  # of a chunk: with fewer, threads cost more than they save
MAX_SINGLE = 1e3  # standard deviations from the mean; float32 knows their neighbors to 1e-4, and their squares to 0.1

Predict = Callable[[Any, Any, np.ndarray], Any]  # of a member, its posterior and scaled inputs (tasks, queries, d)
_keeping = threading.Lock()


class Posteriors:
    """A prior conditioned on the contexts of many tasks, in the first prediction of each task.

    Posteriors are kept for later predictions up to KEPT_BYTES; further ones are computed anew in every prediction.
    """

    def __init__(
        self,
        model: Ensemble,
        x: Ragged,
        y: Ragged,
        dtype: str = "float64",
        n_classes: np.ndarray | None = None,
        given: tuple[Ragged, Ragged] | None = None,
    ):
        self.n_classes = n_classes  # of every task, for labels
        self.given = given or (x, y)  # all of the contexts, of which x and y may be a part
        if n_classes is not None and given is None:
            x, y = limit_labels(model, x, y, n_classes)
        self.model, self.x, self.y, self.dtype = model, x, y, dtype
        self._scaled = [_scale(member, x, y) for member in model.members]
        self._size = np.ones(len(x.sizes), np.int64)  # to which each context is padded
        for size, tasks in self._group(x.sizes):
            self._size[tasks] = max(size, 1)
        self._kept: list[tuple[np.ndarray, list[Any]]] = []  # tasks of a chunk, and their posteriors by member
        self._n_bytes = 0
        self._chunk = np.full(len(x.sizes), -1)  # the kept chunk of each task
        self._warned = False
        self._told = False

    def __getstate__(self) -> dict[str, Any]:
        # As NumPy arrays: a JAX array in double precision would be read back in single precision.
        kept = [
            (tasks, [m.take([p], np.arange(len(tasks))) for m, p in zip(self.model.members, posteriors, strict=True)])
            for tasks, posteriors in self._kept
        ]
        return {**self.__dict__, "_kept": kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy: joblib may map arrays into memory, where they cannot be written to.
        self.__dict__.update(state, _chunk=np.array(state["_chunk"]))

    def predict(
        self, queries: Ragged, values: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield places among all query rows, and `values(tasks, x)`, (..., tasks, queries), there as (..., rows)."""
        check_memory(self.model, int(np.max(self._size[queries.sizes > 0], initial=0)))
        for tasks, offset, size, at_once in self._batches(queries):

            def run(part: np.ndarray, at_once: int, offset: int = offset, size: int = size) -> tuple[Any, Any]:
                filled = np.pad(part, (0, at_once - len(part)), mode="edge")  # one shape, one program
                n_queries = np.minimum(queries.sizes[filled] - offset, size)
                x, places = queries.pad(queries.starts[filled] + offset, n_queries, size)
                real = np.flatnonzero(places[: len(part)] >= 0)
                every = slice(None) if len(real) == places.size else real
                value = values(filled, x)
                return places.ravel()[every], value.reshape(*value.shape[:-2], -1)[..., every]

            yield from in_chunks(run, tasks, at_once, "new tasks", ADVICE)

    def evaluate(self, predict: Predict, tasks: np.ndarray, x: np.ndarray) -> list[Any]:
        """Return `predict(member, posterior, scaled x)` of every member, for x (tasks, queries, d)."""

        def of_member(member: Member, posterior: Any) -> Any:
            scaled = self._cast(
                member.scaling.inputs(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], member.scaling.width)
            )
            return predict(member, posterior, scaled)

        if not self._is_large(int(self._size[tasks[0]])):
            return self._each(of_member, self._posteriors(tasks), len(tasks))
        self._announce(tasks)
        found = []
        for member, context in zip(self.model.members, self._scaled, strict=True):  # of which one fits into memory
            posterior = self._conditioned(tasks, member, context)
            self._warn_unconverged(tasks, [posterior])
            found.append(of_member(member, posterior))
            del posterior
        return found

    def latent_distances(self, tasks: np.ndarray) -> np.ndarray:
        """Return those of all members, see `Member`, (2, components, tasks)."""
        found = self._each(lambda member, each: cast(Any, member).latent_distances(each), self._posteriors(tasks), 0)
        return np.concatenate(found, axis=1)

    def _each(self, call: Callable[[Member, Any], Any], of_members: Sequence[Any], n_tasks: int) -> list[Any]:
        """Return `call(member, ...)` of every member; of many tasks in threads, since NumPy computes beside others."""
        members = self.model.members
        if len(members) == 1 or n_tasks < THREADED_TASKS or self._compiled:
            return [call(*pair) for pair in zip(members, of_members, strict=True)]
        with ThreadPoolExecutor(min(len(members), os.cpu_count() or 1)) as pool:
            return list(pool.map(call, members, of_members))

    def _posteriors(self, tasks: np.ndarray) -> list[Any]:
        """Return the posteriors of tasks of one padded size, by member."""
        chunks = np.unique(self._chunk[tasks])
        if chunks[0] < 0:
            return self._condition(tasks)
        kept = [self._kept[chunk] for chunk in chunks]
        if len(kept) == 1 and np.array_equal(kept[0][0], tasks):
            return kept[0][1]
        known = np.concatenate([of_chunk for of_chunk, _ in kept])
        order = np.argsort(known)
        places = order[np.searchsorted(known, tasks, sorter=order)]
        by_member = zip(*(posteriors for _, posteriors in kept), strict=True)
        return [member.take(list(own), places) for member, own in zip(self.model.members, by_member, strict=True)]

    def _condition(self, tasks: np.ndarray) -> list[Any]:
        self._announce(tasks)
        posteriors = self._each(partial(self._conditioned, tasks), self._scaled, len(tasks))
        self._warn_unconverged(tasks, posteriors)
        n_bytes = _n_bytes(posteriors)
        with _keeping:
            if self._n_bytes + n_bytes <= KEPT_BYTES:
                self._n_bytes += n_bytes
                self._kept.append((tasks, posteriors))
                self._chunk[tasks] = len(self._kept) - 1
        return posteriors

    def _conditioned(self, tasks: np.ndarray, member: Any, context: tuple[Ragged, Ragged]) -> Any:
        """Return the posterior of a member."""
        x, y = context
        padded, places = x.pad(x.starts[tasks], x.sizes[tasks], int(self._size[tasks[0]]))
        given = self._cast(padded), self._cast(y.rows[places]), places >= 0
        if self.n_classes is None:
            return member.condition(*given)
        return member.condition_labels(*given, self.n_classes[tasks])

    def _announce(self, tasks: np.ndarray) -> None:
        """Raise if contexts do not fit into memory; warn, once, if all of them together take long."""
        check_memory(self.model, int(self._size[tasks].max()))
        if not self._told:
            self._told = True
            warn_if_slow(self.model, self.x.sizes, self.n_classes)

    def _is_large(self, context_size: int) -> bool:
        """Return whether a posterior of one task is too large to be kept."""
        n_components = sum(member.n_components for member in self.model.members)
        return not self._compiled and self.n_classes is None and 8.0 * n_components * context_size**2 > KEPT_BYTES

    def _warn_unconverged(self, tasks: np.ndarray, posteriors: list[Any]) -> None:
        """Warn, once, if Laplace's approximation missed the mode of a task under some particle."""
        known = [getattr(posterior, "converged", None) for posterior in posteriors]
        found = [np.asarray(converged).all(axis=0) for converged in known if converged is not None]
        missed = np.unique(tasks[~np.all(found, axis=0)]) if found else np.empty(0)
        if len(missed) and not self._warned:
            self._warned = True
            which = f"task {missed[0]}" + (f" and {len(missed) - 1} more" if len(missed) > 1 else "")
            message = f"The approximate posterior did not converge for {which} (counted from 0): predictions "
            advice = "there are inexact. Check the context for extreme values of X"
            advice += ", or use dtype='float64'." if self.dtype == "float32" else "."
            warnings.warn(message + advice, convergence_warning(), stacklevel=2)

    def _cast(self, scaled: np.ndarray) -> np.ndarray:
        if self.dtype == "float32" and np.max(np.abs(scaled), initial=0.0) > MAX_SINGLE:
            raise ValueError(
                f"dtype='float32' cannot resolve values {MAX_SINGLE:g} standard deviations from the mean. Use "
                "dtype='float64', the default, or check the units of X and y."
            )
        return scaled.astype(self.dtype, copy=False)

    def _batches(self, queries: Ragged) -> Iterator[tuple[np.ndarray, int, int, int]]:
        """Yield tasks, the first of their queries, the size to pad these to, and the number of tasks of a chunk.

        Tasks with more queries than that come in several batches, so that no batch has a task twice. All tasks of a
        batch have as many classes: none is computed with classes that it lacks.
        """
        kinds = self._size if self.n_classes is None else self._size + 1j * self.n_classes
        for kind in np.unique(kinds).tolist():
            of_size, context_size = np.flatnonzero((kinds == kind) & (queries.sizes > 0)), int(kind.real)
            most = max(MAX_QUERIES, context_size) if self._is_large(context_size) else MAX_QUERIES
            for size, chosen in self._group(np.minimum(queries.sizes[of_size], most), context_size):
                tasks = of_size[chosen]
                at_once = min(self._chunk_size(size, context_size), padded_size(len(tasks)))
                for offset in range(0, int(queries.sizes[tasks].max()), size):
                    yield tasks[queries.sizes[tasks] > offset], offset, size, at_once

    def _group(self, sizes: np.ndarray, context_size: int = 0) -> Iterator[tuple[int, np.ndarray]]:
        """Yield a size to pad to and its tasks, for contexts or for queries beside contexts of a size.

        A few chunks share a size that is likely compiled already. More have up to three sizes that fit exactly.
        """
        most = MAX_QUERIES - 1 if context_size else SMALL  # queries may come in several batches
        size = self.padded_size(int(sizes.max(initial=0)), len(sizes), most)
        if len(sizes) > FEW_CHUNKS * self._chunk_size(size, context_size):
            yield from group_by_size(sizes, 3)
        elif len(sizes):
            yield size, np.arange(len(sizes))

    def padded_size(self, n: int, n_tasks: int = 1, most: int = SMALL) -> int:
        """Return the size to pad n samples or queries to: SMALL up to `most` of them, if that is little work."""
        if not self._compiled:
            return max(n, 1)
        small = n <= most and n_tasks * self._numbers(SMALL, SMALL) <= self._chunk_numbers
        return SMALL if small else padded_size(n)

    def _chunk_size(self, size: int, context_size: int) -> int:
        """Return the number of tasks in a chunk."""
        return max(int(self._chunk_numbers / self._numbers(size, context_size)), 1)

    def _numbers(self, size: int, context_size: int) -> int:
        """Return how many numbers one layer of the networks has for one task."""
        members: Sequence[Any] = self.model.members
        width = max(getattr(member, "point_width", member.input_dim) for member in members)
        n_components = max(member.n_components for member in members)
        return (size + context_size) * max(32, context_size or size, width) * n_components

    @property
    def _chunk_numbers(self) -> float:
        accelerated = any(getattr(member, "accelerated", False) for member in self.model.members)
        return (ACCELERATOR_CHUNK_BYTES if accelerated else CHUNK_BYTES) / np.dtype(self.dtype).itemsize

    @property
    def _compiled(self) -> bool:
        """Whether members are compiled for every shape that they meet."""
        return any(hasattr(member, "accelerated") for member in self.model.members)


def predict_rows(
    posteriors: Posteriors,
    queries: Ragged,
    wanted: Callable[[Any, np.ndarray], np.ndarray],
    latent: bool = False,
) -> np.ndarray:
    """Return `wanted(predictive, places)` of all query rows, (..., rows), computed for some rows at a time."""
    model, equal = posteriors.model, np.log(posteriors.model.component_weights)
    nothing = model.predictive(np.empty((len(equal), 0)), np.empty((len(equal), 0)), equal, latent)
    rows = np.empty((*wanted(nothing, np.empty(0, np.int64)).shape[:-1], queries.n_rows))

    def values(tasks: np.ndarray, x: np.ndarray) -> np.ndarray:
        means, variances, log_weights = mixture(model, posteriors.evaluate(marginals, tasks, x), latent)
        if log_weights.ndim == 1:
            return np.stack([means, variances])
        return np.stack([means, variances, np.broadcast_to(log_weights[..., None], means.shape)])

    for places, (means, variances, *log_weights) in posteriors.predict(queries, values):
        value = wanted(model.predictive(means, variances, log_weights[0] if log_weights else equal, latent), places)
        if value.shape[:-1] != rows.shape[:-1]:  # `components` has more to return if weights depend on the task
            rows = np.empty((*value.shape[:-1], queries.n_rows))
        first, last = int(places[0]), int(places[-1])
        where = slice(first, last + 1) if last - first + 1 == len(places) else places  # a slice is faster to write to
        rows[..., where] = value
    return rows


def predict_tasks(model: Ensemble, tasks: Sequence[TestTask]) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the predictive of observations, y and mask, all (tasks, queries); padding is NaN and masked."""
    rows = predict_rows(*read_tests(model, tasks), components)
    (means, variances, *log_weights), y, mask = pad_rows(rows, tasks)
    weights = log_weights[0][..., 0] if log_weights else np.log(model.component_weights)  # a task has one query or more
    return model.predictive(means, variances, weights, latent=False), y, mask


def components(predictive: Any, _: Any = None) -> np.ndarray:
    """Return means and variances, (2, components, rows); (3, ...) with log weights if they depend on the task."""
    log_weights = predictive.log_weights
    varying = [] if log_weights is None or log_weights.ndim == 1 else [log_weights]
    return np.stack([predictive.means, predictive.variances, *varying])


def marginals(member: NumberMember, posterior: Any, x: np.ndarray) -> Prediction:
    """Return the member's predictions of single queries."""
    return member.marginals(posterior, x)


def weighted_covariance(
    posteriors: Posteriors, task: int, x: np.ndarray, shares: np.ndarray, latent: bool
) -> np.ndarray:
    """Return sum_k shares_k C_k of all components at x (1, n, d) of one task, (n, n), with noise if it is Gaussian."""
    model, place = posteriors.model, 0
    total = np.zeros(2 * x.shape[1:2])

    def add(member: NumberMember, posterior: Any, scaled: np.ndarray) -> None:
        nonlocal place
        own, place = shares[place : place + member.n_components], place + member.n_components
        if not own.any():
            return
        covariance = member.weighted_covariance(posterior, scaled, model.spread**2 * own)
        for rows in blocks(len(total)):
            total[rows] += covariance[rows]

    posteriors.evaluate(add, np.array([task]), x)
    if not latent and model.likelihood.normal:
        noise = model.likelihood.noise(np.zeros(len(shares)), model.parameters)
        np.fill_diagonal(total, total.diagonal() + float(shares @ noise))
    return total


def check_precision(dtype: str, model: Ensemble, contexts: Ragged, standardized: bool = True) -> None:
    """Raise if float32 is too coarse for a member."""
    if check_choice("dtype", dtype, ("float64", "float32")) == "float64":
        return
    for member in model.members:
        why = member.float32_problem(int(contexts.sizes.max(initial=0)), standardized)
        if why is not None:
            raise ValueError(f"dtype='float32' is too coarse for {why}. Use dtype='float64', the default.")


def read_tests(
    model: Ensemble, tasks: Sequence[TestTask], n_classes: np.ndarray | None = None
) -> tuple[Posteriors, Ragged]:
    """Return the posteriors of checked tasks, and their queries."""
    x, y, queries, observed = (Ragged.of(arrays, arrays[0].shape[1:]) for arrays in zip(*tasks, strict=True))
    model.members[0].scaling.outputs(observed.rows)  # raises if their errors could not be squared
    return Posteriors(model, x, y, n_classes=n_classes), queries


def check_outputs(model: Ensemble, tasks: Sequence[TestTask], name: str) -> None:
    """Raise if y of a task is too far from those of the fit for its errors to be squared; the error names the task."""
    outputs = model.members[0].scaling.outputs
    try:
        outputs(np.concatenate([y for task in tasks for y in (task.y_context, task.y_query)]))
    except ValueError:
        for i, task in enumerate(tasks):
            outputs(task.y_context, f"{name}[{i}] context: y")
            outputs(task.y_query, f"{name}[{i}] query: y")


def pad_rows(rows: np.ndarray, tasks: Sequence[TestTask]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values (..., rows) and y as (..., tasks, queries), NaN where there is no query, and the mask."""
    y = Ragged.of([task.y_query for task in tasks])
    padded, places = y.pad(y.starts[:-1], y.sizes, int(y.sizes.max()))
    mask = places >= 0
    return np.where(mask, rows[..., places], np.nan), np.where(mask, padded, np.nan), mask


def _scale(member: Member, x: Ragged, y: Ragged) -> tuple[Ragged, Ragged]:
    scaled = member.scaling.inputs(x.rows[:-1]), member.scaling.outputs(y.rows[:-1])
    return Ragged.of_rows(scaled[0], x.sizes), Ragged.of_rows(scaled[1], y.sizes)


def _n_bytes(value: Any) -> int:
    """Return the size of all arrays in nested lists, tuples, dicts and objects."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, list | tuple):
        return sum(map(_n_bytes, value))
    inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return sum(map(_n_bytes, inner.values()))


def predict_label_rows(posteriors: Posteriors, queries: Ragged) -> np.ndarray:
    """Return log probabilities of all classes for all query rows, (classes, rows).

    They are minus infinity for classes that a task does not have.
    """

    def values(tasks: np.ndarray, x: np.ndarray) -> np.ndarray:
        of_member = lambda member, posterior, x: member.class_log_probabilities(posterior, x)  # noqa: E731
        return average_log(posteriors.evaluate(of_member, tasks, x), posteriors.model.weights)

    assert posteriors.n_classes is not None
    rows = np.full((int(posteriors.n_classes.max(initial=0)), queries.n_rows), -np.inf)
    for places, of_chunk in posteriors.predict(queries, values):
        rows[: len(of_chunk), places] = of_chunk
    return rows


def predict_labels(
    model: Ensemble, tasks: Sequence[TestTask], n_classes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log probabilities (classes, tasks, queries), y and mask; padding is NaN and masked."""
    return pad_rows(predict_label_rows(*read_tests(model, tasks, n_classes)), tasks)


def average_log(log_probabilities: Any, weights: np.ndarray) -> np.ndarray:
    """Return the log of the members' average probability, over the first axis."""
    log_probabilities = np.asarray(log_probabilities)
    if len(weights) == 1:
        return log_probabilities[0]  # exactly as it is
    log_weights = np.log(weights).reshape(-1, *(1,) * (log_probabilities.ndim - 1))
    return np.asarray(logsumexp(log_probabilities + log_weights, 0))
