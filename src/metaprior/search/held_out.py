"""Folds of held-out tasks, and splits of each held-out task into context and queries.

Predictions of held-out tasks: mixtures at every query, their log densities, averages and calibration.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.likelihoods.base import Likelihood
from metaprior.likelihoods.gaussian import Gaussian
from metaprior.linalg import log_sum_exp
from metaprior.predict.predictive import stretch
from metaprior.search.averaging import contaminated
from metaprior.tasks.scaling import output_scaling
from metaprior.tasks.splits import ContextRule, split_often
from metaprior.tasks.types import Task, TestTask, pad_to

N_FOLDS, LEAVE_ONE_OUT_BELOW = 5, 8  # with fewer than eight target tasks every task is a fold
N_SPLITS = 5  # of a held-out task into context and queries
DEFAULT_RULE = ContextRule()
Split = Callable[[Task, np.random.Generator], list[TestTask]]


class Folds(NamedTuple):
    """The target tasks of each fold, and the splits of every target task into context and queries."""

    members: list[np.ndarray]
    splits: list[list[TestTask]]


def make_folds(target_tasks: Sequence[Task], seed: int, labels: bool, rule: ContextRule = DEFAULT_RULE) -> Folds:
    """Deal the target tasks into folds, and split each into context and queries, by a rule or with `split_task`."""
    return _make(target_tasks, seed, rule, lambda task, rng: split_task(task, rng, labels))


def make_label_folds(
    target_tasks: Sequence[Task], seed: int, by_class: bool, rule: ContextRule = DEFAULT_RULE
) -> Folds:
    """Deal the target tasks into folds, and split each by a rule or with `split_labels`."""
    return _make(target_tasks, seed, rule, lambda task, rng: split_labels(task, rng, by_class))


def _make(target_tasks: Sequence[Task], seed: int, rule: ContextRule, split: Split) -> Folds:
    rng = np.random.default_rng(seed)
    members = _deal(len(target_tasks), rng)
    if not rule.is_default:
        return Folds(members, [split_often(task, rule, rng, N_SPLITS) for task in target_tasks])
    return Folds(members, [split(task, rng) for task in target_tasks])


def split_task(task: Task, rng: np.random.Generator, labels: bool = False) -> list[TestTask]:
    """Split a held-out task into context (half of the samples, rounded down) and queries, in up to five ways.

    The contexts are spread evenly over the samples in random order. With `labels` each class is split in this way, so
    that contexts have every class with two samples or more. A task of one sample has no context: it is predicted from
    the prior. So is a task with one sample per class, whose queries would all be of classes that the context lacks.
    """
    order = rng.permutation(len(task.y))
    codes = np.unique(task.y, return_inverse=True)[1] if labels else np.zeros(len(order), int)
    in_context = _spread(order, codes, min(len(order), N_SPLITS))
    return [TestTask(task.x[own], task.y[own], task.x[~own], task.y[~own]) for own in in_context]


def split_labels(task: Task, rng: np.random.Generator, by_class: bool) -> list[TestTask]:
    """Split a held-out task five-fold: every sample is a query once, given about four fifths of the task.

    How certain labels of new samples are depends on the size of the context, which should be near that of new tasks.
    With `by_class` folds are stratified, and the only sample of a class is always context. If there are no others, the
    task is predicted from the prior.
    """
    order, n_splits = rng.permutation(len(task.y)), N_SPLITS
    if by_class:
        order = order[np.argsort(task.y[order], kind="stable")]
        _, codes, sizes = np.unique(task.y[order], return_inverse=True, return_counts=True)
        order, n_splits = (order, 1) if sizes.max() == 1 else (order[sizes[codes] > 1], N_SPLITS)
    n_splits = min(len(order), n_splits)
    asked = [np.sort(order[first::n_splits]) for first in range(n_splits)]
    contexts = [np.setdiff1d(np.arange(len(task.y)), queries) for queries in asked]
    return [TestTask(task.x[c], task.y[c], task.x[q], task.y[q]) for c, q in zip(contexts, asked, strict=True)]


def reference_log_densities(
    target_tasks: Sequence[Task], folds: Folds, labels: bool, n_classes: int | np.ndarray = 2
) -> np.ndarray:
    """Return the log density p_0 of `averaging.contaminated` at every query: what can be said without a model.

    All of a task's `n_classes` are equally likely, a number or one per task; readings are normal with the mean and
    standard deviation of all target readings.
    """
    chance = -np.log(np.broadcast_to(n_classes, len(folds.splits)))
    units = output_scaling(target_tasks)
    shape = (max(map(len, folds.splits)), max(len(split.y_query) for splits in folds.splits for split in splits))
    reference = np.full((len(folds.splits), *shape), np.nan)
    for i, splits in enumerate(folds.splits):
        for j, split in enumerate(splits):
            z = units.outputs(split.y_query)
            normal = -0.5 * z**2 - 0.5 * math.log(2.0 * math.pi) - np.log(units.y_std)
            reference[i, j, : len(split.y_query)] = chance[i] if labels else normal
    return reference.reshape(len(folds.splits), -1)


def _deal(n_tasks: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the tasks of each fold."""
    n_folds = n_tasks if n_tasks < LEAVE_ONE_OUT_BELOW else N_FOLDS
    return [np.sort(fold) for fold in np.array_split(rng.permutation(n_tasks), n_folds)]


