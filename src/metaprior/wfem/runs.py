"""From tasks and settings to runs for the training loop: one run, or many stacked.

Many runs of equal shapes: trained as stacked programs, as many at once as fit into memory.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray, PyTree

from metaprior.checks import Argument, Message, check_bool, check_choice, check_integer, check_positive
from metaprior.memory import RUN_ADVICE, in_chunks
from metaprior.progress import progress_bar
from metaprior.tasks.categories import ColumnKinds
from metaprior.tasks.scaling import (
    MAX_DECORRELATED,
    Scaling,
    fit_label_scaling,
    fit_scaling,
    identity_scaling,
)
from metaprior.tasks.types import Task
from metaprior.wfem.checkpoint import Checkpoint
from metaprior.wfem.hyperprior import (
    Density,
    HyperPrior,
    cast,
    check_density,
    check_mean,
    check_std,
    make_density,
    split,
)
from metaprior.wfem.inference import MAP, MAX_PARAMETERS, Laplace, Method, place_particles
from metaprior.wfem.kernels import MLPKernel
from metaprior.wfem.likelihoods import Bernoulli, Gaussian, make_likelihood
from metaprior.wfem.linalg import float32_resolves
from metaprior.wfem.loop import BatchSource, Result, Validation, train
from metaprior.wfem.means import MLPMean
from metaprior.wfem.networks import ConvEncoder
from metaprior.wfem.objective import BLOCK_SAMPLES, Problem, batch_plan, pad_tasks, temperature
from metaprior.wfem.prior import GPPrior, check_prior, make_prior
from metaprior.wfem.steps import CHUNK, OPTIMIZERS, SCHEDULES, TrainConfig

LEARNED_NOISE_START = 0.1  # of the standard deviation of y


WITHIN_CLASS = "within-class"


@dataclass(frozen=True)
class Training:
    """How a prior is trained.

    Parameters
    ----------
    n_steps : int, optional
        Steps of the optimizer, 2000 by default, and 1000 for labels. 0 leaves the prior at its initial parameters: the
        paper's "GP".
    learning_rate : float
        Learning rate at the start.
    optimizer : "adam" or "sgd"
    schedule : "cosine" or "constant"
        Learning-rate schedule.
    batch_size : int, optional
        Tasks per step, split evenly among the environments. By default all tasks, and 256 for stored tasks.
    standardize : bool or "within-class", optional
        Whether inputs and outputs are standardized by the tasks of the fit; predictions are in the units of y. "within-
        class", the default for labels, divides inputs by their standard deviation within the classes of a task, and
        decorrelates them.
    dtype : "auto", "float32" or "float64"
        Precision. "auto" is float64 if the noise is small against the spread of y or tasks are large. Adaptation and
        prediction are in float64.
    n_devices : int, optional
        Devices that share the training, by default all that JAX sees.
    search_time : float, optional
        Seconds that cross-validation may take, if it chooses anything; by default unlimited. Runs are shortened, and in
        less than 10 seconds, which compiling takes, nothing is compared.
    progress : bool, optional
        Show a progress bar, by default if standard error is a terminal.
    """

    n_steps: int | None = None
    learning_rate: float = 1e-2
    optimizer: str = "adam"
    schedule: str = "cosine"
    batch_size: int | None = None
    standardize: bool | str | None = None
    dtype: str = "auto"
    n_devices: int | None = None
    search_time: float | None = None
    progress: bool | None = None

    def __post_init__(self):
        for name, least in (("n_steps", 0), ("batch_size", 1), ("n_devices", 1)):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), least=least)
        check_positive("learning_rate", self.learning_rate)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        is_rule = isinstance(self.standardize, str) and self.standardize == WITHIN_CLASS
        if self.standardize is not None and not is_rule:
            check_bool("standardize", self.standardize, f"{WITHIN_CLASS!r}, ")
        check_choice("dtype", self.dtype, ("auto", "float32", "float64"))
        if self.search_time is not None:
            check_positive("search_time", self.search_time, " of seconds, or None", limits=None)
        if self.progress is not None:
            check_bool("progress", self.progress)

    def portable(self) -> "Training":
        """Return the settings that a file holds: not those of one machine."""
        return replace(self, n_devices=None, progress=None)


@dataclass(frozen=True)
class Settings:
    """What the prior and its hyper-posterior are, apart from the tasks; checked values (see the estimators)."""

    mean: Any = MLPMean()
    kernel: Any = MLPKernel()
    encoder: Any = None
    likelihood: Any = Gaussian(0.1)
    temperature: float | str = "bayes"
    temperature_factor: float = 1.0  # multiplies the temperature; varied by the search
    hyperprior: Any = HyperPrior()
    method: Method = MAP()
    standardize: bool | Literal["within-class"] = True
    kinds: ColumnKinds | None = None  # what the input columns are; None: numbers

    @property
    def labels(self) -> bool:
        """Whether y is 0 or 1."""
        return isinstance(self.likelihood, Bernoulli)

    @property
    def scales_outputs(self) -> bool:
        """Whether y is standardized: under other likelihoods it has no unit."""
        return isinstance(self.likelihood, Gaussian) and bool(self.standardize)

    @property
    def prior_std(self) -> dict[str, float]:
        """Standard deviations of the hyper-prior; one of one of the user's own."""
        return check_std(self.hyperprior.fixed_std if isinstance(self.hyperprior, HyperPrior) else 1.0)


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
        return fit_label_scaling(environments, weights, _within_classes(settings), settings.kinds)
    return fit_scaling(environments, weights, settings.kinds)


