"""What both estimators share: checks of arguments, meta-training, and files."""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.validation import check_is_fitted

from metaprior import persistence
from metaprior.adapted import Model, padded_queries
from metaprior.checks import check_bool, check_choice, check_integer, check_positive, is_number
from metaprior.gp.prior import check_noise, resolve_encoder, resolve_kernel, resolve_mean
from metaprior.meta.hyperprior import check_prior_mean, check_prior_std
from metaprior.meta.inference import MAP, resolve_inference
from metaprior.meta.loop import OPTIMISERS, SCHEDULES, Recipe, Validation, train
from metaprior.meta.objective import TEMPERATURES, batch_plan
from metaprior.meta.setup import Run, Settings, draw, empty_scaling, scaling_of, set_up, stack_runs, training_dtype
from metaprior.metrics import mean_and_standard_error
from metaprior.progress import progress_bar
from metaprior.tasks import Scaling, Task, TestTask

FITTED_NUMBERS = ("alpha_", "temperature_", "dtype_", "best_step_")
FITTED_TRACES = ("environment_weights_", "loss_trace_", "validation_trace_")
ENVIRONMENTS = ("source", "target")


class MetaGP(BaseEstimator):
    """Meta-training by weighted free energy minimisation. Constructor arguments are those of the estimators."""

    likelihood: ClassVar[Literal["gaussian", "bernoulli"]]
    alpha: Any
    inference: Any
    n_particles: Any
    mean: Any
    kernel: Any
    encoder: Any
    temperature: Any
    prior_mean: Any
    prior_std: Any
    optimizer: Any
    learning_rate: Any
    schedule: Any
    n_steps: Any
    batch_size: Any
    standardise: Any
    dtype: Any
    random_state: Any
    progress: Any

    def _fit(
        self,
        settings: Settings,
        environments: Sequence[Sequence[Task]],
        validation: Callable[[int], list[TestTask]] | None,
        patience: Any,
    ) -> None:
        """Train on checked tasks; `validation` gives the held-out ones, once the input dimension is known."""
        if patience is not None:
            check_integer("patience", patience, least=1)
        n_steps = int(self.n_steps)
        weights = environment_weights(self.alpha, [len(tasks) for tasks in environments])
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        scaling = scaling_of(environments, weights, settings)
        dtype = training_dtype(environments, weights, scaling, settings) if self.dtype == "auto" else self.dtype
        with jax.enable_x64(dtype == "float64"):
            run = set_up(environments, weights, scaling, settings, seed)
            held_out = None if validation is None else _padded(validation(len(scaling.x_mean)), scaling)
            stacked = stack_runs([run])
            with progress_bar("meta-training", n_steps, self.progress) as on_chunk:
                result = train(
                    stacked.problem,
                    stacked.particles,
                    stacked.key,
                    self._recipe(run, settings),
                    n_steps,
                    jnp.asarray([self.learning_rate], dtype),
                    held_out,
                    patience,
                    on_chunk,
                )
        particles = jax.tree.map(lambda leaf: np.asarray(leaf)[0], result.particles)
        self.model_ = Model(particles, run.problem.rest, scaling)
        self.parameters_ = self.get_params(deep=False)  # what `save` writes, whatever is set later
        self.alpha_ = float(weights[0])
        self.dtype_ = dtype
        self.environment_weights_ = np.asarray(weights)
        self.temperature_ = float(run.problem.temperature)
        self.loss_trace_ = result.loss[0]
        self.validation_trace_ = result.validation[0] + math.log(scaling.y_std)  # a density in the units of y
        self.best_step_ = int(result.best_step[0])
        self.n_features_in_ = self.model_.input_dim

    @property
    def particles_(self) -> Any:
        """The learned parameters, a pytree with a leading axis of particles."""
        check_is_fitted(self, "model_")
        return self.model_.particles

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted prior to one file, read again by `metaprior.load`."""
        check_is_fitted(self, "model_")
        header = {
            "kind": type(self).__name__,
            "parameters": {name: persistence.encode(value) for name, value in self.parameters_.items()},
            "fitted": {name: getattr(self, name) for name in FITTED_NUMBERS} | self._labels_to_json(),
            "input_dim": self.model_.input_dim,
        }
        traces = {name: getattr(self, name) for name in FITTED_TRACES}
        persistence.write(path, header, {**persistence.flatten(self.model_), **traces})

    def _restore(self, path: str | os.PathLike, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        """Take up what `save` wrote."""
        settings, input_dim = self._fitted_settings(), header["input_dim"]
        with jax.enable_x64(header["fitted"]["dtype_"] == "float64"):
            dtype = jnp.zeros(()).dtype
            template = eqx.filter_eval_shape(draw, jax.random.key(0), input_dim, settings, 1.0, dtype)
            model = Model(template[0], template[1], empty_scaling(input_dim, settings))
            self.model_ = persistence.restore(path, model, tensors)
        self.parameters_ = self.get_params(deep=False)
        for name in FITTED_NUMBERS:
            setattr(self, name, header["fitted"][name])
        for name in FITTED_TRACES:
            setattr(self, name, tensors[name])
        self.n_features_in_ = input_dim

    def _fitted_settings(self) -> Settings:
        return self._settings()

    def _labels_to_json(self) -> dict[str, Any]:
        return {}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def _settings(self) -> Settings:
        """Check every argument; nothing of the data is needed for that."""
        method = resolve_inference(self.inference)
        n_particles = self.n_particles
        if n_particles is None:
            n_particles = 1 if isinstance(method, MAP) else 10
        n_particles = check_integer("n_particles", n_particles, least=1)
        check_integer("n_steps", self.n_steps, least=0)
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, least=1)
        check_positive("learning_rate", self.learning_rate)
        if not (isinstance(self.temperature, str) and self.temperature in TEMPERATURES):
            check_positive("temperature", self.temperature, f", or one of {', '.join(TEMPERATURES)}")
        check_choice("optimizer", self.optimizer, OPTIMISERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("dtype", self.dtype, ("auto", "float32", "float64"))
        self._check_standardise()
        if self.progress is not None:
            check_bool("progress", self.progress)
        return Settings(
            mean=resolve_mean(self.mean),
            kernel=resolve_kernel(self.kernel),
            encoder=resolve_encoder(self.encoder),
            likelihood=self.likelihood,
            noise_std=check_noise(self.noise_std) if self.likelihood == "gaussian" else 1.0,  # type: ignore[attr-defined]
            temperature=self.temperature,
            prior_mean=check_prior_mean(self.prior_mean),
            prior_std=check_prior_std(self.prior_std),
            method=method,
            n_particles=n_particles,
            standardise=self.standardise,
        )

    def _check_standardise(self) -> None:
        check_bool("standardise", self.standardise)

    def _recipe(self, run: Run, settings: Settings) -> Recipe:
        tasks = run.problem.tasks
        size = sum(tasks.environment_counts) if self.batch_size is None else int(self.batch_size)
        plan = None if size >= sum(tasks.environment_counts) else batch_plan(tasks, size)
        return Recipe(settings.method, self.optimizer, self.schedule, plan)


def environment_weights(alpha: Any, counts: list[int]) -> tuple[float, float]:
    """(alpha, 1 - alpha), checked against the number of source and target tasks."""
    if isinstance(alpha, str) and alpha == "pooled":
        alpha = counts[0] / sum(counts)
    if not (is_number(alpha) and 0 <= alpha <= 1):
        raise ValueError(f"alpha must be a number in [0, 1] or 'pooled'; got {alpha!r}.")
    weights = (float(alpha), 1.0 - float(alpha))
    for name, weight, count in zip(ENVIRONMENTS, weights, counts, strict=True):
        if weight > 0 and count == 0:
            raise ValueError(
                f"alpha={float(alpha):g} gives weight {weight:g} to the {name} environment, which has no tasks. "
                f"Pass {name}_tasks, or alpha={1 if name == 'target' else 0} (or alpha='pooled')."
            )
    return weights


def read_environments(
    source_tasks: Iterable[Any] | None, target_tasks: Iterable[Any] | None, read: Callable[..., list[Task]]
) -> list[list[Task]]:
    """Source and target tasks, checked by `read(tasks, name, input_dim)`."""
    source = read(source_tasks, "source_tasks", None)
    target = read(target_tasks, "target_tasks", source[0].x.shape[1] if source else None)
    if not source and not target:
        raise ValueError("source_tasks and target_tasks are both empty: expected at least one (X, y).")
    return [source, target]


def report(summary: dict[str, Any]) -> Bunch:
    """Means and standard errors over tasks of what `summarise` gives per task."""
    per_task = {name: values for name, values in summary.items() if name != "calibration_error"}
    figures: dict[str, Any] = {}
    for name, values in per_task.items():
        figures[name], figures[f"{name}_se"] = mean_and_standard_error(values)
    n_tasks = len(next(iter(per_task.values())))
    return Bunch(**figures, calibration_error=summary["calibration_error"], n_tasks=n_tasks, per_task=Bunch(**per_task))


def _padded(tasks: Sequence[TestTask], scaling: Scaling) -> Validation:
    [(_, queries, y_query, mask)] = padded_queries(tasks, scaling, max_buckets=1, dtype=jnp.zeros(()).dtype)
    return jax.tree.map(lambda leaf: leaf[None], Validation(queries, y_query, mask))
