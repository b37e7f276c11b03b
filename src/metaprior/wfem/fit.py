"""Fitting a prior by gradients: parameters resolved into a plan, the plan run, and its result recorded."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from metaprior.checks import Argument, Message, check_noise, draw_seed
from metaprior.estimators.arguments import NamedEnvironments, auto_settings, warn_if_few_target_tasks
from metaprior.estimators.fitted_prior import FittedPrior
from metaprior.search.report import make_report
from metaprior.search.weights import Weights, resolve_weights, single_source_weights
from metaprior.tasks.context_rules import as_context_rule
from metaprior.tasks.types import TestTask
from metaprior.wfem.checkpoint import fingerprint
from metaprior.wfem.choices import families, resolve_encoder, resolve_kernel, resolve_mean
from metaprior.wfem.devices import broadcast_from_first, check_n_devices, check_same_tasks
from metaprior.wfem.forked import check_not_forked
from metaprior.wfem.hyperprior_arguments import check_prior_mean, check_prior_std
from metaprior.wfem.inducing import InducingMean
from metaprior.wfem.inference import Laplace, Method, resolve_inference
from metaprior.wfem.many_runs import TrainingOptions
from metaprior.wfem.means import ConstantMean, LinearMean, ZeroMean
from metaprior.wfem.plan import FitPlan, FittedMembers, run_fit
from metaprior.wfem.runs import Settings, resolve_settings
from metaprior.wfem.task_sources import StreamedTasks, TaskSource, make_source

DEFAULT_STEPS, LABEL_STEPS = 2000, 1000


def fit_prior(
    meta: Any,
    environments: NamedEnvironments,
    tests: Sequence[TestTask] | None,
    patience: int | None,
    checkpoint: str | os.PathLike | None,
) -> FittedPrior:
    """Fit a prior to checked tasks, given an estimator whose parameters `check_parameters` has checked."""
    check_not_forked()
    plan = make_plan(meta, environments, tests, patience)
    warn_if_few_target_tasks(environments, plan.auto, plan.training.n_steps)
    asked = "" if checkpoint is None else _fingerprint(meta, environments, plan.seed)
    family, choice, counts, members = run_fit(plan, checkpoint, asked)
    n_target = counts[environments.target]
    report = make_report(choice, environments.names, environments.target, n_target, sum(counts) - n_target)
    model, results, temperatures = members
    heaviest = int(np.argmax(model.weights))
    result, y_std = results[heaviest], model.members[heaviest].scaling.y_std
    streamed = isinstance(plan.source, StreamedTasks) and resolve_inference(meta.inference) is None
    return FittedPrior(
        model,
        report,
        family,
        plan.dtype,
        float(model.weights @ temperatures),
        result.loss,
        result.validation + math.log(y_std),  # a density in the units of y
        int(result.best_step),
        _describe_training(members, heaviest),
        {"inference": "map"} if streamed else {},
    )


def resolve_parameters(meta: Any) -> Settings:
    """Resolve the parameters that describe the prior and its inference."""
    if isinstance(resolve_inference(meta.inference), Laplace) and meta.likelihood == "bernoulli":
        laplace, default = Argument("inference", "laplace"), Argument("inference", "map")
        raise ValueError(Message(laplace, " is for regression; for labels use ", default, " or 'svgd'."))
    if meta.n_devices is not None:
        check_n_devices(meta.n_devices)
    auto = auto_settings(meta)
    return Settings(
        mean=resolve_mean(meta.mean),
        kernel=resolve_kernel(meta.kernel),
        encoder=resolve_encoder(meta.encoder),
        likelihood=meta.likelihood,
        noise_std=1.0 if meta.likelihood == "bernoulli" else check_noise(meta.noise_std),
        temperature="bayes" if auto.temperature else meta.temperature,
        prior_mean=check_prior_mean(meta.prior_mean),
        prior_std=check_prior_std(1.0 if auto.prior_std else meta.prior_std),
        standardize=meta.standardize,
    )


def adjust_label_mean(settings: Settings, classes: np.ndarray | None) -> Settings:
    """Resolve an automatic mean of labels; if tasks have labels of their own, whose order is arbitrary, use none."""
    automatic = isinstance(settings.mean, str)
    if classes is None and (automatic or isinstance(settings.mean, ConstantMean | LinearMean | InducingMean)):
        return replace(settings, mean=ZeroMean())
    return replace(settings, mean=ConstantMean()) if automatic else settings


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
    meta: Any, environments: NamedEnvironments, tests: Sequence[TestTask] | None, patience: int | None
) -> FitPlan:
    """Resolve everything that a fit of the estimator depends on."""
    settings = replace(resolve_parameters(meta), kinds=environments.kinds)
    if meta.likelihood == "bernoulli":
        settings = adjust_label_mean(settings, meta.classes_)
    target = environments.target
    source = make_source(environments.tasks, meta.batch_size, meta.likelihood == "bernoulli")
    options = resolve_weights(meta.alpha, environments.names, source.counts(meta.alpha), target)
    method = source.method(resolve_inference(meta.inference))
    default_steps = LABEL_STEPS if meta.likelihood == "bernoulli" else DEFAULT_STEPS
    n_steps = default_steps if meta.n_steps is None else int(meta.n_steps)
    known = resolve_families(meta, settings, environments.width, method)
    check_same_tasks(environments.tasks, meta.search_time)
    training = TrainingOptions(
        n_steps, meta.learning_rate, meta.optimizer, meta.schedule, source.batch_size, meta.n_devices, meta.progress
    )
    seed = broadcast_from_first(draw_seed(meta.random_state))
    dtype = _resolve_dtype(meta, source, options, target, settings)
    auto = auto_settings(meta)
    rule = as_context_rule(meta.context)
    return FitPlan(source, target, options, known, auto, training, meta.search_time, dtype, seed, tests, patience, rule)


def _resolve_dtype(meta: Any, source: TaskSource, options: Sequence[Weights], target: int, settings: Settings) -> str:
    """Return the training precision; 'auto' is that of the most demanding option."""
    if meta.dtype != "auto":
        return meta.dtype
    single = single_source_weights(source.counts(meta.alpha), target) if len(options) > 1 else []
    return source.dtype((*options, *(weights for _, _, weights in single)), settings)


def _fingerprint(meta: Any, environments: NamedEnvironments, seed: int) -> str:
    """Identify what was asked for. Without a `random_state`, a resumed fit keeps the seed it had."""
    parameters = {k: v for k, v in meta.get_params(deep=False).items() if k not in ("progress", "random_state")}
    seed_asked = None if meta.random_state is None else seed
    named = (*environments.names, *map(str, environments.counts))  # other tables most often have other counts
    return fingerprint(parameters, named, environments.target, seed_asked)


def _describe_training(members: FittedMembers, heaviest: int) -> dict[str, Any]:
    """Describe the loss and the particles of the member of largest weight."""
    result, leaves = members.results[heaviest], jax.tree.leaves(members.results[heaviest].particles)
    loss = result.loss[: int(result.best_step) or None]
    spread = [np.std(np.asarray(leaf, float), axis=0).ravel() for leaf in leaves]
    return {
        "final_loss": float(loss[-1]) if len(loss) else None,
        "particles": len(leaves[0]),
        "parameters": int(sum(len(values) for values in spread)),
        "particle_spread": float(np.sqrt(np.mean(np.concatenate(spread) ** 2))),
    }
