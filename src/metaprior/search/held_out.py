"""Held-out tasks: folds, splits into context and queries, predictions of the queries and their scores."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.likelihoods.base import Likelihood
from metaprior.linalg import log_sum_exp
from metaprior.predict.predictive import stretch
from metaprior.search.averaging import contaminated
from metaprior.tasks.scaling import Scaling, output_scaling
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


def split_classes(task: Task, rng: np.random.Generator) -> list[TestTask]:
    """Split a held-out task into context (half of each class) and queries, in up to five ways.

    Contexts are spread evenly over the samples in random order. Of classes with an odd number of samples every other
    one gives one more, so that half of all samples (rounded down) are context. A task with one sample per class has no
    context: its queries would all be of classes that the context lacks.
    """
    order = rng.permutation(len(task.y))
    codes = np.unique(task.y, return_inverse=True)[1]
    sizes, n_splits = np.bincount(codes), min(len(order), N_SPLITS)
    if sizes.max() == 1:
        return [TestTask(task.x[:0], task.y[:0], task.x, task.y)]
    split = np.arange(n_splits)[:, None]
    is_odd = sizes % 2 == 1
    n_odd, place = max(is_odd.sum(), 1), np.cumsum(is_odd) - 1 + order[0]  # a random class is the first
    gives_more = is_odd & ((place - split * n_odd // n_splits) % n_odd < n_odd // 2)
    ranks = np.empty(len(codes), int)  # within the class, in random order
    ranks[order[np.argsort(codes[order], kind="stable")]] = np.concatenate([np.arange(size) for size in sizes])
    n = sizes[codes]
    in_context = (ranks - split * n // n_splits) % n < n // 2 + gives_more[:, codes]
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


def make_folds(
    target_tasks: Sequence[Task],
    seed: int,
    labels: bool,
    rule: ContextRule = DEFAULT_RULE,
    split: Split = split_classes,
) -> Folds:
    """Deal the target tasks into folds, and split each by the rule; labels with `split` if that is the default rule."""
    rng, n_tasks = np.random.default_rng(seed), len(target_tasks)
    n_folds = n_tasks if n_tasks < LEAVE_ONE_OUT_BELOW else N_FOLDS
    members = [np.sort(fold) for fold in np.array_split(rng.permutation(n_tasks), n_folds)]
    if labels and rule.is_default:
        return Folds(members, [split(task, rng) for task in target_tasks])
    return Folds(members, [split_often(task, rule, rng, N_SPLITS) for task in target_tasks])


class Queries:
    """The splits of all held-out tasks, one row each.

    `reference` gives the log density of every query in a broad distribution, see `averaging.contaminated`.
    """

    def __init__(self, tasks: Sequence[Task], folds: Folds, reference: Callable[["Queries"], np.ndarray]):
        self.tasks = tasks
        self.splits = [split for of_task in folds.splits for split in of_task]
        self.owner = np.repeat(np.arange(len(tasks)), [len(of_task) for of_task in folds.splits])
        self.y = np.full((len(self.splits), max(len(split.y_query) for split in self.splits)), np.nan)
        for row, split in enumerate(self.splits):
            self.y[row, : len(split.y_query)] = split.y_query
        self.asked = np.isfinite(self.y)
        self.reference = np.where(self.asked, reference(self), np.nan)

    def rows_of(self, tasks: np.ndarray) -> np.ndarray:
        """Return the rows of some tasks."""
        return np.flatnonzero(np.isin(self.owner, tasks))

    def padded(self, rows: np.ndarray, scaling: Scaling) -> tuple[np.ndarray, ...]:
        """Return x, y and mask of standardized contexts, and x and mask of queries, padded to one size."""
        splits = [self.splits[row] for row in rows.tolist()]
        contexts = scaling.tasks([Task(split.x_context, split.y_context) for split in splits])
        inputs = scaling.inputs_of([split.x_query for split in splits])
        queries = [Task(x, split.y_query) for x, split in zip(inputs, splits, strict=True)]
        x_query, _, is_query = pad_to(queries, self.y.shape[1], np.float64)
        return *pad_to(contexts, max(1, *(len(task.y) for task in contexts)), np.float64), x_query, is_query

    def predict(self, prior: Any, rows: np.ndarray, likelihood: Likelihood) -> "HeldOut":
        """Return a prior's predictions of new observations at some rows."""
        x, y, mask, x_query, is_query = self.padded(rows, prior.scaling)
        found = prior.marginals(prior.condition(x, y, mask), x_query)
        means = found.mean if found.offset is None else found.mean + found.offset
        log_weights = np.zeros((len(means), len(rows))) if found.log_weights is None else found.log_weights
        parameters = np.repeat(found.parameters[:, None], len(rows), axis=1)
        means, variances = (np.where(is_query, each, np.nan) for each in (means, found.variance))
        return HeldOut(likelihood, means, variances, parameters, log_weights)

    def scores(self, held_out: Any) -> np.ndarray:
        """Return the mean contaminated log density of every task, (tasks,)."""
        return self.by_task(contaminated(held_out.log_densities(self.y), self.reference))

    def plain_scores(self, held_out: Any) -> np.ndarray:
        """Return the mean log density of every task as it is, (tasks,)."""
        return self.by_task(held_out.log_densities(self.y))

    def by_task(self, values: np.ndarray) -> np.ndarray:
        """Average values (rows, queries) over the queries of every task."""
        return np.bincount(self.owner, np.nansum(values, axis=1)) / np.bincount(self.owner, self.asked.sum(axis=1))


