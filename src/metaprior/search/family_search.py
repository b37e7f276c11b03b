"""The search of the default: families of hierarchical priors and environment weights, scored on held-out tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from metaprior.hierarchical.families import CURVE, LINEAR, SMOOTH, FamilyFit, TrainingTasks, fit_families
from metaprior.hierarchical.layout import MAX_ARD
from metaprior.hierarchical.modes import MAX_ITERATIONS
from metaprior.search.averaging import averaging_weights, drop_worse, merge_similar
from metaprior.search.candidates import Candidate, Choice
from metaprior.search.folds import DEFAULT_RULE, Folds, make_folds
from metaprior.search.held_out import PER_TASK, Queries, expected_log_spread, gather
from metaprior.search.weights import Weights
from metaprior.tasks.context_rules import ContextRule
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task

NEGLIGIBLE = 0.01  # weight
MAX_SEPARATE = 32  # inputs up to which scales of their own are compared with shared ones
WORSE_LEVEL = 0.01  # of the test whether a candidate is worse than target-only, and dropped
FOLD_ITERATIONS = 4  # from the mode of all tasks
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
    prior: Any  # HierarchicalPrior or LabelPrior
    held_out: Any  # its predictions


class FamilyChoice(NamedTuple):
    """What was compared and chosen: options with their scores, the members of the average, and its calibration."""

    choice: Choice
    priors: list[Any]  # HierarchicalPrior or LabelPrior
    weights: np.ndarray  # of the priors
    families: dict[str, float]  # weight of every family that was compared
    spread: float  # factor by which the averaged predictions are stretched


class FamilySearch:
    """Fits of all families at some options, with predictions of the held-out tasks of one environment.

    `target` is the environment to predict in, `held_out` the one whose tasks are held out: the same, unless the target
    has too few tasks. `LabelSearch` is the same for labels.
    """

    per_task = PER_TASK  # independent observations that a held-out task counts as
    queries: Any  # `Queries`, or what takes its place for labels
    labels = False

    def __init__(
        self,
        environments: Sequence[Sequence[Task]],
        target: int,
        noise_std: float | None,
        seed: int,
        held_out: int | None = None,
        rule: ContextRule = DEFAULT_RULE,
    ):
        self.environments, self.target, self.noise_std = environments, target, noise_std
        self.rule = rule  # by which held-out tasks are split into context and queries
        self.held_out = target if held_out is None else held_out
        self.tasks = environments[self.held_out]
        self.folds = self._make_folds(seed)
        self.queries = self._make_queries()
        self.options: list[Option] = []
        self.scored: list[Scored] = []
        self.families: dict[str, None] = {}  # in the order in which they were fitted
        n_inputs = self.tasks[0].x.shape[1]
        self.scales = (True, False) if MAX_ARD < n_inputs <= MAX_SEPARATE else (None,)
        self._latest: dict[bool | None, FamilyFit] = {}

    def add(self, option: Option) -> None:
        """Fit all families to all tasks and without every fold; keep the predictions of the folds."""
        for separate in self.scales:
            self._add(option, separate)
        self.options.append(option)

    def _add(self, option: Option, separate: bool | None) -> None:
        full = self.fit(self.environments, option, None, self._latest.get(separate), MAX_ITERATIONS, separate)
        self._latest[separate] = full
        parts: dict[str, list[tuple[np.ndarray, Any]]] = {name: [] for name in full.priors}
        for members, priors in zip(self.folds.members, self._without_folds(option, full, separate), strict=True):
            rows = self.queries.rows_of(members)
            for name, prior in priors.items():
                if name in parts:
                    parts[name].append((rows, self.queries.predict(prior, rows)))
        complete = [name for name in parts if len(parts[name]) == len(self.folds.members)]  # fitted without every fold
        outweighed = self.outweighed(full, complete)
        for name in complete:
            if name not in outweighed:
                prior, held_out = self.tested(full.priors[name], parts[name])
                self.scored.append(Scored(len(self.options), name, prior, held_out))
        self.families |= dict.fromkeys(complete)

    def fit(
        self,
        environments: Sequence[Sequence[Task]],
        option: Option,
        sizes: Sequence[int] | None,
        near: Any,
        max_iterations: int,
        separate: bool | None,
    ) -> Any:
        """Fit all families to tasks; `sizes` are the numbers of tasks with those that are held out."""
        training = training_tasks(environments, self.target, option, sizes)
        return fit_families(training, option.environment, self.noise_std, near, max_iterations, separate)

    def tested(self, prior: Any, parts: Sequence[tuple[np.ndarray, Any]]) -> tuple[Any, Any]:
        """Return the prior, calibrated where it is one by one, and its predictions of all held-out tasks."""
        return prior, gather(parts, len(self.queries.splits))

    def outweighed(self, full: Any, complete: Sequence[str]) -> set[str]:
        """Return the families that the evidence rules out."""
        return outweighed_families(FamilyFit({name: full.priors[name] for name in complete}, full.modes))

    def _make_folds(self, seed: int) -> Folds:
        return make_folds(self.tasks, seed, False, self.rule)

    def _make_queries(self) -> Any:
        return Queries(self.tasks, self.folds)

    def scores(self) -> np.ndarray:
        """Return the mean contaminated log density of every held-out task, (scored, tasks)."""
        if not self.scored:
            raise ValueError("No prior could be fitted: see whether X or y of the tasks are out of the ordinary.")
        return np.array([self.queries.scores(each.held_out) for each in self.scored])

    def option_scores(self) -> np.ndarray:
        """Return the same for the families of each option, averaged, (options, tasks)."""
        scores = self.scores()
        averages = []
        for option in range(len(self.options)):
            rows = [i for i, each in enumerate(self.scored) if each.option == option]
            weights = averaging_weights(scores[rows], self.per_task)
            averages.append(self.queries.scores(self.queries.join([self.scored[i].held_out for i in rows], weights)))
        return np.array(averages)

    def _without_folds(self, option: Option, full: Any, separate: bool | None) -> list[dict[str, Any]]:
        """Return the priors fitted without each fold."""
        folds = self.folds.members
        if option.weights[self.held_out] == 0.0:
            return [full.priors] * len(folds)
        return [self._without(members, option, full, separate) for members in folds]

    def _without(self, members: np.ndarray, option: Option, full: Any, separate: bool | None) -> dict[str, Any]:
        """Return the priors fitted without some of the held-out environment's tasks."""
        kept = list(self.environments)
        kept[self.held_out] = [task for i, task in enumerate(self.tasks) if i not in members]
        sizes = [len(tasks) for tasks in self.environments]
        return self.fit(kept, option, sizes, full, FOLD_ITERATIONS, separate).priors


