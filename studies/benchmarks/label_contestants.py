"""Posteriors and likelihoods of labels in the place of Laplace's and the softmax, calibrated as the package does.

A contestant takes a prior and tasks, and returns the latent functions at the queries. Its calibration (`factor`,
`ratio` and `shrink` of `LabelPrior`) is chosen by the package's own `LabelQueries` on target tasks held out of the
prior's fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from class_models import GivenClasses
from gaussian_sites import Given

from metaprior.metrics import report, summarize_labels
from metaprior.prior.label_prior import LabelPrior, Latent, calibrated, within_reach
from metaprior.search.labels import FOLD_ITERATIONS, LOG_SCALES, SHRINKS, Calibration, LabelQueries, Labels, peak
from metaprior.search.search import Option, Search
from metaprior.tasks.types import Task, TestTask

METRICS = ("log_loss", "accuracy", "calibration_error")
FAMILY, EQUALLY = "smooth", Option((0.5, 0.5))

Contestant = Callable[[LabelPrior, Sequence[TestTask]], Latent]


class ContestantQueries(LabelQueries):
    """Held-out tasks that a contestant predicts in the place of Laplace's approximation."""

    def __init__(self, queries: LabelQueries, contestant: Contestant):
        vars(self).update(vars(queries))
        self.contestant = contestant
        self.found: dict[tuple[float, ...], Latent] = {}  # sampling is slow, and one shrinkage is asked for twice

    def _latent(self, prior: LabelPrior, rows: np.ndarray) -> Latent:
        key = (prior.shrink, *rows.tolist())
        found = self.found.get(key)
        if found is None or (found.covariance is None and prior.ratio > 0.0):  # a ratio of 0 needs no covariances
            found = self.found[key] = self.contestant(prior, [self.splits[row] for row in rows.tolist()])
        return found


class Fitted(NamedTuple):
    """A prior of all training tasks, and what it takes to calibrate its predictions on held-out ones."""

    prior: LabelPrior
    without: list[tuple[np.ndarray, LabelPrior]]  # rows of the queries of every fold, and the prior without it
    queries: LabelQueries

    def calibrate(self, contestant: Contestant) -> tuple[Calibration, float]:
        """Return the calibration that the package would choose, and the log loss of held-out labels with it."""
        queries = ContestantQueries(self.queries, contestant)
        found, log_p = queries.calibrate([(rows, queries.predict(prior, rows)) for rows, prior in self.without])
        return found, -float(queries.by_task(queries.of_labels(log_p)).mean())


class Predicted(NamedTuple):
    """Predictions of test tasks by one contestant, with every shrinkage."""

    tasks: Sequence[TestTask]
    latents: dict[float, Latent]

    @classmethod
    def of(cls, contestant: Contestant, prior: LabelPrior, tasks: Sequence[TestTask]) -> "Predicted":
        """Predict the tasks."""
        return cls(tasks, {shrink: contestant(replace(prior, shrink=shrink), tasks) for shrink in SHRINKS})

    def log_probabilities(self, calibration: Calibration) -> np.ndarray:
        """Return log class probabilities with a calibration."""
        return calibrated(self.latents[calibration.shrink], calibration.factor, calibration.ratio)

    def scores(self, calibration: Calibration) -> dict[str, float]:
        """Return the scores with a calibration."""
        return scores_of(self.log_probabilities(calibration), self.tasks)

    def in_hindsight(self) -> Calibration:
        """Return the factor and shrinkage with the least log loss of the test tasks themselves, at ratio 0."""
        y = np.stack([task.y_query for task in self.tasks]).astype(int)[..., None]
        found = []
        for shrink, latent in self.latents.items():
            factors = np.exp(LOG_SCALES) / shrink
            log_p = [np.take_along_axis(calibrated(latent, float(factor), 0.0), y, -1).mean() for factor in factors]
            value, log_scale = peak(LOG_SCALES, np.array(log_p))
            found.append((value, Calibration(float(np.exp(log_scale)) / shrink, 0.0, shrink)))
        return max(found)[1]


def fit_prior(source: list[Task], target: list[Task], seed: int) -> Fitted:
    """Fit one family to all tasks, and without every fold of target tasks."""
    environments = [[Task(task.x, task.y.astype(float)) for task in tasks] for tasks in (source, target)]
    problem = Labels(None)
    search = Search(problem, environments, 1, seed, 1)
    full = problem.fit(environments, 1, EQUALLY, None)
    without = []
    for members in search.folds.members:
        sizes = [len(source), len(target)]
        found = problem.fit(search.without(members), 1, EQUALLY, None, sizes, full, FOLD_ITERATIONS)
        without.append((search.queries.rows_of(members), found.priors[FAMILY]))
    return Fitted(full.priors[FAMILY], without, search.queries)


def given_classes(prior: LabelPrior, tasks: Sequence[TestTask]) -> GivenClasses:
    """Return a prior's covariances of contexts and queries; all tasks must have equal numbers of both."""
    x, x_query = stacked_inputs(prior, tasks)
    y = np.stack([task.y_context for task in tasks]).astype(int)
    process, unit = prior.process.process, prior.shrink**2
    context, queries = (process.describe(within_reach(part), np.ones(part.shape[:2])) for part in (x, x_query))
    covariance, cross = (unit * np.add(*process.covariance(context, other)) for other in (context, queries))
    return GivenClasses(covariance, cross, unit * np.add(*process.variance(queries)), y, int(y.max()) + 1)


def stacked_inputs(prior: LabelPrior, tasks: Sequence[TestTask]) -> list[np.ndarray]:
    """Return the standardized inputs of contexts and of queries."""
    return [
        np.stack([prior.scaling.inputs(x) for x in part]) for part in zip(*((t[0], t[2]) for t in tasks), strict=True)
    ]


def difference(given: GivenClasses) -> Given:
    """Return the prior of the difference of two classes, the second less the first."""
    return Given(2.0 * given.covariance, 2.0 * given.cross, 2.0 * given.variance, 2.0 * given.y - 1.0)


def of_difference(mean: np.ndarray, variance: np.ndarray) -> Latent:
    """Return the latent functions of two classes, the first of which is zero."""
    covariance = np.zeros((*mean.shape, 2, 2))
    covariance[..., 1, 1] = np.maximum(variance, 0.0)
    return Latent(np.stack([np.zeros_like(mean), mean], axis=-1), covariance)


def softmax_laplace(prior: LabelPrior, tasks: Sequence[TestTask]) -> Latent:
    """Return the default's posterior."""
    x, x_query = stacked_inputs(prior, tasks)
    y = np.stack([task.y_context for task in tasks])
    n_classes = np.full(len(tasks), int(y.max()) + 1)
    posterior = prior.condition_labels(x, y, np.ones(y.shape, bool), n_classes, int(n_classes[0]))
    return prior.latent(posterior, x_query)


def scores_of(log_p: np.ndarray, tasks: Sequence[TestTask]) -> dict[str, float]:
    """Return the scores of log probabilities (tasks, queries, classes)."""
    y = np.stack([task.y_query for task in tasks]).astype(float)
    found = report(summarize_labels(y, np.moveaxis(log_p, -1, 0), np.ones(y.shape, bool)))
    return {metric: float(found[metric]) for metric in METRICS}
