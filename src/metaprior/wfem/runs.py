"""Training runs: made from tasks and settings, and trained as stacked programs, as many at once as fit into memory."""

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray, PyTree

from metaprior.checks import Argument, Message
from metaprior.memory import RUN_ADVICE, in_chunks
from metaprior.progress import progress_bar
from metaprior.tasks.scaling import (
    MAX_DECORRELATED,
    Scaling,
    fit_label_scaling,
    fit_scaling,
    identity_scaling,
)
from metaprior.tasks.types import Task
from metaprior.wfem.batches import CHUNK, batch_plan
from metaprior.wfem.checkpoint import Checkpoint
from metaprior.wfem.gp import GPPrior, check_prior, make_prior
from metaprior.wfem.inference import MAX_PARAMETERS, Laplace, Method, place_particles
from metaprior.wfem.likelihoods import Gaussian, make_likelihood
from metaprior.wfem.linalg import float32_resolves
from metaprior.wfem.networks import cast, split
from metaprior.wfem.objective import (
    BLOCK_SAMPLES,
    Density,
    HyperPrior,
    Problem,
    check_density,
    check_mean,
    make_density,
    pad_tasks,
    temperature,
)
from metaprior.wfem.settings import Settings, Training
from metaprior.wfem.training import BatchSource, Result, TrainConfig, Validation, train

LEARNED_NOISE_START = 0.1  # of the standard deviation of y
MAX_BYTES = 2**32  # kept at once for the gradients of several runs


class Run(NamedTuple):
    """One training run. `stack_runs` makes many into one program."""

    problem: Problem
    particles: PyTree  # (particles, ...)
    key: Key[Array, "*runs"]


def check_method(settings: Settings, input_dim: int) -> None:
    """Raise if Laplace's approximation cannot be had of these settings."""
    if not isinstance(settings.method, Laplace):
        return
    laplace, instead = Argument("inference", "laplace"), Argument("inference", "map")
    if not isinstance(settings.likelihood, Gaussian):
        raise ValueError(
            Message(laplace, " is for Gaussian noise; for labels and other likelihoods use ", instead, " or 'svgd'.")
        )
    n_parameters = count_parameters(settings, input_dim)
    if n_parameters > MAX_PARAMETERS:
        limit = f" is for priors of up to {MAX_PARAMETERS} parameters; this one has {n_parameters}. Use "
        small = Argument("kernel", "linear+rbf"), " with ", Argument("mean", "linear"), "."
        raise ValueError(Message(laplace, limit, instead, ", or ", *small))


def make_scaling(environments: Sequence[Sequence[Task]], weights: Sequence[float], settings: Settings) -> Scaling:
    """Return the scaling of the tasks: learned, or none."""
    if not settings.standardize:
        input_dim = next(task.x.shape[1] for tasks in environments for task in tasks)
        return identity_scaling(input_dim, settings.kinds)
    if not settings.scales_outputs:
        return fit_label_scaling(environments, weights, settings.within_classes, settings.kinds)
    return fit_scaling(environments, weights, settings.kinds)


def scaling_template(input_dim: int, settings: Settings) -> Scaling:
    """Return a scaling with the shapes of the one that `make_scaling` would return."""
    scaling = identity_scaling(input_dim, settings.kinds)
    decorrelated = settings.within_classes and scaling.width <= MAX_DECORRELATED
    return scaling._replace(x_map=np.eye(scaling.width) if decorrelated else None)


def training_dtype(
    environments: Sequence[Sequence[Task]], weights: Sequence[float], scaling: Scaling, settings: Settings
) -> str:
    """Return float64 if the noise of the scaled y is so small, or a task so large, that float32 would blur it.

    `wfem.linalg` floors the noise variance at 4 eps n; it should stay well above that. The matrix B of Laplace's
    approximation has eigenvalues from one to about the size of a task times the scale of the kernel, which is moderate
    for standardized inputs. Environments of weight zero do not count.
    """
    counted = (tasks for tasks, weight in zip(environments, weights, strict=True) if weight > 0)
    largest = max(len(task.y) for tasks in counted for task in tasks)
    if not isinstance(settings.likelihood, Gaussian):
        return "float32" if largest <= 100 and settings.standardize else "float64"
    noise = _noise(settings, float(scaling.y_std))
    return "float32" if float32_resolves(noise, largest) else "float64"


