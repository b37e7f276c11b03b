"""The search of the default: families of hierarchical priors and environment weights, scored on held-out tasks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # a dependency of scikit-learn

from metaprior.hierarchical.families import FAMILIES, FamilyFit, TrainingTasks, fit_families, with_mean_of
from metaprior.hierarchical.prior import HierarchicalPrior
from metaprior.search.averaging import averaging_weights, drop_worse, merge_similar
from metaprior.search.candidates import Candidate, Choice
from metaprior.search.folds import Folds, make_folds
from metaprior.search.held_out import PER_TASK, HeldOut, Queries, gather
from metaprior.search.weights import Weights, discounted
from metaprior.tasks.scaling import fit_scaling
from metaprior.tasks.types import Task

DISCOUNTS = (0.0, 0.1, 0.4, 1.0)
ENVIRONMENT_DISCOUNTS = (0.4, 1.0)  # at which the target's mean may also deviate from the sources'
NEGLIGIBLE = 0.01  # weight
FOLD_ITERATIONS = 4  # from the mode of all tasks
SAME_THETA_ABOVE = 50  # target tasks: leaving a fold out then changes the common mean only
Progress = Callable[[float], None]  # called with the share that is done


@dataclass(frozen=True)
class FamilySettings:
    """A family of hierarchical priors, with or without an environment effect."""

    family: str
    environment: bool = False


class FamilyChoice(NamedTuple):
    """What was compared and chosen, with the priors of the members and how much their average is stretched."""

    choice: Choice
    priors: list[HierarchicalPrior]
    spread: float


@dataclass(frozen=True, eq=False)
class Scored:
    """A candidate fitted to all tasks, and its predictions of the held-out tasks."""

    candidate: Candidate
    prior: HierarchicalPrior
    held_out: HeldOut


def options_of(counts: Sequence[int], target: int) -> list[tuple[Weights, bool]]:
    """Return the environment weights to compare, each with or without an environment effect."""
    if sum(counts) == counts[target]:
        return [(discounted(counts, target, 0.0), False)]
    plain = [(discounted(counts, target, r), False) for r in DISCOUNTS]
    return plain + [(discounted(counts, target, r), True) for r in ENVIRONMENT_DISCOUNTS]


class FamilySearch:
    """Fits and held-out predictions of all families at some environment weights."""

    def __init__(self, environments: Sequence[Sequence[Task]], target: int, noise_std: float | None, seed: int):
        self.environments, self.target, self.noise_std = environments, target, noise_std
        self.folds: Folds = make_folds(environments[target], seed, labels=False)
        self.queries = Queries(environments[target], self.folds)
        self.scored: list[Scored] = []
        self.latest: FamilyFit | None = None

    def add(self, weights: Weights, environment: bool) -> None:
        """Fit all families to all tasks and without every fold; keep the predictions of the folds."""
        full = fit_families(self._training(weights), environment, self.noise_std, self.latest)
        self.latest = full
        parts: dict[str, list[tuple[np.ndarray, HeldOut]]] = {name: [] for name in FAMILIES}
        for members in self.folds.members:
            rows = self.queries.rows_of(members)
            for name, prior in self._without(members, weights, environment, full).items():
                parts[name].append((rows, self.queries.predict(prior, rows)))
        for name in FAMILIES:
            held_out = gather(parts[name], len(self.queries.splits))
            candidate = Candidate(weights, FamilySettings(name, environment))
            self.scored.append(Scored(candidate, full.priors[name], held_out))

    def _without(
        self, members: np.ndarray, weights: Weights, environment: bool, full: FamilyFit
    ) -> dict[str, HierarchicalPrior]:
        """Return the priors fitted without some target tasks."""
        if len(self.environments[self.target]) < SAME_THETA_ABOVE:
            return fit_families(
                self._training(weights, members), environment, self.noise_std, full, FOLD_ITERATIONS
            ).priors
        training = self._training(weights, members, full)
        return {name: with_mean_of(prior, training) for name, prior in full.priors.items()}

    def _training(
        self, weights: Weights, without: np.ndarray | None = None, full: FamilyFit | None = None
    ) -> TrainingTasks:
        """Standardize the tasks of environments with weight, less some of the target's."""
        kept = [list(tasks) if weight > 0 else [] for tasks, weight in zip(self.environments, weights, strict=True)]
        if without is not None:
            left = np.delete(np.arange(len(kept[self.target])), without)
            kept[self.target] = [kept[self.target][i] for i in left.tolist()]
        scaling = fit_scaling(kept, weights) if full is None else full.priors[FAMILIES[0]].scaling
        of_task = [w / max(len(tasks), 1) for w, tasks in zip(weights, self.environments, strict=True)]
        counts = np.concatenate([np.full(len(tasks), c) for tasks, c in zip(kept, of_task, strict=True)])
        is_target = np.concatenate([np.full(len(tasks), float(e == self.target)) for e, tasks in enumerate(kept)])
        tasks = [scaling.task(task) for group in kept for task in group]
        return TrainingTasks(scaling, tasks, counts / counts.max(), is_target)

    def scores(self) -> np.ndarray:
        """Return the mean contaminated log density of every held-out task, (candidates, tasks)."""
        return np.array([self.queries.scores(each.held_out) for each in self.scored])


def search_families(
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[tuple[Weights, bool]],
    noise_std: float | None,
    seed: int,
    deadline: float | None = None,
    progress: Progress = lambda share: None,
) -> FamilyChoice:
    """Compare all families at all options, and average the ones that predict held-out target tasks well."""
    search = FamilySearch(environments, target, noise_std, seed)
    with threadpool_limits(1, user_api="blas"):  # threads only get in each other's way with such small matrices
        for i, (weights, environment) in enumerate(options):
            if i and deadline is not None and time.monotonic() > deadline:
                break
            search.add(weights, environment)
            progress((i + 1) / len(options))
        return choose_members(search)


def choose_members(search: FamilySearch) -> FamilyChoice:
    """Weight the candidates by their scores, and calibrate their average."""
    scores = search.scores()
    candidates = [each.candidate for each in search.scored]
    means = scores.mean(axis=1)
    alone = [i for i, candidate in enumerate(candidates) if candidate.weights[search.target] == 1.0]
    target_only = max(alone, key=lambda i: means[i]) if alone else None
    weights = averaging_weights(scores, PER_TASK)
    weights = drop_worse(weights, scores, target_only, NEGLIGIBLE)
    held_out = [each.held_out for each in search.scored]
    weights = merge_similar(weights, search.queries.distances(held_out))
    kept = np.flatnonzero(weights).tolist()
    spread = search.queries.spread([held_out[i] for i in kept], weights[kept])
    return FamilyChoice(Choice(candidates, weights, scores), [search.scored[i].prior for i in kept], spread)
