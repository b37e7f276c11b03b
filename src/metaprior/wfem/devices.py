"""Several devices: what each computes, and how results are gathered.

Runs are distributed first, then particles, then tasks: runs are independent, particles nearly so, and the gradient is a
sum over tasks.
"""

import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from metaprior.wfem.objective import WeightedBatch, pad_batch

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
