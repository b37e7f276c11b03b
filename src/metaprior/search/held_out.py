"""Predictions of held-out tasks: Gaussian mixtures at every query, their log densities, averages and calibration."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.predict.mixtures import stretch
from metaprior.prior.fitted import Prior
from metaprior.prior.linalg import log_sum_exp
from metaprior.search.averaging import contaminated
from metaprior.search.folds import Folds
from metaprior.tasks.padding import pad_to
from metaprior.tasks.scaling import output_scaling
from metaprior.tasks.types import Task, TestTask

LOG_SPREADS = np.arange(-10, 21) / 20
SPREAD_STD = 0.2  # prior standard deviation of the log factor: few held-out tasks change little
PER_TASK = 1.5  # independent observations that the readings of a held-out task count as


class HeldOut(NamedTuple):
    """A mixture at every query of every split of the held-out tasks; padding is NaN."""

    means: np.ndarray  # (components, rows, queries)
    variances: np.ndarray  # of observations, the same
    log_weights: np.ndarray  # (components, rows)

    def log_densities(self, y: np.ndarray) -> np.ndarray:
        """Return log p(y), (rows, queries)."""
        normal = -0.5 * ((y - self.means) ** 2 / self.variances + np.log(2.0 * np.pi * self.variances))
        return log_sum_exp(self.log_weights[..., None] + normal, axis=0)

    def moments(self, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and log standard deviations of the queries that are asked for."""
        weights = np.exp(self.log_weights)[..., None]
        mean = np.sum(weights * self.means, axis=0)
        variance = np.sum(weights * (self.variances + (self.means - mean) ** 2), axis=0)
        return mean[asked], 0.5 * np.log(variance[asked])

    def stretched(self, factor: float) -> "HeldOut":
        """Return the mixture stretched about its mean."""
        return HeldOut(*stretch(self.means, self.variances, self.log_weights, factor), self.log_weights)


class Queries:
    """The splits of all held-out tasks, one row each."""

    negligible = 0.0  # loss of `merge_similar`

    def __init__(self, tasks: Sequence[Task], folds: Folds):
        self.splits = [split for of_task in folds.splits for split in of_task]
        self.owner = np.repeat(np.arange(len(tasks)), [len(of_task) for of_task in folds.splits])
        self.n_queries = max(len(split.y_query) for split in self.splits)
        self.y = np.full((len(self.splits), self.n_queries), np.nan)
        for row, split in enumerate(self.splits):
            self.y[row, : len(split.y_query)] = split.y_query
        self.reference = self._reference(tasks)

    def _reference(self, tasks: Sequence[Task]) -> np.ndarray:
        """Return the log density of every query in a broad reference, the normal distribution of all readings."""
        units = output_scaling(tasks)  # handles constant and very large readings
        return -0.5 * units.outputs(self.y) ** 2 - np.log(units.y_std) - 0.5 * np.log(2.0 * np.pi)

    def rows_of(self, tasks: np.ndarray) -> np.ndarray:
        """Return the rows of some tasks."""
        return np.flatnonzero(np.isin(self.owner, tasks))

    def predict(self, prior: Any, rows: np.ndarray) -> Any:
        """Return a prior's predictions of new readings, in the units of y."""
        splits = [self.splits[row] for row in rows.tolist()]
        x, y, mask = pad_to([_context(prior, split) for split in splits], max(largest_context(splits), 1), np.float64)
        queries = [Task(prior.scaling.inputs(split.x_query), split.y_query) for split in splits]
        x_query, _, is_query = pad_to(queries, self.n_queries, np.float64)
        prediction = prior.marginals(prior.condition(x, y, mask), x_query)
        variance = prediction.variance + np.asarray(prediction.noise)[:, None, None]
        means = np.where(is_query, prior.scaling.undo_mean(prediction.mean), np.nan)
        variances = np.where(is_query, prior.scaling.undo_variance(variance), np.nan)
        return HeldOut(means, variances, np.asarray(prediction.log_weights))

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


def join(members: Sequence[HeldOut], weights: np.ndarray) -> HeldOut:
    """Return the weighted average of predictive distributions."""
    pairs = [(member, weight) for member, weight in zip(members, weights.tolist(), strict=True) if weight > 0]
    members = [member for member, _ in pairs]
    log_weights = [member.log_weights + np.log(weight) for member, weight in pairs]
    means, variances = (np.concatenate([m[i] for m in members]) for i in (0, 1))
    return HeldOut(means, variances, np.concatenate(log_weights))


def gather(parts: Sequence[tuple[np.ndarray, HeldOut]], n_rows: int) -> HeldOut:
    """Put the predictions of folds together; mixtures of fewer components get components of no weight."""
    n_components = max(len(part.means) for _, part in parts)
    n_queries = parts[0][1].means.shape[2]
    means = np.full((n_components, n_rows, n_queries), np.nan)
    variances, log_weights = means.copy(), np.full((n_components, n_rows), -np.inf)
    for rows, part in parts:
        n = len(part.means)
        filler = np.broadcast_to(part.means[:1], (n_components - n, *part.means.shape[1:]))
        means[:, rows] = np.concatenate([part.means, filler])
        variances[:, rows] = np.concatenate([part.variances, np.broadcast_to(part.variances[:1], filler.shape)])
        log_weights[:n, rows] = part.log_weights
    return HeldOut(means, variances, log_weights)


def _context(prior: Prior, split: TestTask) -> Task:
    return Task(prior.scaling.inputs(split.x_context), prior.scaling.outputs(split.y_context))


def largest_context(splits: Sequence[TestTask]) -> int:
    """Return the number of readings of the largest context."""
    return max(len(split.y_context) for split in splits)
