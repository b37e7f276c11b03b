"""Several devices: what each computes, and how results are gathered.

Runs are distributed first, then particles, then tasks: runs are independent, particles nearly so, and the gradient is a
sum over tasks.

Training steps as compiled programs: a chunk of steps at once, for all runs, on one device or on many.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Key, PyTree

from metaprior.wfem.inference import Method
from metaprior.wfem.objective import (
    Plan,
    Problem,
    TaskSet,
    WeightedBatch,
    full_batch,
    pad_batch,
    sample_indices,
    select_batch,
    value_and_score,
)

RUNS, PARTICLES, TASKS = AXES = ("runs", "particles", "tasks")
Tree = TypeVar("Tree")


def make_mesh(n_runs: int, n_particles: int, n_devices: int | None = None) -> Mesh | None:
    """Arrange the first `n_devices` devices as runs x particles x tasks; return None if there is only one."""
    devices = jax.devices()[:n_devices]
    if len(devices) == 1:
        return None
    over_runs = math.gcd(len(devices), n_runs)
    over_particles = math.gcd(len(devices) // over_runs, n_particles)
    shape = (over_runs, over_particles, len(devices) // (over_runs * over_particles))
    return Mesh(np.array(devices).reshape(shape), AXES)


def state_spec(leaf: Any) -> PartitionSpec:
    """Return how a leaf of the training state is sharded: (runs, particles, ...), or one value per run."""
    return PartitionSpec(RUNS, PARTICLES) if leaf.ndim > 1 else PartitionSpec(RUNS)


def shard_state(state: Tree, mesh: Mesh) -> Tree:
    """Place a training state on its devices."""

    def put(leaf: Any, spec: PartitionSpec) -> Array:
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])

    def put_any(leaf: Any) -> Array:
        if is_key(leaf):
            data = put(jax.random.key_data(leaf), PartitionSpec(RUNS))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return put(leaf, state_spec(leaf))

    return jax.tree.map(put_any, state)


def to_host(tree: Any) -> Any:
    """Copy every array to NumPy; random keys stay keys."""

    def get(leaf: Any) -> Any:
        if is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(get(jax.random.key_data(leaf))), impl=jax.random.key_impl(leaf))
        return np.array(leaf) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(get, tree)


def sum_over_tasks(tree: PyTree) -> PyTree:
    """Sum over the devices that share the tasks."""
    return jax.lax.psum(tree, TASKS)


def gather_particles(tree: PyTree) -> PyTree:
    """Gather the particles of all devices that share them."""
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, PARTICLES, tiled=True), tree)


def local_particles(tree: PyTree, n: int) -> PyTree:
    """Select the n particles of this device."""
    first = jax.lax.axis_index(PARTICLES) * n
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, n), tree)


def mean_over_particles(values: Array) -> Array:
    """Average over the particles of all devices."""
    return jax.lax.pmean(jnp.mean(values), PARTICLES)


def local_tasks(batches: tuple[WeightedBatch, ...], n_shares: int) -> tuple[WeightedBatch, ...]:
    """Select the tasks of a mini-batch that this device computes."""

    def select(leaf: Array) -> Array:
        n = len(leaf) // n_shares
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(TASKS) * n, n)

    return jax.tree.map(select, tuple(pad_batch(batch, n_shares) for batch in batches))


def is_key(leaf: Any) -> bool:
    """Return whether a leaf is an array of random keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def check_n_devices(n_devices: int) -> None:
    """Raise if there are fewer devices."""
    available = jax.device_count()
    if n_devices > available:
        raise ValueError(f"n_devices must be at most {available}, the number of devices; got {n_devices}.")


BLOCK = 32  # runs whose activations stay in a CPU's cache (30 tasks of 5 samples each: 10 MB)
CHUNK = 100  # steps between two returns to the host, for progress, early stopping and divergence checks

OPTIMIZERS = {"adam": optax.scale_by_adam, "sgd": optax.identity}
SCHEDULES: dict[str, Callable[[Array], Array]] = {
    "constant": jnp.ones_like,
    "cosine": lambda progress: 0.5 * (1.0 + jnp.cos(jnp.pi * progress)),
}


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


@eqx.filter_jit
def initialize(particles: PyTree, config: TrainConfig) -> PyTree:
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
    specs_of_state = jax.tree.map(state_spec, state)

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
            batches = local_tasks(batches, n_shares)
    total = sum_over_tasks if n_shares is not None else lambda tree: tree
    of_particle = jax.vmap(lambda theta: value_and_score(theta, problem, batches, total))
    values, scores, unconverged = of_particle(state.particles)
    descent = jax.tree.map(jnp.negative, _direction(config.method, state.particles, scores, n_shares is not None))
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to the power of its integer step count
        updates, optimizer_state = OPTIMIZERS[config.optimizer]().update(descent, state.optimizer_state)
    particles = jax.tree.map(lambda value, update: value - rate * update, state.particles, updates)
    mean = jnp.mean if n_shares is None else mean_over_particles
    # Relative to the log density of the hyper-prior's mode, a large constant.
    constant = problem.hyperprior.log_density(problem.hyperprior.mean)
    loss = (constant - mean(values)) / problem.temperature
    return State(particles, optimizer_state, keys), jnp.stack([loss, mean(unconverged)])


def _direction(method: Method, particles: PyTree, scores: PyTree, shared: bool) -> PyTree:
    """Return the method's direction; interacting particles that devices share are gathered for it."""
    if not shared or not method.interacts:
        return method.direction(particles, scores)
    n_local = len(jax.tree.leaves(particles)[0])
    every = method.direction(gather_particles(particles), gather_particles(scores))
    return local_particles(every, n_local)
