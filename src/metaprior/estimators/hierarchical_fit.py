"""Fitting the default: hierarchical priors, whose families and environment weights are chosen by cross-validation."""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits  # a dependency of scikit-learn

from metaprior.checks import check_noise
from metaprior.estimators.arguments import NamedEnvironments, auto_settings, warn_if_few_target_tasks
from metaprior.estimators.fitted_prior import FittedPrior
from metaprior.hierarchical.families import TrainingTasks, with_mean_of
from metaprior.hierarchical.hierarchical_prior import HierarchicalPrior
from metaprior.prediction.ensemble import Ensemble
from metaprior.progress import progress_bar
from metaprior.search.family_search import (
    FamilyChoice,
    FamilySearch,
    Option,
    choose_members,
    choose_untested,
    without_test,
)
from metaprior.search.feature_search import add_features, are_worth_trying
from metaprior.search.report import make_report
from metaprior.search.weights import (
    DISCOUNTS_UNTRIED,
    combined_source_weights,
    discounted,
    resolve_weights,
    single_source_weights,
)
from metaprior.storage.stored_tasks import StoredTasks, sample_tasks
from metaprior.tasks.types import Task, TestTask

DISCOUNTS = (0.0, 0.1, 0.4, 1.0)
ENVIRONMENT_DISCOUNTS = (0.4, 1.0)  # at which the target's mean may also deviate from the sources'
MAX_TASKS = 300  # of each environment that families are fitted to and compared on; the mean is learned from all
MAX_READINGS = 100  # of each task that a fit sees: few parameters do not need more. Adaptation uses all of a context
CHUNK_TASKS = 2000

# Parameters of gradient-based training: a value other than the default asks for it.
GRADIENT_ONLY = (
    *("inference", "n_particles", "mean", "kernel", "encoder", "temperature", "prior_mean", "prior_std"),
    *("optimizer", "learning_rate", "schedule", "n_steps", "batch_size", "standardize", "dtype", "n_devices"),
)


def is_asked_for(meta: Any, tests: Sequence[TestTask] | None) -> bool:
    """Return whether the estimator leaves everything to the default that only gradient-based training has."""
    if meta.likelihood != "gaussian" or tests is not None:
        return False
    defaults = type(meta)()
    given = ((getattr(meta, name), getattr(defaults, name)) for name in GRADIENT_ONLY)
    plain = (str, int, float, type(None))  # arrays, dicts and modules are never the default, and may not compare
    return all(isinstance(value, plain) and value == default for value, default in given)


def fit_prior(
    meta: Any,
    environments: NamedEnvironments,
    tests: Sequence[TestTask] | None,
    patience: int | None,
    checkpoint: str | os.PathLike | None,
) -> FittedPrior:
    """Fit hierarchical priors to checked tasks. It takes seconds, so no checkpoint is written."""
    seed = int(check_random_state(meta.random_state).randint(2**31 - 1))
    warn_if_few_target_tasks(environments, auto_settings(meta), 1)
    names, _, target, _ = environments
    sample = _sample(environments.tasks, seed)
    with threadpool_limits(1, user_api="blas"):  # threads get in each other's way with matrices this small
        chosen = _search(meta, environments, sample, seed)
        priors = [_with_all_tasks(prior, environments.tasks, sample, target) for prior in chosen.priors]
    n_target = len(sample[target])
    n_source = sum(map(len, sample)) - n_target
    report = make_report(chosen.choice, names, target, n_target, n_source, chosen.families)
    return FittedPrior(
        Ensemble(tuple(priors), chosen.weights, chosen.spread),
        report,
        max(chosen.families, key=lambda name: chosen.families[name]),
        "float64",
        1.0,
        np.zeros(0),
        np.zeros(0),
        0,
        {"parameters": len(priors[0].theta), "spread": chosen.spread},
        engine="hierarchical",
    )


def _search(meta: Any, environments: NamedEnvironments, sample: list[list[Task]], seed: int) -> FamilyChoice:
    """Compare families and environment weights on held-out tasks."""
    names, _, target, _ = environments
    counts = [len(tasks) for tasks in sample]
    options = _options(meta.alpha, names, counts, target)
    noise_std = check_noise(meta.noise_std)
    held_out = target if counts[target] > 1 else _largest_used(counts, options)
    if counts[held_out] < 2:
        return without_test(sample, target, options, noise_std)
    deadline = None if meta.search_time is None else time.monotonic() + meta.search_time
    search = FamilySearch(sample, target, noise_std, seed, held_out)
    with progress_bar("comparing priors", len(options), "environment weights", meta.progress) as move:
        _add(search, options, deadline, move)
        if _is_auto(meta.alpha) and held_out == target:
            _compare_sources(search, counts, deadline, move)
        if are_worth_trying(search) and not is_over(deadline):
            add_features(search)
    return choose_members(search) if held_out == target else choose_untested(search)


