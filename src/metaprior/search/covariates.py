"""Covariates of tasks in the search: at the best environment weights, in the common mean of every family.

Whether two of them act together, which the default does not model, is tested too. Levels and slopes of tasks, less what
the common mean predicts, are turned into ranks and regressed on two covariates, their squares and their product.
Student's t test of the product, Bonferroni-corrected, has a false-alarm rate of 1%.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from metaprior.prior.families import BEND, CURVED, NO_COVARIATES, SHIFT
from metaprior.prior.fitted import Prior
from metaprior.search.search import Search
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.types import Task

N_OPTIONS = 2  # environment weights at which covariates are tried: the best ones without them, and target-only
OUTWEIGHED = 5.0  # nats of evidence by which one use of covariates rules out another
CONTRADICTED = 2.0  # standard errors by which held-out tasks must not disagree


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
