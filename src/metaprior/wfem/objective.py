"""Meta-training tasks as pytrees: padded, masked arrays in a few size buckets.

Mini-batches of tasks in memory: how many tasks of which stratum form a step, and how they are drawn and weighted.

A stratum is an environment within a size bucket. `storage.feed` does the same for tasks on disk.

The weighted free energy: task weights, temperature, log Gibbs density and its mini-batch estimates.

PACOH has one environment, transfer two with weights (alpha, 1 - alpha), and pooling weights in proportion to the number
of tasks: all are arguments of `log_gibbs`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from metaprior.tasks.types import Task, group_by_size, pad_to
from metaprior.wfem.evidence import log_evidence, points_of_tasks
from metaprior.wfem.hyperprior import Density, merge
from metaprior.wfem.prior import GPPrior


class TaskBatch(eqx.Module):
    """Tasks padded to one size, sorted by environment. A leading axis of runs may be stacked in front."""

    x: ArrayLike  # (tasks, samples, input_dim)
    y: ArrayLike  # (tasks, samples)
    mask: ArrayLike  # (tasks, samples), True where there is a sample
    included: ArrayLike  # (tasks,), False for a held-out task: it has no weight
    counts: tuple[int, ...] = eqx.field(static=True)  # tasks per environment, held out or not


class TaskSet(eqx.Module):
    """All meta-training tasks: one batch per size bucket, with the same environments in each."""

    buckets: tuple[TaskBatch, ...]

    @property
    def environment_counts(self) -> tuple[int, ...]:
        """Number of tasks of each environment, held out or not."""
        return tuple(sum(counts) for counts in zip(*(bucket.counts for bucket in self.buckets), strict=True))


def pad_tasks(
    environments: Sequence[Sequence[Task]],
    dtype: np.typing.DTypeLike = np.float32,
    max_buckets: int = 3,
    included: Sequence[np.ndarray] | None = None,
) -> TaskSet:
    """Pad the tasks of all environments into at most `max_buckets` sizes; `included` marks those not held out.

    Held-out tasks stay in the arrays, so that all folds of a cross-validation have the same shapes.
    """
    flat = [task for tasks in environments for task in tasks]
    sizes = np.array([len(task.y) for task in flat])
    counted = np.concatenate([np.ones(len(tasks), bool) for tasks in environments] if included is None else included)
    environment = np.repeat(np.arange(len(environments)), [len(tasks) for tasks in environments])
    buckets = []
    for upper, members in group_by_size(sizes, max_buckets):
        x, y, mask = pad_to([flat[i] for i in members.tolist()], upper, dtype)
        counts = np.bincount(environment[members], minlength=len(environments))
        buckets.append(TaskBatch(x, y, mask, counted[members], tuple(counts.tolist())))
    return TaskSet(tuple(buckets))


Plan = tuple[tuple[int, ...], ...]  # tasks to sample per bucket and environment


BLOCK_SAMPLES = (
    5000  # whose activations, for networks of 32 units, stay in a CPU's cache; ten times as many take twice as long
)
TEMPERATURES = ("paper", "effective", "bayes")


class Problem(eqx.Module):
    """Everything that the Gibbs hyper-posterior depends on. All numbers are traced: a sweep stacks problems."""

    tasks: TaskSet
    rest: GPPrior  # the prior without theta
    hyperprior: Density
    environment_weights: Float[Array, " environments"]  # on the simplex
    temperature: Float[Array, ""]  # gamma


class WeightedBatch(NamedTuple):
    """Tasks of one size with their weights in the loss; the weights of all batches sum to one in expectation."""

    batch: TaskBatch
    weights: Float[Array, " tasks"]


def task_weights(tasks: TaskSet, environment_weights: Array) -> tuple[Float[Array, " tasks"], ...]:
    """Return w_e / N_e for every task of every bucket, where N_e is the number of tasks of its environment e.

    Held-out tasks have no weight and do not count.
    """
    per_task = environment_weights / jnp.maximum(_included_counts(tasks, environment_weights.dtype), 1.0)
    return tuple(jnp.where(b.included, per_task[_environments(b)], 0.0) for b in tasks.buckets)  # type: ignore[arg-type]


def full_batch(problem: Problem) -> tuple[WeightedBatch, ...]:
    """Return all tasks, weighted."""
    weights = task_weights(problem.tasks, problem.environment_weights)
    return blank_weightless(WeightedBatch(b, w) for b, w in zip(problem.tasks.buckets, weights, strict=True))


def blank_weightless(batches: Iterable[WeightedBatch]) -> tuple[WeightedBatch, ...]:
    """Turn tasks of weight zero into padding, at the first input of the task of most weight.

    Then not even an overflow or a singularity in such a task can reach the gradient.
    """
    batches = tuple(batches)
    heaviest = jnp.argmax(jnp.concatenate([weights for _, weights in batches]))
    anchor = jnp.concatenate([jnp.asarray(batch.x)[:, 0] for batch, _ in batches])[heaviest]
    blanked = []
    for batch, weights in batches:
        counts = weights > 0.0
        mask = jnp.asarray(batch.mask) & counts[:, None]
        x = jnp.where(counts[:, None, None], batch.x, anchor[None, None])
        y = jnp.where(mask, batch.y, 0.0)
        blanked.append(WeightedBatch(TaskBatch(x, y, mask, batch.included, batch.counts), weights))
    return tuple(blanked)


def weighted_loss(theta: PyTree, rest: GPPrior, batches: tuple[WeightedBatch, ...]) -> Float[Array, ""]:
    """Return Lbar, equation (metatrainingloss): the sum over tasks of weight * (-log evidence / M_i)."""
    return _loss_and_unconverged(theta, rest, batches)[0]


def _loss_and_unconverged(
    theta: PyTree, rest: GPPrior, batches: tuple[WeightedBatch, ...]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return Lbar, and the weight of the tasks whose evidence did not converge."""
    loss, unconverged = _batch_loss(merge(theta, rest), *batches[0])
    for batch, weights in batches[1:]:
        # Adding zero makes a bucket wait for the one before, forwards and backwards: batched LAPACK calls that run at
        # the same time can deadlock (see wfem.linalg), and XLA drops an optimization_barrier.
        theta = jax.tree.map(lambda leaf, loss=loss: leaf + 0.0 * loss, theta)
        of_batch = _batch_loss(merge(theta, rest), batch, weights)
        loss, unconverged = loss + of_batch[0], unconverged + of_batch[1]
    return loss, unconverged


