"""The training loop: chunks of compiled steps, for one run or many stacked runs, on one device or several.

Devices share runs first, then particles, then tasks: runs are independent, particles nearly so, and the gradient is a
sum over tasks.
"""

import math
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Key, PyTree

from metaprior.checks import Argument, Message
from metaprior.linalg import log_sum_exp
from metaprior.wfem.batches import CHUNK, Plan, sample_indices, select_batch
from metaprior.wfem.checkpoint import Checkpoint, describe, is_key
from metaprior.wfem.gp import GPPrior, Queries, adapt_and_predict
from metaprior.wfem.inference import Method
from metaprior.wfem.likelihoods import in_predictions, parameters
from metaprior.wfem.networks import merge
from metaprior.wfem.objective import Gibbs, Problem, TaskSet, WeightedBatch, full_batch, pad_batch, value_and_score

RUNS, PARTICLES, TASKS = AXES = ("runs", "particles", "tasks")
Tree = TypeVar("Tree")
BLOCK = 32  # runs whose activations stay in a CPU's cache (30 tasks of 5 samples each: 10 MB)

OPTIMIZERS = {"adam": optax.scale_by_adam, "sgd": optax.identity}
SCHEDULES: dict[str, Callable[[Array], Array]] = {
    "constant": jnp.ones_like,
    "cosine": lambda progress: 0.5 * (1.0 + jnp.cos(jnp.pi * progress)),
}
# In the order to try.
DIVERGENCE_ADVICE = (
    *("a smaller ", Argument("learning_rate"), "; a larger ", Argument("noise_std"), ", or "),
    *(Argument("noise_std", "learned"), "; a smaller ", Argument("std"), " of the hyper-prior or "),
    *(Argument("temperature"), "; ", Argument("dtype", "float64"), "."),
)


class TrainingDiverged(ArithmeticError):
    """Training produced a value that is not finite. The message says what to try."""


class TrainConfig(NamedTuple):
    """What a training program is compiled for. Whatever a sweep varies is traced: the problem and the learning rate."""

    method: Method
    optimizer: Literal["adam", "sgd"] = "adam"
    schedule: Literal["constant", "cosine"] = "cosine"
    plan: Plan | None = None  # tasks per step and stratum; None: all tasks in every step
    n_devices: int | None = None  # None: all
    chunk: int = CHUNK


class State(NamedTuple):
    """The training state of all runs."""

    particles: PyTree  # (runs, particles, ...)
    optimizer_state: PyTree
    keys: Key[Array, "*runs"]


class Chunk(NamedTuple):
    """The inputs of a chunk of steps besides the state."""

    problem: Problem
    learning_rate: Any  # (runs,)
    first: Any  # (), as is the next
    n_steps: Any  # of the whole training
    fed: tuple[WeightedBatch, ...] | None = None  # the mini-batch of every step, (steps, runs, tasks, ...)


class Validation(NamedTuple):
    """Held-out tasks, padded: contexts to adapt to and queries to score, with a leading axis of runs."""

    queries: Queries
    y_query: Any  # (runs, tasks, queries)
    mask: Any  # (runs, tasks, queries)


class Stopping(NamedTuple):
    """The state of early stopping, as arrays: the best particles of every run so far."""

    best: PyTree
    best_score: np.ndarray  # (runs,), as are the next two
    best_step: np.ndarray
    waited: np.ndarray
    scores: np.ndarray  # (validations, runs)

    @classmethod
    def of(cls, particles: PyTree) -> "Stopping":
        """Return the state before the first validation."""
        n = len(jax.tree.leaves(particles)[0])
        return cls(particles, np.full(n, np.inf), np.zeros(n, int), np.zeros(n, int), np.empty((0, n)))

    def update(self, particles: PyTree, scores: np.ndarray, step: int, running: np.ndarray) -> "Stopping":
        """Add the validation scores after a step; lower is better. Runs that have stopped keep what they had."""
        better = running & (scores < self.best_score)
        return Stopping(
            _select(jnp.asarray(better), particles, self.best),
            np.where(better, scores, self.best_score),
            np.where(better, step, self.best_step),
            np.where(better, 0, self.waited + running),
            np.concatenate([self.scores, scores[None]]),
        )


