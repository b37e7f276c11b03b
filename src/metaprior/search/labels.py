"""The search for labels of any number of classes, whose probabilities are calibrated on held-out tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from metaprior.linalg import log_sum_exp
from metaprior.prior.families import NO_COVARIATES, FamilyFit
from metaprior.prior.label_evidence import LabelTasks, fit_label_families
from metaprior.prior.label_prior import LabelPrior, Latent, calibrated
from metaprior.prior.modes import MAX_ITERATIONS
from metaprior.search.averaging import contaminated
from metaprior.search.held_out import Folds, make_label_folds
from metaprior.search.search import Option, task_counts
from metaprior.tasks.categories import ColumnKinds
from metaprior.tasks.scaling import fit_label_scaling
from metaprior.tasks.splits import ContextRule
from metaprior.tasks.types import Task, pad_to

LABELS_PER_TASK = 5.0  # independent labels that those of a held-out task count as, at most
SHRINKS = (1.0, 0.55, 0.3, 0.17)
RATIOS = (1.0, 0.3, 0.1, 0.03, 0.0)
LOG_SCALES = 0.5 * np.log(2.0) * np.arange(-6.0, 9.0)  # of factor * shrink
# What is expected before held-out labels are seen: medians of factor * shrink and shrink, standard deviations of their
# logs, and that of the place in `RATIOS`. As fitted: one, one and the first place. If contexts are separable, a context
# tells its classes apart whatever they are, and the evidence tells little about scales. Medians and the last place
# were chosen on validation classes (docs/classification.md).
SEPARABLE_SCALE, SEPARABLE_SHRINK = 1.4, 0.4
SCALE_SPREAD, SHRINK_SPREAD, PLACE_SPREAD = 0.25, 0.5, 1.0
MAX_CALIBRATED = 2000  # queries that a calibration is found on


class Calibration(NamedTuple):
    """How the latent functions of a prior are scaled, see `LabelPrior`."""

    factor: float
    ratio: float
    shrink: float


class FoldPrediction(NamedTuple):
    """A prior that was fitted without some held-out tasks, and what it predicts for these before calibration."""

    prior: LabelPrior
    means: list[np.ndarray]  # of the latent functions with each of `SHRINKS`


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
        self.n_samples = float(np.median([len(task.y) for task in tasks]))
        self.reference = np.where(self.asked, -np.log(self.n_classes)[:, None], np.nan)

    def rows_of(self, tasks: np.ndarray) -> np.ndarray:
        """Return the rows of some tasks."""
        return np.flatnonzero(np.isin(self.owner, tasks))

    def predict(self, prior: LabelPrior, rows: np.ndarray) -> FoldPrediction:
        """Return a prior without a fold, and the means that it predicts with every shrinkage."""
        shrunk = [replace(prior, shrink=shrink, ratio=0.0) for shrink in SHRINKS]  # a ratio of 0 needs no covariances
        return FoldPrediction(prior, [self._latent(each, rows).mean for each in shrunk])

    def _latent(self, prior: LabelPrior, rows: np.ndarray) -> Latent:
        splits = [self.splits[row] for row in rows.tolist()]
        contexts = [Task(prior.scaling.inputs(split.x_context), split.y_context) for split in splits]
        x, y, mask = pad_to(contexts, max(1, *(len(context.y) for context in contexts)), np.float64)
        queries = [Task(prior.scaling.inputs(split.x_query), split.y_query) for split in splits]
        x_query, *_ = pad_to(queries, self.y.shape[1], np.float64)
        posterior = prior.condition_labels(x, y, mask, self.n_classes[rows], int(self.n_classes.max()))
        return prior.latent(posterior, x_query)

    def gather(self, folds: Sequence[tuple[np.ndarray, FoldPrediction]], shrink: float) -> Latent:
        """Return the latent functions of all rows, with one shrinkage."""
        found = [self._latent(replace(fold.prior, shrink=shrink), rows) for rows, fold in folds]
        order = _order(folds)
        covariances = [latent.covariance for latent in found if latent.covariance is not None]
        mean = np.concatenate([latent.mean for latent in found])[order]
        return Latent(mean, np.concatenate(covariances)[order] if covariances else None)

    def calibrate(self, folds: Sequence[tuple[np.ndarray, FoldPrediction]]) -> tuple[Calibration, np.ndarray]:
        """Return the calibration with which the held-out labels are most probable, and log probabilities with it.

        Every task counts as some independent labels, and a prior keeps the scale near what is common: few held-out
        tasks change little. The shrinkage is the best without covariances, the ratio the best with that shrinkage.
        """
        rule = len(folds[0][1].prior.weights) > 0
        separable = 0.0 if rule else separability(folds[0][1].prior.input_dim, self.n_samples)
        sample, order = _Sample.of(self, separable), _order(folds)
        means = [np.concatenate([fold.means[i] for _, fold in folds])[order] for i in range(len(SHRINKS))]
        pairs = zip(means, SHRINKS, strict=True)
        _, shrink = max((sample.best(Latent(mean, None), 0.0, shrink), shrink) for mean, shrink in pairs)
        latent = self.gather(folds, shrink)
        found = []
        for place, ratio in enumerate(RATIOS):
            penalty = _place_penalty(place, separable)
            if np.isfinite(penalty) and (latent.covariance is not None or ratio == 0.0):
                value, log_scale = sample.best(latent, ratio, shrink)
                found.append((value - penalty, log_scale, ratio))
        _, log_scale, ratio = max(found)
        factor = float(np.exp(log_scale)) / shrink
        return Calibration(factor, ratio, shrink), calibrated(latent, factor, ratio)

    def scores(self, log_probabilities: np.ndarray) -> np.ndarray:
        """Return the mean contaminated log probability of the labels of every task, (tasks,)."""
        return self.by_task(contaminated(self.of_labels(log_probabilities), self.reference))

    def plain_scores(self, log_probabilities: np.ndarray) -> np.ndarray:
        """Return the mean log probability of the labels of every task as it is, (tasks,)."""
        return self.by_task(self.of_labels(log_probabilities))

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


class _Sample(NamedTuple):
    """Some of the queries, on which calibrations are compared."""

    rows: np.ndarray
    columns: np.ndarray
    y: np.ndarray
    share: np.ndarray  # of each label: those of a task sum to their number, or to `LABELS_PER_TASK`
    separable: float

    @classmethod
    def of(cls, queries: LabelQueries, separable: float) -> "_Sample":
        rows, columns = np.nonzero(queries.asked)
        counted = np.minimum(np.bincount(queries.owner[rows]), LABELS_PER_TASK)
        chosen = np.random.default_rng(0).permutation(len(rows))[:MAX_CALIBRATED]
        rows, columns = rows[chosen], columns[chosen]
        owner = queries.owner[rows]
        share = (counted / np.maximum(np.bincount(owner, minlength=len(counted)), 1))[owner]
        return cls(rows, columns, queries.y[rows, columns].astype(int), share, separable)

    def best(self, latent: Latent, ratio: float, shrink: float) -> tuple[float, float]:
        """Return the largest log posterior density of the scale, up to a constant, and the log scale."""
        covariance = None if latent.covariance is None or ratio == 0.0 else latent.covariance[self.rows, self.columns]
        some = Latent(latent.mean[self.rows, self.columns], covariance)
        log_scale, log_shrink = self.separable * np.log([SEPARABLE_SCALE, SEPARABLE_SHRINK])
        values = -0.5 * ((LOG_SCALES - log_scale) / SCALE_SPREAD) ** 2
        for i, factor in enumerate(np.exp(LOG_SCALES) / shrink):
            log_p = np.take_along_axis(calibrated(some, float(factor), ratio), self.y[:, None], -1)[:, 0]
            values[i] += self.share @ log_p
        value, log_scale = peak(LOG_SCALES, values)
        return value - 0.5 * ((np.log(shrink) - log_shrink) / SHRINK_SPREAD) ** 2, log_scale


def separability(n_inputs: int, n_samples: float) -> float:
    """Return 0 for tasks with at least as many samples as inputs, 1 with at most half as many, and shares between."""
    return float(np.clip(np.log2(n_inputs / n_samples), 0.0, 1.0))


def _place_penalty(place: int, separable: float) -> float:
    """Return minus the log prior density of a place in `RATIOS`, up to a constant; infinite for all but one if 1."""
    distance, spread = place - separable * (len(RATIOS) - 1), PLACE_SPREAD * (1.0 - separable)
    return 0.0 if distance == 0.0 else 0.5 * (distance / spread) ** 2 if spread > 0.0 else np.inf


def _order(folds: Sequence[tuple[np.ndarray, FoldPrediction]]) -> np.ndarray:
    return np.argsort(np.concatenate([rows for rows, _ in folds]))


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


FOLD_ITERATIONS = 4


@dataclass(frozen=True)
class Labels:
    """Tasks of labels, see `Problem`."""

    n_shared: int | None  # number of classes that all tasks share, None if each has its own
    calibrate: bool = True
    outputs = "labels"
    labels = True
    per_task = LABELS_PER_TASK
    fold_iterations = FOLD_ITERATIONS
    learns_features = False
    has_pooled_models = False
    has_environment_effects = False

    def n_inputs(self, tasks: Sequence[Task], kinds: ColumnKinds | None) -> int:
        """Return the number of columns: those of a category have scales of their own here."""
        return tasks[0].x.shape[1] if kinds is None else sum(kinds.widths)

    def has_covariates(self, kinds: ColumnKinds | None) -> bool:
        """Return False: covariates are inputs like others."""
        return False

    def folds(self, tasks: Sequence[Task], seed: int, rule: ContextRule) -> Folds:
        """Split held-out tasks as new ones will be: by class if each has its own, or as many of every class.

        Elsewhere the share of a class in the context would tell its share among the queries too well, and probabilities
        would be calibrated to be too certain.
        """
        n_shared = self.n_shared
        by_class = n_shared is None or all(
            len(set(np.bincount(task.y.astype(int), minlength=n_shared))) == 1 for task in tasks
        )
        return make_label_folds(tasks, seed, by_class, rule)

    def queries(self, tasks: Sequence[Task], folds: Folds) -> LabelQueries:
        """Return what predicts and scores held-out tasks."""
        return LabelQueries(tasks, folds, self.n_shared)

    def training(
        self,
        environments: Sequence[Sequence[Task]],
        target: int,
        option: Option,
        kinds: ColumnKinds | None,
        sizes: Sequence[int] | None = None,
    ) -> LabelTasks:
        """Standardize the tasks of environments with weight within their classes."""
        kept, counts, of_environment, _ = task_counts(environments, target, option, sizes)
        scaling = fit_label_scaling(kept, option.weights, True, kinds)
        tasks = scaling.tasks([task for tasks in kept for task in tasks])
        n_classes = np.array([number_of_classes(task, self.n_shared) for task in tasks])
        return LabelTasks(scaling, tasks, n_classes, counts, of_environment)

    def fit(
        self,
        environments: Sequence[Sequence[Task]],
        target: int,
        option: Option,
        kinds: ColumnKinds | None,
        sizes: Sequence[int] | None = None,
        near: FamilyFit | None = None,
        max_iterations: int = MAX_ITERATIONS,
        separate: bool | None = None,
        covariates: str = NO_COVARIATES,
        tested: bool = True,
    ) -> FamilyFit:
        """Fit all families to the tasks of environments with weight; those with a common rule need to be tested."""
        training = self.training(environments, target, option, kinds, sizes)
        only = near.priors if near is not None and max_iterations < MAX_ITERATIONS else None  # without a fold
        shared = self.n_shared is not None and tested
        return fit_label_families(training, shared, near, max_iterations, separate, only)

    def tested(
        self, queries: LabelQueries, prior: LabelPrior, parts: Sequence[tuple[np.ndarray, FoldPrediction]]
    ) -> tuple[LabelPrior, np.ndarray]:
        """Return the calibrated prior, and its predictions of all held-out tasks."""
        if not self.calibrate:
            return prior, calibrated(queries.gather(parts, prior.shrink), prior.factor, prior.ratio)
        found, log_p = queries.calibrate(parts)
        return replace(prior, **found._asdict()), log_p

    def untested(self, fit: FamilyFit) -> list[str]:
        """Return all families."""
        return list(fit.priors)

    def outweighed(self, fit: FamilyFit) -> set[str]:
        """Return none: families that the evidence rules out are not fitted."""
        return set()

    def free_energy(self, fit: Any, environments: Sequence[Sequence[Task]]) -> float:
        """Return NaN: the evidence of labels is itself an approximation."""
        return float("nan")

    def expected_spread(self, n_tasks: float) -> float:
        """Return one: probabilities are calibrated prior by prior."""
        return 1.0
