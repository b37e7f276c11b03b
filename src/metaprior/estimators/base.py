"""What both estimators share: checks of arguments, meta-training, and files."""

import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.validation import check_is_fitted

from metaprior import persistence
from metaprior.checks import check_bool, check_choice, check_integer, check_positive
from metaprior.ensemble import Ensemble, Model, padded_queries
from metaprior.estimators.environments import Environments
from metaprior.gp.prior import check_noise, resolve_encoder, resolve_kernel, resolve_mean
from metaprior.meta.hyperprior import check_prior_mean, check_prior_std
from metaprior.meta.inference import MAP, Method, resolve_inference
from metaprior.meta.loop import OPTIMISERS, SCHEDULES, Recipe, Result, Validation, train
from metaprior.meta.objective import TEMPERATURES, batch_plan
from metaprior.meta.selection import STEPS_DIVISOR, Auto, Choice, Schedule, choose
from metaprior.meta.setup import Run, Settings, draw, empty_scaling, scaling_of, set_up, stack_runs, training_dtype
from metaprior.meta.weights import Weights, resolve_weights
from metaprior.metrics import mean_and_standard_error
from metaprior.progress import progress_bar
from metaprior.tasks import Scaling, Task, TestTask
from metaprior.transfer import TransferReport, make_report