def make_run(
    environments: Sequence[Sequence[Task]],
    weights: Sequence[float],
    scaling: Scaling,
    settings: Settings,
    seed: int,
    included: Sequence[np.ndarray] | None = None,
    sizes: Sequence[np.ndarray] | None = None,
) -> Run:
    """Scale and pad the tasks, and draw the prior and its particles. The precision follows JAX's x64 switch.

    The temperature depends on the numbers of samples of the tasks that are `included`, or on given `sizes`.
    """
    dtype = jnp.zeros(()).dtype
    tasks = pad_tasks([[scaling.task(task) for task in group] for group in environments], dtype, included=included)
    environment_weights = jnp.asarray(weights, dtype)
    draw_key, train_key = jax.random.split(jax.random.key(seed))
    particles, rest, hyperprior = draw_prior(draw_key, scaling.width, settings, float(scaling.y_std), dtype)
    gamma = settings.temperature
    if isinstance(gamma, str):
        every = [np.array([len(task.y) for task in group], float) for group in environments]
        kept = every if included is None else [own[keep] for own, keep in zip(every, included, strict=True)]
        gamma = temperature(gamma, sizes or kept, weights)
    gamma = jnp.asarray(gamma * settings.temperature_factor, dtype)
    return Run(Problem(tasks, rest, hyperprior, environment_weights, gamma), particles, train_key)


def stack_runs(runs: Sequence[Run]) -> Run:
    """Stack runs of equal shapes along a new first axis."""
    return jax.tree.map(lambda *leaves: _stack(leaves) if hasattr(leaves[0], "dtype") else leaves[0], *runs)


def draw_prior(
    key: PRNGKeyArray, input_dim: int, settings: Settings, y_std: float, dtype: Any
) -> tuple[PyTree, GPPrior, Density]:
    """Draw the particles of theta; return them with the rest of the prior and the hyper-prior."""
    # Numbers are traced: a sweep over them compiles once.
    fixed = isinstance(settings.likelihood, Gaussian) and settings.likelihood.fixed_std is not None
    likelihood = Gaussian(1.0) if fixed else settings.likelihood
    hyperprior, stds = settings.hyperprior, {}
    if isinstance(hyperprior, HyperPrior):
        stds = {name: np.asarray(std, dtype) for name, std in settings.prior_std.items()}
        hyperprior = tuple(check_mean(hyperprior.mean).items())
    return _draw_prior(
        key,
        input_dim,
        (settings.mean, settings.kernel, settings.encoder),
        likelihood,
        np.asarray(_noise(settings, y_std), dtype),
        hyperprior,
        stds,
        settings.method.n_particles,
        settings.method.start,
    )


@eqx.filter_jit
def _draw_prior(key, input_dim, parts, likelihood, noise_std, hyperprior, stds, n_particles, start):
    def initialize(key: PRNGKeyArray) -> tuple[PyTree, GPPrior]:
        mean, kernel, encoder = parts
        prior = make_prior(key, input_dim, mean, kernel, make_likelihood(likelihood, noise_std), encoder)
        return split(cast(prior, noise_std.dtype))  # a custom module may come in another precision

    initial_key, start_key = jax.random.split(key)
    # Folded in, so that the first particle does not depend on how many there are.
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(initial_key, jnp.arange(n_particles))
    initial, rests = eqx.filter_vmap(initialize)(keys)
    theta, rest = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, (initial, rests))
    if not jax.tree.leaves(theta):
        named = (Argument("mean"), ", ", Argument("kernel"), " and ", Argument("likelihood"))
        raise ValueError(Message(*named, " leave nothing to learn: give at least one of them a parameter."))
    check_prior(eqx.combine(theta, rest), input_dim)
    is_own = not isinstance(hyperprior, tuple)
    density = hyperprior.build(theta) if is_own else make_density(theta, dict(hyperprior), stds)
    if is_own:
        check_density(density, theta)
    return place_particles(start_key, initial, density, start), rest, density


def _noise(settings: Settings, y_std: float) -> float:
    """Return the noise of the scaled y, or where it starts; one under likelihoods that have none."""
    if not isinstance(settings.likelihood, Gaussian):
        return 1.0
    fixed = settings.likelihood.fixed_std
    return LEARNED_NOISE_START if fixed is None else fixed / y_std


