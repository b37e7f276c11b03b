"""Several devices, of this process or of many: who computes what, and how it is brought together.

Runs are shared first, then particles, then tasks: runs have nothing to do with each other, particles little, and the
gradient is a sum over tasks. Every process is given all that there is, and keeps on its devices what they compute with.
"""

import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from metaprior.meta.objective import WeightedBatch

RUNS, PARTICLES, TASKS = AXES = ("runs", "particles", "tasks")

Tree = TypeVar("Tree")


def make_mesh(n_runs: int, n_particles: int, n_devices: int | None = None) -> Mesh | None:
    """The devices as runs x particles x tasks; None where there is just one. They are the first `n_devices` of all."""
    devices = jax.devices()[:n_devices]
    if len(devices) == 1 and jax.process_count() == 1:
        return None
    of_runs = math.gcd(len(devices), n_runs)
    of_particles = math.gcd(len(devices) // of_runs, n_particles)
    shape = (of_runs, of_particles, len(devices) // (of_runs * of_particles))
    return Mesh(np.array(devices).reshape(shape), AXES)


def share_of_state(leaf: Any) -> PartitionSpec:
    """Where a part of the training state lies: (runs, particles, ...), or one thing per run."""
    return PartitionSpec(RUNS, PARTICLES) if leaf.ndim > 1 else PartitionSpec(RUNS)


def spread(tree: Tree, mesh: Mesh) -> Tree:
    """A training state on its devices."""

    def put(leaf: Any, spec: PartitionSpec) -> Array:
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])

    def put_any(leaf: Any) -> Array:
        if is_key(leaf):
            data = put(jax.random.key_data(leaf), PartitionSpec(RUNS))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return put(leaf, share_of_state(leaf))

    return jax.tree.map(put_any, tree)


def fetch(tree: Any) -> Any:
    """A copy of every array as one of NumPy's (random keys: as keys), wherever its parts lie."""

    def get(leaf: Any) -> Any:
        if is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(get(jax.random.key_data(leaf))), impl=jax.random.key_impl(leaf))
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
        return np.array(leaf) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(get, tree)


def total_over_tasks(tree: PyTree) -> PyTree:
    """The sum over the devices that share the tasks."""
    return jax.lax.psum(tree, TASKS)


def gather_particles(tree: PyTree) -> PyTree:
    """The particles of all devices that share them."""
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, PARTICLES, tiled=True), tree)


def own_particles(tree: PyTree, n: int) -> PyTree:
    """Those of the n that this device has."""
    first = jax.lax.axis_index(PARTICLES) * n
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, n), tree)


def mean_over_particles(values: Array) -> Array:
    """The mean over the particles of all devices."""
    return jax.lax.pmean(jnp.mean(values), PARTICLES)


def pad_tasks(batches: tuple[WeightedBatch, ...], n_shares: int, axis: int) -> tuple[WeightedBatch, ...]:
    """Batches with tasks, along an axis, in a multiple of the devices that share them. What is added has no weight."""
    padded = []
    for batch, weights in batches:
        n = -weights.shape[axis] % n_shares
        batch = jax.tree.map(lambda leaf, n=n: _pad(leaf, n, axis, "edge"), batch)  # inputs that count for something
        padded.append(WeightedBatch(batch, _pad(weights, n, axis, "constant")))
    return tuple(padded)


def own_tasks(batches: tuple[WeightedBatch, ...], n_shares: int) -> tuple[WeightedBatch, ...]:
    """The tasks that this device has of those of a mini-batch."""

    def own(leaf: Array) -> Array:
        n = len(leaf) // n_shares
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(TASKS) * n, n)

    return jax.tree.map(own, pad_tasks(batches, n_shares, axis=0))


def is_key(leaf: Any) -> bool:
    """Whether it is an array of random keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _pad(leaf: Array, n: int, axis: int, mode: str) -> Array:
    widths = [(0, n if i == axis else 0) for i in range(leaf.ndim)]
    return jnp.pad(leaf, widths, mode=mode) if n else leaf
