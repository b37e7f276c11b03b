"""Several devices, in this process or in many: what each computes, and how results are gathered.

Runs are distributed first, then particles, then tasks: runs are independent, particles nearly so, and the gradient is a
sum over tasks. Every process holds all inputs, and keeps on its devices only what they compute with.
"""

import hashlib
import math
import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from metaprior.checks import Argument, Message
from metaprior.memory import RUN_ADVICE, is_out_of_memory
from metaprior.tasks.types import Task
from metaprior.wfem.objective import WeightedBatch, pad_batch

RUNS, PARTICLES, TASKS = AXES = ("runs", "particles", "tasks")
XLA_STATUS = re.compile("(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED)")  # how XLA errors begin
DIGESTED_TASKS = 100  # tasks of each environment that processes compare

Tree = TypeVar("Tree")


class ProcessLost(RuntimeError):
    """Another process of a distributed fit has ended, or this one has to."""


def make_mesh(n_runs: int, n_particles: int, n_devices: int | None = None) -> Mesh | None:
    """Arrange the first `n_devices` devices as runs x particles x tasks; return None if there is only one."""
    devices = jax.devices()[:n_devices]
    if len(devices) == 1 and jax.process_count() == 1:
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
    """Copy every array to NumPy (random keys stay keys), gathering the shards of other processes."""

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
    """Turn the errors that collective work meets when a process is lost into `ProcessLost`."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError, ValueError) as error:
        if jax.process_count() == 1 or (isinstance(error, ValueError) and not XLA_STATUS.match(str(error))):
            raise
        if is_out_of_memory(error):  # retrying with less would need all processes to do so
            which = f"process {jax.process_index()} of {jax.process_count()}"
            raise ProcessLost(Message(f"Out of memory on {which}. All processes stop. ", RUN_ADVICE)) from error
        raise ProcessLost(
            f"This run of {jax.process_count()} processes cannot continue: another process has ended or cannot be "
            "reached. All processes stop. Start them again; a fit with checkpoint= resumes where it stopped. "
            f"(Process {jax.process_index()} got: {str(error).splitlines()[0][:200]})"
        ) from error


def broadcast_from_first(value: Tree) -> Tree:
    """Return the first process's value on all processes; it must be picklable."""
    if jax.process_count() == 1:
        return value
    with detect_lost_process():
        content = np.frombuffer(pickle.dumps(value), np.uint8)
        size = int(multihost_utils.broadcast_one_to_all(np.asarray(len(content), np.int32)))
        content = content if jax.process_index() == 0 else np.zeros(size, np.uint8)
        return pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(content)).tobytes())


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
    """Raise if there are fewer devices, or if a multi-process fit would not use all of them."""
    available = jax.device_count()
    if n_devices > available:
        raise ValueError(f"n_devices must be at most {available}, the number of devices; got {n_devices}.")
    if jax.process_count() > 1 and n_devices < available:
        raise ValueError(f"n_devices must be None or {available} if several processes share a fit; got {n_devices}.")


def check_same_tasks(environments: Sequence[Sequence[Task]], search_time: Any) -> None:
    """Raise if the processes of a distributed fit could diverge, and so wait for each other forever."""
    if jax.process_count() == 1:
        return
    if search_time is not None:
        why = " must be None if several processes share a fit: their clocks differ."
        raise ValueError(Message(Argument("search_time"), why))
    digest = hashlib.sha256()
    for tasks in environments:
        digest.update(f"{len(tasks)};".encode())
        for i in np.unique(np.linspace(0, len(tasks) - 1, min(DIGESTED_TASKS, len(tasks))).astype(int)).tolist():
            digest.update(np.ascontiguousarray(tasks[i].x).tobytes() + np.ascontiguousarray(tasks[i].y).tobytes())
    if digest.hexdigest() != broadcast_from_first(digest.hexdigest()):
        raise ValueError(
            f"Process {jax.process_index()} was given different tasks than the first process. If several processes "
            "share a fit, all of them must be given the same tasks in the same order."
        )
