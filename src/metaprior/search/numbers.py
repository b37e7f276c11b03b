"""What users would fit without metaprior: a linear mixed model and a hierarchical GP, of all tasks pooled.

Every task counts once, and the target has no mean of its own. They are left as they are: not averaged, not calibrated,
and with one noise for all tasks. The hierarchical GP is the smooth family of hierarchical priors.

The search for numbers: readings, counts and ranks, by their likelihood.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

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
from metaprior.prior.modes import MAX_ITERATIONS
from metaprior.prior.shapes import ONE_SCALE
from metaprior.prior.sites import HyperPrior
from metaprior.search.held_out import (
    PER_TASK,
    Folds,
    HeldOut,
    Queries,
    expected_log_spread,
    gather,
    log_exposure,
    make_folds,
)
from metaprior.search.report import free_energy
from metaprior.search.search import Option, Search, task_counts
from metaprior.tasks.categories import ColumnKinds, without_column
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.splits import ContextRule
from metaprior.tasks.types import Task

MIXED_MODEL, HIERARCHICAL_GP = "mixed model", "hierarchical GP"


FOLD_ITERATIONS, FOLD_SITE_ITERATIONS = 4, 2  # with sites each takes several times as long
OUTWEIGHED = 10.0  # nats by which the log Gibbs density of a larger family rules a family out
NESTED = ((LINEAR, SMOOTH), (SMOOTH, CURVE))


@dataclass(frozen=True)
class Numbers:
    """Tasks of numbers, see `Problem`. `noise_std` is that of Gaussian noise, `exposure` a column of X."""

    likelihood: Likelihood = field(default_factory=Gaussian)
    noise_std: float | None = None
    exposure: int | None = None
    labels = False
    per_task = PER_TASK
    has_environment_effects = True

    @property
    def outputs(self) -> str:
        """What messages call y."""
        return self.likelihood.outputs

    @property
    def fold_iterations(self) -> int:
        """Without a fold, from the mode of all tasks."""
        return FOLD_ITERATIONS if self.likelihood.normal else FOLD_SITE_ITERATIONS

    @property
    def learns_features(self) -> bool:
        """Whether learned features may join."""
        return self.likelihood.normal

    @property
    def has_pooled_models(self) -> bool:
        """Whether a mixed model and a hierarchical GP are fitted beside the prior."""
        return self.likelihood.normal

    def n_inputs(self, tasks: Sequence[Task], kinds: ColumnKinds | None) -> int:
        """Return the number of inputs that may have scales of their own."""
        return tasks[0].x.shape[1] if kinds is None else len(kinds.input_widths)

    def has_covariates(self, kinds: ColumnKinds | None) -> bool:
        """Return whether there are covariates."""
        return kinds is not None and bool(kinds.covariates)

    def folds(self, tasks: Sequence[Task], seed: int, rule: ContextRule) -> Folds:
        """Deal held-out tasks into folds, and split each into context and queries."""
        return make_folds(tasks, seed, False, rule)

    def queries(self, tasks: Sequence[Task], folds: Folds) -> Queries:
        """Return what predicts and scores held-out tasks."""
        return Queries(tasks, folds, self.likelihood, self.exposure)

    def training(
        self,
        environments: Sequence[Sequence[Task]],
        target: int,
        option: Option,
        kinds: ColumnKinds | None,
        sizes: Sequence[int] | None = None,
    ) -> TrainingTasks:
        """Standardize the tasks of environments with weight; but for Gaussian noise, choose the units of t.

        `kinds` are those of all columns of X, with the exposure.
        """
        kept, counts, of_environment, is_target = task_counts(environments, target, option, sizes)
        if self.likelihood.normal:
            scaling = fit_scaling(kept, option.weights, kinds)
            scaled = scaling.tasks([task for tasks in kept for task in tasks])
            return TrainingTasks(scaling, scaled, counts, is_target, of_environment)
        tasks = [task for tasks in kept for task in tasks]
        y, lengths = np.concatenate([task.y for task in tasks]), [len(task.y) for task in tasks]
        hyper_prior = HyperPrior(*self.likelihood.initial(y, np.repeat(counts, lengths)))
        offsets = [log_exposure(task.x, self.exposure) for task in tasks]
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
        """Fit all families to the tasks of environments with weight; `sizes` are the numbers with held-out ones."""
        training = self.training(environments, target, option, kinds, sizes)
        given = option.environment, self.noise_std, near, max_iterations, separate, covariates
        return fit_families(training, *given)

    def tested(self, queries: Queries, prior: Any, parts: Sequence[tuple[np.ndarray, HeldOut]]) -> tuple[Any, HeldOut]:
        """Return the prior, and its predictions of all held-out tasks."""
        return prior, gather(parts, len(queries.splits))

    def untested(self, fit: FamilyFit) -> list[str]:
        """Return the two simplest families."""
        return [name for name in (LINEAR, SMOOTH) if name in fit.priors]

    def outweighed(self, fit: FamilyFit) -> set[str]:
        """Return the families whose Gibbs density is far below that of a family which contains them.

        The evidence of all tasks tells these apart where held-out tasks are too few to.
        """
        values = {name: mode.value for name, mode in fit.modes.items() if name in fit.priors}
        nested = [(name, larger) for name, larger in NESTED if name in values and larger in values]
        return {name for name, larger in nested if values[larger] - values[name] > OUTWEIGHED}

    def free_energy(self, fit: FamilyFit, environments: Sequence[Sequence[Task]]) -> float:
        """Return the weighted free energy of readings; a bound's was not derived."""
        return free_energy(fit, environments) if self.likelihood.normal else float("nan")

    def expected_spread(self, n_tasks: float) -> float:
        """Return the factor by which predictions are expected to be too narrow."""
        return float(np.exp(expected_log_spread(n_tasks)))


