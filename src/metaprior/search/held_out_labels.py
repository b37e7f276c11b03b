"""Predictions of held-out labels: class probabilities at every query, their averages and the calibration of a prior."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from metaprior.hierarchical.label_prior import LabelPrior, Latent, calibrated
from metaprior.hierarchical.small_matrices import log_sum_exp
from metaprior.search.averaging import contaminated
from metaprior.search.folds import Folds
from metaprior.tasks.padding import pad_to
from metaprior.tasks.types import Task

LABELS_PER_TASK = 10.0  # independent labels that those of a held-out task count as
LOG_FACTORS = np.log(2.0) * np.arange(-3.0, 7.0)
RATIOS = (1.0, 0.3, 0.1, 0.03, 0.0)
FACTOR_STD = 0.5  # prior standard deviation of the log factor
MAX_CALIBRATED = 2000  # queries that a calibration is found on


class Calibration(NamedTuple):
    """How the latent functions of a prior are scaled: `LabelPrior.factor` and `ratio`."""

    factor: float
    ratio: float


class LabelQueries:
    """The splits of all held-out tasks, one row each. `n_shared` is the number of classes that all tasks share."""

    negligible = 1e-4  # loss of `merge_similar`, in squared Hellinger distances: a hundredth of a standard error or so

    def __init__(self, tasks: Sequence[Task], folds: Folds, n_shared: int | None):
        self.splits = [split for of_task in folds.splits for split in of_task]
        sizes = [len(of_task) for of_task in folds.splits]
        self.owner = np.repeat(np.arange(len(tasks)), sizes)
        self.n_classes = np.repeat([number_of_classes(task, n_shared) for task in tasks], sizes)
        self.y = np.full((len(self.splits), max(len(split.y_query) for split in self.splits)), np.nan)
        for row, split in enumerate(self.splits):
            self.y[row, : len(split.y_query)] = split.y_query
        self.asked = np.isfinite(self.y)
        self.reference = np.where(self.asked, -np.log(self.n_classes)[:, None], np.nan)

    def rows_of(self, tasks: np.ndarray) -> np.ndarray:
        """Return the rows of some tasks."""
        return np.flatnonzero(np.isin(self.owner, tasks))

    def predict(self, prior: LabelPrior, rows: np.ndarray) -> Latent:
        """Return a prior's predictions of the latent functions, before calibration."""
        splits = [self.splits[row] for row in rows.tolist()]
        contexts = [Task(prior.scaling.inputs(split.x_context), split.y_context) for split in splits]
        x, y, mask = pad_to(contexts, max(1, *(len(context.y) for context in contexts)), np.float64)
        queries = [Task(prior.scaling.inputs(split.x_query), split.y_query) for split in splits]
        x_query, *_ = pad_to(queries, self.y.shape[1], np.float64)
        n_classes = self.n_classes[rows]
        posterior = prior.condition_labels(x, y, mask, n_classes, int(self.n_classes.max()))
        return prior.latent(posterior, x_query)

    def gather(self, parts: Sequence[tuple[np.ndarray, Latent]]) -> Latent:
        """Put the predictions of folds together."""
        order = np.argsort(np.concatenate([rows for rows, _ in parts]))
        mean, covariance = (
            None if arrays[0] is None else np.concatenate(arrays)[order]
            for arrays in zip(*(latent for _, latent in parts), strict=True)
        )
        assert mean is not None
        return Latent(mean, covariance)

    def calibrate(self, latent: Latent) -> Calibration:
        """Return the factor and ratio with which the held-out labels are most probable.

        Every task counts as some independent labels, and a normal prior keeps the log factor near zero: few held-out
        tasks change little.
        """
        rows, columns = np.nonzero(self.asked)
        chosen = np.random.default_rng(0).permutation(len(rows))[:MAX_CALIBRATED]
        rows, columns = rows[chosen], columns[chosen]
        y = self.y[rows, columns].astype(int)
        share = 1.0 / np.bincount(self.owner[rows], minlength=self.owner[-1] + 1)[self.owner[rows]]
        some = Latent(*(None if part is None else part[rows, columns] for part in latent))
        found = []
        for ratio in RATIOS if latent.covariance is not None else (0.0,):
            values = []
            for log_factor in LOG_FACTORS.tolist():
                log_p = np.take_along_axis(calibrated(some, float(np.exp(log_factor)), ratio), y[:, None], -1)[:, 0]
                mixed = contaminated(log_p, -np.log(self.n_classes[rows]))
                values.append(LABELS_PER_TASK * float(share @ mixed) - 0.5 * (log_factor / FACTOR_STD) ** 2)
            found.append((*peak(LOG_FACTORS, np.array(values)), ratio))
        _, log_factor, ratio = max(found)
        return Calibration(float(np.exp(log_factor)), ratio)

    def scores(self, log_probabilities: np.ndarray) -> np.ndarray:
        """Return the mean contaminated log probability of the labels of every task, (tasks,)."""
        return self.by_task(contaminated(self.of_labels(log_probabilities), self.reference))

    def of_labels(self, log_probabilities: np.ndarray) -> np.ndarray:
        """Return the log probabilities of the labels that were observed, (rows, queries); NaN for padding."""
        codes = np.where(self.asked, self.y, 0.0).astype(int)
        found = np.take_along_axis(log_probabilities, codes[..., None], -1)[..., 0]
        return np.where(self.asked, found, np.nan)

    def by_task(self, values: np.ndarray) -> np.ndarray:
        """Average values (rows, queries) over the queries of every task."""
        return np.bincount(self.owner, np.nansum(values, axis=1)) / np.bincount(self.owner, self.asked.sum(axis=1))

    def join(self, members: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
        """Return the log of the members' average probabilities."""
        with np.errstate(divide="ignore"):
            return log_sum_exp(np.stack(members) + np.log(weights)[:, None, None, None], axis=0)

    def distances(self, members: Sequence[np.ndarray]) -> np.ndarray:
        """Return mean squared distances of the roots of the members' probabilities, (members, members)."""
        roots = np.array([np.exp(0.5 * member[self.asked]) for member in members])
        return np.array([np.mean(np.sum((roots - root) ** 2, axis=-1), axis=1) for root in roots])

    def spread(self, members: Sequence[np.ndarray], weights: np.ndarray, n_tasks: float) -> float:
        """Return one: probabilities are calibrated prior by prior."""
        return 1.0


def number_of_classes(task: Task, n_shared: int | None) -> int:
    """Return how many classes a meta-training task has: those that all share, or its own, coded 0, 1, ..."""
    return int(task.y.max()) + 1 if n_shared is None else n_shared


def peak(grid: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Return the largest value on an even grid and where it is, by a parabola through the three largest."""
    best = int(np.clip(np.argmax(values), 1, len(grid) - 2))
    before, middle, after = values[best - 1 : best + 2].tolist()
    curvature, slope = before - 2.0 * middle + after, 0.5 * (after - before)
    step = float(np.clip(-slope / curvature, -1.0, 1.0)) if curvature < 0.0 else 0.0
    return middle + slope * step + 0.5 * curvature * step**2, float(grid[best] + step * (grid[1] - grid[0]))
