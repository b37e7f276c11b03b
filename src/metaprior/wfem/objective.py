"""The Gibbs hyper-posterior q(theta): the hyper-prior, the weighted free energy of the tasks, and the temperature.

PACOH has one environment, transfer two with weights (alpha, 1 - alpha), and pooling weights in proportion to the number
of tasks: all are arguments of `log_gibbs`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from metaprior.checks import SCALES, Argument, Message, is_number
from metaprior.tasks.types import Task, group_by_size, pad_to
from metaprior.wfem.gp import GPPrior, log_evidence
from metaprior.wfem.networks import groups, merge

GROUPS = ("weights", "biases", "scales")
TEMPERATURES = ("paper", "effective", "bayes")
BLOCK_SAMPLES = 5000  # whose activations, for 32 units, stay in a CPU's cache; ten times as many take twice as long


@runtime_checkable
class Density(Protocol):
    """A density p(theta): a module whose arrays are leaves, so that runs of one shape stack."""

    mean: PyTree  # its center, like theta
    std: PyTree  # its scale, a number per leaf of theta: no direction gets more variance than it has here

    def log_density(self, theta: PyTree) -> Float[Array, ""]:
        """Return log p(theta)."""
        ...

    def sample(self, key: PRNGKeyArray) -> PyTree:
        """Draw theta ~ p(theta)."""
        ...


@dataclass(frozen=True)
class HyperPrior:
    """Independent normal hyper-prior, `p(theta) = prod_j N(theta_j | mean_j, std_j^2)`.

    A hyper-prior of your own is an object with a method `build(theta)`, which returns a density: an Equinox module with
    `log_density(theta)`, `sample(key)`, a center `mean` and a scale `std`.

    Parameters
    ----------
    mean : "zero", "initial" or dict
        "zero" is the paper's, for weights and biases of networks; scales of kernels and noise are always centered on
        their initial values. "initial" centers all of them there. A dict gives "zero", "initial" or a number for some
        of the groups "weights", "biases" and "scales".
    std : float, dict or "auto"
        Standard deviation, the paper's sigma_P, or one for some of these groups. "auto" also tries half and twice
        1 by cross-validation.
    """

    mean: Any = "zero"
    std: Any = 1.0

    def __post_init__(self):
        check_mean(self.mean)
        check_std(self.fixed_std)

    @property
    def fixed_std(self) -> Any:
        """The standard deviation where it is not chosen by cross-validation."""
        return 1.0 if self.is_auto else self.std

    @property
    def is_auto(self) -> bool:
        """Whether the standard deviation is chosen by cross-validation."""
        return isinstance(self.std, str) and self.std == "auto"

    def scaled(self, factor: float) -> "HyperPrior":
        """Return the hyper-prior with all standard deviations times a factor."""
        return HyperPrior(self.mean, {name: factor * std for name, std in check_std(self.fixed_std).items()})

    def build(self, theta: PyTree) -> "NormalDensity":
        """Return the density of parameters with the shapes and initial values of theta."""
        return make_density(theta, check_mean(self.mean), check_std(self.fixed_std))


class NormalDensity(eqx.Module):
    """p(theta) = prod_j N(theta_j | mean_j, std_j^2), with one `std` per leaf of theta."""

    mean: PyTree
    std: PyTree

    def log_density(self, theta: PyTree) -> Float[Array, ""]:
        """Return log p(theta)."""

        def leaf_log_density(value: Array, mean: Array, std: Array) -> Array:
            constant = jnp.log(std) + 0.5 * math.log(2.0 * math.pi)
            return -0.5 * jnp.sum(((value - mean) / std) ** 2) - value.size * constant

        return jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(leaf_log_density, theta, self.mean, self.std))))

    def sample(self, key: PRNGKeyArray) -> PyTree:
        """Draw theta ~ p(theta)."""
        flat, unravel = ravel_pytree(self.mean)
        noise = unravel(jax.random.normal(key, flat.shape, flat.dtype))  # one draw compiles quickly
        return jax.tree.map(lambda mean, std, draw: mean + std * draw, self.mean, self.std, noise)


def check_density(density: Any, theta: PyTree) -> None:
    """Raise unless what a hyper-prior builds is a density of theta."""
    asked = ("log_density", "sample", "mean", "std")
    if lacking := [name for name in asked if not hasattr(density, name)]:
        has = f".build(theta) must return a density with {', '.join(asked)}; {type(density).__name__} lacks "
        raise ValueError(Message(Argument("hyperprior"), f"{has}{', '.join(lacking)}."))
    if jax.tree.structure(density.std) != jax.tree.structure(theta):
        raise ValueError(Message(Argument("hyperprior"), ": std of a density must have a number per leaf of theta."))
    for name, value in (("mean", lambda: density.mean), ("sample(key)", lambda: density.sample(jax.random.key(0)))):
        if not _alike(jax.eval_shape(value), theta):
            raise ValueError(Message(Argument("hyperprior"), f": {name} of a density must have the shapes of theta."))
    if (shape := jax.eval_shape(density.log_density, theta).shape) != ():
        raise ValueError(Message(Argument("hyperprior"), f": log_density(theta) must be a number; got shape {shape}."))


def _alike(tree: PyTree, theta: PyTree) -> bool:
    """Return whether a pytree has the structure and the shapes of another."""
    leaves = jax.tree.leaves(tree), jax.tree.leaves(theta)
    same = jax.tree.structure(tree) == jax.tree.structure(theta)
    return same and all(jnp.shape(leaf) == jnp.shape(like) for leaf, like in zip(*leaves, strict=True))


def make_density(theta: PyTree, mean: Mapping[str, Any], std: Mapping[str, Any]) -> NormalDensity:
    """Return p(theta) with the mean ('initial' or a number) and the standard deviation of each group."""
    names = groups(theta)
    means = jax.tree.map(
        lambda leaf, name: leaf if mean[name] == "initial" else jnp.full_like(leaf, mean[name]), theta, names
    )
    stds = jax.tree.map(lambda leaf, name: jnp.asarray(std[name], leaf.dtype), theta, names)
    return NormalDensity(means, stds)


def check_mean(mean: Any) -> dict[str, Any]:
    """Return the mean of each group. 'zero' (the paper) is for networks: scales are centered on their initial value."""
    if isinstance(mean, str) and mean == "zero":
        return {"weights": 0.0, "biases": 0.0, "scales": "initial"}
    if isinstance(mean, str) and mean == "initial":
        return dict.fromkeys(GROUPS, "initial")
    if isinstance(mean, Mapping):
        means = {**check_mean("zero"), **_known_groups(mean, "mean")}
        named = {"zero": 0.0, "initial": "initial"}
        means = {name: named.get(mean, mean) if isinstance(mean, str) else mean for name, mean in means.items()}
        numbers = [mean for mean in means.values() if not (isinstance(mean, str) and mean == "initial")]
        if all(is_number(mean) and abs(mean) <= SCALES[1] for mean in numbers):
            return means
    raise ValueError(
        "mean must be 'zero', 'initial', or a mapping from group (weights, biases, scales) to 'zero', "
        f"'initial' or a number of at most {SCALES[1]:g}; got {mean!r}."
    )


def check_std(std: Any) -> dict[str, float]:
    """Return the standard deviation of each group, from one number or a mapping (1 for groups that it lacks)."""
    stds: dict[str, Any] = dict.fromkeys(GROUPS, 1.0 if isinstance(std, Mapping) else std)
    if isinstance(std, Mapping):
        stds |= _known_groups(std, "std")
    if not all(is_number(std) and SCALES[0] <= std <= SCALES[1] for std in stds.values()):
        expected = "a positive number, or a mapping from group (weights, biases, scales) to positive numbers, or 'auto'"
        between = f"numbers lie between {SCALES[0]:g} and {SCALES[1]:g}"
        raise ValueError(Message(Argument("std"), f" must be {expected} ({between}); got {std!r}."))
    return {name: float(std) for name, std in stds.items()}


def _known_groups(given: Mapping[str, Any], argument: str) -> dict[str, Any]:
    unknown = set(given) - set(GROUPS)
    if unknown:
        raise ValueError(f"{argument} must have groups weights, biases, scales; got {sorted(map(str, unknown))}.")
    return dict(given)


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
    return float(n_tasks * harmonic_mean if rule in ("bayes", "auto") else 1.0 / (1.0 / n_tasks + 1.0 / harmonic_mean))


def _batch_loss(
    prior: GPPrior, batch: TaskBatch, weights: Float[Array, " tasks"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    points = prior.points_of_tasks(jnp.asarray(batch.x))
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
