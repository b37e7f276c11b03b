"""The search of the default for counts, ranks and readings with outliers: `FamilySearch` with responses."""

from collections.abc import Sequence

import numpy as np

from metaprior.likelihoods.base import Likelihood
from metaprior.prior.families import LINEAR, NO_COVARIATES, SMOOTH, FamilyFit, TrainingTasks, fit_families
from metaprior.prior.site_modes import HyperPrior
from metaprior.search.candidates import Choice
from metaprior.search.family_choice import FamilyChoice, candidates, n_tasks_of
from metaprior.search.family_search import FamilySearch, Option, outweighed_families, task_counts
from metaprior.search.folds import DEFAULT_RULE
from metaprior.search.held_out import Queries, expected_log_spread, log_exposure
from metaprior.tasks.column_kinds import ColumnKinds, without_column
from metaprior.tasks.context_rules import ContextRule
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task

FOLD_ITERATIONS = 2  # from the mode of all tasks: each takes several times as long as with readings


class ResponseSearch(FamilySearch):
    """`FamilySearch` for another likelihood. `exposure` is a column of X."""

    features = False

    def __init__(
        self,
        environments: Sequence[Sequence[Task]],
        target: int,
        likelihood: Likelihood,
        exposure: int | None,
        seed: int,
        held_out: int | None = None,
        rule: ContextRule = DEFAULT_RULE,
        kinds: ColumnKinds | None = None,
    ):
        self.likelihood, self.exposure = likelihood, exposure
        super().__init__(environments, target, None, seed, held_out, rule, kinds)

    def fit(
        self,
        environments: Sequence[Sequence[Task]],
        option: Option,
        sizes: Sequence[int] | None,
        near: FamilyFit | None,
        max_iterations: int,
        separate: bool | None,
        covariates: str = NO_COVARIATES,
    ) -> FamilyFit:
        """Fit all families to tasks; `sizes` are the numbers of tasks with those that are held out."""
        if near is not None and sizes is not None:  # without a fold
            max_iterations = FOLD_ITERATIONS
        given = self.likelihood, self.exposure, sizes, self.kinds
        training = training_responses(environments, self.target, option, *given)
        return fit_families(training, option.environment, None, near, max_iterations, separate, covariates)

    def free_energy(self, full: FamilyFit) -> float:
        """Return NaN: the evidence of responses is a bound, whose free energy was not derived."""
        return float("nan")

    def outweighed(self, full: FamilyFit, complete: Sequence[str]) -> set[str]:
        """Return the families that the evidence rules out."""
        return outweighed_families(FamilyFit({name: full.priors[name] for name in complete}, full.modes))

    def _make_queries(self) -> Queries:
        return Queries(self.tasks, self.folds, self.likelihood, self.exposure)


def training_responses(
    environments: Sequence[Sequence[Task]],
    target: int,
    option: Option,
    likelihood: Likelihood,
    exposure: int | None,
    sizes: Sequence[int] | None = None,
    kinds: ColumnKinds | None = None,
) -> TrainingTasks:
    """Standardize the inputs of environments with weight, and choose the units of t.

    `kinds` are those of all columns of X, with the exposure.
    """
    kept, counts, of_environment, is_target = task_counts(environments, target, option, sizes)
    tasks = [task for tasks in kept for task in tasks]
    y, lengths = np.concatenate([task.y for task in tasks]), [len(task.y) for task in tasks]
    hyper_prior = HyperPrior(*likelihood.initial(y, np.repeat(counts, lengths)))
    inputs, offsets = zip(*(split_exposure(task.x, exposure) for task in tasks), strict=True)
    latent = np.split(likelihood.latent(y, hyper_prior.center), np.cumsum(lengths)[:-1])
    of_tasks = iter([Task(x, t - offset) for x, t, offset in zip(inputs, latent, offsets, strict=True)])
    units = [[next(of_tasks) for _ in tasks] for tasks in kept]
    scaling = fit_scaling(units, option.weights, without_column(kinds, exposure))
    if likelihood.unit_noise:
        scaling = scaling._replace(y_mean=np.asarray(0.0), y_std=np.asarray(1.0))
    scaled = [Task(scaling.inputs(x), task.y) for x, task in zip(inputs, tasks, strict=True)]
    given = scaling, scaled, counts, is_target, of_environment
    return TrainingTasks(*given, likelihood, hyper_prior, offsets, exposure)


def split_exposure(x: np.ndarray, exposure: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs without the exposure, and its logarithm."""
    return (x if exposure is None else np.delete(x, exposure, axis=1)), log_exposure(x, exposure)


def responses_without_test(
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[Option],
    likelihood: Likelihood,
    exposure: int | None,
    kinds: ColumnKinds | None = None,
) -> FamilyChoice:
    """Average the two simplest families at all options: there are no tasks to hold out."""
    given = likelihood, exposure, None, kinds
    training = [training_responses(environments, target, option, *given) for option in options]
    fits = [fit_families(tasks, o.environment) for tasks, o in zip(training, options, strict=True)]
    used = [(name, fit.priors[name]) for fit in fits for name in (LINEAR, SMOOTH) if name in fit.priors]
    priors, weights = [prior for _, prior in used], np.full(len(used), 1.0 / len(used))
    names = [name for name, _ in used]
    found = {name: names.count(name) / len(names) for fit in fits for name in fit.priors}
    spread = float(np.exp(expected_log_spread(n_tasks_of(priors, weights, environments))))
    equal = np.full(len(options), 1.0 / len(options))
    return FamilyChoice(Choice(candidates(options), equal, None), priors, weights, found, spread)
