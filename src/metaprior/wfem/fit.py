"""A fit in three steps: resolve what was asked for, search by cross-validation, and train the members chosen."""

import math
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from metaprior.checks import Argument, Message, draw_seed, warn_caller
from metaprior.estimators.arguments import NamedEnvironments, warn_if_no_target_tasks
from metaprior.estimators.base import FittedPrior
from metaprior.predict.ensemble import Ensemble
from metaprior.progress import phases
from metaprior.search.averaging import Candidate, Choice, Weights, resolve_weights, single_source_weights
from metaprior.search.held_out import DEFAULT_RULE
from metaprior.search.report import make_report
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.splits import ContextRule, as_context_rule
from metaprior.tasks.types import TestTask, padded_size
from metaprior.wfem.adaptation import pad_queries
from metaprior.wfem.checkpoint import check_not_forked, fingerprint, open_checkpoint
from metaprior.wfem.choices import name_of, resolve_encoder, resolve_inference, resolve_kernel, resolve_mean
from metaprior.wfem.hyperprior import HyperPrior
from metaprior.wfem.likelihoods import Bernoulli
from metaprior.wfem.loop import Result, Validation
from metaprior.wfem.means import ConstantMean, LinearMean, ZeroMean
from metaprior.wfem.objective import Gibbs
from metaprior.wfem.runs import WITHIN_CLASS, Settings, TrainingOptions, check_method
from metaprior.wfem.selection import STEPS_DIVISOR, AutoSettings, SearchOptions, choose, n_phases, untested
from metaprior.wfem.steps import CHUNK, check_n_devices
from metaprior.wfem.task_sources import Environments, StreamedTasks, TaskSource, make_source
from metaprior.wfem.trained import Model

DEFAULT_STEPS, LABEL_STEPS = 2000, 1000
COMPILING = 10.0  # seconds that the first comparison takes to compile, about, on two cores
UNCONVERGED_SHARE = 1e-6  # of the weights, which sum to one up to rounding


@dataclass(frozen=True)
class FitPlan:
    """Everything that a fit was asked to do, resolved and checked."""

    source: TaskSource
    target: int
    options: list[Weights]  # environment weights to choose from
    settings: Settings
    auto: AutoSettings
    training: TrainingOptions
    search_time: float | None
    dtype: str
    seed: int
    tests: Sequence[TestTask] | None = None
    patience: int | None = None
    rule: ContextRule = DEFAULT_RULE  # by which held-out tasks are split in the search

    @property
    def searched(self) -> bool:
        """Whether anything is chosen by cross-validation."""
        return len(self.options) > 1 or self.auto.temperature or self.auto.prior_std


class FittedMembers(NamedTuple):
    """The ensemble, and the training result and temperature of every member."""

    ensemble: Ensemble
    results: list[Result]
    temperatures: np.ndarray


class Fitted(NamedTuple):
    """The result of a fit."""

    choice: Choice
    counts: list[int]  # tasks of each environment that settings were chosen by
    members: FittedMembers


def fit_prior(
    meta: Any,
    environments: NamedEnvironments,
    tests: Sequence[TestTask] | None,
    patience: int | None,
    checkpoint: str | os.PathLike | None,
) -> FittedPrior:
    """Fit a prior to checked tasks, given an estimator whose parameters are checked."""
    check_not_forked()
    plan = make_plan(meta, environments, tests, patience)
    _warn_if_few_target_tasks(meta, environments, plan)
    asked = "" if checkpoint is None else _fingerprint(meta, environments, plan.seed)
    choice, counts, members = _run(plan, checkpoint, asked)
    n_target = counts[environments.target]
    report = make_report(choice, environments.names, environments.target, n_target, sum(counts) - n_target)
    model, results, temperatures = members
    heaviest = int(np.argmax(model.weights))
    result, y_std = results[heaviest], model.members[heaviest].scaling.y_std
    attributes = {
        "dtype_": plan.dtype,
        "temperature_": float(model.weights @ temperatures),
        "loss_trace_": result.loss,
        "validation_trace_": result.validation + math.log(y_std),  # a density in the units of y
        "best_step_": int(result.best_step),
    }
    training = _describe_training(members, heaviest)
    return FittedPrior(model, report, name_of(plan.settings.kernel), training, attributes)


