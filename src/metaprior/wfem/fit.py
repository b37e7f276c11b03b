"""A fit: what was asked for and the tasks make a plan; settings are chosen by cross-validation; members are trained."""

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

from metaprior.checks import Argument, Message, warn_caller
from metaprior.estimators.base import FittedPrior
from metaprior.estimators.environments import NamedEnvironments, warn_if_no_target_tasks
from metaprior.predict.ensemble import Ensemble
from metaprior.progress import phases
from metaprior.search.averaging import Candidate, Choice, Weights, resolve_weights, single_source_weights
from metaprior.search.report import make_report
from metaprior.storage.stored_tasks import StoredTasks, sample_tasks, stored_scaling
from metaprior.tasks.scaling import Scaling, with_kinds
from metaprior.tasks.splits import ContextRule, thin_tasks
from metaprior.tasks.types import Task, TestTask, padded_size
from metaprior.wfem.batches import CHUNK, Feed
from metaprior.wfem.checkpoint import Checkpoint, check_not_forked, fingerprint, open_checkpoint
from metaprior.wfem.gp import pad_queries
from metaprior.wfem.inference import Laplace
from metaprior.wfem.model import Model
from metaprior.wfem.objective import Gibbs
from metaprior.wfem.runs import Run, check_method, make_run, make_scaling, train_runs, training_dtype
from metaprior.wfem.search import STEPS_DIVISOR, SearchOptions, choose, n_phases, untested
from metaprior.wfem.settings import Settings, Training, name_of
from metaprior.wfem.training import Result, Validation, check_n_devices

DEFAULT_STEPS, LABEL_STEPS = 2000, 1000
COMPILING = 10.0  # seconds that the first comparison takes to compile, about, on two cores
UNCONVERGED_SHARE = 1e-6  # of the weights, which sum to one up to rounding
SAMPLE_SIZE = 500  # tasks of each stored environment that settings are chosen by
STREAM_BATCH_SIZE = 256  # tasks per step of a stream if `batch_size` is not given


@dataclass(frozen=True)
class Asked:
    """What a fit is asked for, apart from the tasks; checked values."""

    settings: Settings
    alpha: Any
    training: Training
    rule: ContextRule  # by which held-out tasks are split in the search
    seed: int
    parameters: dict[str, Any]  # of the estimator: a checkpoint is resumed if they are the same
    tests: Sequence[TestTask] | None = None  # for early stopping
    patience: int | None = None
    checkpoint: str | os.PathLike | None = None

    @property
    def chooses_alpha(self) -> bool:
        """Whether the weights of environments are chosen among general ones."""
        return isinstance(self.alpha, str) and self.alpha == "auto"


class TaskSource:
    """The tasks of a fit: all in memory or, if any environment is stored, streamed from disk in mini-batches."""

    def __init__(self, asked: Asked, environments: Sequence[Sequence[Task]]):
        input_dims = [tasks.input_dim for tasks in environments if isinstance(tasks, StoredTasks)]
        self.is_stored, self.settings = bool(input_dims), asked.settings
        self.environments: Sequence[Any] = (
            [StoredTasks.from_tasks(tasks, input_dims[0]) for tasks in environments]
            if self.is_stored
            else thin_tasks(environments, labels=asked.settings.labels)  # to the samples that training can use
        )
        # With alpha='auto' a source task weighs r times as much as a target task. Beside a million source tasks any r
        # worth trying would leave nothing to a hundred target tasks. What limits the source is its distance from the
        # target, which a million tasks show no better than a few hundred. So r is a ratio between tasks of the sample.
        counts = [len(tasks) for tasks in self.environments]
        sampled = self.is_stored and asked.chooses_alpha
        self.counts = [min(count, SAMPLE_SIZE) for count in counts] if sampled else counts

    def sample(self, seed: int) -> Sequence[Sequence[Task]]:
        """Return the tasks, in memory, that settings are chosen by."""
        return sample_tasks(self.environments, SAMPLE_SIZE, seed) if self.is_stored else self.environments

    def scaling(self, weights: Weights, settings: Settings, sample: Sequence[Sequence[Task]]) -> Scaling:
        """Return the scaling of all tasks; correlations within classes are those of the sample."""
        if not (self.is_stored and settings.scales_outputs):
            return make_scaling(sample, weights, settings)
        scaling, kinds = stored_scaling(self.environments, weights), settings.kinds
        return scaling if kinds is None else with_kinds(scaling, kinds, np.zeros(sum(kinds.widths)))

    def dtype(self, options: Sequence[Weights]) -> str:
        """Return the training precision that the most demanding option needs, given the largest task of each."""
        tasks = self.environments
        if self.is_stored:
            tasks = [[stored[int(np.argmax(stored.sizes))]] if len(stored) else [] for stored in tasks]
        scalings = [(weights, self.scaling(weights, self.settings, tasks)) for weights in options]
        return max(training_dtype(tasks, weights, scaling, self.settings) for weights, scaling in scalings)

    def make_run(self, sample: Sequence[Sequence[Task]], member: Candidate, seed: int) -> tuple[Run, Scaling]:
        """Return the run that trains a member of the ensemble, at the temperature of all tasks, and its scaling."""
        scaling = self.scaling(member.weights, member.settings, sample)
        sizes = [stored.sizes for stored in self.environments] if self.is_stored else None
        return make_run(sample, member.weights, scaling, member.settings, seed, sizes=sizes), scaling

    def check_method(self) -> None:
        """Raise if the method needs all tasks at once, as those with a `finish` do, and they are streamed.

        With that many tasks the hyper-posterior is so narrow that its mode is enough.
        """
        method = self.settings.method
        if self.is_stored and getattr(method, "finish", None) is not None:
            named = Argument("inference", "laplace" if isinstance(method, Laplace) else method)
            streamed = " needs all tasks in memory, but stored tasks are streamed. Use ", Argument("inference", "map")
            raise ValueError(Message(named, *streamed, ", 'svgd', or a list of some of the tasks: list(tasks[:1000])."))