class Snapshot(NamedTuple):
    """The state of training between two chunks."""

    state: State
    stopping: Stopping
    trace: np.ndarray  # (runs, steps, 2), see `run_chunk`
    n_steps: np.ndarray  # (): less than asked for if a deadline has shortened training


class Result(NamedTuple):
    """The result of training, for all runs."""

    particles: PyTree
    loss: np.ndarray  # (runs, steps): Lbar + (log p(mode) - log p(theta)) / gamma, averaged over particles
    unconverged: np.ndarray  # (runs, steps): weight of the tasks whose evidence did not converge
    validation: np.ndarray  # (runs, chunks): negative log density of the queries; empty without validation tasks
    best_step: np.ndarray  # (runs,): the step whose particles are returned


@runtime_checkable
class BatchSource(Protocol):
    """Mini-batches from outside the problem, such as from disk."""

    @property
    def identity(self) -> str:
        """Return a digest of everything that the batches depend on."""
        ...

    def chunk(self, first: int, n_steps: int) -> tuple[WeightedBatch, ...]:
        """Return the batches of `n_steps` steps from step `first` on: leaves (steps, runs, tasks, ...)."""
        ...


class Deadline:
    """How many steps can be taken before a point in time, at the speed of the last chunk."""

    def __init__(self, n_steps: int, chunk: int, deadline: float | None):
        self.n_steps, self.chunk, self.deadline = n_steps, chunk, deadline
        self.last: float | None = None  # the end of the last chunk; the first one compiles, so its speed is not used

    def affordable_steps(self, done: int) -> int:
        """Return the step to stop at, now that `done` steps are done."""
        if self.deadline is None:
            return self.n_steps
        now = time.monotonic()
        left = self.deadline - now
        chunks = np.inf if self.last is None else left / max(now - self.last, 1e-9)
        self.last = now
        return done if left <= 0 else int(min(self.n_steps, done + np.floor(chunks) * self.chunk))


def train(
    problem: Problem,
    particles: PyTree,
    keys: Key[Array, " runs"],
    config: TrainConfig,
    n_steps: int,
    learning_rate: Float[Array, " runs"],
    validation: Validation | None = None,
    patience: int | None = None,
    on_chunk: Callable[[int, float], None] | None = None,
    deadline: float | None = None,
    check_divergence: bool = True,
    checkpoint: Checkpoint | None = None,
    batches: BatchSource | None = None,
) -> Result:
    """Train all runs; every array of `problem`, `particles` and `validation` has a leading axis of runs.

    A `deadline` (of `time.monotonic`) that would be missed shortens the schedule to the chunks that fit.
    Without `check_divergence` runs that diverge do not stop the others. `batches` replace the problem's own tasks.
    """
    if checkpoint is not None:
        given, source = (problem, particles, keys, learning_rate, validation), getattr(batches, "identity", "")
        checkpoint.start(given, f"{describe(config.method)} {config[1:]} {n_steps} {patience} {source}")
        if (result := checkpoint.result(Result(particles, *(np.empty(0),) * 4))) is not None:
            return result
    n_runs, n_particles = jax.tree.leaves(particles)[0].shape[:2]
    state = State(jax.tree.map(jnp.copy, particles), _initialize(particles, config), jnp.copy(keys))  # steps donate it
    now = Snapshot(state, Stopping.of(particles), np.empty((n_runs, 0, 2), learning_rate.dtype), np.asarray(n_steps))
    if checkpoint is not None:
        now = checkpoint.state(now) or now
    state, stopping, trace, n_steps = *now[:3], int(now.n_steps)
    limit = Deadline(n_steps, config.chunk, deadline)
    mesh = make_mesh(n_runs, n_particles, config.n_devices)
    if mesh is not None:
        state = _shard(state, mesh)
        problem, learning_rate = to_host((problem, learning_rate))
    first = trace.shape[1]
    while (running := stopping.waited < (patience or np.inf)).any() and first < n_steps:
        done = min(first + config.chunk, n_steps)
        fed = None if batches is None else batches.chunk(first, config.chunk)
        chunk = Chunk(problem, learning_rate, np.asarray(first, np.int32), np.asarray(n_steps, np.int32), fed)
        state, latest = run_chunk((chunk, config, mesh), state)
        trace = np.concatenate([trace, to_host(latest)[:, : done - first]], axis=1)
        if check_divergence:
            _check_finite(trace[:, first:, 0], running, first, "a loss")
        if validation is not None and (batches is None or done % CHUNK == 0 or done >= n_steps):
            scores = _score(state.particles, problem, validation)
            _check_finite(scores[:, None], running, done - 1, "a validation score")
            particles = state.particles if mesh is None else to_host(state.particles)
            stopping = stopping.update(particles, scores, done, running)
        if on_chunk is not None:
            on_chunk(done, float(trace[:, -1, 0].mean()))
        first, n_steps = done, limit.affordable_steps(done)
        if checkpoint is not None:
            checkpoint.update(Snapshot(to_host(state), stopping, trace, np.asarray(n_steps)))
    now = Snapshot(to_host(state), stopping, trace, np.asarray(n_steps))
    result = _result(now, problem, config.method, running if check_divergence else None)
    if checkpoint is not None:
        checkpoint.finish(result)
    return result


