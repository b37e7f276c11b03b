"""The search for labels of any number of classes, whose probabilities are calibrated on held-out tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metaprior.prior.families import NO_COVARIATES, FamilyFit
from metaprior.prior.label_families import LabelTasks, fit_label_families
from metaprior.prior.label_prior import LabelPrior
from metaprior.prior.label_process import calibrated
from metaprior.prior.modes import MAX_ITERATIONS
from metaprior.search.folds import Folds, make_label_folds
from metaprior.search.held_out_labels import LABELS_PER_TASK, FoldPrediction, LabelQueries, number_of_classes
from metaprior.search.search import Option, task_counts
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.context_rules import ContextRule
from metaprior.tasks.scaling import fit_label_scaling
from metaprior.tasks.types import Task

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