def _largest_used(counts: Sequence[int], options: Sequence[Option]) -> int:
    """Return the environment with most tasks among those with weight: others must not have any effect."""
    used = np.min([option.weights for option in options], axis=0) > 0
    return int(np.argmax(np.where(used, counts, 0)))


def _options(alpha: Any, names: Sequence[str], counts: Sequence[int], target: int) -> list[Option]:
    """Return the environment weights to compare: target-only first, then ever more of the source."""
    if not _is_auto(alpha):
        return [Option(weights) for weights in resolve_weights(alpha, names, counts, target)]
    if sum(counts) == counts[target]:
        return [Option(discounted(counts, target, 0.0))]
    if not counts[target]:
        return [Option(discounted(counts, target, np.inf))]
    if counts[target] == 1:
        return [Option(discounted(counts, target, r)) for r in DISCOUNTS_UNTRIED]
    plain = [Option(discounted(counts, target, r)) for r in DISCOUNTS]
    return plain + [Option(discounted(counts, target, r), environment=True) for r in ENVIRONMENT_DISCOUNTS]


def _add(
    search: FamilySearch, options: Sequence[Option], deadline: float | None, move: Callable[[float, str], None] | None
) -> None:
    """Compare options until the deadline; always the first."""
    for option in options:
        if search.options and is_over(deadline):
            return
        search.add(option)
        if move is not None:
            move(len(search.options), "")


def _compare_sources(
    search: FamilySearch, counts: Sequence[int], deadline: float | None, move: Callable[[float, str], None] | None
) -> None:
    """With several sources, compare each source alone with the target, then the helpful ones combined."""
    single = single_source_weights(counts, search.target)
    if not single:
        return
    before = len(search.options)
    _add(search, [Option(weights) for _, _, weights in single], deadline, move)
    of_target, *means = search.option_scores()[[0, *range(before, len(search.options))]].mean(axis=1).tolist()
    scores = [(source, discount, score) for (source, discount, _), score in zip(single, means, strict=False)]
    known = [option.weights for option in search.options]
    several = combined_source_weights(counts, search.target, of_target, scores)
    _add(search, [Option(w, from_scores=True) for w in several if w not in known], deadline, move)


def is_over(deadline: float | None) -> bool:
    """Return whether the time of a search is over."""
    return deadline is not None and time.monotonic() > deadline


def _is_auto(alpha: Any) -> bool:
    return isinstance(alpha, str) and alpha == "auto"


def _sample(environments: Sequence[Sequence[Task]], seed: int) -> list[list[Task]]:
    """Return up to MAX_TASKS random tasks of each environment, with up to MAX_READINGS readings each."""
    rng = np.random.default_rng(seed)
    return [[_thin(task, rng) for task in tasks] for tasks in sample_tasks(environments, MAX_TASKS, seed)]


def _thin(task: Task, rng: np.random.Generator) -> Task:
    """Return at most MAX_READINGS random readings of a task, in their order."""
    if len(task.y) <= MAX_READINGS:
        return task
    kept = np.sort(rng.choice(len(task.y), MAX_READINGS, replace=False))
    return Task(task.x[kept], task.y[kept])


def _with_all_tasks(
    prior: HierarchicalPrior, environments: Sequence[Sequence[Task]], sample: Sequence[Sequence[Task]], target: int
) -> HierarchicalPrior:
    """Return the prior with its common mean learned from all tasks.

    Each environment keeps the weight that its sample had: that is what was tested on held-out tasks.
    """
    of_environment = prior.counts
    if of_environment is None or all(len(a) == len(b) for a, b in zip(environments, sample, strict=True)):
        return prior

    rng = np.random.default_rng(0)

    def chunks() -> Iterator[TrainingTasks]:
        for e, (tasks, drawn) in enumerate(zip(environments, sample, strict=True)):
            count = of_environment[e] * len(drawn) / max(len(tasks), 1)
            for first in range(0, len(tasks) if count > 0 else 0, CHUNK_TASKS):
                some = [prior.scaling.task(_thin(task, rng)) for task in tasks[first : first + CHUNK_TASKS]]
                is_target = np.full(len(some), float(e == target))
                yield TrainingTasks(prior.scaling, some, np.full(len(some), count), is_target)
            if isinstance(tasks, StoredTasks):
                tasks.release()

    try:
        return with_mean_of(prior, chunks())
    except np.linalg.LinAlgError:
        few = f"The common mean is learned from {sum(map(len, sample))} sampled tasks only: a covariance of the other "
        warnings.warn(few + "tasks is singular. Check them for extreme values.", ConvergenceWarning, stacklevel=4)
        return prior
