"""The search of the default: families of hierarchical priors and environment weights, scored on held-out tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaprior.prior.columns import MAX_ARD
from metaprior.prior.families import (
    CURVE,
    LINEAR,
    NO_COVARIATES,
    SMOOTH,
    FamilyFit,
    TrainingTasks,
    fit_families,
)
from metaprior.prior.modes import MAX_ITERATIONS
from metaprior.search.averaging import averaging_weights
from metaprior.search.certificates import free_energy
from metaprior.search.folds import DEFAULT_RULE, Folds, make_folds
from metaprior.search.held_out import PER_TASK, Queries, gather
from metaprior.search.weights import Weights
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.context_rules import ContextRule
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task

MAX_SEPARATE = 32  # inputs up to which scales of their own are compared with shared ones
FOLD_ITERATIONS = 4  # from the mode of all tasks
COVARIATE_EVIDENCE = 3.0  # nats for covariates from which on they are considered: without an effect 1 in 20, at most
OUTWEIGHED = 10.0  # nats by which the log Gibbs density of a larger family rules a family out
NESTED = ((LINEAR, SMOOTH), (SMOOTH, CURVE))


@dataclass(frozen=True)
class Option:
    """Environment weights, and whether the target's common mean may deviate from that of the sources."""

    weights: Weights
    environment: bool = False
    from_scores: bool = False  # made from the scores of other options


@dataclass(frozen=True, eq=False)
class Scored:
    """A family at an option: fitted to all tasks, and its predictions of the held-out tasks."""

    option: int
    family: str
    prior: Any  # Prior or LabelPrior
    held_out: Any  # its predictions
    covariates: str = NO_COVARIATES  # what they do to the common mean


class FamilySearch:
    """Fits of all families at some options, with predictions of the held-out tasks of one environment.

    `target` is the environment to predict in, `held_out` the one whose tasks are held out: the same, unless the target
    has too few tasks. `LabelSearch` is the same for labels.
    """

    per_task = PER_TASK  # independent observations that a held-out task counts as
    queries: Any  # `Queries`, or what takes its place for labels
    labels = False
    features = True  # whether learned features may join

    def __init__(
        self,
        environments: Sequence[Sequence[Task]],
        target: int,
        noise_std: float | None,
        seed: int,
        held_out: int | None = None,
        rule: ContextRule = DEFAULT_RULE,
        kinds: ColumnKinds | None = None,
    ):
        self.environments, self.target, self.noise_std = environments, target, noise_std
        self.kinds = kinds  # of the input columns
        self.rule = rule  # by which held-out tasks are split into context and queries
        self.held_out = target if held_out is None else held_out
        self.tasks = environments[self.held_out]
        self.folds = self._make_folds(seed)
        self.queries = self._make_queries()
        self.options: list[Option] = []
        self.scored: list[Scored] = []
        self.fits: list[Any] = []  # of all tasks, at each option
        self.families: dict[str, None] = {}  # in the order in which they were fitted
        n_inputs = self._n_inputs()
        self.scales = (True, False) if MAX_ARD < n_inputs <= MAX_SEPARATE else (None,)
        self.free_energies: list[float] = []  # of the options, NaN if not known
        self._latest: dict[bool | None, FamilyFit] = {}
        self.evidence: dict[tuple[int, bool | None], dict[str, float]] = {}  # by option and by what covariates do

    def add(self, option: Option) -> None:
        """Fit all families to all tasks and without every fold; keep the predictions of the folds."""
        fits = [self._add(option, len(self.options), separate) for separate in self.scales]
        self.options.append(option)
        self.free_energies.append(min(self.free_energy(fit) for fit in fits))
        self.fits.append(fits[0])

    def add_covariates(self, option: int, covariates: str) -> None:
        """Fit all families again at a known option, with covariates in the common mean.

        They are scored if the evidence of all tasks speaks for covariates: with useless ones, scores on held-out tasks
        differ by chance, and the larger prior would get weight.
        """
        for separate in self.scales:
            self._add(self.options[option], option, separate, covariates)

    def _add(self, option: Option, place: int, separate: bool | None, covariates: str = NO_COVARIATES) -> Any:
        near = self._latest.get(separate)
        full = self.fit(self.environments, option, None, near, MAX_ITERATIONS, separate, covariates)
        if not self._is_considered(place, separate, covariates, largest_density(full)):
            return full
        self._latest[separate] = full
        parts: dict[str, list[tuple[np.ndarray, Any]]] = {name: [] for name in full.priors}
        for members, priors in zip(
            self.folds.members, self._without_folds(option, full, separate, covariates), strict=True
        ):
            rows = self.queries.rows_of(members)
            for name, prior in priors.items():
                if name in parts:
                    parts[name].append((rows, self.queries.predict(prior, rows)))
        complete = [name for name in parts if len(parts[name]) == len(self.folds.members)]  # fitted without every fold
        outweighed = self.outweighed(full, complete)
        for name in complete:
            if name not in outweighed:
                prior, held_out = self.tested(full.priors[name], parts[name])
                self.scored.append(Scored(place, name, prior, held_out, covariates))
        self.families |= dict.fromkeys(complete)
        return full

    def _is_considered(self, place: int, separate: bool | None, covariates: str, density: float) -> bool:
        """Return whether the evidence speaks for these effects of covariates, against none and smaller ones."""
        known = self.evidence.setdefault((place, separate), {})
        if known and density < max(known.values()) + COVARIATE_EVIDENCE:
            return False
        known[covariates] = density
        return True

    def fit(
        self,
        environments: Sequence[Sequence[Task]],
        option: Option,
        sizes: Sequence[int] | None,
        near: Any,
        max_iterations: int,
        separate: bool | None,
        covariates: str = NO_COVARIATES,
    ) -> Any:
        """Fit all families to tasks; `sizes` are the numbers of tasks with those that are held out."""
        training = training_tasks(environments, self.target, option, sizes, self.kinds)
        return fit_families(training, option.environment, self.noise_std, near, max_iterations, separate, covariates)

    def tested(self, prior: Any, parts: Sequence[tuple[np.ndarray, Any]]) -> tuple[Any, Any]:
        """Return the prior, calibrated where it is one by one, and its predictions of all held-out tasks."""
        return prior, gather(parts, len(self.queries.splits))

    def free_energy(self, full: Any) -> float:
        """Return the weighted free energy of a fit to all tasks."""
        return free_energy(full, self.environments)

    def outweighed(self, full: Any, complete: Sequence[str]) -> set[str]:
        """Return the families that the evidence rules out."""
        return outweighed_families(FamilyFit({name: full.priors[name] for name in complete}, full.modes))

    @property
    def has_covariates(self) -> bool:
        """Whether there are covariates that the common mean may depend on; for labels they are inputs."""
        return self.kinds is not None and bool(self.kinds.covariates) and not self.labels

    def _n_inputs(self) -> int:
        """Return the number of inputs that may have scales of their own."""
        return self.tasks[0].x.shape[1] if self.kinds is None else len(self.kinds.input_widths)

    def _make_folds(self, seed: int) -> Folds:
        return make_folds(self.tasks, seed, False, self.rule)

    def _make_queries(self) -> Any:
        return Queries(self.tasks, self.folds)

    def scores(self) -> np.ndarray:
        """Return the mean contaminated log density of every held-out task, (scored, tasks)."""
        if not self.scored:
            raise ValueError("No prior could be fitted: see whether X or y of the tasks are out of the ordinary.")
        return np.array([self.queries.scores(each.held_out) for each in self.scored])

    def option_scores(self, plain: bool = False) -> np.ndarray:
        """Return the same for the families of each option, averaged, (options, tasks); or `plain` log densities."""
        scores, score = self.scores(), self.queries.plain_scores if plain else self.queries.scores
        averages = []
        for option in range(len(self.options)):
            rows = [i for i, each in enumerate(self.scored) if each.option == option]
            weights = averaging_weights(scores[rows], self.per_task)
            averages.append(score(self.queries.join([self.scored[i].held_out for i in rows], weights)))
        return np.array(averages)

    def _without_folds(self, option: Option, full: Any, separate: bool | None, covariates: str) -> list[dict[str, Any]]:
        """Return the priors fitted without each fold."""
        folds = self.folds.members
        if option.weights[self.held_out] == 0.0:
            return [full.priors] * len(folds)
        return [self._without(members, option, full, separate, covariates) for members in folds]

    def _without(
        self, members: np.ndarray, option: Option, full: Any, separate: bool | None, covariates: str
    ) -> dict[str, Any]:
        """Return the priors fitted without some of the held-out environment's tasks."""
        kept = list(self.environments)
        kept[self.held_out] = [task for i, task in enumerate(self.tasks) if i not in members]
        sizes = [len(tasks) for tasks in self.environments]
        return self.fit(kept, option, sizes, full, FOLD_ITERATIONS, separate, covariates).priors


