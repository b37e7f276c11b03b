"""Parameters of the estimators: checked, and resolved together with the data into the plan of a fit."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sklearn.utils import check_random_state

from metaprior.checks import Argument, Message, check_bool, check_choice, check_integer, check_positive
from metaprior.estimators.environments import NamedEnvironments, warn_if_few_target_tasks
from metaprior.estimators.fitting import FitPlan
from metaprior.estimators.task_sources import TaskSource, make_source
from metaprior.gp.choices import check_noise, families, resolve_encoder, resolve_kernel, resolve_mean
from metaprior.meta.hyperprior import check_prior_mean, check_prior_std
from metaprior.meta.methods import Laplace, Method, resolve_inference
from metaprior.meta.objective import TEMPERATURES
from metaprior.meta.runs import Settings, resolve_settings
from metaprior.search.selection import AutoSettings
from metaprior.search.weights import Weights, resolve_weights, single_source_weights
from metaprior.tasks.types import TestTask
from metaprior.training.devices import broadcast_from_first, check_n_devices, check_same_tasks
from metaprior.training.many_runs import TrainingOptions
from metaprior.training.steps import OPTIMIZERS, SCHEDULES

DEFAULT_STEPS = {"gaussian": 2000, "bernoulli": 1000}
RENAMED = {"standardise": "standardize"}


def reject_renamed(init: Callable[..., None]) -> Callable[..., None]:
    """Make a constructor raise for the former name of a parameter, naming the new one."""

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in RENAMED.keys() & kwargs.keys():
            raise TypeError(f"{name} has been renamed: pass {RENAMED[name]}={kwargs[name]!r}.")
        init(self, *args, **kwargs)

    return checked


def check_parameters(meta: Any) -> Settings:
    """Check every parameter that can be checked without data."""
    if isinstance(resolve_inference(meta.inference), Laplace) and meta.likelihood == "bernoulli":
        laplace, default = Argument("inference", "laplace"), Argument("inference", "map")
        raise ValueError(Message(laplace, " is for regression; for labels use ", default, " or 'svgd'."))
    for name, least in (("n_particles", 1), ("n_steps", 0), ("batch_size", 1), ("n_devices", 1)):
        if getattr(meta, name) is not None:
            check_integer(name, getattr(meta, name), least=least)
    if meta.n_devices is not None:
        check_n_devices(meta.n_devices)
    check_positive("learning_rate", meta.learning_rate)
    auto = auto_settings(meta)
    if not (auto.temperature or (isinstance(meta.temperature, str) and meta.temperature in TEMPERATURES)):
        check_positive("temperature", meta.temperature, f", or one of {', '.join((*TEMPERATURES, 'auto'))}")
    if meta.search_time is not None:
        check_positive("search_time", meta.search_time, " of seconds, or None")
    check_choice("optimizer", meta.optimizer, OPTIMIZERS)
    check_choice("schedule", meta.schedule, SCHEDULES)
    check_choice("dtype", meta.dtype, ("auto", "float32", "float64"))
    meta._check_standardize()
    if meta.progress is not None:
        check_bool("progress", meta.progress)
    return Settings(
        mean=resolve_mean(meta.mean),
        kernel=resolve_kernel(meta.kernel),
        encoder=resolve_encoder(meta.encoder),
        likelihood=meta.likelihood,
        noise_std=check_noise(meta.noise_std) if meta.likelihood == "gaussian" else 1.0,  # type: ignore[attr-defined]
        temperature="bayes" if auto.temperature else meta.temperature,
        prior_mean=check_prior_mean(meta.prior_mean),
        prior_std=check_prior_std(1.0 if auto.prior_std else meta.prior_std),
        standardize=meta.standardize,
    )


def auto_settings(meta: Any) -> AutoSettings:
    """Return which parameters of an estimator are to be chosen by cross-validation."""
    values = (meta.alpha, meta.temperature, meta.prior_std)
    return AutoSettings(*(isinstance(value, str) and value == "auto" for value in values))


def resolve_families(meta: Any, settings: Settings, input_dim: int, method: Method | None) -> dict[str, Settings]:
    """Return the settings for every kernel to choose from, by name."""
    kernels = families(settings.kernel, input_dim, settings.encoder, meta.likelihood == "bernoulli")
    if isinstance(method, Laplace):  # networks have too many parameters for it
        kernels = dict(list(kernels.items())[:1])
    return {
        name: resolve_settings(replace(settings, kernel=kernel), input_dim, method, meta.n_particles)
        for name, kernel in kernels.items()
    }


def make_plan(
    meta: Any,
    settings: Settings,
    environments: NamedEnvironments,
    tests: Sequence[TestTask] | None,
    patience: int | None,
) -> FitPlan:
    """Resolve everything that a fit of the estimator depends on."""
    auto, target = auto_settings(meta), environments.target
    source = make_source(environments.tasks, meta.batch_size)
    options = resolve_weights(meta.alpha, environments.names, source.counts(meta.alpha), target)
    method = source.method(resolve_inference(meta.inference))
    n_steps = DEFAULT_STEPS[meta.likelihood] if meta.n_steps is None else int(meta.n_steps)
    known = resolve_families(meta, settings, environments.input_dim, method)
    warn_if_few_target_tasks(environments, auto, n_steps)
    check_same_tasks(environments.tasks, meta.search_time)
    training = TrainingOptions(
        n_steps, meta.learning_rate, meta.optimizer, meta.schedule, source.batch_size, meta.n_devices, meta.progress
    )
    seed = broadcast_from_first(int(check_random_state(meta.random_state).randint(2**31 - 1)))
    dtype = _resolve_dtype(meta, source, options, target, settings)
    return FitPlan(source, target, options, known, auto, training, meta.search_time, dtype, seed, tests, patience)


def _resolve_dtype(meta: Any, source: TaskSource, options: Sequence[Weights], target: int, settings: Settings) -> str:
    """Return the training precision; 'auto' is that of the most demanding option."""
    if meta.dtype != "auto":
        return meta.dtype
    single = single_source_weights(source.counts(meta.alpha), target) if len(options) > 1 else []
    return source.dtype((*options, *(weights for _, _, weights in single)), settings)
