"""What the search fits and calibrates: tasks of numbers, by their likelihood, or tasks of labels."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from metaprior.likelihoods.base import Likelihood
from metaprior.likelihoods.gaussian import Gaussian
from metaprior.prior.families import (
    CURVE,
    LINEAR,
    NO_COVARIATES,
    SHIFT,
    SMOOTH,
    FamilyFit,
    TrainingTasks,
    fit_families,
    fit_mixed_model,
)
from metaprior.prior.fitted import Prior
from metaprior.prior.label_evidence import fit_label_families
from metaprior.prior.label_prior import LabelPrior, Latent, calibrated
from metaprior.prior.modes import MAX_ITERATIONS
from metaprior.prior.shapes import ONE_SCALE
from metaprior.prior.sites import HyperPrior
from metaprior.search.averaging import Candidate
from metaprior.search.held_out import (
    PER_TASK,
    Folds,
    HeldOut,
    HeldOutLabels,
    Queries,
    best_spread,
    expected_spread,
    make_folds,
    peak,
    split_labels,
)
from metaprior.tasks.categories import ColumnKinds, without_column
from metaprior.tasks.scaling import fit_label_scaling, fit_scaling
from metaprior.tasks.splits import ContextRule
from metaprior.tasks.types import Task

Environments = Sequence[Sequence[Task]]
Parts = Sequence[tuple[np.ndarray, Any]]  # rows of the queries of every fold, and the prior that was fitted without it

FOLD_ITERATIONS, FOLD_SITE_ITERATIONS = 4, 2  # with sites each takes several times as long
OUTWEIGHED = 10.0  # nats by which the log Gibbs density of a larger family rules a family out
NESTED = ((LINEAR, SMOOTH), (SMOOTH, CURVE))
SIMPLE = (LINEAR, SMOOTH)  # families whose functions were not found in y
LABELS_PER_TASK = 5.0  # independent labels that those of a held-out task count as, at most


class Request(NamedTuple):
    """What a fit of all families is asked for."""

    environments: Environments
    target: int
    option: Candidate
    kinds: ColumnKinds | None = None
    sizes: Sequence[int] | None = None  # numbers of tasks of the environments, with those that are held out
    near: FamilyFit | None = None  # a fit to similar tasks to start from
    max_iterations: int = MAX_ITERATIONS
    separate: bool | None = None  # whether every input has its own scales; None: if they are few
    covariates: str = NO_COVARIATES  # what they do to the common mean
    tested: bool = True  # whether families will be scored on held-out tasks; if not, only simple ones are needed


class Problem(ABC):
    """What y holds, numbers or labels: how its families are fitted, tested and calibrated."""

    labels: ClassVar[bool] = True
    per_task: ClassVar[float]  # independent observations that a held-out task counts as

    @property
    def outputs(self) -> str:
        """What messages call y."""
        return "labels"

    @property
    def normal(self) -> bool:
        """Whether y are readings with Gaussian noise: these may have learned features and pooled models."""
        return False

    @property
    def fold_iterations(self) -> int:
        """Iterations of a fit without a fold, from the mode of all tasks."""
        return FOLD_ITERATIONS

    def has_covariates(self, kinds: ColumnKinds | None) -> bool:
        """Return whether there are covariates that the common mean may depend on; for labels they are inputs."""
        return not self.labels and kinds is not None and bool(kinds.covariates)

    def outweighed(self, fit: FamilyFit) -> set[str]:
        """Return the families that the evidence rules out."""
        return set()

    def spread(self, n_tasks: float, queries: Queries | None = None, average: Any = None) -> float:
        """Return the factor by which an average of priors fitted to so many tasks must be stretched.

        Without `queries` it is the factor that is expected. It is one for labels, which are calibrated prior by prior.
        """
        return 1.0

    @abstractmethod
    def n_inputs(self, tasks: Sequence[Task], kinds: ColumnKinds | None) -> int:
        """Return the number of inputs that may have scales of their own."""

    @abstractmethod
    def folds(self, tasks: Sequence[Task], seed: int, rule: ContextRule) -> Folds:
        """Deal held-out tasks into folds, and split each into context and queries."""

    @abstractmethod
    def reference(self, queries: Queries) -> np.ndarray:
        """Return the log density of every query in a broad distribution."""

    @abstractmethod
    def fit(self, asked: Request) -> FamilyFit:
        """Fit all families to the tasks of environments with weight."""

    @abstractmethod
    def tested(self, queries: Queries, prior: Any, parts: Parts) -> tuple[Any, Any]:
        """Return the prior, calibrated if it is one of labels, and predictions of all held-out tasks."""


@dataclass(frozen=True)
class Numbers(Problem):
    """Tasks of readings, counts or ranks. `noise_std` is that of Gaussian noise, `exposure` a column of X."""

    likelihood: Likelihood = field(default_factory=Gaussian)
    noise_std: float | None = None
    exposure: int | None = None
    labels = False
    per_task = PER_TASK

    @property
    def outputs(self) -> str:
        """What messages call y."""
        return self.likelihood.outputs

    @property
    def normal(self) -> bool:
        """Whether y are readings with Gaussian noise."""
        return self.likelihood.normal

    @property
    def fold_iterations(self) -> int:
        """Iterations of a fit without a fold, from the mode of all tasks."""
        return FOLD_ITERATIONS if self.normal else FOLD_SITE_ITERATIONS

    def n_inputs(self, tasks: Sequence[Task], kinds: ColumnKinds | None) -> int:
        """Return the number of inputs that are no covariates."""
        return tasks[0].x.shape[1] if kinds is None else len(kinds.input_widths)

    def folds(self, tasks: Sequence[Task], seed: int, rule: ContextRule) -> Folds:
        """Give held-out tasks half of their readings as context."""
        return make_folds(tasks, seed, False, rule)

    def reference(self, queries: Queries) -> np.ndarray:
        """Return the log density of every query in the distribution of all observations, without inputs."""
        offset = np.zeros(queries.y.shape)
        for row, split in enumerate(queries.splits):
            offset[row, : len(split.y_query)] = self._log_exposure(split.x_query)
        broad = self.likelihood.broad(
            [task.y for task in queries.tasks], [self._log_exposure(task.x) for task in queries.tasks]
        )
        moments = broad.mean + offset, np.array(broad.variance)
        return broad.likelihood.log_density(np.where(queries.asked, queries.y, 0.0), *moments, broad.parameters)

    def training(
        self,
        environments: Environments,
        target: int,
        option: Candidate,
        kinds: ColumnKinds | None = None,
        sizes: Sequence[int] | None = None,
    ) -> TrainingTasks:
        """Standardize the tasks of environments with weight; but for Gaussian noise, choose the units of t.

        `kinds` are those of all columns of X, with the exposure.
        """
        kept, counts, of_environment = task_counts(environments, option, sizes)
        is_target = np.repeat(np.arange(len(kept)) == target, [len(tasks) for tasks in kept]).astype(np.float64)
        tasks = [task for tasks in kept for task in tasks]
        if self.normal:
            scaling = fit_scaling(kept, option.weights, kinds)
            return TrainingTasks(scaling, scaling.tasks(tasks), counts, is_target, of_environment)
        y, lengths = np.concatenate([task.y for task in tasks]), [len(task.y) for task in tasks]
        hyper_prior = HyperPrior(*self.likelihood.initial(y, np.repeat(counts, lengths)))
        offsets = [self._log_exposure(task.x) for task in tasks]
        inputs = [task.x if self.exposure is None else np.delete(task.x, self.exposure, axis=1) for task in tasks]
        latent = np.split(self.likelihood.latent(y, hyper_prior.center), np.cumsum(lengths)[:-1])
        in_units_of_t = iter([Task(x, t - offset) for x, t, offset in zip(inputs, latent, offsets, strict=True)])
        units = [[next(in_units_of_t) for _ in tasks] for tasks in kept]
        scaling = fit_scaling(units, option.weights, without_column(kinds, self.exposure))
        if self.likelihood.unit_noise:
            scaling = scaling._replace(y_mean=np.asarray(0.0), y_std=np.asarray(1.0))
        scaled = [Task(scaling.inputs(x), task.y) for x, task in zip(inputs, tasks, strict=True)]
        given = scaling, scaled, counts, is_target, of_environment
        return TrainingTasks(*given, self.likelihood, hyper_prior, offsets, self.exposure)

    def fit(self, asked: Request) -> FamilyFit:
        """Fit all families to the tasks of environments with weight."""
        training = self.training(*asked[:5])
        given = asked.near, asked.max_iterations, asked.separate, asked.covariates
        return fit_families(training, asked.option.environment, self.noise_std, *given)

    def tested(self, queries: Queries, prior: Prior, parts: Parts) -> tuple[Prior, HeldOut]:
        """Return the prior, and predictions of all held-out tasks."""
        found = [(rows, queries.predict(without, rows, self.likelihood)) for rows, without in parts]
        return prior, HeldOut.gather(found, len(queries.splits))

    def outweighed(self, fit: FamilyFit) -> set[str]:
        """Return the families whose Gibbs density is far below that of a family which contains them.

        The evidence of all tasks tells these apart where held-out tasks are too few to.
        """
        values = {name: mode.value for name, mode in fit.modes.items() if name in fit.priors}
        nested = [(name, larger) for name, larger in NESTED if name in values and larger in values]
        return {name for name, larger in nested if values[larger] - values[name] > OUTWEIGHED}

    def spread(self, n_tasks: float, queries: Queries | None = None, average: Any = None) -> float:
        """Return the factor by which an average of priors fitted to so many tasks must be stretched."""
        return expected_spread(n_tasks) if queries is None else best_spread(average, queries, n_tasks)

    def _log_exposure(self, x: np.ndarray) -> np.ndarray:
        return np.zeros(len(x)) if self.exposure is None else np.log(x[:, self.exposure])


@dataclass(frozen=True)
class Labels(Problem):
    """Tasks of labels of any number of classes. Each prior is calibrated on held-out tasks."""

    n_shared: int | None  # number of classes that all tasks share, None if each has its own
    calibrate: bool = True
    per_task = LABELS_PER_TASK

    def n_inputs(self, tasks: Sequence[Task], kinds: ColumnKinds | None) -> int:
        """Return the number of columns: those of a category have scales of their own here."""
        return tasks[0].x.shape[1] if kinds is None else sum(kinds.widths)

    def n_classes(self, tasks: Sequence[Task]) -> np.ndarray:
        """Return how many classes each task has: those that all share, or its own, coded 0, 1, ..."""
        return np.array([int(task.y.max()) + 1 if self.n_shared is None else self.n_shared for task in tasks])

    def folds(self, tasks: Sequence[Task], seed: int, rule: ContextRule) -> Folds:
        """Split held-out tasks as new ones will be: by class if each has its own, or as many of every class.

        Otherwise the share of a class in the context would tell its share among the queries too well, and calibrated
        probabilities would be too certain.
        """
        n_shared = self.n_shared
        by_class = n_shared is None or all(
            len(set(np.bincount(task.y.astype(int), minlength=n_shared))) == 1 for task in tasks
        )
        return make_folds(tasks, seed, True, rule, partial(split_labels, by_class=by_class))

    def reference(self, queries: Queries) -> np.ndarray:
        """Return the log probabilities of classes that are equally likely."""
        return -np.log(self.n_classes(queries.tasks))[queries.owner, None]

    def fit(self, asked: Request) -> FamilyFit:
        """Fit the families, standardized within classes; those with a common rule only if they will be tested."""
        option = asked.option
        kept, counts, of_environment = task_counts(asked.environments, option, asked.sizes)
        scaling = fit_label_scaling(kept, option.weights, True, asked.kinds)
        tasks = scaling.tasks([task for tasks in kept for task in tasks])
        training = TrainingTasks(
            scaling, tasks, counts, np.zeros(len(tasks)), of_environment, n_classes=self.n_classes(tasks)
        )
        near, max_iterations = asked.near, asked.max_iterations
        only = near.priors if near is not None and max_iterations < MAX_ITERATIONS else None  # without a fold
        shared = self.n_shared is not None and asked.tested
        return fit_label_families(training, shared, near, max_iterations, asked.separate, only)

    def latent(self, queries: Queries, rows: np.ndarray, prior: LabelPrior) -> Latent:
        """Return the latent functions that a prior predicts at some rows."""
        x, y, mask, x_query, _ = queries.padded(rows, prior.scaling)
        n_classes = self.n_classes(queries.tasks)
        posterior = prior.condition_labels(x, y, mask, n_classes[queries.owner[rows]], int(n_classes.max()))
        return prior.latent(posterior, x_query)

    def tested(self, queries: Queries, prior: LabelPrior, parts: Parts) -> tuple[LabelPrior, HeldOutLabels]:
        """Return the calibrated prior, and predictions of all held-out tasks."""
        latent = partial(self.latent, queries)
        if self.calibrate:
            found, log_p = calibrate(queries, parts, latent)
            return replace(prior, **found._asdict()), HeldOutLabels(log_p)
        return prior, HeldOutLabels(calibrated(gather(parts, latent, prior.shrink), prior.factor, prior.ratio))


def task_counts(
    environments: Environments, option: Candidate, sizes: Sequence[int] | None
) -> tuple[list[list[Task]], np.ndarray, np.ndarray]:
    """Return the tasks of environments with weight, and how much each of them, and one of each environment, counts.

    The evidence of a task of environment e counts w_e / N_e, relative to the largest: once in the environment that
    counts most. Without a fold, tasks count as much as with it: `sizes` are the N_e with all tasks.
    """
    kept = [list(tasks) if weight > 0 else [] for tasks, weight in zip(environments, option.weights, strict=True)]
    numbers = [len(tasks) for tasks in environments] if sizes is None else sizes
    of_task = np.array([w / max(n, 1) for w, n in zip(option.weights, numbers, strict=True)])
    counts = of_task / of_task.max()
    return kept, np.repeat(counts, [len(tasks) for tasks in kept]), counts


SHRINKS = (1.0, 0.55, 0.3, 0.17)
RATIOS = (1.0, 0.3, 0.1, 0.03, 0.0)
LOG_SCALES = 0.5 * np.log(2.0) * np.arange(-6.0, 9.0)  # of factor * shrink
# What is expected before held-out labels are seen: medians of factor * shrink and shrink, standard deviations of their
# logs, and that of the place in `RATIOS`. As fitted: one, one and the first place. If contexts are separable, a context
# tells its classes apart whatever they are, and the evidence tells little about scales. Medians and the last place
# were chosen on validation classes (docs/results/classification.md).
SEPARABLE_SCALE, SEPARABLE_SHRINK = 1.4, 0.4
SCALE_SPREAD, SHRINK_SPREAD, PLACE_SPREAD = 0.25, 0.5, 1.0
MAX_CALIBRATED = 2000  # queries that a calibration is found on

LatentOf = Callable[[np.ndarray, LabelPrior], Latent]  # at rows of the queries


class Calibration(NamedTuple):
    """How the latent functions of a prior are scaled, see `LabelPrior`."""

    factor: float
    ratio: float
    shrink: float


def gather(parts: Parts, latent: LatentOf, shrink: float, **changed: Any) -> Latent:
    """Return the latent functions of all rows, with one shrinkage."""
    found = [latent(rows, replace(prior, shrink=shrink, **changed)) for rows, prior in parts]
    order = np.argsort(np.concatenate([rows for rows, _ in parts]))
    covariances = [each.covariance for each in found if each.covariance is not None]
    mean = np.concatenate([each.mean for each in found])[order]
    return Latent(mean, np.concatenate(covariances)[order] if covariances else None)


def calibrate(queries: Queries, parts: Parts, latent: LatentOf) -> tuple[Calibration, np.ndarray]:
    """Return the calibration with which the held-out labels are most probable, and log probabilities with it.

    Every task counts as some independent labels, and a prior keeps the scale near what is common: few held-out tasks
    change little. The shrinkage is the best without covariances, the ratio the best with that shrinkage.
    """
    prior = parts[0][1]
    n_samples = float(np.median([len(task.y) for task in queries.tasks]))
    separable = 0.0 if len(prior.weights) else separability(prior.input_dim, n_samples)  # weights: a common rule
    sample = _Sample.of(queries, separable)
    # A ratio of 0 needs no covariances.
    found = [(sample.best(gather(parts, latent, shrink, ratio=0.0), 0.0, shrink), shrink) for shrink in SHRINKS]
    _, shrink = max(found)
    best, found = gather(parts, latent, shrink), []
    for place, ratio in enumerate(RATIOS):
        penalty = _place_penalty(place, separable)
        if np.isfinite(penalty) and (best.covariance is not None or ratio == 0.0):
            value, log_scale = sample.best(best, ratio, shrink)
            found.append((value - penalty, log_scale, ratio))
    _, log_scale, ratio = max(found)
    factor = float(np.exp(log_scale)) / shrink
    return Calibration(factor, ratio, shrink), calibrated(best, factor, ratio)


class _Sample(NamedTuple):
    """Some of the queries, on which calibrations are compared."""

    rows: np.ndarray
    columns: np.ndarray
    y: np.ndarray
    share: np.ndarray  # of each label: those of a task sum to their number, or to `LABELS_PER_TASK`
    separable: float

    @classmethod
    def of(cls, queries: Queries, separable: float) -> "_Sample":
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


MIXED_MODEL, HIERARCHICAL_GP = "mixed model", "hierarchical GP"


def pooled_models(
    problem: Numbers,
    environments: Environments,
    target: int,
    options: Sequence[Candidate],
    kinds: ColumnKinds | None = None,
    known: Sequence[tuple[Candidate, FamilyFit]] = (),
) -> dict[str, Prior]:
    """Return what users would fit without metaprior: a linear mixed model and a hierarchical GP, of all tasks pooled.

    Every task of an environment that has weight in an option counts once, and the target has no mean of its own. They
    are left as they are: not averaged, not calibrated, and with one noise for all tasks. Models that cannot be fitted
    are left out. Covariates shift the mean, as the fixed effects of a mixed model do. The hierarchical GP is the smooth
    family, which one of the `known` fits without covariates may have.
    """
    effect = SHIFT if kinds is not None and kinds.covariates else NO_COVARIATES
    pooled = pooled_option([len(tasks) for tasks in environments], options)
    training = problem.training(environments, target, pooled, kinds)
    same = [fit for option, fit in known if _is_same(option, pooled)]
    models = {}
    with suppress(np.linalg.LinAlgError):
        models[MIXED_MODEL] = fit_mixed_model(training, problem.noise_std, effect)
    with suppress(np.linalg.LinAlgError):
        if same and effect == NO_COVARIATES:
            found = same[0]
        else:
            found = fit_families(training, False, problem.noise_std, covariates=effect, simple=True)
        if SMOOTH in found.priors:
            models[HIERARCHICAL_GP] = replace(found.priors[SMOOTH], scales=ONE_SCALE)
    return models


def pooled_option(counts: Sequence[int], options: Sequence[Candidate]) -> Candidate:
    """Return the weights with which every task of an environment that has weight in an option counts once."""
    used = np.max([option.weights for option in options], axis=0) > 0
    weights = used * np.asarray(counts, float)
    return Candidate(tuple((weights / weights.sum()).tolist()))


def _is_same(option: Candidate, pooled: Candidate) -> bool:
    return not option.environment and np.allclose(option.weights, pooled.weights, rtol=0.0, atol=1e-9)
