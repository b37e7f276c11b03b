"""A fitted prior of labels: for a new task a Gaussian process for the latent function of every class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metaprior.hierarchical.class_probabilities import log_probabilities
from metaprior.hierarchical.hierarchical_prior import HierarchicalPrior, Points
from metaprior.hierarchical.softmax import Curvature, Labels, find_modes
from metaprior.tasks.scaling import Scaling

MAX_COVARIANCE = 10  # classes up to which the covariance of their latent functions is used


class LabelPosterior(NamedTuple):
    """A prior of labels conditioned on contexts, by Laplace's approximation."""

    context: Points
    possible: np.ndarray  # (tasks, classes)
    coefficients: np.ndarray  # a, (tasks, classes, n)
    parts: np.ndarray  # E_c, (tasks, classes, n, n)
    root_sum: np.ndarray | None  # L with L L' = (sum_c E_c)^-1, (tasks, n, n); None for two classes
    converged: np.ndarray  # (1, tasks)


class Latent(NamedTuple):
    """Gaussian latent functions of all classes at queries."""

    mean: np.ndarray  # (tasks, queries, classes); minus infinity for classes that a task does not have
    covariance: np.ndarray | None  # (tasks, queries, classes, classes), unless classes are many


@dataclass(frozen=True, eq=False)
class LabelPrior:
    """A hierarchical prior of the latent functions of classes, and how their scale is calibrated.

    Predictions average softmax(factor t) over t ~ N(m, ratio V), where m and V are Laplace's mean and covariance. A
    factor of one and a ratio of one is Laplace's approximation as it is.
    """

    process: HierarchicalPrior  # of the latent function of each class; its own mean is not used
    weights: np.ndarray  # (classes, m): mean weights; (1, m) of the difference of two; (0, m) without a common rule
    factor: float = 1.0
    ratio: float = 1.0

    @property
    def scaling(self) -> Scaling:
        """The scaling of the tasks it was fitted to."""
        return self.process.scaling

    @property
    def input_dim(self) -> int:
        """Number of input columns."""
        return self.process.input_dim

    @property
    def n_components(self) -> int:
        """One: theta is a point."""
        return 1

    @property
    def counts(self) -> np.ndarray | None:
        """(environments,): how much the evidence of a task of each has counted."""
        return self.process.counts

    def condition_labels(
        self, x: np.ndarray, y: np.ndarray, mask: np.ndarray, n_classes: np.ndarray, most: int = 0
    ) -> LabelPosterior:
        """Condition on standardized contexts x (tasks, n, d), with classes y and mask (tasks, n).

        `n_classes` (tasks,) are the numbers of classes of the tasks, `most` the number that arrays have at least.
        """
        context = self.process.describe(np.asarray(x, np.float64), mask.astype(np.float64))
        most = max(int(n_classes.max()), len(self.weights), most)
        labels = Labels.of(y, context.mask, n_classes, most, sum(self.process.covariance(context, context)))
        mean = self._mean(context, labels.y.shape[1])
        a, converged = find_modes(labels, mean)
        found = Curvature.at(labels, mean + labels.deviation(a))
        possible = np.arange(most) < n_classes[:, None]
        return LabelPosterior(context, possible, a, found.parts, found.root_sum, converged[None])

    def latent(self, posterior: LabelPosterior, x: np.ndarray) -> Latent:
        """Predict the latent functions at standardized queries x (tasks, queries, d), before calibration."""
        x = np.asarray(x, np.float64)
        queries = self.process.describe(x, np.ones(x.shape[:2]))
        is_binary = posterior.root_sum is None
        unit = 2.0 if is_binary else 1.0  # of the variance: t is the difference of two classes, or one of several
        cross = unit * sum(self.process.covariance(posterior.context, queries))
        mean = self._mean(queries, posterior.coefficients.shape[1]) + posterior.coefficients @ cross
        covariance = None
        if self.ratio > 0.0 and mean.shape[1] <= MAX_COVARIANCE:
            explained = posterior.parts @ cross[:, None]  # E_c k(X, x)
            own = unit * sum(self.process.variance(queries))[:, None] - np.sum(cross[:, None] * explained, axis=2)
            covariance = np.swapaxes(np.maximum(own, 0.0), 1, 2)[..., None] * np.eye(mean.shape[1])
            if posterior.root_sum is not None:
                shared = np.swapaxes(posterior.root_sum, 1, 2)[:, None] @ explained
                covariance += np.einsum("tciq,tdiq->tqcd", shared, shared)
        mean = np.swapaxes(mean, 1, 2)
        if is_binary:  # the first class has a latent function of zero
            mean = np.concatenate([np.zeros_like(mean), mean], axis=-1)
            covariance = None if covariance is None else np.pad(covariance, ((0, 0), (0, 0), (1, 0), (1, 0)))
        return Latent(np.where(posterior.possible[:, None], mean, -np.inf), covariance)

    def class_log_probabilities(self, posterior: LabelPosterior, x: np.ndarray) -> np.ndarray:
        """Return the log probabilities of all classes at x (tasks, queries, d), (classes, tasks, queries)."""
        return np.moveaxis(calibrated(self.latent(posterior, x), self.factor, self.ratio), -1, 0)

    def take(self, posteriors: Sequence[LabelPosterior], places: np.ndarray) -> LabelPosterior:
        """Join posteriors and pick tasks."""
        contexts = [posterior.context for posterior in posteriors]
        context = Points(*(np.concatenate(parts)[places] for parts in zip(*contexts, strict=True)))
        *rest, converged = zip(*(posterior[1:] for posterior in posteriors), strict=True)
        joined = (None if parts[0] is None else np.concatenate(parts)[places] for parts in rest)
        return LabelPosterior(context, *joined, np.concatenate(converged, axis=1)[:, places])

    def float32_problem(self, largest_context: int, standardized: bool) -> str | None:
        """Return None: hierarchical priors always compute in double precision."""
        return None

    def _mean(self, points: Points, n_latent: int) -> np.ndarray:
        """Return F m of every latent function, (tasks, functions, n)."""
        if not len(self.weights):
            return np.zeros((len(points.mask), n_latent, points.mask.shape[1]))
        return self.weights @ np.swapaxes(points.features, 1, 2)


def calibrated(latent: Latent, factor: float, ratio: float) -> np.ndarray:
    """Return log class probabilities (tasks, queries, classes), with the latent functions scaled."""
    used = latent.covariance is not None and ratio > 0.0
    covariance = latent.covariance * (ratio * factor**2) if used else None
    return log_probabilities(factor * latent.mean, covariance)
