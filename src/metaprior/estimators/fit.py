"""Fits the default: families of priors and environment weights are compared on held-out tasks, and averaged.

For conformal intervals the whole fit is repeated without each fold of target tasks, which is then scored.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # a dependency of scikit-learn

from metaprior.checks import Argument, Message, counted, warn_caller
from metaprior.conventions import convergence_warning
from metaprior.estimators.arguments import NamedEnvironments
from metaprior.estimators.base import FittedPrior
from metaprior.predict.conformal import (
    USUAL_COVERAGE,
    Conformal,
    Fold,
    equal_folds,
    floored,
    held_out_scores,
    highest_coverage,
)
from metaprior.predict.ensemble import Ensemble
from metaprior.prior.columns import MAX_ARD
from metaprior.prior.families import TrainingTasks, with_mean_of
from metaprior.prior.fitted import Prior
from metaprior.prior.label_evidence import with_rule_of
from metaprior.prior.label_prior import LabelPrior
from metaprior.progress import phases, progress_bar, silent
from metaprior.search.choice import FamilyChoice, acting_together
from metaprior.search.compare import Asked, compare_priors, n_phases
from metaprior.search.report import make_report
from metaprior.storage.stored_tasks import StoredTasks, sample_tasks
from metaprior.tasks.splits import ContextRule, split_widely, thin_task
from metaprior.tasks.types import Task, TestTask

MAX_TASKS = 300  # of each environment that families are fitted to and compared on; the mean is learned from all
MAX_READINGS = 100  # of each task that a fit sees: few parameters do not need more. Adaptation uses all of a context
WIDE = 2.0  # stretching of bands from which on something is wrong
CHUNK_TASKS = 2000
MAX_RULE_TASKS = 2000  # of each environment that a rule of labels is learned from


def fit_prior(asked: Asked, environments: NamedEnvironments) -> FittedPrior:
    """Fit priors to checked tasks."""
    target, problem = asked.target, asked.problem
    sample = _sample(environments.tasks, asked.seed, problem.labels)
    _warn_if_thinned(asked.rule, sample)
    # Threads of BLAS get in each other's way with matrices this small.
    with threadpool_limits(1, user_api="blas"), phases(n_phases(asked, sample) + 1):
        chosen, sample = compare_priors(asked, sample)
        found = [*chosen.priors, *chosen.pooled.values()]
        with progress_bar("learning the common mean", len(found), "priors", asked.progress) as move:
            priors = []
            for prior in found:
                learn = with_common_rule if problem.labels else partial(with_common_mean, target=target)
                priors.append(learn(prior, environments.tasks, sample))
                if move is not None:
                    move(len(priors), "")
    priors, pooled = priors[: len(chosen.priors)], priors[len(chosen.priors) :]
    _warn_if_too_wide(chosen.spread)
    heaviest = priors[int(np.argmax(chosen.weights))]
    together = _acting_together(asked, heaviest, sample[target], environments.columns)
    n_target = len(sample[target])
    n_source = sum(map(len, sample)) - n_target
    given = asked.names, target, n_target, n_source, chosen.families, chosen.covariates, together
    return FittedPrior(
        Ensemble(tuple(priors), chosen.weights, chosen.spread),
        make_report(chosen.choice, *given),
        max(chosen.families, key=lambda name: chosen.families[name]),
        _describe_calibration(heaviest, chosen),
        sample=sample,
        baselines={name: Ensemble((each,), np.ones(1)) for name, each in zip(chosen.pooled, pooled, strict=True)},
    )


def _describe_calibration(prior: Prior | LabelPrior, chosen: FamilyChoice) -> dict[str, Any]:
    """Describe how predictions are calibrated, of labels those of the member of largest weight."""
    if isinstance(prior, LabelPrior):
        calibration = {name: getattr(prior, name) for name in ("factor", "ratio", "shrink")}
        return {"parameters": len(prior.terms.theta), **calibration}
    described = {"parameters": len(prior.terms.theta), "spread": chosen.spread}
    return {**described, "covariates": chosen.covariates} if chosen.covariates else described


def _acting_together(asked: Asked, prior: Any, tasks: Sequence[Task], columns: Sequence[str]) -> str:
    """Return a hint, and warn, if two covariates of the target's tasks act together; else nothing."""
    kinds = asked.kinds
    if kinds is None or not asked.problem.learns_features:
        return ""
    pair = acting_together(prior, tasks, kinds)
    if pair is None:
        return ""
    a, b = (columns[column] for column in pair)
    said = f"{a} and {b} seem to act together, which the default does not model. Add a column to X, {a} * {b}, and "
    said += "name it among the covariates, too."
    if any(kinds.levels[column] for column in pair):
        said += " In such a product a category is 1 for one of its levels, and 0 otherwise."
    warn_caller(Message(Argument("covariates"), f" {said}"))
    return f"Covariates {said}"


