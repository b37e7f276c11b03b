"""The latent functions of a new task of labels, by Laplace's approximation; exported files contain this text, too.

A fitted prior of labels: for a new task a Gaussian process for the latent function of every class.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from metaprior.likelihoods.softmax import Labels, find_modes, log_probabilities, precision_roots
from metaprior.linalg import FLOPS
from metaprior.prior.fitted import FittedTerms, taken_points
from metaprior.prior.process import Points, Process, far_first
from metaprior.tasks.scaling import Scaling

MAX_COVARIANCE = 10  # classes up to which the covariance of their latent functions is used
FAR = 30.0  # standard deviations from which on inputs count by their logarithm


class LabelPosterior(NamedTuple):
    """A prior of labels conditioned on contexts, by Laplace's approximation."""

    context: Points
    possible: np.ndarray  # (tasks, classes)
    coefficients: np.ndarray  # a, (tasks, classes, n); one row for two classes
    roots: np.ndarray | None  # V_c of `precision_roots`, (tasks, classes, n, n), where variances are used
    root_sum: np.ndarray | None  # L with L L' = (sum_c E_c)^-1, (tasks, n, n); None for two classes
    converged: np.ndarray  # (1, tasks)


class Latent(NamedTuple):
    """Gaussian latent functions of all classes at queries."""

    mean: np.ndarray  # (tasks, queries, classes); minus infinity for classes that a task does not have
    covariance: np.ndarray | None  # (tasks, queries, classes, classes), unless classes are many


class LabelProcess(NamedTuple):
    """The latent functions of the classes of a new task, and how their scale is calibrated.

    Predictions average softmax(factor t) over t ~ N(m, ratio V). Laplace's mean m and covariance V are those of latent
    functions shrunk by `shrink`, with the standard deviation that it leaves them. With all three at one that is
    Laplace's approximation as it is. With factor * shrink = 1, the labels of contexts have the probabilities
    softmax(t / factor) where those of queries have softmax(t): contexts tell less than a model that is right would say.
    """

    process: Process  # whose mean is that of every class; of the difference of two; (0, columns) without a common rule
    factor: float
    ratio: float
    shrink: float

    def condition(
        self, x: np.ndarray, y: np.ndarray, mask: np.ndarray, n_classes: np.ndarray, most: int = 0
    ) -> LabelPosterior:
        """Condition on standardized contexts x (tasks, n, columns), with classes y and mask (tasks, n).

        `n_classes` (tasks,) are the numbers of classes of the tasks, `most` the number that arrays have at least.
        """
        x, y, mask = far_first(x, y, mask)
        context = self.process.describe(within_reach(x), mask)
        most = max(int(n_classes.max()), len(self.process.common_mean), most)
        covariance = self.shrink**2 * np.add(*self.process.covariance(context, context))
        labels = Labels.of(y, mask, n_classes, most, covariance)
        mean = self.mean(context, labels.y.shape[1])
        a, converged = find_modes(labels, mean)
        used = self.ratio > 0.0 and most <= MAX_COVARIANCE
        roots = precision_roots(labels, mean + labels.deviation(a)) if used else (None, None)
        possible = np.arange(most) < n_classes[:, None]
        return LabelPosterior(context, possible, a, *roots, converged[None])

    def latent(self, posterior: LabelPosterior, x: np.ndarray) -> Latent:
        """Predict the latent functions at standardized queries x (tasks, queries, columns), before calibration."""
        queries = self.process.describe(within_reach(x))
        is_binary = posterior.coefficients.shape[1] == 1
        unit = self.shrink**2 * (2.0 if is_binary else 1.0)  # t is the difference of two classes, or one of several
        cross = unit * np.add(*self.process.covariance(posterior.context, queries))
        mean = self.mean(queries, posterior.coefficients.shape[1]) + posterior.coefficients @ cross
        covariance = None
        if posterior.roots is not None:
            solved = posterior.roots @ cross[:, None]  # V_c k(X, x)
            own = unit * np.add(*self.process.variance(queries))[:, None] - np.sum(solved**2, axis=2)
            covariance = np.swapaxes(np.maximum(own, 0.0), 1, 2)[..., None] * np.eye(mean.shape[1])
            if posterior.root_sum is not None:
                across = np.swapaxes(posterior.roots @ posterior.root_sum[:, None], 2, 3) @ solved  # L' E_c k(X, x)
                by_query = np.ascontiguousarray(np.moveaxis(across, 3, 1))
                covariance += by_query @ np.swapaxes(by_query, 2, 3)
        mean = np.swapaxes(mean, 1, 2)
        if is_binary:  # the first class has a latent function of zero
            mean = np.concatenate([np.zeros_like(mean), mean], axis=-1)
            covariance = None if covariance is None else np.pad(covariance, ((0, 0), (0, 0), (1, 0), (1, 0)))
        return Latent(np.where(posterior.possible[:, None], mean, -np.inf), covariance)

    def mean(self, points: Points, n_latent: int) -> np.ndarray:
        """Return the mean of every latent function, (tasks, functions, n)."""
        rule = self.process.common_mean
        if not len(rule):
            return np.zeros((len(points.x), n_latent, points.x.shape[1]))
        if len(rule) != n_latent:  # a single row, of the difference of two classes, would serve any number
            known, asked = (max(number, 2) for number in (len(rule), n_latent))
            raise ValueError(f"n_classes must be at most {known}, which this prior has a common rule for; got {asked}.")
        return self.shrink * rule @ np.swapaxes(points.common, 1, 2)

    def log_probabilities(self, posterior: LabelPosterior, x: np.ndarray) -> np.ndarray:
        """Return the log probabilities of all classes at x, (tasks, queries, classes)."""
        return calibrated(self.latent(posterior, x), self.factor, self.ratio)