def pooled_models(
    problem: Numbers,
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[Option],
    kinds: ColumnKinds | None = None,
    search: Search | None = None,
) -> dict[str, Prior]:
    """Return the models by name, of all environments that have weight in an option; none that cannot be fitted.

    A search with an option of equal weights has fitted the hierarchical GP, without covariates of tasks. Where there
    are covariates they shift the mean, as the fixed effects of a mixed model do.
    """
    effect = SHIFT if kinds is not None and kinds.covariates else NO_COVARIATES
    pooled = pooled_option([len(tasks) for tasks in environments], options)
    training = problem.training(environments, target, pooled, kinds)
    fitted = [] if search is None else zip(search.options, search.fits, strict=True)
    known = [fit for option, fit in fitted if effect == NO_COVARIATES and _is_same(option, pooled)]
    models = {}
    with suppress(np.linalg.LinAlgError):
        models[MIXED_MODEL] = fit_mixed_model(training, problem.noise_std, effect)
    smooth = _smooth(training, problem.noise_std, effect, next(iter(known), None))
    if smooth is not None:
        models[HIERARCHICAL_GP] = replace(smooth, scales=ONE_SCALE)
    return models


def _smooth(training: TrainingTasks, noise_std: float | None, effect: str, found: FamilyFit | None) -> Prior | None:
    """Return the prior of the smooth family, of a fit that is known or of a new one; None if it cannot be fitted."""
    if found is None:
        try:
            found = fit_families(training, False, noise_std, covariates=effect, simple=True)
        except np.linalg.LinAlgError:
            return None
    return found.priors.get(SMOOTH)


def pooled_option(counts: Sequence[int], options: Sequence[Option]) -> Option:
    """Return the weights with which every task of an environment that has weight in an option counts once."""
    used = np.max([option.weights for option in options], axis=0) > 0
    weights = used * np.asarray(counts, float)
    return Option(tuple((weights / weights.sum()).tolist()))


def _is_same(option: Option, pooled: Option) -> bool:
    return not option.environment and np.allclose(option.weights, pooled.weights, rtol=0.0, atol=1e-9)
