"""Fits for conformal intervals: the whole fit repeated without each fold of target tasks, which is then scored."""

import warnings
from collections.abc import Callable

import numpy as np

from metaprior.checks import Argument, Message, counted, warn_caller
from metaprior.estimators.arguments import NamedEnvironments
from metaprior.estimators.fitted_prior import FittedPrior
from metaprior.predict.conformal import (
    USUAL_COVERAGE,
    Fold,
    Guarantee,
    equal_folds,
    floored,
    held_out_scores,
    highest_coverage,
)
from metaprior.progress import progress_bar, silent
from metaprior.search.compare import Asked
from metaprior.storage.stored_tasks import sample_tasks
from metaprior.tasks.context_rules import ContextRule, split_widely
from metaprior.tasks.thinning import thin_task
from metaprior.tasks.types import Task, TestTask

MAX_TASKS = 300  # that are scored
MAX_READINGS = 200  # of a scored task, beside those of its context
N_SPLITS = 5  # of a scored task into context and queries
FitPrior = Callable[[Asked, NamedEnvironments], FittedPrior]


def check_target_tasks(environments: NamedEnvironments) -> None:
    """Raise if there can be no conformal interval; warn if none can have the usual coverage."""
    n, name = len(environments.tasks[environments.target]), environments.names[environments.target]
    wanted = Argument("guarantee", True)
    if n < 2:
        found = f" needs tasks of the {name} environment to hold out, two or more; there are {n}."
        raise ValueError(Message(wanted, found))
    if highest_coverage(n) < USUAL_COVERAGE:
        highest = floored(highest_coverage(n))
        most = f" with {n} tasks of the {name} environment gives conformal intervals of a coverage of at most {highest}"
        warn_caller(Message(wanted, f"{most}. Those of 90% need nine tasks or more."))


def make_guarantee(asked: Asked, fit_prior: FitPrior, environments: NamedEnvironments) -> Guarantee:
    """Fit without each fold of target tasks, and score its tasks.

    A fit without a fold is the whole fit: standardization, search, averaging and calibration. What it has to say of
    the tasks that it shares with the fit of all tasks has been said, so its warnings are left out. So are those of
    posteriors of held-out tasks that are inexact: scores are valid as long as new tasks get theirs in the same way.
    """
    rng, rule = np.random.default_rng(asked.seed), asked.rule
    place = environments.target
    # More target tasks than that are enough for the fits without a fold, too, and stored ones then fit into memory.
    tasks = sample_tasks([environments.tasks[place]], MAX_TASKS, int(rng.integers(2**31)))[0]
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
    return Guarantee(tuple(folds), sum(map(len, members)), rule)


def deal(n_tasks: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the tasks of each fold. Those that are left over every fit sees."""
    n_folds, size = equal_folds(n_tasks)
    return np.split(rng.permutation(n_tasks)[: n_folds * size], n_folds)


def calibration_splits(task: Task, rule: ContextRule, rng: np.random.Generator) -> list[TestTask]:
    """Return the contexts and queries of a held-out task, of which large tasks have fewer readings."""
    return split_widely(thin_task(task, MAX_READINGS + (rule.size or 0), rng), rule, rng, N_SPLITS)
