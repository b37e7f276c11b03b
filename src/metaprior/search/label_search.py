"""The search of the default for labels: families and environment weights, calibrated and scored on held-out tasks."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from metaprior.prior.families import NO_COVARIATES
from metaprior.prior.label_families import LabelFit, LabelTasks, fit_label_families
from metaprior.prior.label_prior import LabelPrior
from metaprior.prior.label_process import calibrated
from metaprior.prior.modes import MAX_ITERATIONS
from metaprior.search.candidates import Choice
from metaprior.search.family_choice import FamilyChoice, candidates
from metaprior.search.family_search import FamilySearch, Option, task_counts
from metaprior.search.folds import DEFAULT_RULE, Folds, make_label_folds
from metaprior.search.held_out_labels import LABELS_PER_TASK, FoldPrediction, LabelQueries, number_of_classes
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.context_rules import ContextRule
from metaprior.tasks.scaling import fit_label_scaling
from metaprior.tasks.types import Task


class LabelSearch(FamilySearch):
    """`FamilySearch` for labels. `n_shared` is the number of classes that all tasks share, None if each has its own."""

    per_task = LABELS_PER_TASK
    labels = True
    features = False

    def __init__(
        self,
        environments: Sequence[Sequence[Task]],
        target: int,
        n_shared: int | None,
        seed: int,
        held_out: int | None = None,
        calibrate: bool = True,
        rule: ContextRule = DEFAULT_RULE,
        kinds: ColumnKinds | None = None,
    ):
        self.n_shared, self.calibrate = n_shared, calibrate
        super().__init__(environments, target, None, seed, held_out, rule, kinds)

    def fit(
        self,
        environments: Sequence[Sequence[Task]],
        option: Option,
        sizes: Sequence[int] | None,
        near: LabelFit | None,
        max_iterations: int,
        separate: bool | None,
        covariates: str = NO_COVARIATES,
    ) -> LabelFit:
        """Fit all families to tasks; `sizes` are the numbers of tasks with those that are held out."""
        training = label_tasks(environments, self.target, option, self.n_shared, sizes, self.kinds)
        only = near.priors if near is not None and max_iterations < MAX_ITERATIONS else None  # without a fold
        return fit_label_families(training, self.n_shared is not None, near, max_iterations, separate, only)

    def tested(
        self, prior: LabelPrior, parts: Sequence[tuple[np.ndarray, FoldPrediction]]
    ) -> tuple[LabelPrior, np.ndarray]:
        """Return the calibrated prior, and its predictions of all held-out tasks."""
        if not self.calibrate:
            return prior, calibrated(self.queries.gather(parts, prior.shrink), prior.factor, prior.ratio)
        found, log_p = self.queries.calibrate(parts)
        return replace(prior, **found._asdict()), log_p

    def free_energy(self, full: LabelFit) -> float:
        """Return NaN: the evidence of labels is itself an approximation."""
        return float("nan")

    def outweighed(self, full: LabelFit, complete: Sequence[str]) -> set[str]:
        """Return none: families that the evidence rules out are not fitted."""
        return set()

    def _n_inputs(self) -> int:
        """Return the number of columns: those of a category have scales of their own here."""
        return super()._n_inputs() if self.kinds is None else sum(self.kinds.widths)

    def _make_folds(self, seed: int) -> Folds:
        """Split held-out tasks as new ones will be: by class if each has its own, or as many of every class.

        Elsewhere the share of a class in the context would tell its share among the queries too well, and probabilities
        would be calibrated to be too certain.
        """
        n_shared = self.n_shared
        by_class = n_shared is None or all(
            len(set(np.bincount(task.y.astype(int), minlength=n_shared))) == 1 for task in self.tasks
        )
        return make_label_folds(self.tasks, seed, by_class, self.rule)

    def _make_queries(self) -> LabelQueries:
        return LabelQueries(self.tasks, self.folds, self.n_shared)


def label_tasks(
    environments: Sequence[Sequence[Task]],
    target: int,
    option: Option,
    n_shared: int | None,
    sizes: Sequence[int] | None = None,
    kinds: ColumnKinds | None = None,
) -> LabelTasks:
    """Standardize the tasks of environments with weight within their classes, and count them as `training_tasks`."""
    kept, counts, of_environment, _ = task_counts(environments, target, option, sizes)
    scaling = fit_label_scaling(kept, option.weights, True, kinds)
    tasks = [scaling.task(task) for tasks in kept for task in tasks]
    n_classes = np.array([number_of_classes(task, n_shared) for task in tasks])
    return LabelTasks(scaling, tasks, n_classes, counts, of_environment)


def labels_without_test(
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[Option],
    n_shared: int | None,
    kinds: ColumnKinds | None = None,
) -> FamilyChoice:
    """Average all families without a common rule at all options, as they are: there are no tasks to hold out."""
    training = [label_tasks(environments, target, option, n_shared, None, kinds) for option in options]
    fits = [fit_label_families(tasks, False) for tasks in training]
    names = [name for fit in fits for name in fit.priors]
    priors = [prior for fit in fits for prior in fit.priors.values()]
    weights = np.full(len(priors), 1.0 / len(priors))
    found = {name: names.count(name) / len(names) for name in names}
    equal = np.full(len(options), 1.0 / len(options))
    return FamilyChoice(Choice(candidates(options), equal, None), priors, weights, found, 1.0)
