"""The search of the default: families of priors and environment weights, scored on held-out tasks.

What a search of families has chosen: the members of the average, their weights, and its calibration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from metaprior.prior.columns import MAX_ARD
from metaprior.prior.families import CURVE, NO_COVARIATES, FamilyFit
from metaprior.prior.modes import MAX_ITERATIONS
from metaprior.search.averaging import Weights, averaging_weights
from metaprior.search.held_out import DEFAULT_RULE, Folds
from metaprior.tasks.categories import ColumnKinds
from metaprior.tasks.splits import ContextRule
from metaprior.tasks.types import Task

MAX_SEPARATE = 32  # inputs up to which scales of their own are compared with shared ones
COVARIATE_EVIDENCE = 3.0  # nats for covariates from which on they are considered: without an effect 1 in 20, at most


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
    prior: Any
    held_out: Any  # its predictions
    covariates: str = NO_COVARIATES  # what they do to the common mean


@runtime_checkable
class Problem(Protocol):
    """What y holds, numbers or labels: how its families are fitted, tested and calibrated."""

    outputs: str  # what messages call y
    labels: bool
    per_task: float  # independent observations that a held-out task counts as
    fold_iterations: int  # without a fold, from the mode of all tasks
    learns_features: bool  # whether learned features may join
    has_pooled_models: bool  # whether a mixed model and a hierarchical GP are fitted beside the prior
    has_environment_effects: bool  # whether the target's common mean may deviate from the sources'

    def n_inputs(self, tasks: Sequence[Task], kinds: ColumnKinds | None) -> int:
        """Return the number of inputs that may have scales of their own."""
        ...

    def has_covariates(self, kinds: ColumnKinds | None) -> bool:
        """Return whether there are covariates that the common mean may depend on."""
        ...

    def folds(self, tasks: Sequence[Task], seed: int, rule: ContextRule) -> Folds:
        """Deal held-out tasks into folds, and split each into context and queries."""
        ...

    def queries(self, tasks: Sequence[Task], folds: Folds) -> Any:
        """Return what predicts and scores held-out tasks, a `Queries`."""
        ...

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
        """Fit all families to the tasks of environments with weight; `sizes` are the numbers with held-out ones.

        If families cannot be `tested`, only those that need no test have to be fitted.
        """
        ...

    def tested(self, queries: Any, prior: Any, parts: Sequence[tuple[np.ndarray, Any]]) -> tuple[Any, Any]:
        """Return the prior, calibrated where it is one by one, and its predictions of all held-out tasks."""
        ...

    def untested(self, fit: FamilyFit) -> list[str]:
        """Return the families that are averaged where nothing can be held out."""
        ...

    def outweighed(self, fit: FamilyFit) -> set[str]:
        """Return the families that the evidence rules out."""
        ...

    def free_energy(self, fit: FamilyFit, environments: Sequence[Sequence[Task]]) -> float:
        """Return the weighted free energy of a fit to all tasks, NaN if it is not known."""
        ...

    def expected_spread(self, n_tasks: float) -> float:
        """Return the factor by which predictions of priors fitted to so many tasks are expected to be too narrow."""
        ...


@dataclass
class Search:
    """Fits of all families at some options, with predictions of the held-out tasks of one environment.

    `target` is the environment to predict in, `held_out` the one whose tasks are held out: the same, unless the target
    has too few tasks.
    """

    problem: Problem
    environments: Sequence[Sequence[Task]]
    target: int
    seed: int
    held_out: int
    rule: ContextRule = DEFAULT_RULE  # by which held-out tasks are split into context and queries
    kinds: ColumnKinds | None = None  # of the input columns
    options: list[Option] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)
    fits: list[FamilyFit] = field(default_factory=list)  # of all tasks, at each option
    families: dict[str, None] = field(default_factory=dict)  # in the order in which they were fitted
    free_energies: list[float] = field(default_factory=list)  # of the options, NaN if not known

    def __post_init__(self):
        self.tasks = self.environments[self.held_out]
        self.folds = self.problem.folds(self.tasks, self.seed, self.rule)
        self.queries = self.problem.queries(self.tasks, self.folds)
        n_inputs = self.problem.n_inputs(self.tasks, self.kinds)
        self.scales = (True, False) if MAX_ARD < n_inputs <= MAX_SEPARATE else (None,)
        self._latest: dict[bool | None, FamilyFit] = {}
        self.evidence: dict[tuple[int, bool | None], dict[str, float]] = {}  # by option and by what covariates do

    @property
    def has_covariates(self) -> bool:
        """Whether there are covariates that the common mean may depend on."""
        return self.problem.has_covariates(self.kinds)

    def add(self, option: Option) -> None:
        """Fit all families to all tasks and without every fold; keep the predictions of the folds."""
        fits = [self._add(option, len(self.options), separate) for separate in self.scales]
        self.options.append(option)
        self.free_energies.append(min(self.problem.free_energy(fit, self.environments) for fit in fits))
        self.fits.append(fits[0])

    def add_covariates(self, option: int, covariates: str) -> None:
        """Fit all families again at a known option, with covariates in the common mean.

        They are scored if the evidence of all tasks speaks for covariates: with useless ones, scores on held-out tasks
        differ by chance, and the larger prior would get weight.
        """
        for separate in self.scales:
            self._add(self.options[option], option, separate, covariates)

    def scores(self) -> np.ndarray:
        """Return the robust score of every held-out task, (scored, tasks)."""
        if not self.scored:
            raise ValueError("No prior could be fitted: see whether X or y of the tasks are out of the ordinary.")
        return np.array([self.queries.scores(each.held_out) for each in self.scored])

    def option_scores(self, plain: bool = False) -> np.ndarray:
        """Return the same for the families of each option, averaged, (options, tasks); or `plain` log densities."""
        scores, score = self.scores(), self.queries.plain_scores if plain else self.queries.scores
        averages = []
        for option in range(len(self.options)):
            rows = [i for i, each in enumerate(self.scored) if each.option == option]
            weights = averaging_weights(scores[rows], self.problem.per_task)
            averages.append(score(self.queries.join([self.scored[i].held_out for i in rows], weights)))
        return np.array(averages)

    def without(self, members: np.ndarray) -> list[Sequence[Task]]:
        """Return the environments without some of the held-out tasks."""
        kept = list(self.environments)
        kept[self.held_out] = [task for i, task in enumerate(self.tasks) if i not in members]
        return kept

    def _add(self, option: Option, place: int, separate: bool | None, covariates: str = NO_COVARIATES) -> FamilyFit:
        given, fit = (self.target, option, self.kinds), self.problem.fit
        near = self._latest.get(separate)
        full = fit(self.environments, *given, near=near, separate=separate, covariates=covariates)
        if not self._is_considered(place, separate, covariates, largest_density(full)):
            return full
        self._latest[separate] = full
        parts: dict[str, list[tuple[np.ndarray, Any]]] = {name: [] for name in full.priors}
        how = {"sizes": [len(tasks) for tasks in self.environments], "near": full, "separate": separate}
        how |= {"max_iterations": self.problem.fold_iterations, "covariates": covariates}
        # A fold that has no weight is not left out: then every fit without one would be the fit of all tasks.
        counts = option.weights[self.held_out] > 0.0
        for members in self.folds.members:
            fold = fit(self.without(members), *given, **how) if counts else full
            rows = self.queries.rows_of(members)
            for name in fold.priors.keys() & parts.keys():
                parts[name].append((rows, self.queries.predict(fold.priors[name], rows)))
        complete = {name: full.priors[name] for name in parts if len(parts[name]) == len(self.folds.members)}
        outweighed = self.problem.outweighed(FamilyFit(complete, full.modes))
        for name, prior in complete.items():
            if name not in outweighed:
                tested, held_out = self.problem.tested(self.queries, prior, parts[name])
                self.scored.append(Scored(place, name, tested, held_out, covariates))
        self.families |= dict.fromkeys(complete)
        return full

    def _is_considered(self, place: int, separate: bool | None, covariates: str, density: float) -> bool:
        """Return whether the evidence speaks for these effects of covariates, against none and smaller ones."""
        known = self.evidence.setdefault((place, separate), {})
        if known and density < max(known.values()) + COVARIATE_EVIDENCE:
            return False
        known[covariates] = density
        return True


def largest_density(fitted: FamilyFit) -> float:
    """Return the largest log Gibbs density of all families but the curve.

    Its functions were found in y, so that its evidence does not compare what covariates do.
    """
    return max((mode.value for name, mode in fitted.modes.items() if name != CURVE), default=-np.inf)


def task_counts(
    environments: Sequence[Sequence[Task]], target: int, option: Option, sizes: Sequence[int] | None
) -> tuple[list[list[Task]], np.ndarray, np.ndarray, np.ndarray]:
    """Return the tasks with weight, how much each and one of each environment counts, and which are the target's.

    The evidence of a task of environment e counts w_e / N_e, relative to the largest: once in the environment that
    counts most. Without a fold, tasks count as much as with it: `sizes` are the N_e with all tasks.
    """
    kept = [list(tasks) if weight > 0 else [] for tasks, weight in zip(environments, option.weights, strict=True)]
    numbers = [len(tasks) for tasks in environments] if sizes is None else sizes
    of_task = np.array([w / max(n, 1) for w, n in zip(option.weights, numbers, strict=True)])
    counts, kept_sizes = of_task / of_task.max(), [len(tasks) for tasks in kept]
    is_target = np.repeat(np.arange(len(kept)) == target, kept_sizes).astype(np.float64)
    return kept, np.repeat(counts, kept_sizes), counts, is_target
