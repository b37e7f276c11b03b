"""The search of the default for counts, ranks and readings with outliers: `FamilySearch` with responses."""

from collections.abc import Sequence

import numpy as np

from metaprior.predict.rank_responses import Ordinal
from metaprior.predict.responses import Response
from metaprior.prior.families import LINEAR, NO_COVARIATES, SMOOTH, FamilyFit, TrainingTasks, fit_families
from metaprior.prior.fitted import Prior
from metaprior.prior.site_modes import HyperPrior
from metaprior.search.candidates import Choice
from metaprior.search.family_choice import FamilyChoice, candidates, n_tasks_of
from metaprior.search.family_search import FamilySearch, Option, outweighed_families, task_counts
from metaprior.search.folds import DEFAULT_RULE
from metaprior.search.held_out import expected_log_spread
from metaprior.search.held_out_responses import HeldOutResponses, ResponseQueries, gather_responses
from metaprior.tasks.column_kinds import ColumnKinds, without_column
from metaprior.tasks.context_rules import ContextRule
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task

FOLD_ITERATIONS = 2  # from the mode of all tasks: each takes several times as long as with readings


class ResponseSearch(FamilySearch):
    """`FamilySearch` for a response. `exposure` is a column of X."""

    features = False

    def __init__(
        self,
        environments: Sequence[Sequence[Task]],
        target: int,
        response: Response,
        exposure: int | None,
        seed: int,
        held_out: int | None = None,
        rule: ContextRule = DEFAULT_RULE,
        kinds: ColumnKinds | None = None,
    ):
        self.response, self.exposure = response, exposure
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
        given = self.response, self.exposure, sizes, self.kinds
        training = training_responses(environments, self.target, option, *given)
        return fit_families(training, option.environment, None, near, max_iterations, separate, covariates)

    def tested(
        self, prior: Prior, parts: Sequence[tuple[np.ndarray, HeldOutResponses]]
    ) -> tuple[Prior, HeldOutResponses]:
        """Return the prior, and its predictions of all held-out tasks."""
        return prior, gather_responses(parts, len(self.queries.splits))

    def free_energy(self, full: FamilyFit) -> float:
        """Return NaN: the evidence of responses is a bound, whose free energy was not derived."""
        return float("nan")

    def outweighed(self, full: FamilyFit, complete: Sequence[str]) -> set[str]:
        """Return the families that the evidence rules out."""
        return outweighed_families(FamilyFit({name: full.priors[name] for name in complete}, full.modes))

    def _make_queries(self) -> ResponseQueries:
        return ResponseQueries(self.tasks, self.folds, self.response, self.exposure)


def training_responses(
    environments: Sequence[Sequence[Task]],
    target: int,
    option: Option,
    response: Response,
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
    hyper_prior = HyperPrior(*response.initial(y, np.repeat(counts, lengths)))
    inputs, offsets = zip(*(split_exposure(task.x, exposure) for task in tasks), strict=True)
    latent = np.split(response.latent(y, hyper_prior.center), np.cumsum(lengths)[:-1])
    of_tasks = iter([Task(x, t - offset) for x, t, offset in zip(inputs, latent, offsets, strict=True)])
    units = [[next(of_tasks) for _ in tasks] for tasks in kept]
    scaling = fit_scaling(units, option.weights, without_column(kinds, exposure))
    if isinstance(response, Ordinal):  # the noise of t is one
        scaling = scaling._replace(y_mean=np.asarray(0.0), y_std=np.asarray(1.0))
    scaled = [Task(scaling.inputs(x), task.y) for x, task in zip(inputs, tasks, strict=True)]
    given = scaling, scaled, counts, is_target, of_environment
    return TrainingTasks(*given, response, hyper_prior, offsets, exposure)


def split_exposure(x: np.ndarray, exposure: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs without the exposure, and its logarithm."""
    if exposure is None:
        return x, np.zeros(len(x))
    return np.delete(x, exposure, axis=1), np.log(x[:, exposure])


def responses_without_test(
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[Option],
    response: Response,
    exposure: int | None,
    kinds: ColumnKinds | None = None,
) -> FamilyChoice:
    """Average the two simplest families at all options: there are no tasks to hold out."""
    given = response, exposure, None, kinds
    training = [training_responses(environments, target, option, *given) for option in options]
    fits = [fit_families(tasks, o.environment) for tasks, o in zip(training, options, strict=True)]
    used = [(name, fit.priors[name]) for fit in fits for name in (LINEAR, SMOOTH) if name in fit.priors]
    priors, weights = [prior for _, prior in used], np.full(len(used), 1.0 / len(used))
    names = [name for name, _ in used]
    found = {name: names.count(name) / len(names) for fit in fits for name in fit.priors}
    spread = float(np.exp(expected_log_spread(n_tasks_of(priors, weights, environments))))
    equal = np.full(len(options), 1.0 / len(options))
    return FamilyChoice(Choice(candidates(options), equal, None), priors, weights, found, spread)