def _warn_if_too_wide(spread: float) -> None:
    """Warn if held-out readings are far from their predictions."""
    if spread > WIDE:
        found = f"Held-out readings lie far from their predictions: bands are stretched by {spread:.2g}. "
        warn_caller(found + "Check y for wrong values, and tasks for repeated rows.", convergence_warning())


def _warn_if_thinned(rule: ContextRule, sample: Sequence[Sequence[Task]]) -> None:
    """Warn if tasks are longer than a context, but not after they were thinned."""
    size, longest = rule.size, max(len(task.y) for tasks in sample for task in tasks)
    if size is not None and size >= longest:
        found = f" gives {counted(size, 'reading')}, and of each task {longest} are used: cross-validation gives "
        warn_caller(Message(Argument("context"), f"{found}{longest - 1} of them."))


def _sample(environments: Sequence[Sequence[Task]], seed: int, labels: bool = False) -> list[list[Task]]:
    """Return up to MAX_TASKS random tasks of each environment, with up to MAX_READINGS readings or labels each.

    With many inputs half as many: distances along every one of them are kept. Of labels, every class keeps some.
    """
    rng = np.random.default_rng(seed)
    sampled = sample_tasks(environments, MAX_TASKS, seed)
    n_inputs = next((task.x.shape[1] for tasks in sampled for task in tasks), 1)
    most = MAX_READINGS if n_inputs <= MAX_ARD else MAX_READINGS // 2
    return [[thin_task(task, most, rng, labels) for task in tasks] for tasks in sampled]


def with_common_mean(
    prior: Prior,
    environments: Sequence[Sequence[Task]],
    sample: Sequence[Sequence[Task]],
    target: int,
) -> Prior:
    """Return the prior with its common mean learned from all tasks.

    Each environment keeps the weight that its sample had: that is what was tested on held-out tasks.
    """
    of_environment = prior.counts
    if of_environment is None or all(len(a) == len(b) for a, b in zip(environments, sample, strict=True)):
        return prior

    rng = np.random.default_rng(0)

    def chunks() -> Iterator[TrainingTasks]:
        for e, (tasks, drawn) in enumerate(zip(environments, sample, strict=True)):
            count = of_environment[e] * len(drawn) / max(len(tasks), 1)
            for first in range(0, len(tasks) if count > 0 else 0, CHUNK_TASKS):
                thinned = (thin_task(task, MAX_READINGS, rng) for task in tasks[first : first + CHUNK_TASKS])
                some = [prior.scaling.task(task) for task in thinned]
                is_target = np.full(len(some), float(e == target))
                yield TrainingTasks(prior.scaling, some, np.full(len(some), count), is_target)
            if isinstance(tasks, StoredTasks):
                tasks.release()

    try:
        return with_mean_of(prior, chunks())
    except np.linalg.LinAlgError:
        few = f"The common mean is learned from {sum(map(len, sample))} sampled tasks only: a covariance of the other "
        warn_caller(few + "tasks is singular. Check them for extreme values.", convergence_warning())
        return prior


