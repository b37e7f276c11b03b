"""`MetaGPRegressor`: what most users touch. NumPy in, NumPy out."""

import math
import os
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.validation import check_is_fitted

from metaprior import persistence
from metaprior.adapted import AdaptedTask, Model, padded_queries, predict_tasks
from metaprior.checks import check_bool, check_choice, check_integer, check_positive, is_number
from metaprior.gp.prior import check_noise, resolve_kernel, resolve_mean
from metaprior.meta.hyperprior import check_prior_mean, check_prior_std
from metaprior.meta.inference import MAP, resolve_inference
from metaprior.meta.loop import OPTIMISERS, SCHEDULES, Recipe, Validation, train
from metaprior.meta.objective import TEMPERATURES, batch_plan
from metaprior.meta.setup import Run, Settings, draw, scaling_of, set_up, stack_runs, training_dtype
from metaprior.metrics import mean_and_standard_error, summarise
from metaprior.progress import progress_bar
from metaprior.tasks import Scaling, Task, as_task, as_tasks, as_test_tasks
from metaprior.tasks.scaling import identity_scaling

FITTED_NUMBERS = ("alpha_", "temperature_", "dtype_", "best_step_")
FITTED_TRACES = ("environment_weights_", "loss_trace_", "validation_trace_")


class MetaGPRegressor(BaseEstimator):
    """A Gaussian-process prior meta-learned from source and target tasks by weighted free energy minimisation.

    Parameters
    ----------
    alpha : float in [0, 1] or "pooled"
        Weight of the source environment; the target has 1 - alpha. "pooled" weighs every task the same.
    inference : "map", "svgd", MAP(...) or SVGD(...)
        How the Gibbs hyper-posterior is approximated.
    n_particles : int, optional
        Default 1 for MAP and 10 for SVGD. Several MAP particles are an ensemble of independent solutions.
    mean : "mlp", "constant", "zero", MLPMean(...), or a function of one input point
        Prior mean. An equinox module is learned.
    kernel : "mlp", "rbf", "linear", MLPKernel(...), RBFKernel(...), LinearKernel(...), a tinygp kernel, or a module
        Prior covariance. Own means and kernels see standardised inputs and outputs (see `standardise`).
    noise_std : float or "learned"
        Standard deviation of the observation noise, in the units of y.
    temperature : "bayes", "effective", "paper" or float
        gamma, the weight of the evidence against the hyper-prior; the rules are in `metaprior.meta.objective`.
    prior_mean : "zero", "initial" or dict
        Mean of the hyper-prior, for all parameters or per group (weights, biases, scales).
    prior_std : float or dict
        Standard deviation of the hyper-prior, for all parameters or per group.
    optimizer : "adam" or "sgd"
    learning_rate : float
    schedule : "cosine" or "constant"
        How the learning rate falls over the steps.
    n_steps : int
        Training steps; 0 leaves the prior at its initial parameters, which is the "GP" baseline.
    batch_size : int, optional
        Tasks per step, shared among environments (and size buckets) in proportion to their size, at least one of each.
        Default: all tasks.
    standardise : bool
        Learn the scale of inputs and outputs from the tasks; undone in every prediction.
    dtype : "auto", "float32" or "float64"
        Precision of training. "auto" takes float64 where float32 could not resolve the noise: when it is small against
        the spread of y, or tasks are large. Adaptation and prediction are always in double precision.
    random_state : int, RandomState or None
    progress : bool, optional
        Show a progress bar. Default: if standard error is a terminal.

    Attributes
    ----------
    alpha_, environment_weights_, temperature_, dtype_ : what was used
    particles_ : the learned parameters, a pytree with a leading axis of particles
    loss_trace_ : (steps,) weighted loss plus hyper-prior penalty / temperature, averaged over particles
    validation_trace_ : negative log density of the validation queries, every 100 steps
    best_step_ : the step whose parameters were kept
    n_features_in_ : number of input columns
    """

    def __init__(
        self,
        alpha: float | str = "pooled",
        *,
        inference: Any = "map",
        n_particles: int | None = None,
        mean: Any = "mlp",
        kernel: Any = "mlp",
        noise_std: float | str = 0.1,
        temperature: float | str = "bayes",
        prior_mean: Any = "zero",
        prior_std: Any = 1.0,
        optimizer: str = "adam",
        learning_rate: float = 1e-2,
        schedule: str = "cosine",
        n_steps: int = 2000,
        batch_size: int | None = None,
        standardise: bool = True,
        dtype: str = "auto",
        random_state: Any = None,
        progress: bool | None = None,
    ):
        self.alpha = alpha
        self.inference = inference
        self.n_particles = n_particles
        self.mean = mean
        self.kernel = kernel
        self.noise_std = noise_std
        self.temperature = temperature
        self.prior_mean = prior_mean
        self.prior_std = prior_std
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.n_steps = n_steps
        self.batch_size = batch_size
        self.standardise = standardise
        self.dtype = dtype
        self.random_state = random_state
        self.progress = progress

    def fit(
        self,
        source_tasks: Iterable[Any] | None = None,
        target_tasks: Iterable[Any] | None = None,
        *,
        validation_tasks: Iterable[Any] | None = None,
        patience: Any = 5,
    ) -> "MetaGPRegressor":
        """Meta-train on sequences of (X, y), one per task.

        Given `validation_tasks` (as for `evaluate`), they are scored every 100 steps, the best parameters are kept,
        and training stops after `patience` scores without a new best (None: never).
        """
        settings, n_steps = self._settings(), int(self.n_steps)
        if patience is not None:
            check_integer("patience", patience, least=1)
        environments = _environments(source_tasks, target_tasks)
        weights = environment_weights(self.alpha, [len(tasks) for tasks in environments])
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        scaling = scaling_of(environments, weights, settings)
        dtype = training_dtype(environments, scaling, settings) if self.dtype == "auto" else self.dtype
        with jax.enable_x64(dtype == "float64"):
            run = set_up(environments, weights, scaling, settings, seed)
            validation = self._validation(validation_tasks, scaling)
            stacked = stack_runs([run])
            with progress_bar("meta-training", n_steps, self.progress) as on_chunk:
                result = train(
                    stacked.problem,
                    stacked.particles,
                    stacked.key,
                    self._recipe(run, settings),
                    n_steps,
                    jnp.asarray([self.learning_rate], dtype),
                    validation,
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
        return self

    @property
    def particles_(self) -> Any:
        """The learned parameters, a pytree with a leading axis of particles."""
        check_is_fitted(self, "model_")
        return self.model_.particles

    def adapt(self, X: Any, y: Any) -> AdaptedTask:
        """Condition on a new task's context, in closed form. An empty context predicts from the prior."""
        check_is_fitted(self, "model_")
        task = as_task(X, y, "adapt", self.model_.input_dim)
        return AdaptedTask(self.model_, task.x, task.y)

    def evaluate(self, test_tasks: Iterable[Any], coverage: Any = 0.9) -> Bunch:
        """Adapt to and score every (X_context, y_context, X_query, y_query).

        Means over tasks of `rmse`, `nll`, `coverage` and `width` (of the central interval), each with its standard
        error `..._se`; `calibration_error` over all queries; `per_task` holds the values of every task.
        """
        check_is_fitted(self, "model_")
        tasks = as_test_tasks(test_tasks, "test_tasks", self.model_.input_dim)
        predictive, y, mask = predict_tasks(self.model_, tasks)
        return report(summarise(predictive, y, mask, coverage))

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted prior to one file, read again by `metaprior.load`."""
        check_is_fitted(self, "model_")
        header = {
            "kind": type(self).__name__,
            "parameters": {name: persistence.encode(value) for name, value in self.parameters_.items()},
            "fitted": {name: getattr(self, name) for name in FITTED_NUMBERS},
            "input_dim": self.model_.input_dim,
        }
        traces = {name: getattr(self, name) for name in FITTED_TRACES}
        persistence.write(path, header, {**persistence.flatten(self.model_), **traces})

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
        check_bool("standardise", self.standardise)
        if self.progress is not None:
            check_bool("progress", self.progress)
        return Settings(
            mean=resolve_mean(self.mean),
            kernel=resolve_kernel(self.kernel),
            noise_std=check_noise(self.noise_std),
            temperature=self.temperature,
            prior_mean=check_prior_mean(self.prior_mean),
            prior_std=check_prior_std(self.prior_std),
            method=method,
            n_particles=n_particles,
            standardise=self.standardise,
        )

    def _recipe(self, run: Run, settings: Settings) -> Recipe:
        tasks = run.problem.tasks
        full = self.batch_size is None or self.batch_size >= sum(tasks.environment_counts)
        plan = None if full else batch_plan(tasks, int(self.batch_size))  # type: ignore[arg-type]
        return Recipe(settings.method, self.optimizer, self.schedule, plan)  # type: ignore[arg-type]

    def _validation(self, tasks: Iterable[Any] | None, scaling: Scaling) -> Validation | None:
        if tasks is None:
            return None
        checked = as_test_tasks(tasks, "validation_tasks", len(scaling.x_mean))
        [(_, queries, y_query, mask)] = padded_queries(checked, scaling, max_buckets=1, dtype=jnp.zeros(()).dtype)
        return jax.tree.map(lambda leaf: leaf[None], Validation(queries, y_query, mask))


def environment_weights(alpha: Any, counts: list[int]) -> tuple[float, float]:
    """(alpha, 1 - alpha), checked against the number of source and target tasks."""
    if isinstance(alpha, str) and alpha == "pooled":
        alpha = counts[0] / sum(counts)
    if not (is_number(alpha) and 0 <= alpha <= 1):
        raise ValueError(f"alpha must be a number in [0, 1] or 'pooled'; got {alpha!r}.")
    weights = (float(alpha), 1.0 - float(alpha))
    for name, weight, count in zip(("source", "target"), weights, counts, strict=True):
        if weight > 0 and count == 0:
            raise ValueError(
                f"alpha={float(alpha):g} gives weight {weight:g} to the {name} environment, which has no tasks. "
                f"Pass {name}_tasks, or alpha={1 if name == 'target' else 0} (or alpha='pooled')."
            )
    return weights


def report(summary: dict[str, Any]) -> Bunch:
    """Means and standard errors over tasks of what `metrics.summarise` gives per task."""
    per_task = {name: values for name, values in summary.items() if name != "calibration_error"}
    figures: dict[str, Any] = {}
    for name, values in per_task.items():
        figures[name], figures[f"{name}_se"] = mean_and_standard_error(values)
    figures["calibration_error"] = summary["calibration_error"]
    return Bunch(**figures, n_tasks=len(per_task["rmse"]), per_task=Bunch(**per_task))


def _environments(source_tasks: Any, target_tasks: Any) -> list[list[Task]]:
    source = as_tasks(source_tasks, "source_tasks")
    target = as_tasks(target_tasks, "target_tasks", source[0].x.shape[1] if source else None)
    if not source and not target:
        raise ValueError("source_tasks and target_tasks are both empty: expected at least one (X, y).")
    return [source, target]


def load(path: str | os.PathLike, *, mean: Any = None, kernel: Any = None) -> MetaGPRegressor:
    """Read a saved prior. An own mean or kernel is passed again; its learned parameters come from the file."""
    header, tensors = persistence.read(path, tensors=FITTED_TRACES, numbers=FITTED_NUMBERS)
    if header["kind"] != MetaGPRegressor.__name__:
        raise persistence.InvalidFile(f"{path} holds a {header['kind']!r}, which this version does not know.")
    names = MetaGPRegressor._get_param_names()
    meta = MetaGPRegressor(**persistence.decode_parameters(path, header, names, {"mean": mean, "kernel": kernel}))
    with jax.enable_x64(header["fitted"]["dtype_"] == "float64"):
        input_dim, dtype = header["input_dim"], jnp.zeros(()).dtype
        template = eqx.filter_eval_shape(draw, jax.random.key(0), input_dim, meta._settings(), 1.0, dtype)
        model = Model(template[0], template[1], identity_scaling(input_dim))
        meta.model_ = persistence.restore(path, model, tensors)
    meta.parameters_ = meta.get_params(deep=False)
    for name in FITTED_NUMBERS:
        setattr(meta, name, header["fitted"][name])
    for name in FITTED_TRACES:
        setattr(meta, name, tensors[name])
    meta.n_features_in_ = input_dim
    return meta
