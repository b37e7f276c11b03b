"""Mini-batches of tasks in memory: how many tasks of which stratum form a step, and how they are drawn and weighted.

A stratum is an environment within a size bucket. `storage.feed` does the same for tasks on disk.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from metaprior.wfem.objective import Problem, WeightedBatch, blank_weightless, task_weights
from metaprior.wfem.task_sets import TaskBatch, TaskSet

Plan = tuple[tuple[int, ...], ...]  # tasks to sample per bucket and environment


def batch_plan(tasks: TaskSet, batch_size: int) -> Plan:
    """Split `batch_size` tasks evenly among the environments, and within each in proportion to its size buckets.

    The plan is compiled in, so it does not depend on the weights: a sweep over alpha compiles once.
    """
    counts = np.array([bucket.counts for bucket in tasks.buckets])
    sampled = allocate((counts / np.maximum(counts.sum(axis=0), 1)).ravel(), counts.ravel(), batch_size)
    return tuple(tuple(row) for row in sampled.reshape(counts.shape).tolist())


def allocate(shares: np.ndarray, counts: np.ndarray, total: int) -> np.ndarray:
    """Share `total` samples among strata of `counts` tasks in proportion to `shares`.

    Every stratum gets at least one of its tasks (even if the total is smaller) and at most all of them.
    """
    sampled = (counts > 0).astype(int)
    for _ in range(min(total, int(counts.sum())) - int(sampled.sum())):
        quotient = np.where(sampled < counts, shares / np.maximum(sampled, 1), -np.inf)
        sampled[quotient.argmax()] += 1
    return sampled


def sample_indices(key: PRNGKeyArray, tasks: TaskSet, plan: Plan) -> tuple[Int[Array, " _"], ...]:
    """Draw the tasks of a mini-batch, without replacement within each stratum."""
    indices = []
    for bucket, sampled in zip(tasks.buckets, plan, strict=True):
        starts = np.cumsum((0, *bucket.counts))
        key, *keys = jax.random.split(key, len(sampled) + 1)
        strata = zip(keys, starts[:-1], bucket.counts, sampled, strict=True)
        draws = [start + jax.random.permutation(k, count)[:n] for k, start, count, n in strata if n > 0]
        indices.append(jnp.concatenate(draws))
    return tuple(indices)


def select_batch(problem: Problem, indices: tuple[Int[Array, " _"], ...], plan: "Plan") -> tuple[WeightedBatch, ...]:
    """Return the mini-batch of given tasks, weighted so that its expectation over uniform draws is the full batch.

    Every stratum (an environment within a size bucket) is sampled separately, so its tasks are weighted up by the
    stratum's size over its sample. With one bucket this is alpha * (mean over the sampled source tasks) + (1 - alpha) *
    (mean over the sampled target tasks).
    """
    batches = []
    all_weights = task_weights(problem.tasks, problem.environment_weights)
    for bucket, weights, chosen, sampled in zip(problem.tasks.buckets, all_weights, indices, plan, strict=True):
        up = np.divide(bucket.counts, sampled, out=np.ones(len(sampled)), where=np.asarray(sampled) > 0)
        factors = jnp.asarray(np.repeat(up, sampled), weights.dtype)
        rows = jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], bucket)
        rows = TaskBatch(rows.x, rows.y, rows.mask, rows.included, sampled)
        batches.append(WeightedBatch(rows, weights[chosen] * factors))
    return blank_weightless(batches)