def with_common_rule(
    prior: LabelPrior, environments: Sequence[Sequence[Task]], sample: Sequence[Sequence[Task]]
) -> LabelPrior:
    """Return the prior with its common rule, if it has one, learned from up to MAX_RULE_TASKS of each environment."""
    counts = prior.counts
    if not len(prior.weights) or counts is None or all(map(_same_size, environments, sample)):
        return prior
    more = sample_tasks(environments, MAX_RULE_TASKS, 0)
    rng = np.random.default_rng(0)
    tasks, of_task = [], []
    for of_environment, drawn, some in zip(counts, sample, more, strict=True):
        count = of_environment * len(drawn) / max(len(some), 1)
        for task in some if count > 0 else ():
            tasks.append(prior.scaling.task(thin_task(task, MAX_READINGS // 2, rng, labels=True)))
            of_task.append(count)
    return with_rule_of(prior, tasks, np.array(of_task))


def _same_size(tasks: Sequence[Task], sample: Sequence[Task]) -> bool:
    return len(tasks) == len(sample)


MAX_SCORED_TASKS = 300  # that are scored
MAX_SCORED_READINGS = 200  # of a scored task, beside those of its context
N_SPLITS = 5  # of a scored task into context and queries
FitPrior = Callable[[Asked, NamedEnvironments], FittedPrior]


def check_target_tasks(environments: NamedEnvironments) -> None:
    """Raise if there can be no conformal interval; warn if none can have the usual coverage."""
    n, name = len(environments.tasks[environments.target]), environments.names[environments.target]
    wanted = Argument("conformal", True)
    if n < 2:
        found = f" needs tasks of the {name} environment to hold out, two or more; there are {n}."
        raise ValueError(Message(wanted, found))
    if highest_coverage(n) < USUAL_COVERAGE:
        highest = floored(highest_coverage(n))
        most = f" with {n} tasks of the {name} environment gives conformal intervals of a coverage of at most {highest}"
        warn_caller(Message(wanted, f"{most}. Those of 90% need nine tasks or more."))


def fit_conformal(asked: Asked, fit_prior: FitPrior, environments: NamedEnvironments) -> Conformal:
    """Fit without each fold of target tasks, and score its tasks.

    A fit without a fold is the whole fit: standardization, search, averaging and calibration. What it has to say of
    the tasks that it shares with the fit of all tasks has been said, so its warnings are left out. So are those of
    posteriors of held-out tasks that are inexact: scores are valid as long as new tasks get theirs in the same way.
    """
    rng, rule = np.random.default_rng(asked.seed), asked.rule
    place = environments.target
    # More target tasks than that are enough for the fits without a fold, too, and stored ones then fit into memory.
    tasks = sample_tasks([environments.tasks[place]], MAX_SCORED_TASKS, int(rng.integers(2**31)))[0]
    members = deal(len(tasks), rng)
    splits = [calibration_splits(task, rule, rng) for task in tasks]
    folds = []
    with progress_bar("fitting without held-out tasks", len(members), "folds", asked.progress) as move:
        for own in members:
            every = list(environments.tasks)
            every[place] = [task for i, task in enumerate(tasks) if i not in own]
            with warnings.catch_warnings(), silent():
                warnings.simplefilter("ignore")
                fitted = fit_prior(asked, environments._replace(tasks=every))
                scored = held_out_scores(fitted.model, [splits[i] for i in np.sort(own).tolist()])
            folds.append(Fold(fitted.model, *scored))
            if move is not None:
                move(len(folds), counted(len(own), "task"))
    return Conformal(tuple(folds), sum(map(len, members)), rule)


def deal(n_tasks: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the tasks of each fold. Those that are left over every fit sees."""
    n_folds, size = equal_folds(n_tasks)
    return np.split(rng.permutation(n_tasks)[: n_folds * size], n_folds)


def calibration_splits(task: Task, rule: ContextRule, rng: np.random.Generator) -> list[TestTask]:
    """Return the contexts and queries of a held-out task, of which large tasks have fewer readings."""
    return split_widely(thin_task(task, MAX_SCORED_READINGS + (rule.size or 0), rng), rule, rng, N_SPLITS)