def scaling_template(input_dim: int, settings: Settings) -> Scaling:
    """Return a scaling with the shapes of the one that `make_scaling` would return."""
    scaling = identity_scaling(input_dim, settings.kinds)
    decorrelated = _within_classes(settings) and scaling.width <= MAX_DECORRELATED
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
) -> Run:
    """Scale and pad the tasks, and draw the prior and its particles. The precision follows JAX's x64 switch."""
    input_dim = scaling.width
    dtype = jnp.zeros(()).dtype
    tasks = pad_tasks([[scaling.task(task) for task in group] for group in environments], dtype, included=included)
    environment_weights = jnp.asarray(weights, dtype)
    draw_key, train_key = jax.random.split(jax.random.key(seed))
    is_kept = included or [np.ones(len(group), bool) for group in environments]
    kept = [list(compress(group, keep)) for group, keep in zip(environments, is_kept, strict=True)]
    particles, rest, hyperprior = draw_prior(draw_key, input_dim, settings, float(scaling.y_std), dtype)
    gamma = settings.temperature
    if isinstance(gamma, str):
        gamma = temperature(gamma, [np.array([len(task.y) for task in group], float) for group in kept], weights)
    gamma = jnp.asarray(gamma * settings.temperature_factor, dtype)
    problem = Problem(tasks, rest, hyperprior, environment_weights, gamma)
    return Run(problem, particles, train_key)


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


def _within_classes(settings: Settings) -> bool:
    """Convolutions need the pixels as they are: decorrelated ones have no neighbors."""
    return settings.standardize == "within-class" and not isinstance(settings.encoder, ConvEncoder)


def _stack(leaves: Sequence[Any]) -> Any:
    if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
        return jnp.stack(leaves)
    return jnp.asarray(np.stack(leaves))  # on the host: stacking on the device compiles a program per shape


MAX_BYTES = 2**32  # kept at once for the gradients of several runs


class TrainingOptions(NamedTuple):
    """How runs are trained, shared by the search and the final fit."""

    n_steps: int
    learning_rate: float
    optimizer: str = "adam"
    schedule: str = "cosine"
    batch_size: int | None = None  # tasks per step; None: all
    n_devices: int | None = None  # None: all
    progress: bool | None = None  # None: a progress bar if standard error is a terminal
    checkpoint: Checkpoint | None = None

    def config(self, method: Method, run: Run, streamed: bool = False) -> TrainConfig:
        """Return what is compiled for runs of these shapes."""
        tasks, plan = run.problem.tasks, None
        if not streamed and self.batch_size is not None and self.batch_size < sum(tasks.environment_counts):
            plan = batch_plan(tasks, self.batch_size)
        return TrainConfig(method, self.optimizer, self.schedule, plan, self.n_devices)  # type: ignore[arg-type]


