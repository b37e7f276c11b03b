"""Mini-batches of stored tasks for the training loop, prepared while it trains on the previous ones."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.padding import group_by_size
from metaprior.tasks.scaling import Scaling
from metaprior.wfem.mini_batches import allocate
from metaprior.wfem.objective import WeightedBatch
from metaprior.wfem.steps import CHUNK
from metaprior.wfem.task_sets import TaskBatch

MAX_BYTES = 50e6  # per chunk of steps; two chunks are in memory, one of them being prepared
PREFETCH = True  # benchmarks turn it off


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