def count_parameters(settings: Settings, input_dim: int) -> int:
    """Return the size of theta. Nothing is computed."""
    dtype = jnp.zeros(()).dtype
    theta, *_ = eqx.filter_eval_shape(draw_prior, jax.random.key(0), input_dim, settings, 1.0, dtype)
    return sum(leaf.size for leaf in jax.tree.leaves(theta))


def _stack(leaves: Sequence[Any]) -> Any:
    if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
        return jnp.stack(leaves)
    return jnp.asarray(np.stack(leaves))  # on the host: stacking on the device compiles a program per shape


def train_runs(
    runs: Sequence[Run],
    method: Method,
    training: Training,
    *,
    description: str = "meta-training",
    validation: Sequence[Validation] | None = None,
    patience: int | None = None,
    deadline: float | None = None,
    check_divergence: bool = True,
    checkpoint: Checkpoint | None = None,
    batches: BatchSource | None = None,
    chunk: int = CHUNK,
) -> list[Result]:
    """Train runs of equal shapes, for a given number of steps, and return the result of each.

    If a `deadline` shortens the first runs that are trained together, all runs take as many steps as these.
    """
    tasks, plan, size = runs[0].problem.tasks, None, training.batch_size
    if batches is None and size is not None and size < sum(tasks.environment_counts):
        plan = batch_plan(tasks, size)
    how = training.optimizer, training.schedule, plan, training.n_devices, chunk
    config = TrainConfig(method, *how)  # type: ignore[arg-type]
    n_steps, rate_dtype = training.n_steps or 0, jnp.zeros(()).dtype

    def train_part(part: range, _: int) -> list[Result]:
        nonlocal n_steps
        chosen, limit = slice(part.start, part.stop), None
        stacked = stack_runs(runs[chosen])
        if deadline is not None and part.start == 0:
            now = time.monotonic()
            limit = now + len(part) / len(runs) * (deadline - now)
        held_out = None if validation is None else jax.tree.map(lambda *leaves: np.stack(leaves), *validation[chosen])
        with progress_bar(description, n_steps, "steps", training.progress, "compiling") as move:
            result = train(
                *stacked,
                config,
                n_steps,
                jnp.full(len(part), training.learning_rate, rate_dtype),
                held_out,
                patience,
                None if move is None else lambda done, loss: move(done, f"loss {loss:.4f}"),
                limit,
                check_divergence,
                checkpoint,
                batches,
            )
        if deadline is not None:
            n_steps = result.loss.shape[1]
        return [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], result) for i in range(len(part))]

    parts = in_chunks(train_part, range(len(runs)), _runs_at_once(runs[0]), "runs", RUN_ADVICE)
    return [result for part in parts for result in part]


def _runs_at_once(run: Run) -> int:
    """Return how many such runs to train at once (at least one), so that their gradients fit into memory (measured).

    A sample of a task keeps a thousand activations per particle, or hundreds per pixel for convolutions, and ten rows
    of covariance matrices. Accelerators take all tasks at once, CPUs a block (`loss_and_slope`).
    """
    shapes = [np.shape(bucket.x) for bucket in run.problem.tasks.buckets]
    sizes, input_dim = np.concatenate([np.full(n_tasks, size) for n_tasks, size, _ in shapes]), shapes[0][2]
    per_sample = (600 * input_dim if run.problem.rest.encoder is not None else 1000 + input_dim) + 10 * sizes
    kept = float(np.sum(sizes * per_sample))
    if jax.default_backend() == "cpu":
        kept = min(kept, max(float(BLOCK_SAMPLES * per_sample.max()), float(np.max(sizes * per_sample))))
    numbers = kept * len(jax.tree.leaves(run.particles)[0])
    most = min(MAX_BYTES, (_total_memory() or np.inf) / 4)  # not what is free: another split may round otherwise
    return max(int(most / (jnp.zeros(()).dtype.itemsize * numbers)), 1)


def _total_memory() -> float | None:
    if jax.default_backend() != "cpu":
        found = [device.memory_stats() or {} for device in jax.local_devices()]
        known = [stats["bytes_limit"] for stats in found if "bytes_limit" in stats]
        return float(min(known)) if known else None
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return None