def make_settings(meta: Any) -> Settings:
    """Resolve the parameters that describe the prior and its inference; for labels given their classes."""
    labels = meta._kind == "bernoulli"
    standardize = meta.training.standardize
    if standardize is None:
        standardize = WITHIN_CLASS if labels else True
    mean = resolve_mean(meta.mean)
    if labels and meta.classes_ is None and isinstance(mean, ConstantMean | LinearMean):
        mean = ZeroMean()  # the order of labels that tasks have of their own is arbitrary
    return Settings(
        mean=mean,
        kernel=resolve_kernel(meta.kernel),
        encoder=resolve_encoder(meta.encoder),
        likelihood=Bernoulli() if labels else meta._resolved_likelihood,
        temperature="bayes" if _is_auto(meta.temperature) else meta.temperature,
        hyperprior=meta.hyperprior,
        method=resolve_inference(meta.inference),
        standardize=standardize,
    )


def make_plan(
    meta: Any,
    environments: NamedEnvironments,
    tests: Sequence[TestTask] | None = None,
    patience: int | None = None,
) -> FitPlan:
    """Resolve everything that a fit of the estimator depends on."""
    settings, asked = replace(make_settings(meta), kinds=environments.kinds), meta.training
    if asked.n_devices is not None:
        check_n_devices(asked.n_devices)
    target = environments.target
    source = make_source(environments.tasks, asked.batch_size, settings.labels)
    options = resolve_weights(meta.alpha, environments.names, source.counts(meta.alpha), target)
    source.check_method(settings.method)
    check_method(settings, environments.width)
    default_steps = LABEL_STEPS if settings.labels else DEFAULT_STEPS
    training = TrainingOptions(
        default_steps if asked.n_steps is None else int(asked.n_steps),
        asked.learning_rate,
        asked.optimizer,
        asked.schedule,
        source.batch_size,
        asked.n_devices,
        asked.progress,
    )
    dtype = _resolve_dtype(meta, source, options, target, settings)
    seed, rule = draw_seed(meta.random_state), as_context_rule(meta.context)
    auto, limit = auto_settings(meta), asked.search_time
    return FitPlan(source, target, options, settings, auto, training, limit, dtype, seed, tests, patience, rule)


def auto_settings(meta: Any) -> AutoSettings:
    """Return which parameters of an estimator are to be chosen by cross-validation."""
    prior_std = isinstance(meta.hyperprior, HyperPrior) and meta.hyperprior.is_auto
    return AutoSettings(_is_auto(meta.alpha), _is_auto(meta.temperature), prior_std)


def gibbs_of(plan: FitPlan) -> Gibbs:
    """Return the Gibbs hyper-posterior of the tasks, in the precision of JAX's x64 switch."""
    if plan.searched:
        asked = " must be numbers or rules: the density of theta depends on what 'auto' would choose."
        raise ValueError(Message(Argument("alpha"), f", temperature and the hyper-prior{asked}"))
    if isinstance(plan.source, StreamedTasks):
        raise ValueError("gibbs needs tasks in memory: pass a list of stored tasks, or of some of them.")
    member, sample = Candidate(plan.options[0], plan.settings), plan.source.sample(plan.seed)
    scaling = plan.source.scaling(member.weights, plan.settings, sample)
    run = plan.source.make_run(sample, member, scaling, plan.seed)
    return Gibbs(run.problem, run.particles)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _warn_if_few_target_tasks(meta: Any, environments: NamedEnvironments, plan: FitPlan) -> None:
    """Warn if there are too few target tasks for cross-validation."""
    warn_if_no_target_tasks(environments, meta.alpha)
    n_target, name = environments.counts[environments.target], environments.names[environments.target]
    if (plan.auto.temperature or plan.auto.prior_std) and n_target < 2 and plan.training.n_steps > 0:
        both = Argument("temperature", "auto"), " and a hyper-prior with ", Argument("std", "auto")
        few = f"of the {name} environment, one of them to hold out; there are {n_target}. Using 'bayes' and 1.0."
        warn_caller(Message(*both, " need at least two tasks ", few))


def _resolve_dtype(meta: Any, source: TaskSource, options: Sequence[Weights], target: int, settings: Settings) -> str:
    """Return the training precision; 'auto' is that of the most demanding option."""
    if meta.training.dtype != "auto":
        return meta.training.dtype
    single = single_source_weights(source.counts(meta.alpha), target) if len(options) > 1 else []
    return source.dtype((*options, *(weights for _, _, weights in single)), settings)