def _result(now: Snapshot, problem: Problem, method: Method, checked: np.ndarray | None) -> Result:
    """Return the best particles by validation score, or the last ones without validation tasks."""
    loss, unconverged = np.moveaxis(now.trace, 2, 0)
    n_runs, n_steps = loss.shape
    particles, best_step = now.stopping.best, now.stopping.best_step
    if not len(now.stopping.scores):
        particles, best_step = now.state.particles, np.full(n_runs, n_steps)
        # Losses are those before each step: a last step that diverged shows only in the particles.
        sizes = [np.abs(np.asarray(leaf)).reshape(n_runs, -1).max(axis=1) for leaf in jax.tree.leaves(particles)]
        if checked is not None:
            _check_finite(np.max(sizes, axis=0)[:, None], checked, int(now.n_steps) - 1, "a parameter")
    particles = _finish(particles, problem, now.state.keys, method, now.n_steps > 0)
    return Result(particles, loss, unconverged, now.stopping.scores.T, best_step)


def _finish(particles: PyTree, problem: Problem, keys: Key[Array, " runs"], method: Method, trained: Any) -> PyTree:
    """Return the particles that the method keeps of every run."""
    finish = getattr(method, "finish", None)
    if finish is None:
        return particles
    arrays, static = eqx.partition(problem, lambda leaf: hasattr(leaf, "dtype"))
    found = []
    for run in range(len(keys)):
        own, of_run = (jax.tree.map(lambda leaf, run=run: leaf[run], tree) for tree in (particles, arrays))
        kept = finish(own, Gibbs(eqx.combine(of_run, static), own), keys[run]) if trained else own
        found.append(_checked(kept, own, method))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def _checked(kept: PyTree, trained: PyTree, method: Method) -> PyTree:
    """Return the particles that a method keeps, in the precision of training; raise unless they are particles."""
    same = jax.tree.structure(kept) == jax.tree.structure(trained)
    pairs = list(zip(jax.tree.leaves(kept), jax.tree.leaves(trained), strict=True)) if same else []
    counts = {np.shape(leaf)[:1] for leaf, _ in pairs}
    if len(counts) != 1 or counts & {(), (0,)} or any(np.shape(leaf)[1:] != own.shape[1:] for leaf, own in pairs):
        expected = ".finish must return particles: a pytree like those it gets, with a leading axis of particles, at "
        raise ValueError(Message(Argument("inference"), f": {type(method).__name__}{expected}least one."))
    return jax.tree.map(lambda leaf, own: jnp.asarray(leaf, own.dtype), kept, trained)


