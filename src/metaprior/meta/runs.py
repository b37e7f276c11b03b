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
from metaprior.gp.choices import check_encoded, choose_mean
from metaprior.gp.encoders import ConvEncoder
from metaprior.gp.kernels import MLPKernel
from metaprior.gp.linalg import float32_resolves
from metaprior.gp.means import MLPMean
from metaprior.gp.parameters import cast, merge, split
from metaprior.gp.placement import has_basis, place_points
from metaprior.gp.prior import GPPrior, ResponseStart, check_prior, make_likelihood, make_prior
from metaprior.gp.response_likelihoods import ResponseLikelihood
from metaprior.meta.hyper_laplace import MAX_PARAMETERS
from metaprior.meta.hyperprior import HyperPrior, make_hyperprior
from metaprior.meta.hyperprior_arguments import check_prior_mean, check_prior_std
from metaprior.meta.methods import MAP, Laplace, Method, place_particles
from metaprior.meta.objective import Problem, task_weights, temperature
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.scaling import (
    MAX_DECORRELATED,
    Scaling,
    fit_label_scaling,
    fit_scaling,
    identity_scaling,
    sample_weights,
)
from metaprior.tasks.task_sets import pad_tasks
from metaprior.tasks.types import Task

LEAST_COUNT_SCALE = 0.5  # of the logarithm of a rate
ROUNDING = 1e-9  # relative to the mean, by which constant readings vary
LEARNED_NOISE_START = 0.1  # of the standard deviation of y


@dataclass(frozen=True)
class Settings:
    """What the prior and its hyper-posterior are, apart from the tasks; checked values (see the estimators)."""

    mean: Any = MLPMean()  # or "auto", as for the kernel, until `resolve_settings` has chosen
    kernel: Any = MLPKernel()
    encoder: Any = None
    likelihood: str = "gaussian"  # bernoulli: y is 0 or 1; that of a response: y as it is. Neither has scale or noise
    noise_std: float | None = 0.1  # in the units of y; None: learned
    temperature: float | str = "bayes"
    temperature_factor: float = 1.0  # multiplies the temperature; varied by the search
    prior_mean: dict[str, Any] = field(default_factory=lambda: check_prior_mean("zero"))
    prior_std: dict[str, float] = field(default_factory=lambda: check_prior_std(1.0))
    method: Method = MAP()
    n_particles: int = 1  # that are trained
    standardize: bool | Literal["within-class"] = True
    kinds: ColumnKinds | None = None  # what the input columns are; None: numbers
    response: Any = None  # of counts, ranks and outliers: the `Response` that parameters and units start from
    exposure: int | None = None  # column of X

    @property
    def exposure_column(self) -> int | None:
        """The column of scaled inputs that has the exposure."""
        if self.exposure is None or self.kinds is None:
            return self.exposure
        return self.kinds.place(self.exposure)


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
    scaling = fit_scaling(environments, weights, settings.kinds)
    return scaling if settings.response is None else unscaled_response(scaling, settings.exposure)


def unscaled_response(scaling: Scaling, exposure: int | None) -> Scaling:
    """Return a scaling that leaves y and the exposure as they are."""
    is_exposure = np.arange(len(scaling.x_mean)) == exposure
    x_mean, x_std = np.where(is_exposure, 0.0, scaling.x_mean), np.where(is_exposure, 1.0, scaling.x_std)
    return scaling._replace(x_mean=x_mean, x_std=x_std, y_mean=np.asarray(0.0), y_std=np.asarray(1.0))