def _spread(order: np.ndarray, codes: np.ndarray, n_splits: int) -> np.ndarray:
    """Return which samples are context, (splits, samples): half of each class, taken in turn.

    Of classes with an odd number of samples every other one gives one more, so that half of all samples are context.
    """
    sizes, split = np.bincount(codes), np.arange(n_splits)[:, None]
    if sizes.max() == 1:
        return np.zeros((1, len(codes)), bool)
    is_odd = sizes % 2 == 1
    n_odd, place = max(is_odd.sum(), 1), np.cumsum(is_odd) - 1 + order[0]  # a random class is the first
    gives_more = is_odd & ((place - split * n_odd // n_splits) % n_odd < n_odd // 2)
    ranks = np.empty(len(codes), int)  # within the class, in random order
    ranks[order[np.argsort(codes[order], kind="stable")]] = np.concatenate([np.arange(size) for size in sizes])
    n = sizes[codes]
    return (ranks - split * n // n_splits) % n < n // 2 + gives_more[:, codes]


LOG_SPREADS = np.arange(-10, 21) / 20
SPREAD_STD = 0.2  # prior standard deviation of the log factor: few held-out tasks change little
PER_TASK = 1.5  # independent observations that the readings of a held-out task count as
ARRAYS = ("means", "variances", "parameters")  # of components


class HeldOut(NamedTuple):
    """Predictions of every query of every split of the held-out tasks; padding is NaN."""

    likelihood: Likelihood
    means: np.ndarray  # of t, with the log exposure, (components, rows, queries)
    variances: np.ndarray  # the same
    parameters: np.ndarray  # (components, rows, parameters)
    log_weights: np.ndarray  # (components, rows)

    def log_densities(self, y: np.ndarray) -> np.ndarray:
        """Return log p(y), (rows, queries)."""
        with np.errstate(divide="ignore", invalid="ignore"):  # NaN, where there is no query
            of_each = self.likelihood.log_density(y, self.means, self.variances, self.parameters[..., None, :])
            return log_sum_exp(self.log_weights[..., None] + of_each, axis=0)

    def moments(self, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and log standard deviations of noisy readings of t, at the queries that are asked for."""
        weights, noise = np.exp(self.log_weights)[..., None], self.parameters[..., None, :]
        mean = np.sum(weights * self.means, axis=0)
        noisy = self.variances + self.likelihood.noise(self.means, noise)
        variance = np.sum(weights * (noisy + (self.means - mean) ** 2), axis=0)
        return mean[asked], 0.5 * np.log(variance[asked])

    def stretched(self, factor: float) -> "HeldOut":
        """Return the mixture with t stretched about its mean."""
        means, variances = stretch(self.means, self.variances, self.log_weights, factor)
        parameters = self.likelihood.stretched(self.parameters, factor)
        return self._replace(means=means, variances=variances, parameters=parameters)


class Queries:
    """The splits of all held-out tasks, one row each. `exposure` is a column of X."""

    negligible = 0.0  # loss of `merge_similar`

    def __init__(
        self,
        tasks: Sequence[Task],
        folds: Folds,
        likelihood: Likelihood = Gaussian(),  # noqa: B008
        exposure: int | None = None,
    ):
        self.likelihood, self.exposure = likelihood, exposure
        self.splits = [split for of_task in folds.splits for split in of_task]
        self.owner = np.repeat(np.arange(len(tasks)), [len(of_task) for of_task in folds.splits])
        self.n_queries = max(len(split.y_query) for split in self.splits)
        self.y = np.full((len(self.splits), self.n_queries), np.nan)
        for row, split in enumerate(self.splits):
            self.y[row, : len(split.y_query)] = split.y_query
        self.reference = self._reference(tasks)

    def _reference(self, tasks: Sequence[Task]) -> np.ndarray:
        """Return the log density of every query in a broad reference, that of all observations without inputs."""
        offset = np.zeros(self.y.shape)
        for row, split in enumerate(self.splits):
            offset[row, : len(split.y_query)] = log_exposure(split.x_query, self.exposure)
        of_tasks = [log_exposure(task.x, self.exposure) for task in tasks]
        broad = self.likelihood.broad([task.y for task in tasks], of_tasks)
        asked = np.isfinite(self.y)
        moments = broad.mean + offset, np.array(broad.variance)
        found = broad.likelihood.log_density(np.where(asked, self.y, 0.0), *moments, broad.parameters)
        return np.where(asked, found, np.nan)

    def rows_of(self, tasks: np.ndarray) -> np.ndarray:
        """Return the rows of some tasks."""
        return np.flatnonzero(np.isin(self.owner, tasks))

    def predict(self, prior: Any, rows: np.ndarray) -> Any:
        """Return a prior's predictions of new readings."""
        splits = [self.splits[row] for row in rows.tolist()]
        scaling = prior.scaling
        contexts = scaling.tasks([Task(split.x_context, split.y_context) for split in splits])
        x, y, mask = pad_to(contexts, max(largest_context(splits), 1), np.float64)
        inputs = scaling.inputs_of([split.x_query for split in splits])
        queries = [Task(x, split.y_query) for x, split in zip(inputs, splits, strict=True)]
        x_query, _, is_query = pad_to(queries, self.n_queries, np.float64)
        found = prior.marginals(prior.condition(x, y, mask), x_query)
        means = found.mean if found.offset is None else found.mean + found.offset
        log_weights = np.zeros((len(means), len(rows))) if found.log_weights is None else found.log_weights
        parameters = np.repeat(found.parameters[:, None], len(rows), axis=1)
        means, variances = (np.where(is_query, each, np.nan) for each in (means, found.variance))
        return HeldOut(self.likelihood, means, variances, parameters, log_weights)

    def scores(self, held_out: Any) -> np.ndarray:
        """Return the mean contaminated log density of every task, (tasks,)."""
        return self.by_task(contaminated(held_out.log_densities(self.y), self.reference))

    def plain_scores(self, held_out: Any) -> np.ndarray:
        """Return the mean log density of every task as it is, (tasks,)."""
        return self.by_task(held_out.log_densities(self.y))

    def join(self, members: Sequence[Any], weights: np.ndarray) -> Any:
        """Return the weighted average of predictive distributions."""
        return join(members, weights)

    def by_task(self, values: np.ndarray) -> np.ndarray:
        """Average values (rows, queries) over the queries of every task."""
        sums = np.bincount(self.owner, np.nansum(values, axis=1))
        return sums / np.bincount(self.owner, np.sum(np.isfinite(self.y), axis=1))

    def distances(self, members: Sequence[Any]) -> np.ndarray:
        """Return mean squared distances between the members' normal approximations, (members, members).

        Means differ in units of the average standard deviation, standard deviations by their logarithms.
        """
        asked = np.isfinite(self.y)
        means, logs = zip(*(member.moments(asked) for member in members), strict=True)
        scale = np.exp(np.mean(logs, axis=0))
        means, logs = np.array(means) / scale, np.array(logs)
        between = [(means - m) ** 2 + 2.0 * (logs - s) ** 2 for m, s in zip(means, logs, strict=True)]
        return np.array([part.mean(axis=1) for part in between])

    def spread(self, members: Sequence[Any], weights: np.ndarray, n_tasks: float) -> float:
        """Return the factor by which the averaged predictions must be stretched to fit the held-out tasks best.

        Averages over candidates are too wide where each is well calibrated, and too narrow where tasks are too few to
        show how much tasks vary. A normal prior keeps the log factor near its expectation, given the number of tasks
        that the members were fitted to.
        """
        average, expected = self.join(members, weights), expected_log_spread(n_tasks)
        values = []
        for log_spread in LOG_SPREADS.tolist():
            densities = average.stretched(float(np.exp(log_spread))).log_densities(self.y)
            likelihood = PER_TASK * float(np.sum(self.by_task(np.where(np.isfinite(self.y), densities, 0.0))))
            values.append(likelihood - 0.5 * ((log_spread - expected) / SPREAD_STD) ** 2)
        return float(np.exp(_peak(LOG_SPREADS, np.array(values))))


def expected_log_spread(n_tasks: float) -> float:
    """Return the log factor by which predictions are expected to be too narrow.

    Theta is a point, so that the variance between tasks, about half of the whole, is too small by 1 + 1 / n.
    """
    return 0.25 * float(np.log1p(1.0 / n_tasks))


def _peak(grid: np.ndarray, values: np.ndarray) -> float:
    """Return where values on an even grid are largest, by a parabola through the three largest."""
    best = int(np.clip(np.argmax(values), 1, len(grid) - 2))
    before, middle, after = values[best - 1 : best + 2].tolist()
    curvature = before - 2.0 * middle + after
    step = 0.5 * (before - after) / curvature if curvature < 0.0 else 0.0
    return float(grid[best] + np.clip(step, -1.0, 1.0) * (grid[1] - grid[0]))


def log_exposure(x: np.ndarray, exposure: int | None) -> np.ndarray:
    """Return the logarithm of the exposure at inputs, zero without one."""
    return np.zeros(len(x)) if exposure is None else np.log(x[:, exposure])


def join(members: Sequence[HeldOut], weights: np.ndarray) -> HeldOut:
    """Return the weighted average of predictive distributions."""
    pairs = [(member, weight) for member, weight in zip(members, weights.tolist(), strict=True) if weight > 0]
    means, variances, parameters = (np.concatenate([getattr(m, name) for m, _ in pairs]) for name in ARRAYS)
    log_weights = np.concatenate([member.log_weights + np.log(weight) for member, weight in pairs])
    return HeldOut(members[0].likelihood, means, variances, parameters, log_weights)


def gather(parts: Sequence[tuple[np.ndarray, HeldOut]], n_rows: int) -> HeldOut:
    """Put the predictions of folds together; mixtures of fewer components get components of no weight."""
    n_components = max(len(part.means) for _, part in parts)
    first = parts[0][1]
    arrays = {name: np.full((n_components, n_rows, *getattr(first, name).shape[2:]), np.nan) for name in ARRAYS}
    log_weights = np.full((n_components, n_rows), -np.inf)
    for rows, part in parts:
        n = len(part.means)
        for name, whole in arrays.items():
            whole[:n, rows], whole[n:, rows] = getattr(part, name), getattr(part, name)[:1]
        log_weights[:n, rows] = part.log_weights
    return HeldOut(first.likelihood, **arrays, log_weights=log_weights)


def largest_context(splits: Sequence[TestTask]) -> int:
    """Return the number of readings of the largest context."""
    return max(len(split.y_context) for split in splits)