def outweighed_families(fitted: FamilyFit) -> set[str]:
    """Return the families whose Gibbs density is far below that of a family which contains them.

    The evidence of all tasks tells these apart where held-out tasks are too few to.
    """
    values = {name: mode.value for name, mode in fitted.modes.items() if name in fitted.priors}
    nested = [(name, larger) for name, larger in NESTED if name in values and larger in values]
    return {name for name, larger in nested if values[larger] - values[name] > OUTWEIGHED}


def training_tasks(
    environments: Sequence[Sequence[Task]], target: int, option: Option, sizes: Sequence[int] | None = None
) -> TrainingTasks:
    """Standardize the tasks of environments with weight.

    The evidence of a task of environment e counts w_e / N_e, relative to the largest: once in the environment that
    counts most. Without a fold, tasks count as much as with it: `sizes` are the N_e with all tasks.
    """
    kept, counts, of_environment, is_target = task_counts(environments, target, option, sizes)
    scaling = fit_scaling(kept, option.weights)
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


def choose_members(search: FamilySearch) -> FamilyChoice:
    """Weight families and options by their scores, reduce them to a few members, and calibrate their average."""
    scores = search.scores()
    alone = [i for i, each in enumerate(search.scored) if search.options[each.option].weights[search.target] == 1.0]
    target_only = max(alone, key=lambda i: scores[i].mean()) if alone else None
    weights = drop_worse(averaging_weights(scores, search.per_task), scores, target_only, NEGLIGIBLE, WORSE_LEVEL)
    of_option = np.bincount([each.option for each in search.scored], weights, len(search.options))
    choice = Choice(candidates(search.options), of_option, search.option_scores())
    return _average(search, choice, weights)


def choose_untested(search: FamilySearch) -> FamilyChoice:
    """Give all options the same weight: tasks of the target could not be held out, those of a source have been.

    They say which families predict well, not how much the source should count.
    """
    scores = search.scores()
    weights = np.zeros(len(scores))
    for option in range(len(search.options)):
        rows = [i for i, each in enumerate(search.scored) if each.option == option]
        weights[rows] = averaging_weights(scores[rows], search.per_task) / len(search.options)
    equal = np.full(len(search.options), 1.0 / len(search.options))
    return _average(search, Choice(candidates(search.options), equal, None), weights)


def without_test(
    environments: Sequence[Sequence[Task]], target: int, options: Sequence[Option], noise_std: float | None
) -> FamilyChoice:
    """Average the two simplest families at all options: there are no tasks to hold out."""
    families = (LINEAR, SMOOTH)
    fits = [
        fit_families(training_tasks(environments, target, option), option.environment, noise_std) for option in options
    ]
    priors = [fit.priors[name] for fit in fits for name in families if name in fit.priors]
    equal = np.full(len(options), 1.0 / len(options))
    weights = np.full(len(priors), 1.0 / len(priors))
    used = [name for fit in fits for name in families if name in fit.priors]
    found = {name: used.count(name) / len(used) for fit in fits for name in fit.priors}
    spread = float(np.exp(expected_log_spread(n_tasks_of(priors, weights, environments))))
    return FamilyChoice(Choice(candidates(options), equal, None), priors, weights, found, spread)


def n_tasks_of(priors: Sequence[Any], weights: np.ndarray, environments: Sequence[Sequence[Task]]) -> float:
    """Return the harmonic mean of the numbers of tasks that priors were fitted to, discounted ones in part."""
    sizes = [len(tasks) for tasks in environments]
    numbers = [float(prior.counts @ sizes) for prior in priors if prior.counts is not None]
    return 1.0 / float(weights @ np.reciprocal(numbers))


def candidates(options: Sequence[Option]) -> list[Candidate]:
    """Return options as candidates of a report."""
    return [Candidate(option.weights, option, option.from_scores) for option in options]


def _average(search: FamilySearch, choice: Choice, weights: np.ndarray) -> FamilyChoice:
    families = {
        name: float(sum(w for w, each in zip(weights, search.scored, strict=True) if each.family == name))
        for name in search.families
    }
    held_out = [each.held_out for each in search.scored]
    weights = merge_similar(weights, search.queries.distances(held_out), negligible=search.queries.negligible)
    kept = np.flatnonzero(weights).tolist()
    priors, weights = [search.scored[i].prior for i in kept], weights[kept]
    n_tasks = n_tasks_of(priors, weights, search.environments)
    spread = search.queries.spread([held_out[i] for i in kept], weights, n_tasks)
    return FamilyChoice(choice, priors, weights, families, spread)