def start_response(
    environments: Sequence[Sequence[Task]], weights: Sequence[float], settings: Settings
) -> ResponseStart:
    """Return the parameters of a response to start from, and units in which t is about one, given weighted tasks."""
    response, tasks = settings.response, [task for tasks in environments for task in tasks]
    y, counts = np.concatenate([task.y for task in tasks]), sample_weights(environments, weights)
    counted = counts > 0
    parameters, _ = response.initial(y[counted], counts[counted])
    latent = response.latent(y, parameters)
    if settings.exposure is not None:
        latent = latent - np.log(np.concatenate([task.x[:, settings.exposure] for task in tasks]))
    if response.unit_noise:
        return ResponseStart(parameters, 0.0, 1.0)
    share = counts / counts.sum()
    center = float(share @ latent)
    scale = float(np.sqrt(share @ (latent - center) ** 2))
    if response.takes_exposure:  # of rare counts log(y + 1/2) hardly varies, and is far above the logarithm of the rate
        exposure = (
            1.0 if settings.exposure is None else np.concatenate([task.x[:, settings.exposure] for task in tasks])
        )
        rate = (share @ y + 0.5 / len(y)) / np.sum(share * exposure)
        return ResponseStart(parameters, float(np.log(rate)), max(scale, LEAST_COUNT_SCALE))
    return ResponseStart(parameters, center, scale if scale > ROUNDING * (1.0 + abs(center)) else 1.0)


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
    if settings.response is not None:
        return "float64"  # counts of any size, and logarithms of small probabilities
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
    start = None if settings.response is None else start_response(kept, weights, settings)
    particles, rest, hyperprior = draw_prior(draw_key, input_dim, settings, float(scaling.y_std), dtype, start)
    gamma = settings.temperature
    if isinstance(gamma, str):
        gamma = temperature(gamma, [np.array([len(task.y) for task in group], float) for group in kept], weights)
    gamma = jnp.asarray(gamma * settings.temperature_factor, dtype)
    problem = Problem(tasks, rest, hyperprior, environment_weights, gamma)
    if has_basis(rest):
        first = merge(jax.tree.map(lambda leaf: leaf[0], particles), rest).likelihood
        response = first if isinstance(first, ResponseLikelihood) else None
        placed = place_points(rest, tasks, _sample_counts(problem), response)
        problem = eqx.tree_at(lambda p: p.rest, problem, placed)
    return Run(problem, particles, train_key)


def stack_runs(runs: Sequence[Run]) -> Run:
    """Stack runs of equal shapes along a new first axis."""
    return jax.tree.map(lambda *leaves: _stack(leaves) if hasattr(leaves[0], "dtype") else leaves[0], *runs)


def draw_prior(
    key: PRNGKeyArray,
    input_dim: int,
    settings: Settings,
    y_std: float,
    dtype: Any,
    start: ResponseStart | None = None,
) -> tuple[PyTree, GPPrior, HyperPrior]:
    """Draw the particles of theta; return them with the rest of the prior and the hyper-prior.

    Without the `start` of a response only their shapes have a meaning.
    """
    noise = LEARNED_NOISE_START if settings.noise_std is None else settings.noise_std / y_std
    if settings.response is not None:
        start = start or ResponseStart(np.zeros(settings.response.n_parameters), 0.0, 1.0)
        start = ResponseStart(*(np.asarray(part, dtype) for part in start))
    return _draw_prior(
        key,
        input_dim - (settings.exposure is not None),
        (settings.mean, settings.kernel, settings.encoder),
        (settings.likelihood, start, getattr(settings.response, "lowest", 0), settings.exposure_column),
        np.asarray(noise, dtype),
        settings.noise_std is None,
        tuple(settings.prior_mean.items()),
        {name: np.asarray(std, dtype) for name, std in settings.prior_std.items()},
        settings.n_particles,
        settings.method.start,
    )


@eqx.filter_jit
def _draw_prior(key, input_dim, parts, response, noise_std, learn_noise, prior_mean, prior_std, n_particles, start):
    def initialize(key: PRNGKeyArray) -> tuple[PyTree, GPPrior]:
        (mean, kernel, encoder), (kind, of_response, lowest, exposure) = parts, response
        likelihood = make_likelihood(kind, noise_std, learn_noise, of_response, lowest)
        prior = make_prior(key, input_dim, mean, kernel, likelihood, encoder, exposure)
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
