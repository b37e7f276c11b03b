"""From tasks and settings to runs for the training loop: one run, or many stacked."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray, PyTree

from metaprior.checks import Argument, Message
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.scaling import (
    MAX_DECORRELATED,
    Scaling,
    fit_label_scaling,
    fit_scaling,
    identity_scaling,
)
from metaprior.tasks.types import Task
from metaprior.wfem.choices import check_encoded, choose_mean
from metaprior.wfem.encoders import ConvEncoder
from metaprior.wfem.hyper_laplace import MAX_PARAMETERS
from metaprior.wfem.hyperprior import HyperPrior, make_hyperprior
from metaprior.wfem.hyperprior_arguments import check_prior_mean, check_prior_std
from metaprior.wfem.inference import MAP, Laplace, Method, place_particles
from metaprior.wfem.kernels import MLPKernel
from metaprior.wfem.linalg import float32_resolves
from metaprior.wfem.means import MLPMean
from metaprior.wfem.objective import Problem, task_weights, temperature
from metaprior.wfem.parameters import cast, split
from metaprior.wfem.placement import has_basis, place_points
from metaprior.wfem.prior import GPPrior, check_prior, make_likelihood, make_prior
from metaprior.wfem.task_sets import pad_tasks

LEARNED_NOISE_START = 0.1  # of the standard deviation of y


@dataclass(frozen=True)
class Settings:
    """What the prior and its hyper-posterior are, apart from the tasks; checked values (see the estimators)."""

    mean: Any = MLPMean()  # or "auto", as for the kernel, until `resolve_settings` has chosen
    kernel: Any = MLPKernel()
    encoder: Any = None
    likelihood: str = "gaussian"  # or "bernoulli": y is 0 or 1, without scale or noise
    noise_std: float | None = 0.1  # in the units of y; None: learned
    temperature: float | str = "bayes"
    temperature_factor: float = 1.0  # multiplies the temperature; varied by the search
    prior_mean: dict[str, Any] = field(default_factory=lambda: check_prior_mean("zero"))
    prior_std: dict[str, float] = field(default_factory=lambda: check_prior_std(1.0))
    method: Method = MAP()
    n_particles: int = 1  # that are trained
    standardize: bool | Literal["within-class"] = True
    kinds: ColumnKinds | None = None  # what the input columns are; None: numbers


class Run(NamedTuple):
    """One training run. `stack_runs` makes many into one program."""

    problem: Problem
    particles: PyTree  # (particles, ...)
    key: Key[Array, "*runs"]


def resolve_settings(settings: Settings, input_dim: int, method: Method | None, n_particles: int | None) -> Settings:
    """Choose the mean, the inference method and the number of particles for a given kernel where they are left open.

    Inference is Laplace's approximation if the prior has few enough parameters and Gaussian noise, else MAP.
    """
    settings = replace(settings, mean=choose_mean(settings.mean, settings.kernel))
    check_encoded(settings.mean, settings.kernel, settings.encoder)
    if method is None or isinstance(method, Laplace):
        n_parameters = count_parameters(settings, input_dim)
        small = n_parameters <= MAX_PARAMETERS
        if isinstance(method, Laplace) and not small:
            raise ValueError(
                Message(
                    Argument("inference", "laplace"),
                    f" is for priors of up to {MAX_PARAMETERS} parameters; this one has {n_parameters}. Use ",
                    *(Argument("inference", "map"), " with ", Argument("n_particles", 10), ", or "),
                    *(Argument("kernel", "inducing"), "."),
                )
            )
        if method is None:
            method = Laplace() if small and settings.likelihood == "gaussian" else MAP()
    if isinstance(method, Laplace):  # one mode is trained
        return replace(settings, method=replace(method, n_draws=n_particles or method.n_draws), n_particles=1)
    return replace(settings, method=method, n_particles=n_particles or (1 if isinstance(method, MAP) else 10))


def make_scaling(environments: Sequence[Sequence[Task]], weights: Sequence[float], settings: Settings) -> Scaling:
    """Return the scaling of the tasks: learned, or none."""
    if not settings.standardize:
        input_dim = next(task.x.shape[1] for tasks in environments for task in tasks)
        return identity_scaling(input_dim, settings.kinds)
    if settings.likelihood == "bernoulli":
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

    `gp.linalg` floors the noise variance at 4 eps n; it should stay well above that. The matrix B of Laplace's
    approximation has eigenvalues from one to about the size of a task times the scale of the kernel, which is moderate
    for standardized inputs. Environments of weight zero do not count.
    """
    counted = (tasks for tasks, weight in zip(environments, weights, strict=True) if weight > 0)
    largest = max(len(task.y) for tasks in counted for task in tasks)
    if settings.likelihood == "bernoulli":
        return "float32" if largest <= 100 and settings.standardize else "float64"
    noise = LEARNED_NOISE_START if settings.noise_std is None else settings.noise_std / float(scaling.y_std)
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
    if has_basis(rest):
        problem = eqx.tree_at(lambda p: p.rest, problem, place_points(rest, tasks, _sample_counts(problem)))
    return Run(problem, particles, train_key)


