"""From tasks and settings to runs that the training loop takes: one run, or many stacked."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray, PyTree

from metaprior.gp.encoders import ConvEncoder
from metaprior.gp.kernels import MLPKernel
from metaprior.gp.means import MLPMean
from metaprior.gp.parameters import cast, split
from metaprior.gp.placement import has_basis, place
from metaprior.gp.prior import GPPrior, check_encoded, check_prior, choose_mean, make_likelihood, make_prior
from metaprior.meta.hyper_laplace import MAX_PARAMETERS
from metaprior.meta.hyperprior import HyperPrior, check_prior_mean, check_prior_std, make_hyperprior
from metaprior.meta.methods import MAP, Laplace, Method, place_particles
from metaprior.meta.objective import Problem, task_weights, temperature
from metaprior.tasks.padding import pad_tasks
from metaprior.tasks.scaling import MAX_DECORRELATED, Scaling, fit_label_scaling, fit_scaling, identity_scaling
from metaprior.tasks.types import Task

LEARNED_NOISE_START = 0.1  # of the spread of y
MAX_NUMBERS = 2**30  # kept at once for gradients: 4 GB in float32


@dataclass(frozen=True)
class Settings:
    """What the prior and its hyper-posterior are, apart from the tasks; checked values (see the estimators)."""

    mean: Any = MLPMean()  # or AUTO, as for the kernel, until `resolve` has chosen
    kernel: Any = MLPKernel()
    encoder: Any = None
    likelihood: Literal["gaussian", "bernoulli"] = "gaussian"  # bernoulli: y is 0 or 1, and has neither scale nor noise
    noise_std: float | None = 0.1  # in the units of y; None: learned
    temperature: float | str = "bayes"
    temperature_factor: float = 1.0  # on top of the temperature: what a search varies
    prior_mean: dict[str, Any] = field(default_factory=lambda: check_prior_mean("zero"))
    prior_std: dict[str, float] = field(default_factory=lambda: check_prior_std(1.0))
    method: Method = MAP()
    n_particles: int = 1  # that are trained
    standardize: bool | Literal["within-class"] = True


class Run(NamedTuple):
    """One training run, ready to go. `stack_runs` makes many into one program."""

    problem: Problem
    particles: PyTree  # (particles, ...)
    key: Key[Array, "*runs"]


def resolve(settings: Settings, input_dim: int, method: Method | None, n_particles: int | None) -> Settings:
    """The settings, of given kernel, with all else chosen that is left to us: mean, inference, number of particles.

    Inference left to us is Laplace's where the prior has few enough parameters and outputs are readings, else MAP.
    """
    settings = replace(settings, mean=choose_mean(settings.mean, settings.kernel))
    check_encoded(settings.mean, settings.kernel, settings.encoder)
    if method is None or isinstance(method, Laplace):
        n_parameters = _count_parameters(settings, input_dim)
        small = n_parameters <= MAX_PARAMETERS
        if isinstance(method, Laplace) and not small:
            raise ValueError(
                f"inference='laplace' is for priors of up to {MAX_PARAMETERS} parameters; this one has {n_parameters}. "
                "Take inference='map' with n_particles=10, or kernel='inducing'."
            )
        if method is None:
            method = Laplace() if small and settings.likelihood == "gaussian" else MAP()
    if isinstance(method, Laplace):  # one mode is trained
        return replace(settings, method=replace(method, n_draws=n_particles or method.n_draws), n_particles=1)
    return replace(settings, method=method, n_particles=n_particles or (1 if isinstance(method, MAP) else 10))


def scaling_of(environments: Sequence[Sequence[Task]], weights: Sequence[float], settings: Settings) -> Scaling:
    """The scaling of the tasks, learned or none."""
    if not settings.standardize:
        return identity_scaling(next(task.x.shape[1] for tasks in environments for task in tasks))
    if settings.likelihood == "bernoulli":
        return fit_label_scaling(environments, weights, within=_within_classes(settings))
    return fit_scaling(environments, weights)


def empty_scaling(input_dim: int, settings: Settings) -> Scaling:
    """A scaling with the shapes that `scaling_of` would give."""
    decorrelated = _within_classes(settings) and input_dim <= MAX_DECORRELATED
    return identity_scaling(input_dim)._replace(x_map=np.eye(input_dim) if decorrelated else None)


def _within_classes(settings: Settings) -> bool:
    """Convolutions need pixels as they are: decorrelated ones have no neighbors."""
    return settings.standardize == "within-class" and not isinstance(settings.encoder, ConvEncoder)


def training_dtype(
    environments: Sequence[Sequence[Task]], weights: Sequence[float], scaling: Scaling, settings: Settings
) -> str:
    """float64 where the noise of the scaled y is so small, or a task so large, that float32 would blur it.

    `gp.linalg` floors the noise variance at 4 eps n; it should stay well above that. Laplace's B has eigenvalues from
    one to about the size of a task times the scale of the kernel, which is moderate for standardized inputs.
    Environments of weight zero do not count.
    """
    counted = (tasks for tasks, weight in zip(environments, weights, strict=True) if weight > 0)
    largest = max(len(task.y) for tasks in counted for task in tasks)
    if settings.likelihood == "bernoulli":
        return "float32" if largest <= 100 and settings.standardize else "float64"
    noise = LEARNED_NOISE_START if settings.noise_std is None else settings.noise_std / float(scaling.y_std)
    return "float32" if noise**2 > 100 * np.finfo(np.float32).eps * largest else "float64"


def set_up(
    environments: Sequence[Sequence[Task]],
    weights: Sequence[float],
    scaling: Scaling,
    settings: Settings,
    seed: int,
    included: Sequence[np.ndarray] | None = None,
) -> Run:
    """Scale and pad the tasks, draw the prior and its particles. Precision follows JAX's x64 switch."""
    input_dim = len(scaling.x_mean)
    dtype = jnp.zeros(()).dtype
    tasks = pad_tasks([[scaling.task(task) for task in group] for group in environments], dtype, included=included)
    environment_weights = jnp.asarray(weights, dtype)
    draw_key, train_key = jax.random.split(jax.random.key(seed))
    particles, rest, hyperprior = draw(draw_key, input_dim, settings, float(scaling.y_std), dtype)
    if isinstance(settings.temperature, str):
        gamma = _temperature(settings.temperature, tasks, environment_weights)
    else:
        gamma = jnp.asarray(settings.temperature, dtype)
    problem = Problem(tasks, rest, hyperprior, environment_weights, gamma * settings.temperature_factor)
    if has_basis(rest):
        problem = eqx.tree_at(lambda p: p.rest, problem, place(rest, tasks, _counts(problem)))
    return Run(problem, particles, train_key)