def without_model(queries: Queries, labels: bool = False) -> np.ndarray:
    """Return the log density of every query that needs no model of y given x, see `averaging.contaminated`.

    Both labels are equally likely; readings are normal with the mean and standard deviation of all target readings.
    """
    if labels:
        return np.full(queries.y.shape, -math.log(2.0))
    units = output_scaling(queries.tasks)
    return -0.5 * units.outputs(queries.y) ** 2 - 0.5 * math.log(2.0 * math.pi) - np.log(units.y_std)


class HeldOut(NamedTuple):
    """Predictions of every query of every split of the held-out tasks; padding is NaN."""

    likelihood: Likelihood
    means: np.ndarray  # of t, with the log exposure, (components, rows, queries)
    variances: np.ndarray  # the same
    parameters: np.ndarray  # (components, rows, parameters)
    log_weights: np.ndarray  # (components, rows)

    negligible = 0.0  # loss of `merge_similar`

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

    @staticmethod
    def join(members: "Sequence[HeldOut]", weights: np.ndarray) -> "HeldOut":
        """Return the weighted average of predictive distributions."""
        pairs = [(member, weight) for member, weight in zip(members, weights.tolist(), strict=True) if weight > 0]
        arrays = [np.concatenate(each) for each in zip(*(member[1:4] for member, _ in pairs), strict=True)]
        log_weights = np.concatenate([member.log_weights + np.log(weight) for member, weight in pairs])
        return HeldOut(members[0].likelihood, *arrays, log_weights=log_weights)

    @staticmethod
    def gather(parts: "Sequence[tuple[np.ndarray, HeldOut]]", n_rows: int) -> "HeldOut":
        """Put the predictions of folds together; mixtures of fewer components get components of no weight."""
        n_components, first = max(len(part.means) for _, part in parts), parts[0][1]
        arrays = [np.full((n_components, n_rows, *each.shape[2:]), np.nan) for each in first[1:4]]
        log_weights = np.full((n_components, n_rows), -np.inf)
        for rows, part in parts:
            n = len(part.means)
            for whole, own in zip(arrays, part[1:4], strict=True):
                whole[:n, rows], whole[n:, rows] = own, own[:1]
            log_weights[:n, rows] = part.log_weights
        return HeldOut(first.likelihood, *arrays, log_weights=log_weights)

    @staticmethod
    def distances(members: "Sequence[HeldOut]", asked: np.ndarray) -> np.ndarray:
        """Return mean squared distances between the members' normal approximations, (members, members).

        Means differ in units of the average standard deviation, standard deviations by their logarithms.
        """
        means, logs = zip(*(member.moments(asked) for member in members), strict=True)
        scale = np.exp(np.mean(logs, axis=0))
        means, logs = np.array(means) / scale, np.array(logs)
        between = [(means - m) ** 2 + 2.0 * (logs - s) ** 2 for m, s in zip(means, logs, strict=True)]
        return np.array([part.mean(axis=1) for part in between])