FITTED_NUMBERS = ("alpha_", "temperature_", "dtype_", "best_step_")
FITTED_TRACES = ("environment_weights_", "loss_trace_", "validation_trace_")


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
    search_time: Any
    progress: Any

    def _fit(
        self,
        settings: Settings,
        environments: Environments,
        validation: Callable[[int], list[TestTask]] | None,
        patience: Any,
    ) -> None:
        """Train on checked tasks; `validation` gives the held-out ones, once the input dimension is known."""
        if patience is not None:
            check_integer("patience", patience, least=1)
        names, tasks, target, _ = environments
        options = resolve_weights(self.alpha, names, environments.counts, target)
        if not tasks[target] and isinstance(self.alpha, str) and self.alpha == "auto":
            warnings.warn(
                f"There are no tasks of the {names[target]} environment to choose alpha by: alpha is 1. Pass some if "
                "there are any; alpha=1 or alpha='pooled' says that this is meant.",
                stacklevel=3,
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        dtype = self._training_dtype(tasks, options, settings)
        with jax.enable_x64(dtype == "float64"):
            choice = choose(
                tasks, target, options, settings, self._auto(), self._schedule(tasks, options, settings, seed)
            )
            result, ensemble, temperature = self._train(tasks, choice, seed, validation, patience)
        heaviest = int(np.argmax(ensemble.weights))
        self.model_ = ensemble
        self.parameters_ = self.get_params(deep=False)  # what `save` writes, whatever is set later
        self.report_ = make_report(choice, names, target, len(tasks[target]))
        self.environment_weights_ = choice.weights @ self.report_.environment_weights
        self.alpha_ = float(choice.weights @ self.report_.alpha)
        self.dtype_ = dtype
        self.temperature_ = float(ensemble.weights @ temperature)
        self.loss_trace_ = result.loss[heaviest]
        unit = math.log(ensemble.members[heaviest].scaling.y_std)
        self.validation_trace_ = result.validation[heaviest] + unit  # a density in the units of y
        self.best_step_ = int(result.best_step[heaviest])
        self.n_features_in_ = ensemble.input_dim

    def _train(
        self,
        tasks: Sequence[Sequence[Task]],
        choice: Choice,
        seed: int,
        validation: Callable[[int], list[TestTask]] | None,
        patience: Any,
    ) -> tuple[Result, Ensemble, np.ndarray]:
        """One program for all members of the choice: its result, the priors, and their temperatures."""
        members, averaging = zip(*choice.members, strict=True)
        scalings = [scaling_of(tasks, member.weights, member.settings) for member in members]
        pairs = list(zip(members, scalings, strict=True))
        runs = [set_up(tasks, member.weights, scaling, member.settings, seed) for member, scaling in pairs]
        held_out = None
        if validation is not None:
            checked = validation(len(scalings[0].x_mean))
            padded = [_padded(checked, scaling) for scaling in scalings]
            held_out = jax.tree.map(lambda *leaves: np.stack(leaves), *padded)
        stacked = stack_runs(runs)
        n_steps = int(self.n_steps)
        with progress_bar("meta-training", n_steps, self.progress) as on_chunk:
            result = train(
                stacked.problem,
                stacked.particles,
                stacked.key,
                self._recipe(runs[0], members[0].settings.method),
                n_steps,
                jnp.full(len(runs), self.learning_rate, jnp.zeros(()).dtype),
                held_out,
                patience,
                on_chunk,
            )
        models = []
        for i, (run, scaling) in enumerate(zip(runs, scalings, strict=True)):
            particles = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], result.particles)
            models.append(Model(particles, run.problem.rest, scaling))
        temperatures = np.array([float(run.problem.temperature) for run in runs])
        return result, Ensemble(tuple(models), np.array(averaging)), temperatures

    def _training_dtype(self, tasks: Sequence[Sequence[Task]], options: Sequence[Weights], settings: Settings) -> str:
        """That of the most demanding option, where it is for us to choose."""
        if self.dtype != "auto":
            return self.dtype
        scaled = ((weights, scaling_of(tasks, weights, settings)) for weights in options)
        return max(training_dtype(tasks, weights, scaling, settings) for weights, scaling in scaled)

    def _schedule(
        self, tasks: Sequence[Sequence[Task]], options: Sequence[Weights], settings: Settings, seed: int
    ) -> Schedule:
        """How the runs of a search are trained: like those of the fit, for fewer steps."""
        run = set_up(tasks, options[0], scaling_of(tasks, options[0], settings), settings, seed)
        return Schedule(
            self._recipe(run, MAP(settings.method.start)),
            math.ceil(self.n_steps / STEPS_DIVISOR),
            self.learning_rate,
            seed,
            None if self.search_time is None else time.monotonic() + self.search_time,
            lambda description, n_steps: progress_bar(description, n_steps, self.progress),
        )

    def _auto(self) -> Auto:
        return Auto(*(isinstance(v, str) and v == "auto" for v in (self.alpha, self.temperature, self.prior_std)))

    def transfer_report(self) -> TransferReport:
        """Does the source help, by how much, how sure? `print` it for a table, call its `plot` for a picture."""
        check_is_fitted(self, "model_")
        return self.report_

    @property
    def alpha_path_(self) -> Bunch:
        """What was compared: arrays `alpha`, `score`, `standard_error` and `weight` in the average, one entry each."""
        check_is_fitted(self, "model_")
        r = self.report_
        return Bunch(alpha=r.alpha, score=r.score, standard_error=r.standard_error, weight=r.weight)

    @property
    def particles_(self) -> Any:
        """The learned parameters, a pytree with a leading axis of particles; of all members, one after another."""
        check_is_fitted(self, "model_")
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *(m.particles for m in self.model_.members))

    @property
    def particle_weights_(self) -> np.ndarray:
        """Their weights in predictions."""
        check_is_fitted(self, "model_")
        return self.model_.particle_weights

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted prior to one file, read again by `metaprior.load`."""
        check_is_fitted(self, "model_")
        header = {
            "kind": type(self).__name__,
            "parameters": {name: persistence.encode(value) for name, value in self.parameters_.items()},
            "fitted": {name: getattr(self, name) for name in FITTED_NUMBERS} | self._labels_to_json(),
            "input_dim": self.model_.input_dim,
            "n_members": len(self.model_.members),
            "report": self.report_.to_json(),
        }
        traces = {name: getattr(self, name) for name in FITTED_TRACES}
        persistence.write(path, header, {**persistence.flatten(self.model_), **traces})

    def _restore(self, path: str | os.PathLike, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        """Take up what `save` wrote."""
        settings, input_dim = self._fitted_settings(), header["input_dim"]
        with jax.enable_x64(header["fitted"]["dtype_"] == "float64"):
            dtype = jnp.zeros(()).dtype
            template = eqx.filter_eval_shape(draw, jax.random.key(0), input_dim, settings, 1.0, dtype)
            member = Model(template[0], template[1], empty_scaling(input_dim, settings))
            n_members = header["n_members"]
            self.model_ = persistence.restore(path, Ensemble((member,) * n_members, np.zeros(n_members)), tensors)
        self.report_ = TransferReport.from_json(header["report"])
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
        auto = self._auto()
        if not (auto.temperature or (isinstance(self.temperature, str) and self.temperature in TEMPERATURES)):
            check_positive("temperature", self.temperature, f", or one of {', '.join((*TEMPERATURES, 'auto'))}")
        if self.search_time is not None:
            check_positive("search_time", self.search_time, " of seconds, or None")
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
            temperature="bayes" if auto.temperature else self.temperature,
            prior_mean=check_prior_mean(self.prior_mean),
            prior_std=check_prior_std(1.0 if auto.prior_std else self.prior_std),
            method=method,
            n_particles=n_particles,
            standardise=self.standardise,
        )

    def _check_standardise(self) -> None:
        check_bool("standardise", self.standardise)

    def _recipe(self, run: Run, method: Method) -> Recipe:
        tasks = run.problem.tasks
        size = sum(tasks.environment_counts) if self.batch_size is None else int(self.batch_size)
        plan = None if size >= sum(tasks.environment_counts) else batch_plan(tasks, size)
        return Recipe(method, self.optimizer, self.schedule, plan)


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
    return Validation(queries, y_query, mask)
