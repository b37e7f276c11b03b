"""The family of learned features joins the search where tasks are many and inputs several."""

import numpy as np

from metaprior.hierarchical.families import FEATURES, fit_features
from metaprior.hierarchical.hierarchical_prior import HierarchicalPrior
from metaprior.search.averaging import averaging_weights
from metaprior.search.family_search import FamilySearch, Scored, training_tasks
from metaprior.search.held_out import PER_TASK, HeldOut, gather
from metaprior.tasks.types import Task

MIN_TASKS, MIN_INPUTS = 50, 2  # from which features are tried
N_PARTS = 3  # in which the held-out tasks are left out: a network is fitted anew without each
MAX_READINGS = 30  # of each task that features are learned from
HOPELESS = 0.05  # weight in the average on the first part, below which the rest is not tried


def are_worth_trying(search: FamilySearch) -> bool:
    """Return whether tasks and inputs are enough to learn features from."""
    option = search.options[_best_option(search)]
    n_tasks = sum(len(tasks) for tasks, w in zip(search.environments, option.weights, strict=True) if w > 0)
    return n_tasks >= MIN_TASKS and search.tasks[0].x.shape[1] >= MIN_INPUTS


def add_features(search: FamilySearch) -> None:
    """Fit features at the best option, with predictions of the held-out tasks, and add them to what is scored.

    A first part of these tasks tells whether it is worthwhile; if not, no time is spent on the others.
    """
    option = _best_option(search)
    search.families[FEATURES] = None
    groups = np.array_split(np.arange(len(search.folds.members)), min(N_PARTS, len(search.folds.members)))
    parts: list[tuple[np.ndarray, HeldOut]] = []
    try:
        for group in groups:
            members = np.concatenate([search.folds.members[i] for i in group.tolist()])
            rows = search.queries.rows_of(members)
            parts.append((rows, search.queries.predict(_fit(search, option, members), rows)))
            if len(parts) == 1 and _is_hopeless(search, members, gather(parts, len(search.queries.splits))):
                return
        prior = _fit(search, option, np.zeros(0, int))
    except np.linalg.LinAlgError:  # left out, and the report names it
        return
    search.scored.append(Scored(option, FEATURES, prior, gather(parts, len(search.queries.splits))))


def _best_option(search: FamilySearch) -> int:
    return int(np.argmax(search.option_scores().mean(axis=1)))


def _is_hopeless(search: FamilySearch, members: np.ndarray, predicted: HeldOut) -> bool:
    """Return whether features get hardly any weight by the tasks predicted so far."""
    scores = np.concatenate([search.scores(), search.queries.scores(predicted)[None]])[:, members]
    return bool(averaging_weights(scores, PER_TASK)[-1] < HOPELESS)


def _fit(search: FamilySearch, option: int, left_out: np.ndarray) -> HierarchicalPrior:
    """Fit features to all tasks but some of the held-out environment's."""
    rng = np.random.default_rng(0)
    kept = [[_thin(task, rng) for task in tasks] for tasks in search.environments]
    kept[search.held_out] = [task for i, task in enumerate(kept[search.held_out]) if i not in left_out]
    chosen, sizes = search.options[option], [len(tasks) for tasks in search.environments]
    training = training_tasks(kept, search.target, chosen, sizes)
    return fit_features(training, chosen.environment, search.noise_std)


def _thin(task: Task, rng: np.random.Generator) -> Task:
    if len(task.y) <= MAX_READINGS:
        return task
    kept = np.sort(rng.choice(len(task.y), MAX_READINGS, replace=False))
    return Task(task.x[kept], task.y[kept])
