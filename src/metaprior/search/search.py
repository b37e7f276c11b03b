"""The search of the default: families of priors and environment weights, scored on held-out tasks, and the choice.

Covariates of tasks are tried at the best environment weights, in the common mean of every family.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from metaprior.prior.columns import MAX_ARD
from metaprior.prior.families import BEND, COVARIATES, CURVE, CURVED, NO_COVARIATES, SHIFT, FamilyFit
from metaprior.search.averaging import Candidate, Choice, averaging_weights, drop_worse, merge_similar
from metaprior.search.held_out import DEFAULT_RULE, Queries
from metaprior.search.problems import SIMPLE, Environments, Problem, Request
from metaprior.tasks.categories import ColumnKinds
from metaprior.tasks.splits import ContextRule
from metaprior.tasks.types import Task

MAX_SEPARATE = 32  # inputs up to which scales of their own are compared with shared ones
COVARIATE_EVIDENCE = 3.0  # nats at which covariates are considered: reached without an effect in at most 1 of 20 fits
N_OPTIONS = 2  # environment weights at which covariates are tried: the best ones without them, and target-only
OUTWEIGHED = 5.0  # nats of evidence by which one use of covariates rules out another
CONTRADICTED = 2.0  # standard errors by which held-out tasks must not disagree
NEGLIGIBLE = 0.01  # weight
WORSE_LEVEL = 0.01  # of the test whether a candidate is worse than target-only, and dropped


@dataclass(frozen=True, eq=False)
class Scored:
    """A family at an option: fitted to all tasks, and its predictions of the held-out tasks."""

    option: int
    family: str
    prior: Any
    held_out: Any  # HeldOut or HeldOutLabels
    covariates: str = NO_COVARIATES  # what they do to the common mean


@dataclass
class Search:
    """Fits of all families at some options, with predictions of the held-out tasks of one environment.

    `target` is the environment to predict in, `held_out` the one whose tasks are held out: the same, unless the target
    has too few tasks.
    """

    problem: Problem
    environments: Environments
    target: int
    seed: int
    held_out: int
    rule: ContextRule = DEFAULT_RULE  # by which held-out tasks are split into context and queries
    kinds: ColumnKinds | None = None  # of the input columns
    options: list[Candidate] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)
    fits: list[FamilyFit] = field(default_factory=list)  # of all tasks, at each option
    families: dict[str, None] = field(default_factory=dict)  # in the order in which they were fitted
    free_energies: list[float] = field(default_factory=list)  # of the options, NaN if not known

    def __post_init__(self):
        self.tasks = self.environments[self.held_out]
        self.folds = self.problem.folds(self.tasks, self.seed, self.rule)
        self.queries = Queries(self.tasks, self.folds, self.problem.reference)
        n_inputs = self.problem.n_inputs(self.tasks, self.kinds)
        self.scales = (True, False) if MAX_ARD < n_inputs <= MAX_SEPARATE else (None,)
        self.has_covariates = self.problem.has_covariates(self.kinds)
        self._latest: dict[bool | None, FamilyFit] = {}
        self.evidence: dict[tuple[int, bool | None], dict[str, float]] = {}  # by option and by what covariates do

    def add(self, option: Candidate) -> None:
        """Fit all families to all tasks and without every fold; keep the predictions of the folds."""
        fits = [self._add(option, len(self.options), separate) for separate in self.scales]
        self.options.append(option)
        energies = [free_energy(fit, self.environments) for fit in fits if self.problem.normal]
        self.free_energies.append(min(energies, default=np.nan))
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
            raise ValueError("No prior could be fitted. Check X and y of the tasks for extreme values.")
        return np.array([self.queries.scores(each.held_out) for each in self.scored])

    def option_scores(self, plain: bool = False) -> np.ndarray:
        """Return the same for the families of each option, averaged, (options, tasks); or `plain` log densities."""
        scores, score = self.scores(), self.queries.plain_scores if plain else self.queries.scores
        averages = []
        for option in range(len(self.options)):
            rows = [i for i, each in enumerate(self.scored) if each.option == option]
            averages.append(score(self.average(rows, averaging_weights(scores[rows], self.problem.per_task))))
        return np.array(averages)

    def average(self, rows: Sequence[int], weights: np.ndarray) -> Any:
        """Return the weighted average of some of the predictions that were scored."""
        members = [self.scored[i].held_out for i in rows]
        return members[0].join(members, weights)

    def without(self, members: np.ndarray) -> list[Sequence[Task]]:
        """Return the environments without some of the held-out tasks."""
        kept = list(self.environments)
        kept[self.held_out] = [task for i, task in enumerate(self.tasks) if i not in members]
        return kept

    def _add(self, option: Candidate, place: int, separate: bool | None, covariates: str = NO_COVARIATES) -> FamilyFit:
        problem, near = self.problem, self._latest.get(separate)
        asked = Request(self.environments, self.target, option, self.kinds, None, near)
        asked = asked._replace(separate=separate, covariates=covariates)
        full = problem.fit(asked)
        if not self._is_considered(place, separate, covariates, full):
            return full
        self._latest[separate] = full
        sizes = [len(tasks) for tasks in self.environments]
        asked = asked._replace(sizes=sizes, near=full, max_iterations=problem.fold_iterations)
        # A fold that has no weight is not left out: then every fit without one would be the fit of all tasks.
        counts = option.weights[self.held_out] > 0.0
        parts: dict[str, list[tuple[np.ndarray, Any]]] = {name: [] for name in full.priors}
        for members in self.folds.members:
            fold = problem.fit(asked._replace(environments=self.without(members))) if counts else full
            for name in fold.priors.keys() & parts.keys():
                parts[name].append((self.queries.rows_of(members), fold.priors[name]))
        complete = {name: full.priors[name] for name in parts if len(parts[name]) == len(self.folds.members)}
        outweighed = problem.outweighed(FamilyFit(complete, full.modes))
        for name in [name for name in complete if name not in outweighed]:
            tested, held_out = problem.tested(self.queries, complete[name], parts[name])
            self.scored.append(Scored(place, name, tested, held_out, covariates))
        self.families |= dict.fromkeys(complete)
        return full

    def _is_considered(self, place: int, separate: bool | None, covariates: str, fit: FamilyFit) -> bool:
        """Return whether the evidence speaks for these effects of covariates, against none and smaller ones.

        That of the curve family does not count: its functions were found in y.
        """
        known = self.evidence.setdefault((place, separate), {})
        density = max((mode.value for name, mode in fit.modes.items() if name != CURVE), default=-np.inf)
        if known and density < max(known.values()) + COVARIATE_EVIDENCE:
            return False
        known[covariates] = density
        return True


def free_energy(fit: FamilyFit, environments: Environments) -> float:
    """Return the weighted free energy at the Gibbs hyper-posterior, in nats per reading: smaller is better.

    It is -log Z / n, where Z is the integral of p(theta) times the weighted evidence, by Laplace's approximation at the
    mode of theta, with the Hessian that the quasi-Newton method has found on its way there, and n the number of
    readings, weighted as their tasks are. It is NaN if no family whose functions do not depend on y was fitted.
    """
    values = []
    for name in SIMPLE:
        if name not in fit.modes or name not in fit.priors or fit.priors[name].counts is None:
            continue
        mode, prior = fit.modes[name], fit.priors[name]
        sizes = [sum(len(task.y) for task in tasks) for tasks in environments]
        n = float(prior.counts @ sizes)
        log_determinant = np.linalg.slogdet(mode.inverse_hessian)[1]
        hyper_prior = -float(np.log(mode.layout.spread).sum())  # factors of 2 pi cancel Laplace's
        log_z = mode.value - 0.5 * n * np.log(2.0 * np.pi) + hyper_prior + 0.5 * log_determinant
        values.append(-log_z / n + np.log(prior.scaling.y_std))
    return float(min(values, default=np.nan))


class FamilyChoice(NamedTuple):
    """What was compared and chosen: options with their scores, the members of the average, and its calibration."""

    choice: Choice
    priors: list[Any]  # Prior or LabelPrior
    weights: np.ndarray  # of the priors
    families: dict[str, float]  # weight of every family that was compared
    spread: float  # factor by which the averaged predictions are stretched
    covariates: dict[str, float] | None = None  # weight of what covariates do, if there are any
    pooled: Mapping[str, Any] = MappingProxyType({})  # models that users would fit instead, see `pooled_models`


def choose_members(search: Search) -> FamilyChoice:
    """Weight families and options by their scores, reduce them to a few members, and calibrate their average."""
    scores = search.scores()
    allowed = rule_out(search, scores)
    options = np.array([search.options[each.option].weights[search.target] for each in search.scored])
    alone = np.flatnonzero(allowed & (options == 1.0)).tolist()
    target_only = max(alone, key=lambda i: scores[i].mean()) if alone else None
    weights = np.zeros(len(scores))
    weights[allowed] = averaging_weights(scores[allowed], search.problem.per_task)
    weights = drop_worse(weights, scores, target_only, NEGLIGIBLE, WORSE_LEVEL)
    of_option = np.bincount([each.option for each in search.scored], weights, len(search.options))
    energies = np.array(search.free_energies)
    known = energies if np.isfinite(energies).all() else None
    found = search.option_scores(), search.option_scores(plain=True)
    return _average(search, Choice(search.options, of_option, *found, known), weights)


def choose_untested(search: Search) -> FamilyChoice:
    """Give all options the same weight: tasks of the target could not be held out, those of a source have been.

    They say which families predict well, not how much the source should count.
    """
    scores = search.scores()
    weights, of_options = np.zeros(len(scores)), np.zeros(len(search.options))
    allowed = np.flatnonzero(rule_out(search, scores)).tolist()
    for option in range(len(search.options)):
        rows = [i for i in allowed if search.scored[i].option == option]
        if rows:
            weights[rows], of_options[option] = averaging_weights(scores[rows], search.problem.per_task), 1.0
    n_used = of_options.sum()
    return _average(search, Choice(search.options, of_options / n_used, None), weights / n_used)


def without_test(
    problem: Problem,
    environments: Environments,
    target: int,
    options: Sequence[Candidate],
    kinds: ColumnKinds | None = None,
) -> FamilyChoice:
    """Average the simplest families at all options: there are no tasks to hold out."""
    fits = [problem.fit(Request(environments, target, option, kinds, tested=False)) for option in options]
    used = [(name, fit.priors[name]) for fit in fits for name in SIMPLE if name in fit.priors]
    names, priors = [name for name, _ in used], [prior for _, prior in used]
    weights = np.full(len(priors), 1.0 / len(priors))
    found = {name: names.count(name) / len(names) for fit in fits for name in fit.priors}
    spread = problem.spread(n_tasks_of(priors, weights, environments))
    equal = np.full(len(options), 1.0 / len(options))
    return FamilyChoice(Choice(list(options), equal, None), priors, weights, found, spread)


def n_tasks_of(priors: Sequence[Any], weights: np.ndarray, environments: Environments) -> float:
    """Return the harmonic mean of the numbers of tasks that priors were fitted to, discounted ones in part."""
    sizes = [len(tasks) for tasks in environments]
    numbers = [float(prior.counts @ sizes) for prior in priors if prior.counts is not None]
    return 1.0 / float(weights @ np.reciprocal(numbers))


def _average(search: Search, choice: Choice, weights: np.ndarray) -> FamilyChoice:
    """Reduce what has weight to a few members, and calibrate their average."""

    def shares(names: Sequence[str], of_each: Sequence[str]) -> dict[str, float]:
        return {name: float(sum(w for w, own in zip(weights, of_each, strict=True) if own == name)) for name in names}

    families = shares([*search.families], [each.family for each in search.scored])
    covariates = shares([*COVARIATES], [each.covariates for each in search.scored])
    held_out = [each.held_out for each in search.scored]
    distances, negligible = held_out[0].distances(held_out, search.queries.asked), held_out[0].negligible
    merged = merge_similar(weights, distances, negligible=negligible)
    kept = np.flatnonzero(merged).tolist()
    priors, merged = [search.scored[i].prior for i in kept], merged[kept]
    n_tasks = n_tasks_of(priors, merged, search.environments)
    spread = search.problem.spread(n_tasks, search.queries, search.average(kept, merged))
    return FamilyChoice(choice, priors, merged, families, spread, covariates if search.has_covariates else None)


def covariate_candidates(search: Search) -> list[tuple[int, str]]:
    """Return at which options covariates are tried, and what they do there."""
    best = np.argsort(-search.option_scores().mean(axis=1), kind="stable")[:N_OPTIONS].tolist()
    alone = [i for i, option in enumerate(search.options) if option.weights[search.target] == 1.0 and i not in best]
    assert search.kinds is not None
    numbers = any(search.kinds.levels[i] == 0 for i in search.kinds.covariates)
    effects = (SHIFT, CURVED, BEND) if numbers else (SHIFT, BEND)
    return [(option, covariates) for option in (*best, *alone[:1]) for covariates in effects]


def best_covariates(search: Search) -> str:
    """Return what covariates do in the best of all that was compared."""
    if not search.has_covariates:
        return NO_COVARIATES
    return search.scored[int(np.argmax(search.scores().mean(axis=1)))].covariates


def rule_out(search: Search, scores: np.ndarray) -> np.ndarray:
    """Return which of all that was scored may have weight, (scored,): others are outweighed by what covariates do.

    Held-out tasks whose first readings are given hardly tell what covariates are worth before these; the evidence of
    all tasks does. If it clearly speaks for covariates, priors without them are ruled out, and so are options at which
    covariates were not tried. But sources may have effects that the target lacks: the evidence of target tasks alone
    must prefer covariates, too, and held-out tasks must not clearly disagree.
    """
    everything = np.ones(len(search.scored), bool)
    kept = {each.option: _kept(search, each.option) for each in search.scored if each.covariates != NO_COVARIATES}
    of_target = [option for option in kept if search.options[option].weights[search.target] == 1.0]
    clear = any(NO_COVARIATES not in names for names in kept.values())
    if not (clear and of_target and search.held_out == search.target):
        return everything
    used = np.array([each.covariates != NO_COVARIATES for each in search.scored])
    allowed = used & np.array([each.covariates in kept.get(each.option, ()) for each in search.scored])
    if allowed.all() or not allowed.any():
        return everything
    with_effects, ruled_out = (scores[rows][np.argmax(scores[rows].mean(axis=1))] for rows in (allowed, ~allowed))
    lost = ruled_out - with_effects
    error = lost.std(ddof=1) / np.sqrt(len(lost)) if len(lost) > 1 else np.inf
    return everything if lost.mean() > CONTRADICTED * error else allowed


def _kept(search: Search, option: int) -> set[str]:
    """Return the uses of covariates at an option that the evidence leaves."""
    known = [found for (place, _), found in search.evidence.items() if place == option]
    largest = max(max(found.values()) for found in known)
    return {name for found in known for name, value in found.items() if value > largest - OUTWEIGHED}
