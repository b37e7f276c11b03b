"""Mini-batches: which tasks form a step, drawn from those in memory or read from disk while training goes on.

Tasks are drawn by strata: those of one environment and of similar sizes.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import group_by_size
from metaprior.wfem.objective import Problem, TaskBatch, TaskSet, WeightedBatch, blank_weightless, task_weights

CHUNK = 100  # steps between two returns to the host, for progress, early stopping and divergence checks
MAX_BYTES = 50e6  # of batches per chunk of steps; two chunks are in memory, one of them being prepared
PREFETCH = True  # benchmarks turn it off

Plan = tuple[tuple[int, ...], ...]  # tasks to sample per bucket and environment


def batch_plan(tasks: TaskSet, batch_size: int) -> Plan:
    """Split `batch_size` tasks evenly among the environments, and within each in proportion to its size buckets.

    The plan is compiled in, so it does not depend on the weights: a sweep over alpha compiles once.
    """
    counts = np.array([bucket.counts for bucket in tasks.buckets])
    sampled = allocate((counts / np.maximum(counts.sum(axis=0), 1)).ravel(), counts.ravel(), batch_size)
    return tuple(tuple(row) for row in sampled.reshape(counts.shape).tolist())


def allocate(shares: np.ndarray, counts: np.ndarray, total: int) -> np.ndarray:
    """Share `total` samples among strata of `counts` tasks in proportion to `shares`.

    Every stratum gets at least one of its tasks (even if the total is smaller) and at most all of them.
    """
    sampled = (counts > 0).astype(int)
    for _ in range(min(total, int(counts.sum())) - int(sampled.sum())):
        quotient = np.where(sampled < counts, shares / np.maximum(sampled, 1), -np.inf)
        sampled[quotient.argmax()] += 1
    return sampled


def sample_indices(key: PRNGKeyArray, tasks: TaskSet, plan: Plan) -> tuple[Int[Array, " _"], ...]:
    """Draw the tasks of a mini-batch, without replacement within each stratum."""
    indices = []
    for bucket, sampled in zip(tasks.buckets, plan, strict=True):
        starts = np.cumsum((0, *bucket.counts))
        key, *keys = jax.random.split(key, len(sampled) + 1)
        strata = zip(keys, starts[:-1], bucket.counts, sampled, strict=True)
        draws = [start + jax.random.permutation(k, count)[:n] for k, start, count, n in strata if n > 0]
        indices.append(jnp.concatenate(draws))
    return tuple(indices)


def select_batch(problem: Problem, indices: tuple[Int[Array, " _"], ...], plan: "Plan") -> tuple[WeightedBatch, ...]:
    """Return the mini-batch of given tasks, weighted so that its expectation over uniform draws is the full batch.

    Every stratum (an environment within a size bucket) is sampled separately, so its tasks are weighted up by the
    stratum's size over its sample. With one bucket this is alpha * (mean over the sampled source tasks) + (1 - alpha) *
    (mean over the sampled target tasks).
    """
    batches = []
    all_weights = task_weights(problem.tasks, problem.environment_weights)
    for bucket, weights, chosen, sampled in zip(problem.tasks.buckets, all_weights, indices, plan, strict=True):
        up = np.divide(bucket.counts, sampled, out=np.ones(len(sampled)), where=np.asarray(sampled) > 0)
        factors = jnp.asarray(np.repeat(up, sampled), weights.dtype)
        rows = jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], bucket)
        rows = TaskBatch(rows.x, rows.y, rows.mask, rows.included, sampled)
        batches.append(WeightedBatch(rows, weights[chosen] * factors))
    return blank_weightless(batches)


class Stratum(NamedTuple):
    """Tasks of one environment and of similar sizes, which are sampled separately."""

    environment: int
    tasks: np.ndarray  # indices within the environment
    size: int  # that tasks are padded to
    sampled: int  # tasks per step
    weight: float  # of each sampled task in the loss; in expectation the loss is that of all tasks


class Feed:
    """The mini-batch of every step, which depends on the seed and the step only.

    Every stratum is visited in random order, epoch after epoch. A thread prepares the batches of the next chunk of
    steps; use the feed in a `with` statement, which ends the thread.
    """

    def __init__(
        self,
        environments: Sequence[StoredTasks],
        weights: Sequence[float],
        scaling: Scaling,
        batch_size: int,
        seed: int,
        n_steps: int,
        dtype: Any = np.float32,
        prefetch: bool | None = None,
    ):
        self.environments, self.scaling, self.dtype = list(environments), scaling, np.dtype(dtype)
        self.seed, self.n_steps = seed, n_steps
        self.weights = tuple(weights)
        self.strata = make_strata(environments, weights, batch_size)
        self._orders: dict[tuple[int, int], np.ndarray] = {}
        self._pool = ThreadPoolExecutor(1, "metaprior-feed") if (PREFETCH if prefetch is None else prefetch) else None
        self._next: tuple[tuple[int, int], Future] | None = None

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def chunk_steps(self) -> int:
        """Return how many steps to ask for at once, a divisor of the steps between two validations."""
        numbers = sum(s.sampled * s.size * (self.environments[s.environment].input_dim + 3) for s in self.strata)
        return max(n for n in range(1, CHUNK + 1) if CHUNK % n == 0 and (n == 1 or n * 8 * numbers <= MAX_BYTES))

    def chunk(self, first: int, n_steps: int) -> tuple[WeightedBatch, ...]:
        """Return the batches of steps `first` to `first + n_steps`: leaves (steps, 1, tasks, ...)."""
        asked, ready = (first, n_steps), self._next
        if ready is not None and ready[0] != asked:
            wait([ready[1]])  # batches must not be prepared twice at the same time
        batches = ready[1].result() if ready is not None and ready[0] == asked else self._prepare(*asked)
        following = (first + n_steps, n_steps)
        if self._pool is not None and following[0] < self.n_steps:
            x64 = jnp.zeros(()).dtype == jnp.float64  # the switch is local to a thread
            self._next = (following, self._pool.submit(self._prepare_in, x64, *following))
        return batches

    def _prepare_in(self, x64: bool, first: int, n_steps: int) -> tuple[WeightedBatch, ...]:
        with jax.enable_x64(x64):
            return self._prepare(first, n_steps)

    def _prepare(self, first: int, n_steps: int) -> tuple[WeightedBatch, ...]:
        batches = []
        for size in sorted({stratum.size for stratum in self.strata}):
            numbered = [(i, stratum) for i, stratum in enumerate(self.strata) if stratum.size == size]
            parts = [self._gather(i, first, n_steps) for i, _ in numbered]
            x, y, mask = (np.concatenate(part, axis=1)[:, None] for part in zip(*parts, strict=True))
            weights = np.concatenate([np.full(s.sampled, s.weight, self.dtype) for _, s in numbered])
            counts = [0] * len(self.environments)
            for _, stratum in numbered:
                counts[stratum.environment] = stratum.sampled
            batch = TaskBatch(x, y, mask, np.ones(mask.shape[:3], bool), tuple(counts))
            batches.append(WeightedBatch(batch, np.broadcast_to(weights, mask.shape[:3])))  # type: ignore[arg-type]
        # Several devices take their shares from the host.
        return tuple(batches) if jax.device_count() > 1 else jax.device_put(tuple(batches))

    def _gather(self, number: int, first: int, n_steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the tasks of a stratum, scaled in double precision before they are cast."""
        stratum = self.strata[number]
        x, y, mask = self.environments[stratum.environment].gather(self._indices(number, first, n_steps), stratum.size)
        with np.errstate(over="ignore"):  # training reports it
            y = np.where(mask, self.scaling.outputs(y), 0.0).astype(self.dtype)
            return self.scaling.inputs(x).astype(self.dtype), y, mask

    def _indices(self, number: int, first: int, n_steps: int) -> np.ndarray:
        """Return the tasks of a stratum in every step, (steps, sampled), from one random order after another."""
        _, tasks, _, sampled, _ = self.strata[number]
        if sampled == len(tasks):
            return np.broadcast_to(tasks, (n_steps, sampled))
        start, end = first * sampled, (first + n_steps) * sampled
        chosen = []
        for epoch in range(start // len(tasks), -(-end // len(tasks))):
            place = epoch * len(tasks)
            chosen.append(self._order(number, epoch)[max(start - place, 0) : end - place])
        return tasks[np.concatenate(chosen)].reshape(n_steps, sampled)

    def _order(self, number: int, epoch: int) -> np.ndarray:
        """Return the order of an epoch; the last one is cached, since a million tasks take longer than all the rest."""
        if (number, epoch) not in self._orders:
            self._orders = {key: order for key, order in self._orders.items() if key[0] != number}
            rng = np.random.default_rng([self.seed, number, epoch])
            self._orders[number, epoch] = rng.permutation(len(self.strata[number].tasks))
        return self._orders[number, epoch]

    @property
    def identity(self) -> str:
        """Return a digest of everything that the batches depend on."""
        plan = [(s.environment, s.size, s.sampled, s.weight) for s in self.strata]
        scaling = [None if part is None else np.asarray(part).tolist() for part in self.scaling]
        counted = zip(self.environments, self.weights, strict=True)
        contents = [stored.digest for stored, weight in counted if weight > 0]
        words = repr((plan, scaling, contents, self.seed, self.dtype.str))
        return hashlib.sha256(words.encode()).hexdigest()


def make_strata(environments: Sequence[StoredTasks], weights: Sequence[float], batch_size: int) -> list[Stratum]:
    """Group tasks by environment and size, and split a mini-batch evenly among the environments of positive weight."""
    counted = [e for e, weight in enumerate(weights) if weight > 0]
    sizes = np.concatenate([environments[e].sizes for e in counted])
    owner = np.repeat(counted, [len(environments[e]) for e in counted])
    starts = np.cumsum([0, *(len(environments[e]) for e in counted)])
    groups = []
    for size, members in group_by_size(sizes, 3):
        for place, e in enumerate(counted):
            tasks = members[owner[members] == e] - starts[place]
            if len(tasks):
                groups.append((e, tasks.astype(np.int64), size, weights[e] / len(environments[e])))
    counts = np.array([len(tasks) for _, tasks, _, _ in groups])
    shares = counts / np.array([len(environments[e]) for e, *_ in groups])
    sampled = allocate(shares, counts, batch_size).tolist()
    return [
        Stratum(e, tasks, size, n, weight * len(tasks) / n)
        for (e, tasks, size, weight), n in zip(groups, sampled, strict=True)
    ]
