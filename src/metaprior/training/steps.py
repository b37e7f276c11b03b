"""Steps of training as compiled programs: a chunk of them at once, for all runs, on one device or on many."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Key, PyTree

from metaprior.meta.methods import Method
from metaprior.meta.objective import (
    Plan,
    Problem,
    WeightedBatch,
    full_batch,
    pad_batch,
    sample_indices,
    select_batch,
    value_and_score,
)
from metaprior.tasks.padding import TaskSet
from metaprior.training import devices as mesh

BLOCK = 32  # runs whose activations stay in the cache of a processor (of 30 tasks of 5 samples: 10 MB)
CHUNK = 100  # steps between looks from the host: progress, early stop, NaN check_divergence

OPTIMISERS = {"adam": optax.scale_by_adam, "sgd": optax.identity}
SCHEDULES: dict[str, Callable[[Array], Array]] = {
    "constant": jnp.ones_like,
    "cosine": lambda progress: 0.5 * (1.0 + jnp.cos(jnp.pi * progress)),
}


class TrainConfig(NamedTuple):
    """How to train: what is compiled in. What a sweep varies is in `Problem` and in the learning rate."""

    method: Method
    optimizer: Literal["adam", "sgd"] = "adam"
    schedule: Literal["constant", "cosine"] = "cosine"
    plan: Plan | None = None  # tasks per step and stratum; None: all tasks in every step
    n_devices: int | None = None  # that share the work; None: all there are
    chunk: int = CHUNK


class State(NamedTuple):
    """Where training stands, for all runs."""

    particles: PyTree  # (runs, particles, ...)
    optimizer_state: PyTree
    keys: Key[Array, "*runs"]


class Chunk(NamedTuple):
    """What a chunk of steps is given besides the state."""

    problem: Problem
    learning_rate: Any  # (runs,)
    first: Any  # (), as is the next
    n_steps: Any  # of the whole training
    fed: tuple[WeightedBatch, ...] | None = None  # the mini-batch of every step, (steps, runs, tasks, ...)


@eqx.filter_jit
def initialize(particles: PyTree, train_config: TrainConfig) -> PyTree:
    """The optimizer's first state."""
    return jax.vmap(OPTIMISERS[train_config.optimizer]().init)(particles)


# The state's memory is used again for the new one.
@eqx.filter_jit(donate="all-except-first")
def run_chunk(given: tuple[Chunk, TrainConfig, Mesh | None], state: State) -> tuple[State, Float[Array, "runs chunk"]]:
    """The next steps, up to the last one there is; losses beyond it are zero."""
    chunk, train_config, devices = given
    fed, batches = chunk.fed, None
    if fed is None and train_config.plan is None:
        batches = eqx.filter_vmap(full_batch)(chunk.problem)  # once, not in every step
    if train_config.plan is None:
        chunk = chunk._replace(problem=eqx.tree_at(lambda problem: problem.tasks, chunk.problem, TaskSet(())))
    if devices is None:
        return _in_blocks(chunk._replace(fed=None), fed, batches, train_config, state)
    n_shares = devices.shape[mesh.TASKS]
    fed = fed and tuple(pad_batch(batch, n_shares, axis=2) for batch in fed)
    batches = batches and tuple(pad_batch(batch, n_shares, axis=1) for batch in batches)
    arrays, static = eqx.partition((chunk._replace(fed=None), fed, batches), eqx.is_array)
    by_run = PartitionSpec(mesh.RUNS)
    specs = (
        Chunk(jax.tree.map(lambda _: by_run, arrays[0].problem), by_run, PartitionSpec(), PartitionSpec()),
        jax.tree.map(lambda _: PartitionSpec(None, mesh.RUNS, mesh.TASKS), arrays[1]),
        jax.tree.map(lambda _: PartitionSpec(mesh.RUNS, mesh.TASKS), arrays[2]),
    )
    of_state = jax.tree.map(mesh.share_of_state, state)

    def local(arrays: Any, state: State) -> tuple[State, Array]:
        chunk, fed, batches = eqx.combine(arrays, static)
        return _steps(chunk, fed, batches, train_config, n_shares, state)

    shared = jax.shard_map(
        local,
        mesh=devices,
        in_specs=(specs, of_state),
        out_specs=(of_state, PartitionSpec(None, mesh.RUNS)),
        check_vma=False,
    )
    state, losses = shared(arrays, state)
    return state, losses.T


