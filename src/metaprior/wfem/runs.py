"""From tasks and settings to runs for the training loop: one run, or many stacked."""

from collections.abc import Sequence
from dataclasses import dataclass
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
from metaprior.wfem.encoders import ConvEncoder
from metaprior.wfem.hyper_laplace import MAX_PARAMETERS, Laplace
from metaprior.wfem.hyperprior import Density, HyperPrior, check_mean, check_std, make_density
from metaprior.wfem.inference import MAP, Method, place_particles
from metaprior.wfem.kernels import MLPKernel
from metaprior.wfem.likelihoods import Bernoulli, Gaussian, make_likelihood
from metaprior.wfem.linalg import float32_resolves
from metaprior.wfem.means import MLPMean
from metaprior.wfem.objective import Problem, temperature
from metaprior.wfem.parameters import cast, split
from metaprior.wfem.prior import GPPrior, check_prior, make_prior
from metaprior.wfem.task_sets import pad_tasks

LEARNED_NOISE_START = 0.1  # of the standard deviation of y


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