def _counts(problem: Problem) -> list[np.ndarray]:
    """gamma w_i / M_i: how often the Gibbs density counts the samples of each task."""
    weights = task_weights(problem.tasks, problem.environment_weights)
    sizes = [np.sum(bucket.mask, axis=1) for bucket in problem.tasks.buckets]
    return [float(problem.temperature) * np.asarray(w) / size for w, size in zip(weights, sizes, strict=True)]


def runs_at_once(run: Run) -> int:
    """How many such runs to train at once, one at least: what their networks remember for the gradient must fit."""
    samples = sum(np.size(bucket.y) for bucket in run.problem.tasks.buckets)
    input_dim = run.problem.tasks.buckets[0].x.shape[-1]  # type: ignore[union-attr]
    of_sample = activations_per_sample(input_dim, run.problem.rest.encoder is not None)
    n_particles = len(jax.tree.leaves(run.particles)[0])
    return max(MAX_NUMBERS // (samples * of_sample * n_particles), 1)


def activations_per_sample(input_dim: int, encoded: bool) -> int:
    """Numbers that are kept of a sample for the gradient, about (measured).

    Networks on the inputs keep a thousand; convolutions, several hundred a pixel.
    """
    return 600 * input_dim if encoded else 1000 + input_dim


def stack_runs(runs: Sequence[Run]) -> Run:
    """Stack runs of equal shapes along a new first axis."""
    return jax.tree.map(lambda *leaves: _stack(leaves) if hasattr(leaves[0], "dtype") else leaves[0], *runs)


def draw(
    key: PRNGKeyArray, input_dim: int, settings: Settings, y_std: float, dtype: Any
) -> tuple[PyTree, GPPrior, HyperPrior]:
    """Particles of theta, the rest of the prior, and the hyper-prior."""
    noise = LEARNED_NOISE_START if settings.noise_std is None else settings.noise_std / y_std
    stds = {name: np.asarray(std, dtype) for name, std in settings.prior_std.items()}
    return _draw(
        key,
        input_dim,
        (settings.mean, settings.kernel, settings.encoder),
        settings.likelihood,
        np.asarray(noise, dtype),
        settings.noise_std is None,
        tuple(settings.prior_mean.items()),
        stds,
        settings.n_particles,
        settings.method.start,
    )


def draw_many(
    keys: Key[Array, " runs"], input_dim: int, settings: Settings, y_std: np.ndarray, prior_std: np.ndarray
) -> tuple[PyTree, GPPrior, HyperPrior]:
    """`draw` for many runs at once, each with its own key, unit of y and scale of the hyper-prior."""
    dtype = jnp.zeros(()).dtype
    noise = np.full(len(y_std), LEARNED_NOISE_START) if settings.noise_std is None else settings.noise_std / y_std
    stds = {name: np.asarray(std * prior_std, dtype) for name, std in settings.prior_std.items()}

    def one(key: PRNGKeyArray, noise_std: Array, stds: dict[str, Array]) -> tuple[PyTree, GPPrior, HyperPrior]:
        return _draw(
            key,
            input_dim,
            (settings.mean, settings.kernel, settings.encoder),
            settings.likelihood,
            noise_std,
            settings.noise_std is None,
            tuple(settings.prior_mean.items()),
            stds,
            settings.n_particles,
            settings.method.start,
        )

    return eqx.filter_vmap(one)(keys, np.asarray(noise, dtype), stds)


def _count_parameters(settings: Settings, input_dim: int) -> int:
    dtype = jnp.zeros(()).dtype
    noise_std = None if settings.noise_std is None else 1.0  # of any unit
    settings = replace(settings, noise_std=noise_std)
    theta, *_ = eqx.filter_eval_shape(draw, jax.random.key(0), input_dim, settings, 1.0, dtype)
    return sum(leaf.size for leaf in jax.tree.leaves(theta))


@eqx.filter_jit
def _draw(key, input_dim, parts, likelihood, noise_std, learn_noise, prior_mean, prior_std, n_particles, start):
    def initialize(key: PRNGKeyArray) -> tuple[PyTree, GPPrior]:
        mean, kernel, encoder = parts
        observed = make_likelihood(likelihood, noise_std, learn_noise)
        prior = make_prior(key, input_dim, mean, kernel, observed, encoder)
        return split(cast(prior, noise_std.dtype))  # an own module may come in another precision

    initial_key, start_key = jax.random.split(key)
    # Folded in, so that the first particle does not depend on how many there are.
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(initial_key, jnp.arange(n_particles))
    initial, rests = eqx.filter_vmap(initialize)(keys)
    theta, rest = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, (initial, rests))
    if not jax.tree.leaves(theta):
        raise ValueError("mean, kernel and noise_std leave nothing to learn: give at least one of them a parameter.")
    check_prior(eqx.combine(theta, rest), input_dim)
    hyperprior = make_hyperprior(theta, dict(prior_mean), prior_std)
    return place_particles(start_key, initial, hyperprior, start), rest, hyperprior


_temperature = eqx.filter_jit(temperature)


def _stack(leaves: Sequence[Any]) -> Any:
    if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
        return jnp.stack(leaves)
    return jnp.asarray(np.stack(leaves))  # on the host: stacking on the device compiles a program per shape