def outweighed_families(fitted: FamilyFit) -> set[str]:
    """Return the families whose Gibbs density is far below that of a family which contains them.

    The evidence of all tasks tells these apart where held-out tasks are too few to.
    """
    values = {name: mode.value for name, mode in fitted.modes.items() if name in fitted.priors}
    nested = [(name, larger) for name, larger in NESTED if name in values and larger in values]
    return {name for name, larger in nested if values[larger] - values[name] > OUTWEIGHED}


def largest_density(fitted: Any) -> float:
    """Return the largest log Gibbs density of all families but the curve.

    Its functions were found in y, so that its evidence does not compare what covariates do.
    """
    return max((mode.value for name, mode in fitted.modes.items() if name != CURVE), default=-np.inf)


def training_tasks(
    environments: Sequence[Sequence[Task]],
    target: int,
    option: Option,
    sizes: Sequence[int] | None = None,
    kinds: ColumnKinds | None = None,
) -> TrainingTasks:
    """Standardize the tasks of environments with weight.

    The evidence of a task of environment e counts w_e / N_e, relative to the largest: once in the environment that
    counts most. Without a fold, tasks count as much as with it: `sizes` are the N_e with all tasks.
    """
    kept, counts, of_environment, is_target = task_counts(environments, target, option, sizes)
    scaling = fit_scaling(kept, option.weights, kinds)
    tasks = [scaling.task(task) for tasks in kept for task in tasks]
    return TrainingTasks(scaling, tasks, counts, is_target, of_environment)


def task_counts(
    environments: Sequence[Sequence[Task]], target: int, option: Option, sizes: Sequence[int] | None
) -> tuple[list[list[Task]], np.ndarray, np.ndarray, np.ndarray]:
    """Return the tasks with weight, how much each and one of each environment counts, and which are the target's."""
    kept = [list(tasks) if weight > 0 else [] for tasks, weight in zip(environments, option.weights, strict=True)]
    numbers = [len(tasks) for tasks in environments] if sizes is None else sizes
    of_task = np.array([w / max(n, 1) for w, n in zip(option.weights, numbers, strict=True)])
    counts, kept_sizes = of_task / of_task.max(), [len(tasks) for tasks in kept]
    is_target = np.repeat(np.arange(len(kept)) == target, kept_sizes).astype(np.float64)
    return kept, np.repeat(counts, kept_sizes), counts, is_target