@eqx.filter_jit
def _select(better: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda n, o: jax.vmap(lambda b, a, c: jnp.where(b, a, c))(better, n, o), new, old)


@eqx.filter_jit
def _predict(particles: PyTree, rest: GPPrior, queries: Queries) -> tuple[Array, Array]:
    return eqx.filter_vmap(adapt_and_predict)(particles, rest, queries)


def _score(particles: PyTree, problem: Problem, validation: Validation) -> np.ndarray:
    """Return the negative log density of the queries under the particle mixture, averaged per task, then over tasks."""
    found = to_host(_predict(particles, problem.rest, validation.queries))
    mean, variance = (np.asarray(each, np.float64) for each in found)  # (runs, particles, tasks, queries)
    observed = merge(*to_host((particles, problem.rest))).likelihood
    given = parameters(observed, mean.shape[:2])[:, :, None, None]
    with np.errstate(all="ignore"):  # of runs that diverged
        y = np.asarray(validation.y_query, np.float64)[:, None]
        densities = log_sum_exp(in_predictions(observed).log_density(y, mean, variance, given), axis=1)
    densities = np.where(validation.mask, densities - np.log(mean.shape[1]), 0.0)
    return -np.mean(densities.sum(axis=2) / np.sum(validation.mask, axis=2), axis=1)


def _check_finite(values: np.ndarray, running: np.ndarray, first: int, what: str) -> None:
    """Raise `TrainingDiverged` for the first step at which a running run has a value that is not finite."""
    bad = ~np.isfinite(values) & running[:, None]
    if not bad.any():
        return
    run, step = np.argwhere(bad)[np.argwhere(bad)[:, 1].argmin()]
    if first + step == 0 and what == "a loss":
        raise TrainingDiverged(
            f"The loss is {values[run, step]} before the first step: the initial mean or kernel gives values that are "
            "not finite, or the kernel is not positive definite. Check a custom mean or kernel, and that stored tasks "
            "have not changed since they were written."
        )
    before = values[run, step - 1] if step > 0 else None
    met = f"Training produced {what} of {values[run, step]} at step {first + step}"
    met += f" of run {run}" if len(values) > 1 else ""
    met += f" (it was {before:.4g} one step earlier)" if before is not None else ""
    raise TrainingDiverged(Message(met, ". Try, in this order: ", *DIVERGENCE_ADVICE))


def make_mesh(n_runs: int, n_particles: int, n_devices: int | None = None) -> Mesh | None:
    """Arrange the first `n_devices` devices as runs x particles x tasks; return None if there is only one."""
    devices = jax.devices()[:n_devices]
    if len(devices) == 1:
        return None
    over_runs = math.gcd(len(devices), n_runs)
    over_particles = math.gcd(len(devices) // over_runs, n_particles)
    shape = (over_runs, over_particles, len(devices) // (over_runs * over_particles))
    return Mesh(np.array(devices).reshape(shape), AXES)


def _spec(leaf: Any) -> PartitionSpec:
    """Return how a leaf of the training state is sharded: (runs, particles, ...), or one value per run."""
    return PartitionSpec(RUNS, PARTICLES) if leaf.ndim > 1 else PartitionSpec(RUNS)


def _shard(state: Tree, mesh: Mesh) -> Tree:
    """Place a training state on its devices."""

    def put(leaf: Any) -> Array:
        if is_key(leaf):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        array = np.asarray(leaf)
        spec = PartitionSpec(RUNS) if array.dtype == np.uint32 else _spec(array)  # data of keys, one per run
        return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])

    return jax.tree.map(put, state)


def to_host(tree: Any) -> Any:
    """Copy every array to NumPy; random keys stay keys."""

    def get(leaf: Any) -> Any:
        if is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(get(jax.random.key_data(leaf))), impl=jax.random.key_impl(leaf))
        return np.array(leaf) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(get, tree)