def loss_and_slope(
    theta: PyTree, rest: GPPrior, batches: tuple[WeightedBatch, ...]
) -> tuple[tuple[Float[Array, ""], Float[Array, ""]], PyTree]:
    """Return (Lbar, weight of the tasks whose evidence did not converge), and the gradient of Lbar.

    On CPUs they are summed over blocks of tasks whose activations stay in the cache.
    """
    of_block = jax.value_and_grad(_loss_and_unconverged, has_aux=True)
    sizes = [max(BLOCK_SAMPLES // max(jnp.shape(batch.y)[1], 1), 1) for batch, _ in batches]
    if jax.default_backend() != "cpu" or all(len(w) <= n for (_, w), n in zip(batches, sizes, strict=True)):
        return of_block(theta, rest, batches)
    zero = jnp.zeros((), batches[0].weights.dtype)
    total = (zero, zero), jax.tree.map(jnp.zeros_like, theta)
    for batch, size in zip(batches, sizes, strict=True):
        n_blocks = -(-len(batch.weights) // size)
        padded = pad_batch(batch, n_blocks)
        blocks = jax.tree.map(lambda leaf, n=n_blocks: leaf.reshape(n, len(leaf) // n, *leaf.shape[1:]), padded)

        def add(total: PyTree, block: WeightedBatch) -> tuple[PyTree, None]:
            return jax.tree.map(jnp.add, total, of_block(theta, rest, (block,))), None

        total, _ = jax.lax.scan(add, total, blocks)
    return total


def pad_batch(batch: WeightedBatch, multiple: int, axis: int = 0) -> WeightedBatch:
    """Pad the tasks of a batch to a multiple along an axis, by tasks of weight zero with valid inputs."""
    n = -batch.weights.shape[axis] % multiple
    if n == 0:
        return batch

    def pad(leaf: Any, mode: str) -> Array:
        return jnp.pad(leaf, [(0, n if i == axis else 0) for i in range(leaf.ndim)], mode=mode)

    return WeightedBatch(jax.tree.map(lambda leaf: pad(leaf, "edge"), batch.batch), pad(batch.weights, "constant"))


def log_gibbs(theta: PyTree, problem: Problem, batches: tuple[WeightedBatch, ...] | None = None) -> Float[Array, ""]:
    """Return the unnormalized log Gibbs density log p(theta) - gamma Lbar(theta), eq. (transfer_gibbshyperposterior).

    Its negative is the MAP objective. For a mini-batch it is an unbiased estimate.
    """
    loss = weighted_loss(theta, problem.rest, full_batch(problem) if batches is None else batches)
    return problem.hyperprior.log_density(theta) - problem.temperature * loss


class Gibbs(NamedTuple):
    """The Gibbs hyper-posterior q(theta) of some tasks, up to a constant, and where training starts.

    Attributes
    ----------
    problem : Problem
        All that it depends on: the tasks, the prior without theta, the hyper-prior, weights and temperature.
    initial : pytree
        The particles that training starts from, with a leading axis of particles.
    """

    problem: Problem
    initial: PyTree

    def log_density(self, theta: PyTree) -> Float[Array, ""]:
        """Return log q(theta) of one particle, up to a constant: log p(theta) - gamma Lbar(theta)."""
        return log_gibbs(theta, self.problem)


def value_and_score(
    theta: PyTree, problem: Problem, batches: tuple[WeightedBatch, ...], total: Callable[[PyTree], PyTree] = lambda x: x
) -> tuple[Float[Array, ""], PyTree, Float[Array, ""]]:
    """Return `log_gibbs`, its gradient, and the weight of the tasks whose evidence did not converge.

    `total` sums over the devices that share the tasks.
    """
    (loss, unconverged), slope = total(loss_and_slope(theta, problem.rest, batches))
    log_density, pull = jax.value_and_grad(problem.hyperprior.log_density)(theta)
    score = jax.tree.map(lambda pull, slope: pull - problem.temperature * slope, pull, slope)
    return log_density - problem.temperature * loss, score, unconverged


def temperature(rule: str, sizes: Sequence[np.ndarray], weights: Sequence[float]) -> float:
    """Return gamma by a rule, from the sizes of the tasks and the weight of every environment.

    'paper': 1/gamma = 1/N + 1/Mtilde with all N tasks and the harmonic mean Mtilde of their sizes. 'effective': the
    same with the effective number of tasks, 1 / sum of squared task weights, and the weighted harmonic mean, so that an
    environment of weight zero has no effect. 'bayes': gamma = N_eff * Mtilde, which makes the Gibbs density the
    ordinary Bayesian posterior of theta (every sample counts once) if all tasks have one size and weigh the same.
    """
    counts = np.array([len(of_each) for of_each in sizes], float)
    shares = counts / counts.sum() if rule == "paper" else np.asarray(weights, float)
    inverse_sizes = np.array(
        [np.mean(1.0 / of_environment) if len(of_environment) else 0.0 for of_environment in sizes]
    )
    harmonic_mean = 1.0 / (shares @ inverse_sizes)
    n_tasks = 1.0 / np.sum(shares**2 / np.maximum(counts, 1.0))
    return float(n_tasks * harmonic_mean if rule == "bayes" else 1.0 / (1.0 / n_tasks + 1.0 / harmonic_mean))


def _batch_loss(
    prior: GPPrior, batch: TaskBatch, weights: Float[Array, " tasks"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    points = points_of_tasks(prior, jnp.asarray(batch.x))
    y, mask = jnp.asarray(batch.y), jnp.asarray(batch.mask)
    evidences, converged = jax.vmap(log_evidence, in_axes=(None, 0, 0, 0))(prior, points, y, mask)
    sizes = jnp.maximum(jnp.sum(mask, axis=1, dtype=weights.dtype), 1.0)
    return -jnp.sum(weights * evidences / sizes), jnp.sum(jnp.where(converged, 0.0, weights))


def _included_counts(tasks: TaskSet, dtype: Any) -> Float[Array, " environments"]:
    """Return N_e, the number of tasks of each environment that are not held out."""
    one_hot = [np.eye(len(bucket.counts))[_environments(bucket)] for bucket in tasks.buckets]
    parts = zip(tasks.buckets, one_hot, strict=True)
    return sum(jnp.asarray(bucket.included, dtype) @ jnp.asarray(rows, dtype) for bucket, rows in parts)  # type: ignore


def _environments(bucket: TaskBatch) -> np.ndarray:
    return np.repeat(np.arange(len(bucket.counts)), bucket.counts)


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