@dataclass(frozen=True)
class Plan:
    """A fit of some tasks, resolved and checked."""

    asked: Asked
    source: TaskSource
    target: int
    grid: list[Weights]  # environment weights to choose from
    training: Training  # with a number of steps, and the batch size of a stream
    dtype: str

    @property
    def is_searched(self) -> bool:
        """Whether anything is chosen by cross-validation."""
        settings = self.asked.settings
        return len(self.grid) > 1 or settings.tries_temperatures or settings.tries_prior_stds


class Members(NamedTuple):
    """The ensemble, and the training result and temperature of every member."""

    ensemble: Ensemble
    results: list[Result]
    temperatures: np.ndarray


def fit_prior(asked: Asked, environments: NamedEnvironments) -> FittedPrior:
    """Fit a prior to checked tasks."""
    check_not_forked()
    plan = make_plan(asked, environments)
    _warn_if_few_target_tasks(plan, environments)
    choice, counts, members = _run(plan, "" if asked.checkpoint is None else _fingerprint(asked, environments))
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
    return FittedPrior(model, report, name_of(asked.settings.kernel), _describe_training(result), attributes)


def make_plan(asked: Asked, environments: NamedEnvironments) -> Plan:
    """Resolve and check everything that a fit depends on."""
    settings, training, target = replace(asked.settings, kinds=environments.kinds), asked.training, environments.target
    if training.n_devices is not None:
        check_n_devices(training.n_devices)
    asked = replace(asked, settings=settings)
    source = TaskSource(asked, environments.tasks)
    grid = resolve_weights(asked.alpha, environments.names, source.counts, target)
    source.check_method()
    check_method(settings, environments.width)
    if training.n_steps is None:
        training = replace(training, n_steps=LABEL_STEPS if settings.labels else DEFAULT_STEPS)
    if source.is_stored and training.batch_size is None:
        training = replace(training, batch_size=STREAM_BATCH_SIZE)
    dtype = training.dtype
    if dtype == "auto":
        single = single_source_weights(source.counts, target) if len(grid) > 1 else []
        dtype = source.dtype((*grid, *(weights for _, _, weights in single)))
    return Plan(asked, source, target, grid, training, dtype)


def gibbs_of(plan: Plan) -> Gibbs:
    """Return the Gibbs hyper-posterior of the tasks, in the precision of JAX's x64 switch."""
    if plan.is_searched:
        asked = " must be numbers or rules: the density of theta depends on what 'auto' would choose."
        raise ValueError(Message(Argument("alpha"), f", temperature and the hyper-prior{asked}"))
    if plan.source.is_stored:
        raise ValueError("gibbs needs tasks in memory: pass a list of stored tasks, or of some of them.")
    seed, member = plan.asked.seed, Candidate(plan.grid[0], plan.asked.settings)
    run, _ = plan.source.make_run(plan.source.sample(seed), member, seed)
    return Gibbs(run.problem, run.particles)


def _warn_if_few_target_tasks(plan: Plan, environments: NamedEnvironments) -> None:
    """Warn if there are too few target tasks for cross-validation."""
    warn_if_no_target_tasks(environments, plan.asked.alpha)
    settings = plan.asked.settings
    n_target, name = environments.counts[environments.target], environments.names[environments.target]
    if (settings.tries_temperatures or settings.tries_prior_stds) and n_target < 2 and plan.training.n_steps:
        both = Argument("temperature", "auto"), " and a hyper-prior with ", Argument("std", "auto")
        few = f"of the {name} environment, one of them to hold out; there are {n_target}. Using 'bayes' and 1.0."
        warn_caller(Message(*both, " need at least two tasks ", few))