def _fingerprint(meta: Any, environments: NamedEnvironments, seed: int) -> str:
    """Identify what was asked for. Without a `random_state`, a resumed fit keeps the seed it had."""
    parameters = {k: v for k, v in meta.get_params(deep=False).items() if k != "random_state"}
    parameters["training"] = replace(meta.training, progress=None)
    seed_asked = None if meta.random_state is None else seed
    named = (*environments.names, *map(str, environments.counts))  # other tables most often have other counts
    return fingerprint(parameters, named, environments.target, seed_asked)


def _run(plan: FitPlan, checkpoint: str | os.PathLike | None, asked: str) -> Fitted:
    """Search, then train. With a checkpoint, resume what an interrupted fit has left there."""
    with jax.enable_x64(plan.dtype == "float64"), open_checkpoint(checkpoint, asked, plan.seed) as (saved, seed):
        training = plan.training._replace(checkpoint=saved)
        sample = plan.source.sample(seed)  # a checkpoint may have another seed
        counts = [len(tasks) for tasks in sample]
        searched = n_phases(counts, plan.target, plan.options, plan.auto, training.n_steps)
        with phases(searched + 1):
            choice = _search(plan, sample, training, seed)
            members = train_members(plan.source, sample, choice, seed, training, plan.tests, plan.patience)
    return Fitted(choice, counts, members)


def _search(plan: FitPlan, sample: Environments, training: TrainingOptions, seed: int) -> Choice:
    """Choose settings in the time there is: compiling cannot be interrupted."""
    limit = plan.search_time
    if limit is not None and plan.searched and limit < COMPILING:
        short = f" of {limit:g} s is too short to compare settings, which takes {COMPILING:g} s to compile. They "
        advice = "are averaged untested: give more time, or ", Argument("alpha"), "."
        warn_caller(Message(Argument("search_time"), short, *advice))
        counts = [len(tasks) for tasks in sample]
        return untested(counts, plan.target, plan.options, plan.settings, plan.auto)
    deadline = None if limit is None else time.monotonic() + limit
    shorter = training._replace(n_steps=math.ceil(training.n_steps / STEPS_DIVISOR))
    search = SearchOptions(shorter, seed, deadline, plan.rule)
    return choose(sample, plan.target, plan.options, plan.settings, plan.auto, search)


def train_members(
    source: TaskSource,
    sample: Environments,
    choice: Choice,
    seed: int,
    options: TrainingOptions,
    tests: Sequence[TestTask] | None = None,
    patience: int | None = None,
) -> FittedMembers:
    """Train all members of a choice, each with the scaling of its weights, from equal initial particles."""
    members, averaging = zip(*choice.members, strict=True)
    scalings = [source.scaling(member.weights, member.settings, sample) for member in members]
    pairs = zip(members, scalings, strict=True)
    runs = [source.make_run(sample, member, scaling, seed) for member, scaling in pairs]
    validation = None if tests is None else [pad_validation(tests, scaling) for scaling in scalings]
    results = source.train(members, runs, scalings, options, validation, patience, seed)
    _warn_unconverged(results)
    models = [
        Model(result.particles, run.problem.rest, scaling)
        for result, run, scaling in zip(results, runs, scalings, strict=True)
    ]
    temperatures = np.array([float(run.problem.temperature) for run in runs])
    return FittedMembers(Ensemble(tuple(models), np.array(averaging)), results, temperatures)


def _warn_unconverged(results: Sequence[Result]) -> None:
    """Warn if approximate posteriors did not converge in the last steps up to the one that is kept."""
    last = [result.unconverged[: int(result.best_step)][-CHUNK:] for result in results]
    share = max((float(steps.max()) for steps in last if len(steps)), default=0.0)
    if share > UNCONVERGED_SHARE:
        met = f"The approximate posterior did not converge for tasks with up to {share:.0%} of the weight, "
        try_first = "in the last steps: their evidence is inexact. Try ", Argument("dtype", "float64"), "; a smaller "
        then = Argument("std"), " of the hyper-prior or output_scale of the kernel; X without extreme values."
        message = Message(met, *try_first, *then)
        warnings.warn(message, ConvergenceWarning, stacklevel=2)


def pad_validation(tasks: Sequence[TestTask], scaling: Scaling) -> Validation:
    """Scale and pad validation tasks."""
    n_context, n_query = (max(len(getattr(task, part)) for task in tasks) for part in ("y_context", "y_query"))
    sizes = (padded_size(n_context), padded_size(n_query))
    return Validation(*pad_queries(tasks, scaling, *sizes, jnp.zeros(()).dtype))


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
