"""The family of learned features joins the search where tasks are many and inputs several."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from metaprior.checks import warn_caller
from metaprior.conventions import convergence_warning
from metaprior.prior.families import FEATURES, fit_features
from metaprior.prior.fitted import Prior
from metaprior.search.averaging import averaging_weights
from metaprior.search.covariate_search import best_covariates
from metaprior.search.held_out import PER_TASK, HeldOut, gather
from metaprior.search.numbers import Numbers
from metaprior.search.search import Scored, Search
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.thinning import thin_task
from metaprior.tasks.types import Task

MIN_TASKS, MIN_INPUTS = 50, 2  # from which features are tried
N_PARTS = 3  # in which the held-out tasks are left out: a network is fitted anew without each
MAX_READINGS = 30  # of each task that features are learned from
N_THREADS = 2
HOPELESS = 0.05  # weight in the average on the first part, below which the rest is not tried


def may_be_learned(environments: Sequence[Sequence[Task]], kinds: ColumnKinds | None) -> bool:
    """Return whether inputs that are no covariates, and tasks of all environments, are enough to learn features."""
    n_inputs = next(task.x.shape[1] for tasks in environments for task in tasks)
    n_varying = n_inputs - (0 if kinds is None else len(kinds.covariates))
    return n_varying >= MIN_INPUTS and sum(map(len, environments)) >= MIN_TASKS


def are_worth_trying(search: Search) -> bool:
    """Return whether the tasks that count at the best environment weights are enough."""
    weights = search.options[_best_option(search)].weights
    used = [tasks for tasks, weight in zip(search.environments, weights, strict=True) if weight > 0]
    return may_be_learned(used, search.kinds)


def add_features(search: Search) -> None:
    """Fit features at the best option, with predictions of the held-out tasks, and add them to what is scored.

    A first part of these tasks tells whether it is worthwhile; if not, no time is spent on the others.
    """
    option = _best_option(search)
    n_parts = min(N_PARTS, len(search.folds.members))
    groups = np.array_split(np.arange(len(search.folds.members)), n_parts)
    first, *others = [np.concatenate([search.folds.members[i] for i in group.tolist()]) for group in groups]
    try:
        parts = [_predict(search, _fit(search, option, first), first)]
        if _is_hopeless(search, first, gather(parts, len(search.queries.splits))):
            search.families[FEATURES] = None
            return
        with ThreadPoolExecutor(N_THREADS) as pool:
            prior, *priors = pool.map(lambda left_out: _fit(search, option, left_out), [np.zeros(0, int), *others])
        parts += [_predict(search, each, members) for each, members in zip(priors, others, strict=True)]
    except np.linalg.LinAlgError:
        warn_caller("Learned features could not be fitted, and are left out.", convergence_warning())
        return
    search.families[FEATURES] = None
    found = gather(parts, len(search.queries.splits))
    search.scored.append(Scored(option, FEATURES, prior, found, best_covariates(search)))


def _predict(search: Search, prior: Prior, members: np.ndarray) -> tuple[np.ndarray, HeldOut]:
    rows = search.queries.rows_of(members)
    return rows, search.queries.predict(prior, rows)


def _best_option(search: Search) -> int:
    return int(np.argmax(search.option_scores().mean(axis=1)))


def _is_hopeless(search: Search, members: np.ndarray, predicted: HeldOut) -> bool:
    """Return whether features get hardly any weight by the tasks predicted so far."""
    scores = np.concatenate([search.scores(), search.queries.scores(predicted)[None]])[:, members]
    return bool(averaging_weights(scores, PER_TASK)[-1] < HOPELESS)


def _fit(search: Search, option: int, left_out: np.ndarray) -> Prior:
    """Fit features to all tasks but some of the held-out environment's."""
    problem, rng = search.problem, np.random.default_rng(0)
    assert isinstance(problem, Numbers)
    kept = [[thin_task(task, MAX_READINGS, rng) for task in tasks] for tasks in search.environments]
    kept[search.held_out] = [task for i, task in enumerate(kept[search.held_out]) if i not in left_out]
    chosen, sizes = search.options[option], [len(tasks) for tasks in search.environments]
    training = problem.training(kept, search.target, chosen, search.kinds, sizes)
    return fit_features(training, chosen.environment, problem.noise_std, best_covariates(search))
