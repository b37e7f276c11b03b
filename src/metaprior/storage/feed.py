"""Mini-batches of stored tasks for the training loop, prepared while it trains on those before."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.meta.objective import WeightedBatch
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.padding import TaskBatch, group_by_size
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task
from metaprior.training.steps import CHUNK

MAX_BYTES = 50e6  # of a chunk of steps while it is prepared; there are two, the other is trained on
PREFETCH = True  # benchmarks turn it off


class Stratum(NamedTuple):
    """Tasks of one environment and of like sizes, which are sampled on their own."""

    environment: int
    tasks: np.ndarray  # places among those of the environment
    size: int  # to which they are padded
    sampled: int  # in every step
    weight: float  # in the loss, of each that is sampled: the expectation is that of all tasks


class Feed:
    """The mini-batch of every step, a function of the seed and of the step alone.

    A stratum is gone through in random order, and then in another: in as many steps as it takes, every task comes once.
    Batches of the next chunk of steps are made in a thread of their own. Use it in a `with` statement, which ends that.
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
        """How many steps to ask for at once: a part of those between two looks at the validation tasks."""
        numbers = sum(s.sampled * s.size * (self.environments[s.environment].input_dim + 3) for s in self.strata)
        return max(n for n in range(1, CHUNK + 1) if CHUNK % n == 0 and (n == 1 or n * 8 * numbers <= MAX_BYTES))

    def chunk(self, first: int, n_steps: int) -> tuple[WeightedBatch, ...]:
        """The batches of steps `first` to `first + n_steps`: leaves have axes of steps, of runs (one) and of tasks."""
        asked, ready = (first, n_steps), self._next
        if ready is not None and ready[0] != asked:
            wait([ready[1]])  # what it does is not meant to be done twice at once
        batches = ready[1].result() if ready is not None and ready[0] == asked else self._prepare(*asked)
        following = (first + n_steps, n_steps)
        if self._pool is not None and following[0] < self.n_steps:
            x64 = jnp.zeros(()).dtype == jnp.float64  # a switch of this thread alone
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
        # Several devices take their shares themselves.
        return tuple(batches) if jax.device_count() > 1 else jax.device_put(tuple(batches))

    def _gather(self, number: int, first: int, n_steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scaled in double precision, before they become less precise."""
        stratum = self.strata[number]
        x, y, mask = self.environments[stratum.environment].gather(self._indices(number, first, n_steps), stratum.size)
        with np.errstate(over="ignore"):  # as in `pad_to`: training says so
            y = np.where(mask, self.scaling.outputs(y), 0.0).astype(self.dtype)
            return self.scaling.inputs(x).astype(self.dtype), y, mask

    def _indices(self, number: int, first: int, n_steps: int) -> np.ndarray:
        """(steps, sampled): the tasks of a stratum in every step, from one order of all of them after another."""
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
        """The last one is kept: of a million tasks it takes longer to find than all the rest."""
        if (number, epoch) not in self._orders:
            self._orders = {key: order for key, order in self._orders.items() if key[0] != number}
            rng = np.random.default_rng([self.seed, number, epoch])
            self._orders[number, epoch] = rng.permutation(len(self.strata[number].tasks))
        return self._orders[number, epoch]

    @property
    def identity(self) -> str:
        """A digest of all that batches depend on."""
        plan = [(s.environment, s.size, s.sampled, s.weight) for s in self.strata]
        scaling = [None if part is None else np.asarray(part).tolist() for part in self.scaling]
        counted = zip(self.environments, self.weights, strict=True)
        contents = [stored.digest for stored, weight in counted if weight > 0]
        words = repr((plan, scaling, contents, self.seed, self.dtype.str))
        return hashlib.sha256(words.encode()).hexdigest()


def make_strata(environments: Sequence[StoredTasks], weights: Sequence[float], batch_size: int) -> list[Stratum]:
    """Environments by sizes, with the share of each in a mini-batch.

    Tasks that weigh w_e / N_e in the loss, times the tasks of the stratum, is what a stratum weighs, and it is sampled
    in proportion: where tasks vary alike no other plan has a smaller variance. In proportion to their numbers, a
    hundred target tasks beside a million others would come one at a time, with most of the weight.
    """
    counted = [e for e, weight in enumerate(weights) if weight > 0]
    sizes = np.concatenate([environments[e].sizes for e in counted])
    of_environment = np.repeat(counted, [len(environments[e]) for e in counted])
    starts = np.cumsum([0, *(len(environments[e]) for e in counted)])
    groups = []
    for size, members in group_by_size(sizes, 3):
        for place, e in enumerate(counted):
            tasks = members[of_environment[members] == e] - starts[place]
            if len(tasks):
                groups.append((e, tasks.astype(np.int64), size, weights[e] / len(environments[e])))
    counts = np.array([len(tasks) for _, tasks, _, _ in groups])
    sampled = shared(counts * np.array([weight for *_, weight in groups]), counts, batch_size).tolist()
    return [
        Stratum(e, tasks, size, n, weight * len(tasks) / n)
        for (e, tasks, size, weight), n in zip(groups, sampled, strict=True)
    ]


def shared(shares: np.ndarray, counts: np.ndarray, batch_size: int) -> np.ndarray:
    """Tasks to sample of each stratum: in proportion to its share, one at least and all at most.

    What is more than all of a stratum goes to the others.
    """
    sampled = np.ones(len(counts), int)
    for _ in range(min(batch_size, int(counts.sum())) - len(counts)):
        wanting = np.where(sampled < counts, shares / sampled, -np.inf)
        sampled[wanting.argmax()] += 1
    return sampled


def stream_temperature(rule: str, environments: Sequence[StoredTasks], weights: Sequence[float]) -> float:
    """gamma by a rule, as `objective.temperature` has it."""
    counts = np.array([len(stored) for stored in environments], float)
    if rule == "paper":
        n_tasks, share = counts.sum(), counts / counts.sum()
    else:
        share = np.asarray(weights, float)
        n_tasks = 1.0 / np.sum(share**2 / np.maximum(counts, 1.0))
    inverse = [np.mean(1.0 / stored.sizes) if len(stored) else 0.0 for stored in environments]
    harmonic_mean = 1.0 / (share @ np.array(inverse))
    return float(n_tasks * harmonic_mean if rule == "bayes" else 1.0 / (1.0 / n_tasks + 1.0 / harmonic_mean))


def sample_tasks(environments: Sequence[StoredTasks], most: int, seed: int) -> list[list[Task]]:
    """Some tasks of each environment, in their order: all where there are no more than `most`."""
    drawn = []
    for e, stored in enumerate(environments):
        rng = np.random.default_rng([seed, e])
        chosen = rng.choice(len(stored), most, replace=False) if len(stored) > most else np.arange(len(stored))
        drawn.append([stored[i] for i in np.sort(chosen).tolist()])
        stored.release()
    return drawn