class HeldOutLabels(NamedTuple):
    """The same for labels: the log probabilities of all classes at every query."""

    log_p: np.ndarray  # (rows, queries, classes)

    negligible = 1e-4  # in squared Hellinger distances: a hundredth of a standard error or so

    def log_densities(self, y: np.ndarray) -> np.ndarray:
        """Return the log probabilities of labels, (rows, queries); NaN for padding."""
        asked = np.isfinite(y)
        codes = np.where(asked, y, 0.0).astype(int)
        return np.where(asked, np.take_along_axis(self.log_p, codes[..., None], -1)[..., 0], np.nan)

    @staticmethod
    def join(members: "Sequence[HeldOutLabels]", weights: np.ndarray) -> "HeldOutLabels":
        """Return the members' average probabilities."""
        with np.errstate(divide="ignore"):
            log_weights = np.log(weights)[:, None, None, None]
            return HeldOutLabels(log_sum_exp(np.stack([member.log_p for member in members]) + log_weights, axis=0))

    @staticmethod
    def distances(members: "Sequence[HeldOutLabels]", asked: np.ndarray) -> np.ndarray:
        """Return mean squared distances of the roots of the members' probabilities, (members, members)."""
        roots = np.array([np.exp(0.5 * member.log_p[asked]) for member in members])
        return np.array([np.mean(np.sum((roots - root) ** 2, axis=-1), axis=1) for root in roots])


LOG_SPREADS = np.arange(-10, 21) / 20
SPREAD_STD = 0.2  # prior standard deviation of the log factor: few held-out tasks change little
PER_TASK = 1.5  # independent observations that the readings of a held-out task count as


def best_spread(average: HeldOut, queries: Queries, n_tasks: float) -> float:
    """Return the factor by which averaged predictions must be stretched to fit the held-out tasks best.

    Averages over candidates are too wide where each is well calibrated, and too narrow where tasks are too few to show
    how much tasks vary. A normal prior keeps the log factor near its expectation, given the number of tasks that the
    members were fitted to.
    """
    expected, values = math.log(expected_spread(n_tasks)), []
    for log_spread in LOG_SPREADS.tolist():
        found = queries.plain_scores(average.stretched(math.exp(log_spread)))
        values.append(PER_TASK * float(found.sum()) - 0.5 * ((log_spread - expected) / SPREAD_STD) ** 2)
    return math.exp(peak(LOG_SPREADS, np.array(values))[1])


def expected_spread(n_tasks: float) -> float:
    """Return the factor by which predictions are expected to be too narrow.

    Theta is a point, so that the variance between tasks, about half of the whole, is too small by 1 + 1 / n.
    """
    return (1.0 + 1.0 / n_tasks) ** 0.25


def peak(grid: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Return the largest value on an even grid and where it is, by a parabola through the three largest."""
    best = int(np.clip(np.argmax(values), 1, len(grid) - 2))
    before, middle, after = values[best - 1 : best + 2].tolist()
    curvature, slope = before - 2.0 * middle + after, 0.5 * (after - before)
    step = float(np.clip(-slope / curvature, -1.0, 1.0)) if curvature < 0.0 else 0.0
    return middle + slope * step + 0.5 * curvature * step**2, float(grid[best] + step * (grid[1] - grid[0]))
