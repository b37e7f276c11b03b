"""Whether covariates act together: products of two, which the default does not model, explain what is left of tasks.

Levels and slopes of tasks, less what the common mean predicts, are turned into ranks and regressed on two covariates,
their squares and their product. Student's t test of the product, Bonferroni-corrected, has a false-alarm rate of 1%.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from metaprior.prior.fitted import Prior
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.types import Task

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
