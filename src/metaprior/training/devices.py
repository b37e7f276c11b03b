"""Several devices, of this process or of many: who computes what, and how it is brought together.

Runs are shared first, then particles, then tasks: runs have nothing to do with each other, particles little, and the
gradient is a sum over tasks. Every process is given all that there is, and keeps on its devices what they compute with.
"""

import math
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from metaprior.memory import RUN_ADVICE, is_out_of_memory
from metaprior.meta.objective import WeightedBatch, pad_batch

RUNS, PARTICLES, TASKS = AXES = ("runs", "particles", "tasks")

Tree = TypeVar("Tree")


class ProcessLost(RuntimeError):
    """A process of a distributed run has ended, or must."""


STATUS = re.compile("(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED)")  # how XLA's errors begin


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


def shard_state(tree: Tree, mesh: Mesh) -> Tree:
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


def to_host(tree: Any) -> Any:
    """A copy of every array as one of NumPy's (random keys: as keys), wherever its parts lie."""

    def get(leaf: Any) -> Any:
        if is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(get(jax.random.key_data(leaf))), impl=jax.random.key_impl(leaf))
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            with detect_lost_process():
                return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
        return np.array(leaf) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(get, tree)


@contextmanager
def detect_lost_process() -> Iterator[None]:
    """Work that all processes do together: where one of them is lost, the others say so."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError, ValueError) as error:
        if jax.process_count() == 1 or (isinstance(error, ValueError) and not STATUS.match(str(error))):
            raise
        if is_out_of_memory(error):  # to try again with less, all would have to
            which = f"process {jax.process_index()} of {jax.process_count()}"
            raise ProcessLost(f"Out of memory on {which}. All of them end. {RUN_ADVICE}") from error
        raise ProcessLost(
            f"This run of {jax.process_count()} processes cannot go on: another of them has ended, or cannot be "
            "reached. All of them end; start them again, and a fit with a checkpoint= goes on where it was. "
            f"(Process {jax.process_index()} was told: {str(error).splitlines()[0][:200]})"
        ) from error


def broadcast_from_first(value: Tree) -> Tree:
    """What the first process has, on all of them: anything that can be pickled."""
    if jax.process_count() == 1:
        return value
    with detect_lost_process():
        content = np.frombuffer(pickle.dumps(value), np.uint8)
        size = int(multihost_utils.broadcast_one_to_all(np.asarray(len(content), np.int32)))
        content = content if jax.process_index() == 0 else np.zeros(size, np.uint8)
        return pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(content)).tobytes())


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


def own_tasks(batches: tuple[WeightedBatch, ...], n_shares: int) -> tuple[WeightedBatch, ...]:
    """The tasks that this device has of those of a mini-batch."""

    def own(leaf: Array) -> Array:
        n = len(leaf) // n_shares
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(TASKS) * n, n)

    return jax.tree.map(own, tuple(pad_batch(batch, n_shares) for batch in batches))


def is_key(leaf: Any) -> bool:
    """Whether it is an array of random keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
