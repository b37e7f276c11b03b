"""What a search of families has chosen: the members of the average, their weights, and its calibration."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from metaprior.prior.families import COVARIATES
from metaprior.search.averaging import averaging_weights, drop_worse, merge_similar
from metaprior.search.candidates import Candidate, Choice
from metaprior.search.covariate_search import rule_out
from metaprior.search.search import Option, Problem, Search
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.types import Task

NEGLIGIBLE = 0.01  # weight
WORSE_LEVEL = 0.01  # of the test whether a candidate is worse than target-only, and dropped


class FamilyChoice(NamedTuple):
    """What was compared and chosen: options with their scores, the members of the average, and its calibration."""

    choice: Choice
    priors: list[Any]  # Prior or LabelPrior
    weights: np.ndarray  # of the priors
    families: dict[str, float]  # weight of every family that was compared
    spread: float  # factor by which the averaged predictions are stretched
    covariates: dict[str, float] | None = None  # weight of what covariates do, if there are any
    pooled: Mapping[str, Any] = MappingProxyType({})  # models that users would fit instead, see `pooled_models`


def choose_members(search: Search) -> FamilyChoice:
    """Weight families and options by their scores, reduce them to a few members, and calibrate their average."""
    scores = search.scores()
    allowed = rule_out(search, scores)
    options = np.array([search.options[each.option].weights[search.target] for each in search.scored])
    alone = np.flatnonzero(allowed & (options == 1.0)).tolist()
    target_only = max(alone, key=lambda i: scores[i].mean()) if alone else None
    weights = np.zeros(len(scores))
    weights[allowed] = averaging_weights(scores[allowed], search.problem.per_task)
    weights = drop_worse(weights, scores, target_only, NEGLIGIBLE, WORSE_LEVEL)
    of_option = np.bincount([each.option for each in search.scored], weights, len(search.options))
    energies = np.array(search.free_energies)
    known = energies if np.isfinite(energies).all() else None
    found = search.option_scores(), search.option_scores(plain=True)
    choice = Choice(candidates(search.options), of_option, *found, known)
    return _average(search, choice, weights)


def choose_untested(search: Search) -> FamilyChoice:
    """Give all options the same weight: tasks of the target could not be held out, those of a source have been.

    They say which families predict well, not how much the source should count.
    """
    scores = search.scores()
    weights, of_options = np.zeros(len(scores)), np.zeros(len(search.options))
    allowed = np.flatnonzero(rule_out(search, scores)).tolist()
    for option in range(len(search.options)):
        rows = [i for i in allowed if search.scored[i].option == option]
        if rows:
            weights[rows], of_options[option] = averaging_weights(scores[rows], search.problem.per_task), 1.0
    n_used = of_options.sum()
    return _average(search, Choice(candidates(search.options), of_options / n_used, None), weights / n_used)


def without_test(
    problem: Problem,
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[Option],
    kinds: ColumnKinds | None = None,
) -> FamilyChoice:
    """Average the simplest families at all options: there are no tasks to hold out."""
    fits = [problem.fit(environments, target, option, kinds, tested=False) for option in options]
    used = [(name, fit.priors[name]) for fit in fits for name in problem.untested(fit)]
    names, priors = [name for name, _ in used], [prior for _, prior in used]
    weights = np.full(len(priors), 1.0 / len(priors))
    found = {name: names.count(name) / len(names) for fit in fits for name in fit.priors}
    spread = problem.expected_spread(n_tasks_of(priors, weights, environments))
    equal = np.full(len(options), 1.0 / len(options))
    return FamilyChoice(Choice(candidates(options), equal, None), priors, weights, found, spread)


def n_tasks_of(priors: Sequence[Any], weights: np.ndarray, environments: Sequence[Sequence[Task]]) -> float:
    """Return the harmonic mean of the numbers of tasks that priors were fitted to, discounted ones in part."""
    sizes = [len(tasks) for tasks in environments]
    numbers = [float(prior.counts @ sizes) for prior in priors if prior.counts is not None]
    return 1.0 / float(weights @ np.reciprocal(numbers))


def candidates(options: Sequence[Option]) -> list[Candidate]:
    """Return options as candidates of a report."""
    return [Candidate(option.weights, option, option.from_scores) for option in options]


def _average(search: Search, choice: Choice, weights: np.ndarray) -> FamilyChoice:
    families = {
        name: float(sum(w for w, each in zip(weights, search.scored, strict=True) if each.family == name))
        for name in search.families
    }
    covariates = {
        name: float(sum(w for w, each in zip(weights, search.scored, strict=True) if each.covariates == name))
        for name in COVARIATES
    }
    held_out = [each.held_out for each in search.scored]
    weights = merge_similar(weights, search.queries.distances(held_out), negligible=search.queries.negligible)
    kept = np.flatnonzero(weights).tolist()
    priors, weights = [search.scored[i].prior for i in kept], weights[kept]
    n_tasks = n_tasks_of(priors, weights, search.environments)
    spread = search.queries.spread([held_out[i] for i in kept], weights, n_tasks)
    return FamilyChoice(choice, priors, weights, families, spread, covariates if search.has_covariates else None)