def check_n_devices(n_devices: int) -> None:
    """Raise if there are fewer devices."""
    available = jax.device_count()
    if n_devices > available:
        raise ValueError(f"n_devices must be at most {available}, the number of devices; got {n_devices}.")


@eqx.filter_jit
def _initialize(particles: PyTree, config: TrainConfig) -> PyTree:
    """Return the optimizer's initial state."""
    return jax.vmap(OPTIMIZERS[config.optimizer]().init)(particles)


# The state is donated: its memory is reused for the new one.
@eqx.filter_jit(donate="all-except-first")
def run_chunk(
    given: tuple[Chunk, TrainConfig, Mesh | None], state: State
) -> tuple[State, Float[Array, "runs chunk 2"]]:
    """Run the next steps, up to the last one. Return the state and the trace of every run, zero beyond the last step.

    The trace has the loss before each step, and the weight of the tasks whose evidence did not converge.
    """
    chunk, config, devices = given
    fed, batches = chunk.fed, None
    if fed is None and config.plan is None:
        batches = eqx.filter_vmap(full_batch)(chunk.problem)  # once, not in every step
    if config.plan is None:
        chunk = chunk._replace(problem=eqx.tree_at(lambda problem: problem.tasks, chunk.problem, TaskSet(())))
    if devices is None:
        return _in_blocks(chunk._replace(fed=None), fed, batches, config, state)
    n_shares = devices.shape[TASKS]
    fed = fed and tuple(pad_batch(batch, n_shares, axis=2) for batch in fed)
    batches = batches and tuple(pad_batch(batch, n_shares, axis=1) for batch in batches)
    arrays, static = eqx.partition((chunk._replace(fed=None), fed, batches), eqx.is_array)
    by_run = PartitionSpec(RUNS)
    specs = (
        Chunk(jax.tree.map(lambda _: by_run, arrays[0].problem), by_run, PartitionSpec(), PartitionSpec()),
        jax.tree.map(lambda _: PartitionSpec(None, RUNS, TASKS), arrays[1]),
        jax.tree.map(lambda _: PartitionSpec(RUNS, TASKS), arrays[2]),
    )
    specs_of_state = jax.tree.map(_spec, state)

    def local(arrays: Any, state: State) -> tuple[State, Array]:
        chunk, fed, batches = eqx.combine(arrays, static)
        return _steps(chunk, fed, batches, config, n_shares, state)

    shared = jax.shard_map(
        local,
        mesh=devices,
        in_specs=(specs, specs_of_state),
        out_specs=(specs_of_state, PartitionSpec(None, RUNS)),
        check_vma=False,
    )
    state, trace = shared(arrays, state)
    return state, trace.swapaxes(0, 1)


