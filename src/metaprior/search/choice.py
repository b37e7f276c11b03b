"""What a search has chosen: the members of the average, their weights, and its calibration.

Covariates of tasks are compared at the best environment weights, in the common mean of every family.

Whether two of them act together, which the default does not model, is tested too. Levels and slopes of tasks, less what
the common mean predicts, are turned into ranks and regressed on two covariates, their squares and their product.
Student's t test of the product, Bonferroni-corrected, has a false-alarm rate of 1%.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from metaprior.prior.families import BEND, COVARIATES, CURVED, NO_COVARIATES, SHIFT
from metaprior.prior.fitted import Prior
from metaprior.search.averaging import Candidate, Choice, averaging_weights, drop_worse, merge_similar
from metaprior.search.search import Option, Problem, Search
from metaprior.tasks.categories import ColumnKinds
from metaprior.tasks.types import Task

N_OPTIONS = 2  # environment weights at which covariates are tried: the best ones without them, and target-only
OUTWEIGHED = 5.0  # nats of evidence by which one use of covariates rules out another
CONTRADICTED = 2.0  # standard errors by which held-out tasks must not disagree


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


def covariate_candidates(search: Search) -> list[tuple[int, str]]:
    """Return at which options covariates are tried, and what they do there."""
    best = np.argsort(-search.option_scores().mean(axis=1), kind="stable")[:N_OPTIONS].tolist()
    alone = [i for i, option in enumerate(search.options) if option.weights[search.target] == 1.0 and i not in best]
    assert search.kinds is not None
    numbers = any(search.kinds.levels[i] == 0 for i in search.kinds.covariates)
    effects = (SHIFT, CURVED, BEND) if numbers else (SHIFT, BEND)
    return [(option, covariates) for option in (*best, *alone[:1]) for covariates in effects]


def best_covariates(search: Search) -> str:
    """Return what covariates do in the best of all that was compared."""
    if not search.has_covariates:
        return NO_COVARIATES
    return search.scored[int(np.argmax(search.scores().mean(axis=1)))].covariates


def rule_out(search: Search, scores: np.ndarray) -> np.ndarray:
    """Return which of all that was scored may have weight, (scored,): others are outweighed by what covariates do.

    Held-out tasks whose first readings are given hardly tell what covariates are worth before these; the evidence of
    all tasks does. If it clearly speaks for covariates, priors without them are ruled out, and so are options at which
    covariates were not tried. But sources may have effects that the target lacks: the evidence of target tasks alone
    must prefer covariates, too, and held-out tasks must not clearly disagree.
    """
    everything = np.ones(len(search.scored), bool)
    kept = {each.option: _kept(search, each.option) for each in search.scored if each.covariates != NO_COVARIATES}
    of_target = [option for option in kept if search.options[option].weights[search.target] == 1.0]
    clear = any(NO_COVARIATES not in names for names in kept.values())
    if not (clear and of_target and search.held_out == search.target):
        return everything
    used = np.array([each.covariates != NO_COVARIATES for each in search.scored])
    allowed = used & np.array([each.covariates in kept.get(each.option, ()) for each in search.scored])
    if allowed.all() or not allowed.any():
        return everything
    with_effects, ruled_out = (scores[rows][np.argmax(scores[rows].mean(axis=1))] for rows in (allowed, ~allowed))
    lost = ruled_out - with_effects
    error = lost.std(ddof=1) / np.sqrt(len(lost)) if len(lost) > 1 else np.inf
    return everything if lost.mean() > CONTRADICTED * error else allowed


def _kept(search: Search, option: int) -> set[str]:
    """Return the uses of covariates at an option that the evidence leaves."""
    known = [found for (place, _), found in search.evidence.items() if place == option]
    largest = max(max(found.values()) for found in known)
    return {name for found in known for name, value in found.items() if value > largest - OUTWEIGHED}


LEVEL, MIN_TASKS, MAX_LEVELS = 0.01, 15, 5


def acting_together(prior: Prior, tasks: Sequence[Task], kinds: ColumnKinds) -> tuple[int, int] | None:
    """Return the two columns of X whose product explains most of what is left, if that is significant."""
    if len(tasks) < MIN_TASKS or len(kinds.covariates) < 2:
        return None
    left = [_left(prior, task, kinds) for task in tasks]
    outcomes = [_normal_scores(values) for values in np.array(left).T if np.ptp(values) > 0]
    columns = [(i, column) for i in kinds.covariates for column in _columns(tasks, i, kinds.levels[i])]
    pairs = [(a, b) for a, b in combinations(columns, 2) if a[0] != b[0]]
    found = [(_p_value(y, a, b), (i, j)) for y in outcomes for (i, a), (j, b) in pairs]
    smallest = min(found, default=(1.0, (0, 0)))
    return smallest[1] if smallest[0] * len(found) < LEVEL else None


def _left(prior: Prior, task: Task, kinds: ColumnKinds) -> list[float]:
    """Return the mean of what the common mean leaves of a task, and its slopes along inputs that are numbers."""
    scaled = prior.scaling.task(task)
    rest = scaled.y - prior.process.describe(scaled.x).common @ prior.process.common_mean
    inputs = [scaled.x[:, i] for i in range(kinds.input_widths.count(1))]
    slopes = [float(np.cov(x, rest)[0, 1] / max(x.var(), 1e-12)) if len(x) > 2 else 0.0 for x in inputs]
    return [float(rest.mean()), *slopes]


def _columns(tasks: Sequence[Task], column: int, n_levels: int) -> list[np.ndarray]:
    """Return a covariate of all tasks as standardized columns: its values, or who has each of its first levels."""
    values = np.array([task.x[0, column] for task in tasks])
    levels = range(min(n_levels, MAX_LEVELS) - 1)  # the last follows from the others
    columns = [np.where(values == level, 1.0, 0.0) for level in levels] if n_levels else [values]
    columns = [np.where(np.isnan(each), np.nanmean(each), each) for each in columns if np.isfinite(each).any()]
    return [(each - each.mean()) / each.std() for each in columns if each.std() > 0]


def _normal_scores(values: np.ndarray) -> np.ndarray:
    from scipy import stats  # which takes long to import

    return stats.norm.ppf((stats.rankdata(values) - 0.5) / len(values))


def _p_value(y: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """Return that of Student's t test of the product."""
    others = np.column_stack([np.ones(len(y)), a, b, a**2, b**2])
    both = np.column_stack([y, a * b])
    y, product = (both - others @ np.linalg.lstsq(others, both, rcond=None)[0]).T
    n_free = len(y) - np.linalg.matrix_rank(others) - 1
    size = float(product @ product)
    if n_free < 3 or size < 1e-6 * len(y):
        return 1.0
    slope = float(product @ y) / size
    error = np.sqrt(float(np.sum((y - slope * product) ** 2)) / n_free / size)
    from scipy import stats

    return float(2.0 * stats.t.sf(abs(slope) / max(error, 1e-12), n_free))
