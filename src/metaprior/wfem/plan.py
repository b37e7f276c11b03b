"""A fit in three steps: resolve what was asked for, search by cross-validation, and train the members chosen."""

import math
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from metaprior.checks import Argument, Message, warn_caller
from metaprior.prediction.ensemble import Ensemble
from metaprior.progress import phases
from metaprior.search.candidates import AutoSettings, Choice
from metaprior.search.folds import DEFAULT_RULE
from metaprior.search.weights import Weights
from metaprior.tasks.context_rules import ContextRule
from metaprior.tasks.padding import padded_size
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import TestTask
from metaprior.wfem.adaptation import pad_queries
from metaprior.wfem.checkpoint import open_checkpoint
from metaprior.wfem.loop import Result, Validation
from metaprior.wfem.many_runs import TrainingOptions, check_memory
from metaprior.wfem.runs import Settings
from metaprior.wfem.selection import STEPS_DIVISOR, SearchOptions, choose, n_phases, untested
from metaprior.wfem.steps import CHUNK
from metaprior.wfem.task_sources import Environments, TaskSource
from metaprior.wfem.trained import Model

COMPILING = 10.0  # seconds that the first comparison takes to compile, about, on two cores
UNCONVERGED_SHARE = 1e-6  # of the weights, which sum to one up to rounding


@dataclass(frozen=True)
class FitPlan:
    """Everything that a fit was asked to do, resolved and checked."""

    source: TaskSource
    target: int
    options: list[Weights]  # environment weights to choose from
    families: dict[str, Settings]  # priors to choose from
    auto: AutoSettings
    training: TrainingOptions
    search_time: float | None
    dtype: str
    seed: int
    tests: Sequence[TestTask] | None
    patience: int | None
    rule: ContextRule = DEFAULT_RULE  # by which held-out tasks are split in the search

    @property
    def searched(self) -> bool:
        """Whether anything is chosen by cross-validation."""
        several = len(self.options) > 1 or len(self.families) > 1
        return several or self.auto.temperature or self.auto.prior_std


class FittedMembers(NamedTuple):
    """The ensemble, and the training result and temperature of every member."""

    ensemble: Ensemble
    results: list[Result]
    temperatures: np.ndarray


class Fitted(NamedTuple):
    """The result of a fit."""

    family: str
    choice: Choice
    counts: list[int]  # tasks of each environment that settings were chosen by
    members: FittedMembers


def run_fit(plan: FitPlan, checkpoint: str | os.PathLike | None, fingerprint: str) -> Fitted:
    """Search, then train. With a checkpoint, resume what an interrupted fit has left there."""
    itemsize = 8 if plan.dtype == "float64" else 4
    largest = max(plan.families.values(), key=lambda settings: settings.n_particles)
    sample = plan.source.sample(plan.seed)
    check_memory(sample, largest, plan.source.batch_size, plan.searched, itemsize)
    with jax.enable_x64(plan.dtype == "float64"), open_checkpoint(checkpoint, fingerprint, plan.seed) as (saved, seed):
        training = plan.training._replace(checkpoint=saved)
        sample = sample if seed == plan.seed else plan.source.sample(seed)  # a checkpoint may have another seed
        counts, kinds = [len(tasks) for tasks in sample], list(plan.families.values())
        searched = n_phases(counts, plan.target, plan.options, kinds, plan.auto, training.n_steps)
        with phases(searched + 1):
            family, choice = _search(plan, sample, training, seed)
            members = train_members(plan.source, sample, choice, seed, training, plan.tests, plan.patience)
    return Fitted(list(plan.families)[family], choice, [len(tasks) for tasks in sample], members)


def _search(plan: FitPlan, sample: Environments, training: TrainingOptions, seed: int) -> tuple[int, Choice]:
    """Choose settings in the time there is: compiling cannot be interrupted, so with little time less is compared."""
    limit, families = plan.search_time, list(plan.families.values())
    if limit is not None and plan.searched:
        families = families if limit >= len(families) * COMPILING else families[:1]
        if limit < COMPILING:
            short = f" of {limit:g} s is too short to compare settings, which takes {COMPILING:g} s to compile. They "
            advice = "are averaged untested: give more time, or ", Argument("alpha"), "."
            warn_caller(Message(Argument("search_time"), short, *advice))
            counts = [len(tasks) for tasks in sample]
            return 0, untested(counts, plan.target, plan.options, families[0], plan.auto)
    deadline = None if limit is None else time.monotonic() + limit
    shorter = training._replace(n_steps=math.ceil(training.n_steps / STEPS_DIVISOR))
    search = SearchOptions(shorter, seed, deadline, plan.rule)
    return choose(sample, plan.target, plan.options, families, plan.auto, search)


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
        then = Argument("prior_std"), " or output_scale of the kernel; X without extreme values."
        message = Message(met, *try_first, *then)
        warnings.warn(message, ConvergenceWarning, stacklevel=2)


def pad_validation(tasks: Sequence[TestTask], scaling: Scaling) -> Validation:
    """Scale and pad validation tasks."""
    n_context, n_query = (max(len(getattr(task, part)) for task in tasks) for part in ("y_context", "y_query"))
    sizes = (padded_size(n_context), padded_size(n_query))
    return Validation(*pad_queries(tasks, scaling, *sizes, jnp.zeros(()).dtype))