def _fingerprint(asked: Asked, environments: NamedEnvironments) -> str:
    """Identify what was asked for. Without a `random_state`, a resumed fit keeps the seed it had."""
    parameters = {name: value for name, value in asked.parameters.items() if name != "random_state"}
    parameters["training"] = replace(asked.training, progress=None)
    seed = None if asked.parameters["random_state"] is None else asked.seed
    named = (*environments.names, *map(str, environments.counts))  # other tables most often have other counts
    return fingerprint(parameters, named, environments.target, seed)


def _run(plan: Plan, identity: str) -> tuple[Choice, list[int], Members]:
    """Search, then train. With a checkpoint, resume what an interrupted fit has left there.

    Returns the choice, the numbers of tasks that it was made by, and the members.
    """
    asked = plan.asked
    with (
        jax.enable_x64(plan.dtype == "float64"),
        open_checkpoint(asked.checkpoint, identity, asked.seed) as (checkpoint, seed),  # the seed may be another one
    ):
        sample = plan.source.sample(seed)
        counts = [len(tasks) for tasks in sample]
        what = counts, plan.target, plan.grid, asked.settings, asked.chooses_alpha
        with phases(1 + (n_phases(*what) if plan.training.n_steps else 0)):
            choice = _search(plan, sample, seed, checkpoint)
            return choice, counts, train_members(plan, sample, choice, seed, checkpoint)


def _search(plan: Plan, sample: Sequence[Sequence[Task]], seed: int, checkpoint: Checkpoint | None) -> Choice:
    """Choose settings in the time there is: compiling cannot be interrupted."""
    limit, asked = plan.training.search_time, plan.asked
    what = plan.target, plan.grid, asked.settings, asked.chooses_alpha
    if limit is not None and plan.is_searched and limit < COMPILING:
        short = f" of {limit:g} s is too short to compare settings, which takes {COMPILING:g} s to compile. They "
        advice = "are averaged untested: give more time, or ", Argument("alpha"), "."
        warn_caller(Message(Argument("search_time"), short, *advice))
        return untested([len(tasks) for tasks in sample], *what)
    deadline = None if limit is None else time.monotonic() + limit
    shorter = replace(plan.training, n_steps=math.ceil((plan.training.n_steps or 0) / STEPS_DIVISOR))
    return choose(sample, *what, SearchOptions(shorter, seed, deadline, asked.rule, checkpoint))


def train_members(
    plan: Plan, sample: Sequence[Sequence[Task]], choice: Choice, seed: int, checkpoint: Checkpoint | None
) -> Members:
    """Train all members of a choice, each with the scaling of its weights, from equal initial particles.

    Those of tasks in memory are trained in one program, those of a stream one after another.
    """
    members, averaging = zip(*choice.members, strict=True)
    runs, scalings = map(list, zip(*(plan.source.make_run(sample, each, seed) for each in members), strict=True))
    tests, training = plan.asked.tests, plan.training
    validation = None if tests is None else [pad_validation(tests, scaling) for scaling in scalings]
    given = {"patience": plan.asked.patience, "checkpoint": checkpoint}
    method = plan.asked.settings.method
    if plan.source.is_stored:
        results, dtype = [], jnp.zeros(()).dtype
        for i, (member, scaling) in enumerate(zip(members, scalings, strict=True)):
            own = None if validation is None else validation[i : i + 1]
            what = plan.source.environments, member.weights, scaling, training.batch_size or 1
            with Feed(*what, seed, training.n_steps or 0, dtype) as feed:
                fed = {"batches": feed, "chunk": feed.chunk_steps}
                results += train_runs(runs[i : i + 1], method, training, validation=own, **given, **fed)
    else:
        results = train_runs(runs, method, training, validation=validation, **given)
    _warn_unconverged(results)
    trained = zip(results, runs, scalings, strict=True)
    models = tuple(Model(result.particles, run.problem.rest, scaling) for result, run, scaling in trained)
    temperatures = np.array([float(run.problem.temperature) for run in runs])
    return Members(Ensemble(models, np.array(averaging)), results, temperatures)


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


def _describe_training(result: Result) -> dict[str, Any]:
    """Describe the loss and the particles of the member of largest weight."""
    leaves, loss = jax.tree.leaves(result.particles), result.loss[: int(result.best_step) or None]
    spread = [np.std(np.asarray(leaf, float), axis=0).ravel() for leaf in leaves]
    return {
        "final_loss": float(loss[-1]) if len(loss) else None,
        "particles": len(leaves[0]),
        "parameters": int(sum(len(values) for values in spread)),
        "particle_spread": float(np.sqrt(np.mean(np.concatenate(spread) ** 2))),
    }
