"""Mini-batches of stored tasks for the training loop, prepared while it trains on the previous ones.

Where a fit gets its tasks from: all in memory, or streamed from disk. One interface for both.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.checks import Argument, Message
from metaprior.search.averaging import Candidate, Weights
from metaprior.storage.stored_tasks import StoredTasks, sample_tasks, stored_scaling
from metaprior.tasks.scaling import Scaling, with_kinds
from metaprior.tasks.splits import thin_tasks
from metaprior.tasks.types import Task, group_by_size
from metaprior.wfem.inference import Laplace, Method
from metaprior.wfem.loop import Result, Validation
from metaprior.wfem.objective import TaskBatch, WeightedBatch, allocate, temperature
from metaprior.wfem.runs import Run, Settings, TrainingOptions, make_run, make_scaling, train_runs, training_dtype
from metaprior.wfem.steps import CHUNK

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


Environments = Sequence[Sequence[Task]]
SAMPLE_SIZE = 500  # tasks of each stored environment that settings are chosen by
STREAM_BATCH_SIZE = 256  # tasks per step of a stream if `batch_size` is not given


@dataclass(frozen=True)
class InMemoryTasks:
    """All tasks are in memory: the search and the fit see every one of them."""

    environments: Environments
    batch_size: int | None

    def counts(self, alpha: Any) -> list[int]:
        """Return the number of tasks of each environment that environment weights are computed with."""
        return [len(tasks) for tasks in self.environments]

    def sample(self, seed: int) -> Environments:
        """Return the tasks that settings are chosen by."""
        return self.environments

    def scaling(self, weights: Weights, settings: Settings, sample: Environments) -> Scaling:
        """Return the scaling of all tasks."""
        return make_scaling(self.environments, weights, settings)

    def dtype(self, options: Sequence[Weights], settings: Settings) -> str:
        """Return the training precision that the most demanding option needs."""
        scaled = ((weights, make_scaling(self.environments, weights, settings)) for weights in options)
        return max(training_dtype(self.environments, weights, scaling, settings) for weights, scaling in scaled)

    def check_method(self, method: Method) -> None:
        """Every method can have all tasks."""

    def make_run(self, sample: Environments, member: Candidate, scaling: Scaling, seed: int) -> Run:
        """Return the run that trains a member of the ensemble."""
        return make_run(sample, member.weights, scaling, member.settings, seed)

    def train(
        self,
        members: Sequence[Candidate],
        runs: Sequence[Run],
        scalings: Sequence[Scaling],
        options: TrainingOptions,
        validation: Sequence[Validation] | None,
        patience: int | None,
        seed: int,
    ) -> list[Result]:
        """Train all members in one program."""
        method = members[0].settings.method
        return train_runs(runs, method, options, validation=validation, patience=patience)


@dataclass(frozen=True)
class StreamedTasks:
    """Tasks are stored on disk: settings are chosen on a sample, and every member is trained on its own stream."""

    environments: Sequence[StoredTasks]
    batch_size: int

    def counts(self, alpha: Any) -> list[int]:
        """Return the number of tasks of each environment, or of its part of the sample if alpha is chosen.

        With alpha='auto' a source task weighs r times as much as a target task. Beside a million source tasks any r
        worth trying would leave nothing to a hundred target tasks. What limits the source is its distance from the
        target, which a million tasks show no better than a few hundred. So r is a ratio between tasks of the sample.
        """
        chosen = isinstance(alpha, str) and alpha == "auto"
        return [min(len(stored), SAMPLE_SIZE) if chosen else len(stored) for stored in self.environments]

    def sample(self, seed: int) -> Environments:
        """Return the tasks, in memory, that settings are chosen by."""
        return sample_tasks(self.environments, SAMPLE_SIZE, seed)

    def scaling(self, weights: Weights, settings: Settings, sample: Environments) -> Scaling:
        """Return the scaling of all tasks; correlations within classes are those of the sample."""
        if not settings.scales_outputs:
            return make_scaling(sample, weights, settings)
        scaling, kinds = stored_scaling(self.environments, weights), settings.kinds
        return scaling if kinds is None else with_kinds(scaling, kinds, np.zeros(sum(kinds.widths)))

    def dtype(self, options: Sequence[Weights], settings: Settings) -> str:
        """Return the training precision that the most demanding option needs, given the largest task of each."""
        largest = [[stored[int(np.argmax(stored.sizes))]] if len(stored) else [] for stored in self.environments]
        pairs = [(weights, self.scaling(weights, settings, largest)) for weights in options]
        return max(training_dtype(largest, weights, scaling, settings) for weights, scaling in pairs)

    def check_method(self, method: Method) -> None:
        """Raise if a method needs all tasks at once, as Laplace's approximation does, and others that have a `finish`.

        With that many tasks the hyper-posterior is so narrow that its mode is enough.
        """
        if getattr(method, "finish", None) is not None:
            raise ValueError(
                Message(
                    Argument("inference", "laplace" if isinstance(method, Laplace) else method),
                    " needs all tasks in memory, but stored tasks are streamed. Use ",
                    Argument("inference", "map"),
                    ", 'svgd', or a list of some of the tasks: list(tasks[:1000]).",
                )
            )

    def make_run(self, sample: Environments, member: Candidate, scaling: Scaling, seed: int) -> Run:
        """Return a run of the sample, at the temperature of all tasks."""
        run = make_run(sample, member.weights, scaling, member.settings, seed)
        rule = member.settings.temperature
        if not isinstance(rule, str):
            return run
        sizes = [stored.sizes for stored in self.environments]
        gamma = temperature(rule, sizes, member.weights) * member.settings.temperature_factor
        problem = replace(run.problem, temperature=jnp.asarray(gamma, run.problem.temperature.dtype))
        return run._replace(problem=problem)

    def train(
        self,
        members: Sequence[Candidate],
        runs: Sequence[Run],
        scalings: Sequence[Scaling],
        options: TrainingOptions,
        validation: Sequence[Validation] | None,
        patience: int | None,
        seed: int,
    ) -> list[Result]:
        """Train the members one after another."""
        results, dtype = [], jnp.zeros(()).dtype
        for i, (member, scaling) in enumerate(zip(members, scalings, strict=True)):
            held_out = None if validation is None else validation[i : i + 1]
            feed = Feed(self.environments, member.weights, scaling, self.batch_size, seed, options.n_steps, dtype)
            with feed:
                results += train_runs(
                    runs[i : i + 1],
                    member.settings.method,
                    options,
                    validation=held_out,
                    patience=patience,
                    batches=feed,
                    chunk=feed.chunk_steps,
                )
        return results


TaskSource = InMemoryTasks | StreamedTasks


def make_source(environments: Environments, batch_size: int | None, labels: bool = False) -> TaskSource:
    """Return a stream if any environment is stored (those in memory then join it), else all tasks in memory.

    Tasks in memory are thinned to the samples that training can use.
    """
    input_dims = [tasks.input_dim for tasks in environments if isinstance(tasks, StoredTasks)]
    if not input_dims:
        return InMemoryTasks(thin_tasks(environments, labels=labels), None if batch_size is None else int(batch_size))
    stored = [StoredTasks.from_tasks(tasks, input_dims[0]) for tasks in environments]
    return StreamedTasks(stored, STREAM_BATCH_SIZE if batch_size is None else int(batch_size))