def _in_blocks(
    chunk: Chunk,
    fed: tuple[WeightedBatch, ...] | None,
    batches: tuple[WeightedBatch, ...] | None,
    config: TrainConfig,
    state: State,
) -> tuple[State, Float[Array, "runs chunk 2"]]:
    """Run all steps on one device: on CPUs in blocks of runs whose activations stay in the cache."""
    n_runs = len(chunk.learning_rate)
    size = max(n for n in range(1, BLOCK + 1) if n_runs % n == 0)
    if jax.default_backend() != "cpu" or n_runs <= BLOCK or 4 * size < BLOCK or fed is not None:
        state, trace = _steps(chunk, fed, batches, config, None, state)
        return state, trace.swapaxes(0, 1)
    arrays, static = eqx.partition((chunk.problem, chunk.learning_rate, batches, state), eqx.is_array)
    blocks = jax.tree.map(lambda leaf: leaf.reshape(n_runs // size, size, *leaf.shape[1:]), arrays)

    def block(arrays: Any) -> tuple[State, Array]:
        problem, rate, batches, state = eqx.combine(arrays, static)
        state, trace = _steps(chunk._replace(problem=problem, learning_rate=rate), None, batches, config, None, state)
        return state, trace.swapaxes(0, 1)

    done = jax.lax.map(block, blocks)
    return jax.tree.map(lambda leaf: leaf.reshape(n_runs, *leaf.shape[2:]), done)


def _steps(
    chunk: Chunk,
    fed: tuple[WeightedBatch, ...] | None,
    batches: tuple[WeightedBatch, ...] | None,
    config: TrainConfig,
    n_shares: int | None,
    state: State,
) -> tuple[State, Float[Array, "chunk runs 2"]]:
    rate = chunk.learning_rate

    def step(i: Array, carry: tuple[State, Array]) -> tuple[State, Array]:
        state, trace = carry
        progress = (chunk.first + i).astype(rate.dtype) / chunk.n_steps.astype(rate.dtype)
        now = batches if fed is None else jax.tree.map(lambda leaf: leaf[i], fed)
        select_run = eqx.filter_vmap(_step, in_axes=(eqx.if_array(0), eqx.if_array(0), 0, eqx.if_array(0), None, None))
        state, values = select_run(
            state, chunk.problem, rate * SCHEDULES[config.schedule](progress), now, config, n_shares
        )
        return state, trace.at[i].set(values)

    n_steps = jnp.clip(chunk.n_steps - chunk.first, 0, config.chunk)
    trace = jnp.zeros((config.chunk, len(rate), 2), rate.dtype)
    return jax.lax.fori_loop(0, n_steps, step, (state, trace))


def _step(
    state: State,
    problem: Problem,
    rate: Array,
    batches: tuple[WeightedBatch, ...] | None,
    config: TrainConfig,
    n_shares: int | None,
) -> tuple[State, Float[Array, " 2"]]:
    """Take one step of one run: score all particles, combine the scores by the method, and update by the optimizer.

    `n_shares` is the number of devices that share the tasks; None on a single device.
    """
    keys = state.keys
    if batches is None:
        assert config.plan is not None
        keys, key = jax.random.split(keys)
        batches = select_batch(problem, sample_indices(key, problem.tasks, config.plan), config.plan)
        if n_shares is not None:
            batches = _local_tasks(batches, n_shares)
    total = (lambda tree: jax.lax.psum(tree, TASKS)) if n_shares is not None else lambda tree: tree
    of_particle = jax.vmap(lambda theta: value_and_score(theta, problem, batches, total))
    values, scores, unconverged = of_particle(state.particles)
    descent = jax.tree.map(jnp.negative, _direction(config.method, state.particles, scores, n_shares is not None))
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to the power of its integer step count
        updates, optimizer_state = OPTIMIZERS[config.optimizer]().update(descent, state.optimizer_state)
    particles = jax.tree.map(lambda value, update: value - rate * update, state.particles, updates)
    # Relative to the log density of the hyper-prior's mode, a large constant.
    constant = problem.hyperprior.log_density(problem.hyperprior.mean)
    trace = jnp.stack([(constant - jnp.mean(values)) / problem.temperature, jnp.mean(unconverged)])
    return State(particles, optimizer_state, keys), trace if n_shares is None else jax.lax.pmean(trace, PARTICLES)


def _local_tasks(batches: tuple[WeightedBatch, ...], n_shares: int) -> tuple[WeightedBatch, ...]:
    """Select the tasks of a mini-batch that this device computes."""

    def select(leaf: Array) -> Array:
        n = len(leaf) // n_shares
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(TASKS) * n, n)

    return jax.tree.map(select, tuple(pad_batch(batch, n_shares) for batch in batches))


def _direction(method: Method, particles: PyTree, scores: PyTree, shared: bool) -> PyTree:
    """Return the method's direction; interacting particles that devices share are gathered for it."""
    if not shared or not method.interacts:
        return method.direction(particles, scores)
    gather = lambda leaf: jax.lax.all_gather(leaf, PARTICLES, tiled=True)  # noqa: E731
    every = method.direction(jax.tree.map(gather, particles), jax.tree.map(gather, scores))
    n_local = len(jax.tree.leaves(particles)[0])
    first = jax.lax.axis_index(PARTICLES) * n_local
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, n_local), every)