def stack_runs(runs: Sequence[Run]) -> Run:
    """Stack runs of equal shapes along a new first axis."""
    return jax.tree.map(lambda *leaves: _stack(leaves) if hasattr(leaves[0], "dtype") else leaves[0], *runs)


def draw_prior(
    key: PRNGKeyArray, input_dim: int, settings: Settings, y_std: float, dtype: Any
) -> tuple[PyTree, GPPrior, HyperPrior]:
    """Draw the particles of theta; return them with the rest of the prior and the hyper-prior."""
    noise = LEARNED_NOISE_START if settings.noise_std is None else settings.noise_std / y_std
    return _draw_prior(
        key,
        input_dim,
        (settings.mean, settings.kernel, settings.encoder),
        settings.likelihood,
        np.asarray(noise, dtype),
        settings.noise_std is None,
        tuple(settings.prior_mean.items()),
        {name: np.asarray(std, dtype) for name, std in settings.prior_std.items()},
        settings.n_particles,
        settings.method.start,
    )


@eqx.filter_jit
def _draw_prior(key, input_dim, parts, kind, noise_std, learn_noise, prior_mean, prior_std, n_particles, start):
    def initialize(key: PRNGKeyArray) -> tuple[PyTree, GPPrior]:
        mean, kernel, encoder = parts
        prior = make_prior(key, input_dim, mean, kernel, make_likelihood(kind, noise_std, learn_noise), encoder)
        return split(cast(prior, noise_std.dtype))  # a custom module may come in another precision

    initial_key, start_key = jax.random.split(key)
    # Folded in, so that the first particle does not depend on how many there are.
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(initial_key, jnp.arange(n_particles))
    initial, rests = eqx.filter_vmap(initialize)(keys)
    theta, rest = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, (initial, rests))
    if not jax.tree.leaves(theta):
        named = (Argument("mean"), ", ", Argument("kernel"), " and ", Argument("noise_std"))
        raise ValueError(Message(*named, " leave nothing to learn: give at least one of them a parameter."))
    check_prior(eqx.combine(theta, rest), input_dim)
    hyperprior = make_hyperprior(theta, dict(prior_mean), prior_std)
    return place_particles(start_key, initial, hyperprior, start), rest, hyperprior


def _sample_counts(problem: Problem) -> list[np.ndarray]:
    """Return gamma w_i / M_i: how often the Gibbs density counts the samples of each task."""
    weights = task_weights(problem.tasks, problem.environment_weights)
    sizes = [np.sum(bucket.mask, axis=1) for bucket in problem.tasks.buckets]
    return [float(problem.temperature) * np.asarray(w) / size for w, size in zip(weights, sizes, strict=True)]


def count_parameters(settings: Settings, input_dim: int) -> int:
    """Return the size of theta. Nothing is computed."""
    dtype = jnp.zeros(()).dtype
    settings = replace(settings, noise_std=None if settings.noise_std is None else 1.0)  # in any unit
    theta, *_ = eqx.filter_eval_shape(draw_prior, jax.random.key(0), input_dim, settings, 1.0, dtype)
    return sum(leaf.size for leaf in jax.tree.leaves(theta))


def _within_classes(settings: Settings) -> bool:
    """Convolutions need the pixels as they are: decorrelated ones have no neighbors."""
    return settings.standardize == "within-class" and not isinstance(settings.encoder, ConvEncoder)


def _stack(leaves: Sequence[Any]) -> Any:
    if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
        return jnp.stack(leaves)
    return jnp.asarray(np.stack(leaves))  # on the host: stacking on the device compiles a program per shape