def train_runs(
    runs: Sequence[Run],
    method: Method,
    options: TrainingOptions,
    *,
    description: str = "meta-training",
    validation: Sequence[Validation] | None = None,
    patience: int | None = None,
    deadline: float | None = None,
    check_divergence: bool = True,
    batches: BatchSource | None = None,
    chunk: int = CHUNK,
) -> list[Result]:
    """Train runs of equal shapes and return the result of each.

    If a `deadline` shortens the first runs that are trained together, all runs take as many steps as these.
    """
    config = options.config(method, runs[0], batches is not None)._replace(chunk=chunk)
    n_steps, rate_dtype = options.n_steps, jnp.zeros(()).dtype

    def train_part(part: range, _: int) -> list[Result]:
        nonlocal n_steps
        chosen, limit = slice(part.start, part.stop), None
        stacked = stack_runs(runs[chosen])
        if deadline is not None and part.start == 0:
            now = time.monotonic()
            limit = now + len(part) / len(runs) * (deadline - now)
        with progress_bar(description, n_steps, "steps", options.progress, "compiling") as move:
            result = train(
                stacked.problem,
                stacked.particles,
                stacked.key,
                config,
                n_steps,
                jnp.full(len(part), options.learning_rate, rate_dtype),
                None if validation is None else stack_validation(validation[chosen]),
                patience,
                None if move is None else lambda done, loss: move(done, f"loss {loss:.4f}"),
                deadline=limit,
                check_divergence=check_divergence,
                checkpoint=options.checkpoint,
                batches=batches,
            )
        if deadline is not None:
            n_steps = result.loss.shape[1]
        return [_select_run(result, i) for i in range(len(part))]

    parts = in_chunks(train_part, range(len(runs)), runs_at_once(runs[0]), "runs", RUN_ADVICE)
    return [result for part in parts for result in part]


def stack_validation(validation: Sequence[Validation]) -> Validation:
    """Stack the validation tasks of several runs along a new first axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *validation)


def runs_at_once(run: Run) -> int:
    """Return how many such runs to train at once (at least one), so that their activations fit into memory."""
    shapes = [np.shape(bucket.x) for bucket in run.problem.tasks.buckets]
    sizes = np.concatenate([np.full(n_tasks, size) for n_tasks, size, _ in shapes])
    numbers = gradient_numbers(sizes, shapes[0][2], run.problem.rest.encoder is not None)
    return runs_that_fit(numbers * len(jax.tree.leaves(run.particles)[0]))


def runs_that_fit(numbers: float) -> int:
    """Return how many runs to compute at once (at least one) if each keeps so many numbers."""
    most = min(MAX_BYTES, (_total_memory() or np.inf) / 4)  # not what is free: another split may round otherwise
    return max(int(most / (jnp.zeros(()).dtype.itemsize * numbers)), 1)


def numbers_per_sample(size: Any, input_dim: int, encoded: bool) -> Any:
    """Return about how many numbers are kept per sample and particle of a task of this size (measured).

    A thousand activations, or hundreds per pixel for convolutions, and ten rows of covariance matrices.
    """
    return (600 * input_dim if encoded else 1000 + input_dim) + 10 * size


def gradient_numbers(sizes: np.ndarray, input_dim: int, encoded: bool) -> float:
    """Return about how many numbers the gradient over tasks of these sizes keeps for one particle.

    Accelerators take all tasks at once, CPUs a block (`loss_and_slope`).
    """
    of_tasks = sizes * numbers_per_sample(sizes, input_dim, encoded)
    at_once = max(float(of_tasks.sum()), float(of_tasks.max()))
    if jax.default_backend() != "cpu":
        return at_once
    block = float(BLOCK_SAMPLES * numbers_per_sample(sizes.max(), input_dim, encoded))
    return min(at_once, max(block, float(of_tasks.max())))


def _total_memory() -> float | None:
    if jax.default_backend() != "cpu":
        found = [device.memory_stats() or {} for device in jax.local_devices()]
        known = [stats["bytes_limit"] for stats in found if "bytes_limit" in stats]
        return float(min(known)) if known else None
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return None


def _select_run(result: Result, i: int) -> Result:
    """Return the result of one run, without the axis of runs."""
    particles = jax.tree.map(lambda leaf: np.asarray(leaf)[i], result.particles)
    return Result(particles, *(np.asarray(trace)[i] for trace in result[1:]))