def _in_blocks(
    chunk: Chunk,
    fed: tuple[WeightedBatch, ...] | None,
    batches: tuple[WeightedBatch, ...] | None,
    train_config: TrainConfig,
    state: State,
) -> tuple[State, Float[Array, "runs chunk"]]:
    """All runs on one device: on CPUs a block of them after another, whose activations stay in the cache."""
    n_runs = len(chunk.learning_rate)
    size = max(n for n in range(1, BLOCK + 1) if n_runs % n == 0)
    if jax.default_backend() != "cpu" or n_runs <= BLOCK or 4 * size < BLOCK or fed is not None:
        state, losses = _steps(chunk, fed, batches, train_config, None, state)
        return state, losses.T
    arrays, static = eqx.partition((chunk.problem, chunk.learning_rate, batches, state), eqx.is_array)
    blocks = jax.tree.map(lambda leaf: leaf.reshape(n_runs // size, size, *leaf.shape[1:]), arrays)

    def block(arrays: Any) -> tuple[State, Array]:
        problem, rate, batches, state = eqx.combine(arrays, static)
        state, losses = _steps(
            chunk._replace(problem=problem, learning_rate=rate), None, batches, train_config, None, state
        )
        return state, losses.T

    done = jax.lax.map(block, blocks)
    return jax.tree.map(lambda leaf: leaf.reshape(n_runs, *leaf.shape[2:]), done)


def _steps(
    chunk: Chunk,
    fed: tuple[WeightedBatch, ...] | None,
    batches: tuple[WeightedBatch, ...] | None,
    train_config: TrainConfig,
    n_shares: int | None,
    state: State,
) -> tuple[State, Float[Array, "chunk runs"]]:
    rate = chunk.learning_rate

    def step(i: Array, carry: tuple[State, Array]) -> tuple[State, Array]:
        state, losses = carry
        progress = (chunk.first + i).astype(rate.dtype) / chunk.n_steps.astype(rate.dtype)
        now = batches if fed is None else jax.tree.map(lambda leaf: leaf[i], fed)
        select_run = eqx.filter_vmap(_step, in_axes=(eqx.if_array(0), eqx.if_array(0), 0, eqx.if_array(0), None, None))
        state, loss = select_run(
            state, chunk.problem, rate * SCHEDULES[train_config.schedule](progress), now, train_config, n_shares
        )
        return state, losses.at[i].set(loss)

    n_steps = jnp.clip(chunk.n_steps - chunk.first, 0, train_config.chunk)
    losses = jnp.zeros((train_config.chunk, len(rate)), rate.dtype)
    return jax.lax.fori_loop(0, n_steps, step, (state, losses))


def _step(
    state: State,
    problem: Problem,
    rate: Array,
    batches: tuple[WeightedBatch, ...] | None,
    train_config: TrainConfig,
    n_shares: int | None,
) -> tuple[State, Array]:
    """One step of one run: scores of all particles, the method's direction, the optimizer's move.

    `n_shares` devices share the tasks, and others the particles; None: there is one.
    """
    keys = state.keys
    if batches is None:
        assert train_config.plan is not None
        keys, key = jax.random.split(keys)
        batches = select_batch(problem, sample_indices(key, problem.tasks, train_config.plan), train_config.plan)
        if n_shares is not None:
            batches = mesh.own_tasks(batches, n_shares)
    total = mesh.total_over_tasks if n_shares is not None else lambda tree: tree
    values, scores = jax.vmap(lambda theta: value_and_score(theta, problem, batches, total))(state.particles)
    descent = jax.tree.map(jnp.negative, _direction(train_config.method, state.particles, scores, n_shares is not None))
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to the power of its integer step count
        updates, optimizer_state = OPTIMISERS[train_config.optimizer]().update(descent, state.optimizer_state)
    particles = jax.tree.map(lambda value, update: value - rate * update, state.particles, updates)
    value = jnp.mean(values) if n_shares is None else mesh.mean_over_particles(values)
    # Relative to the hyper-prior's mode, whose log density is a large constant that says nothing of progress.
    constant = problem.hyperprior.log_density(problem.hyperprior.mean)
    return State(particles, optimizer_state, keys), (constant - value) / problem.temperature


def _direction(method: Method, particles: PyTree, scores: PyTree, shared: bool) -> PyTree:
    """The method's direction, for which all particles come together where devices share them."""
    if not shared or not method.interacts:
        return method.direction(particles, scores)
    n_own = len(jax.tree.leaves(particles)[0])
    every = method.direction(mesh.gather_particles(particles), mesh.gather_particles(scores))
    return mesh.own_particles(every, n_own)