def within_reach(x: np.ndarray) -> np.ndarray:
    """Return standardized inputs in double precision, those farther than FAR at FAR (1 + log(|x| / FAR)), in order.

    The variance of a line through them is a sum of their squares, of which nothing but the largest would be left.
    """
    x = np.asarray(x, np.float64)
    size = np.abs(x)
    if np.max(size, initial=0.0) <= FAR:
        return x
    return np.where(size > FAR, np.sign(x) * FAR * (1.0 + np.log(np.maximum(size, FAR) / FAR)), x)


def calibrated(latent: Latent, factor: float, ratio: float) -> np.ndarray:
    """Return log class probabilities (tasks, queries, classes), with the latent functions scaled."""
    if latent.covariance is None or ratio == 0.0:
        return log_probabilities(factor * latent.mean, None)
    return log_probabilities(factor * latent.mean, ratio * factor**2 * latent.covariance)


NEWTON_STEPS = 8  # until a large context is conditioned on
MAX_WORK = 6.5e9  # of a step: 2,000 labels of two classes, 1,000 of five, 400 of a hundred


@dataclass(frozen=True, eq=False)
class LabelPrior:
    """A prior of the latent functions of classes, and how their scale is calibrated, see `LabelProcess`."""

    terms: FittedTerms  # of the latent function of each class; the weights of its own mean are not used
    weights: np.ndarray  # (classes, m): mean weights; (1, m) of the difference of two; (0, m) without a common rule
    factor: float = 1.0
    ratio: float = 1.0
    shrink: float = 1.0

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without what is cached

    @property
    def scaling(self) -> Scaling:
        """The scaling of the tasks it was fitted to."""
        return self.terms.scaling

    @property
    def input_dim(self) -> int:
        """Number of input columns."""
        return self.terms.n_inputs

    @property
    def n_components(self) -> int:
        """One: theta is a point."""
        return 1

    @property
    def counts(self) -> np.ndarray | None:
        """(environments,): how much the evidence of a task of each has counted."""
        return self.terms.counts

    @cached_property
    def process(self) -> LabelProcess:
        """The latent functions of a new task."""
        fold = self.terms.target_map
        root = fold @ self.terms.weights_root if len(self.weights) else np.zeros((len(fold), 0))
        calibration = self.factor, self.ratio, self.shrink
        return LabelProcess(self.terms.process_with(self.weights @ fold.T, root), *calibration)

    def condition_labels(
        self, x: np.ndarray, y: np.ndarray, mask: np.ndarray, n_classes: np.ndarray, most: int = 0
    ) -> LabelPosterior:
        """Condition on standardized contexts, see `LabelProcess.condition`."""
        return self.process.condition(x, y, mask, n_classes, most)

    def latent(self, posterior: LabelPosterior, x: np.ndarray) -> Latent:
        """Predict the latent functions at standardized queries x (tasks, queries, columns), before calibration."""
        return self.process.latent(posterior, x)

    def class_log_probabilities(self, posterior: LabelPosterior, x: np.ndarray) -> np.ndarray:
        """Return the log probabilities of all classes at x (tasks, queries, columns), (classes, tasks, queries)."""
        return np.moveaxis(self.process.log_probabilities(posterior, x), -1, 0)

    def take(self, posteriors: Sequence[LabelPosterior], places: np.ndarray) -> LabelPosterior:
        """Join posteriors and pick tasks."""
        context = taken_points([posterior.context for posterior in posteriors], places)
        _, *rest, converged = zip(*posteriors, strict=True)
        joined: list[Any] = [None if parts[0] is None else np.concatenate(parts)[places] for parts in rest]
        return LabelPosterior(context, *joined, converged=np.concatenate(converged, axis=1)[:, places])

    def most_labels(self, n_classes: np.ndarray) -> np.ndarray:
        """Return how many labels of tasks with so many classes can be conditioned on in seconds, in hundreds."""
        return ((MAX_WORK / _latent_functions(n_classes)) ** (1.0 / 3.0) // 100 * 100).astype(int)

    def expected_seconds(self, sizes: np.ndarray, n_classes: np.ndarray) -> float:
        """Return about how long contexts of such sizes take, one after the other."""
        operations = NEWTON_STEPS * _latent_functions(n_classes) * sizes.astype(np.float64) ** 3
        return float(np.sum(operations)) / FLOPS

    def float32_problem(self, largest_context: int, standardized: bool) -> str | None:
        """Return None: hierarchical priors always compute in double precision."""
        return None


def _latent_functions(n_classes: np.ndarray) -> np.ndarray:
    """Return how much work tasks are, in units of one latent function of several; measured for two classes."""
    return np.where(n_classes == 2, 0.8, n_classes + 2.0 / 3.0)
