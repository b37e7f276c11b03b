"""Predictions of held-out tasks: mixtures at every query, their log densities, averages and calibration."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.likelihoods.base import Likelihood
from metaprior.likelihoods.gaussian import Gaussian
from metaprior.linalg import log_sum_exp
from metaprior.predict.mixtures import stretch
from metaprior.search.averaging import contaminated
from metaprior.search.folds import Folds
from metaprior.tasks.padding import pad_to
from metaprior.tasks.types import Task, TestTask

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
