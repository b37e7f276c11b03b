"""Covariates of tasks in the search: at the best environment weights, in the common mean of every family.

Whether two of them act together, which the default does not model, is tested too. Levels and slopes of tasks, less what
the common mean predicts, are turned into ranks and regressed on two covariates, their squares and their product.
Student's t test of the product, Bonferroni-corrected, has a false-alarm rate of 1%.

The family of learned features joins the search where tasks are many and inputs several.

The comparison of priors: which environment weights are tried, on how many tasks, and for how long.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, warn_caller
from metaprior.conventions import convergence_warning
from metaprior.prior.families import FEATURES, NO_COVARIATES, fit_features
from metaprior.prior.fitted import Prior
from metaprior.progress import progress_bar
from metaprior.search.averaging import (
    DISCOUNTS_UNTRIED,
    averaging_weights,
    combined_source_weights,
    discounted,
    resolve_weights,
    single_source_weights,
)
from metaprior.search.choice import (
    FamilyChoice,
    best_covariates,
    choose_members,
    choose_untested,
    covariate_candidates,
    without_test,
)
from metaprior.search.held_out import DEFAULT_RULE, PER_TASK, HeldOut, gather
from metaprior.search.numbers import Numbers, pooled_models
from metaprior.search.search import Option, Problem, Scored, Search
from metaprior.tasks.categories import ColumnKinds
from metaprior.tasks.splits import ContextRule, thin_task
from metaprior.tasks.types import Task

MIN_TASKS, MIN_INPUTS = 50, 2  # from which features are tried
N_PARTS = 3  # in which the held-out tasks are left out: a network is fitted anew without each
MAX_READINGS = 30  # of each task that features are learned from
N_THREADS = 2
HOPELESS = 0.05  # weight in the average on the first part, below which the rest is not tried


def may_be_learned(environments: Sequence[Sequence[Task]], kinds: ColumnKinds | None) -> bool:
    """Return whether inputs that are no covariates, and tasks of all environments, are enough to learn features."""
    n_inputs = next(task.x.shape[1] for tasks in environments for task in tasks)
    n_varying = n_inputs - (0 if kinds is None else len(kinds.covariates))
    return n_varying >= MIN_INPUTS and sum(map(len, environments)) >= MIN_TASKS


def are_worth_trying(search: Search) -> bool:
    """Return whether the tasks that count at the best environment weights are enough."""
    weights = search.options[_best_option(search)].weights
    used = [tasks for tasks, weight in zip(search.environments, weights, strict=True) if weight > 0]
    return may_be_learned(used, search.kinds)


def add_features(search: Search) -> None:
    """Fit features at the best option, with predictions of the held-out tasks, and add them to what is scored.

    A first part of these tasks tells whether it is worthwhile; if not, no time is spent on the others.
    """
    option = _best_option(search)
    n_parts = min(N_PARTS, len(search.folds.members))
    groups = np.array_split(np.arange(len(search.folds.members)), n_parts)
    first, *others = [np.concatenate([search.folds.members[i] for i in group.tolist()]) for group in groups]
    try:
        parts = [_predict(search, _fit(search, option, first), first)]
        if _is_hopeless(search, first, gather(parts, len(search.queries.splits))):
            search.families[FEATURES] = None
            return
        with ThreadPoolExecutor(N_THREADS) as pool:
            prior, *priors = pool.map(lambda left_out: _fit(search, option, left_out), [np.zeros(0, int), *others])
        parts += [_predict(search, each, members) for each, members in zip(priors, others, strict=True)]
    except np.linalg.LinAlgError:
        warn_caller("Learned features could not be fitted, and are left out.", convergence_warning())
        return
    search.families[FEATURES] = None
    found = gather(parts, len(search.queries.splits))
    search.scored.append(Scored(option, FEATURES, prior, found, best_covariates(search)))


def _predict(search: Search, prior: Prior, members: np.ndarray) -> tuple[np.ndarray, HeldOut]:
    rows = search.queries.rows_of(members)
    return rows, search.queries.predict(prior, rows)


def _best_option(search: Search) -> int:
    return int(np.argmax(search.option_scores().mean(axis=1)))


def _is_hopeless(search: Search, members: np.ndarray, predicted: HeldOut) -> bool:
    """Return whether features get hardly any weight by the tasks predicted so far."""
    scores = np.concatenate([search.scores(), search.queries.scores(predicted)[None]])[:, members]
    return bool(averaging_weights(scores, PER_TASK)[-1] < HOPELESS)


def _fit(search: Search, option: int, left_out: np.ndarray) -> Prior:
    """Fit features to all tasks but some of the held-out environment's."""
    problem, rng = search.problem, np.random.default_rng(0)
    assert isinstance(problem, Numbers)
    kept = [[thin_task(task, MAX_READINGS, rng) for task in tasks] for tasks in search.environments]
    kept[search.held_out] = [task for i, task in enumerate(kept[search.held_out]) if i not in left_out]
    chosen, sizes = search.options[option], [len(tasks) for tasks in search.environments]
    training = problem.training(kept, search.target, chosen, search.kinds, sizes)
    return fit_features(training, chosen.environment, problem.noise_std, best_covariates(search))


DISCOUNTS = (0.0, 0.1, 0.4, 1.0)
ENVIRONMENT_DISCOUNTS = (0.4, 1.0)  # at which the target's mean may also deviate from the sources'
FIRST_TASKS, FIRST_READINGS = 20, 25  # of each environment, and of each task: a comparison of about a second
GROWTH = 2  # of the tasks from one comparison to the next, if there is time
FEATURES_COST = 5  # times all other families, at most
WORTH_PARTS = 4  # times the first comparison: the cost of the whole from which on it pays to begin with a part

Sample = list[list[Task]]  # tasks of each environment


@dataclass(frozen=True)
class Asked:
    """What a search is asked for, apart from the tasks."""

    problem: Problem
    names: tuple[str, ...]  # of the environments
    target: int
    alpha: Any = "auto"
    kinds: ColumnKinds | None = None  # of the input columns
    rule: ContextRule = DEFAULT_RULE  # by which held-out tasks are split into context and queries
    search_time: float | None = None
    seed: int = 0
    progress: bool | None = None

    @property
    def chooses_alpha(self) -> bool:
        """Whether the weights of environments are chosen among general ones."""
        return isinstance(self.alpha, str) and self.alpha == "auto"


class Compared(NamedTuple):
    """A comparison, the tasks it was made on, whether there was time for all of it, and if features had no time."""

    search: Search
    sample: Sample
    complete: bool
    without_features: bool


def compare_priors(asked: Asked, sample: Sample) -> tuple[FamilyChoice, Sample]:
    """Compare families and environment weights on held-out tasks; return the choice, and the tasks it was made by.

    With a `search_time` the comparison starts with few tasks and is repeated with twice as many for as long as there is
    time: all environment weights on some tasks tell more than some of them on all tasks.
    """
    counts, target, problem = [len(tasks) for tasks in sample], asked.target, asked.problem
    options = _options(asked, counts)
    held_out = _held_out(counts, target, options)
    if counts[held_out] < 2:
        return _untested(asked, sample, options), sample
    compared = _compare(asked, sample, held_out)
    with progress_bar("averaging predictions", None, "", asked.progress):
        search = compared.search
        chosen = (choose_members if held_out == target else choose_untested)(search)
        if isinstance(problem, Numbers) and problem.has_pooled_models:
            pooled = pooled_models(problem, compared.sample, target, options, asked.kinds, search)
            chosen = chosen._replace(pooled=pooled)
        return chosen, compared.sample


def _untested(asked: Asked, sample: Sample, options: Sequence[Option]) -> FamilyChoice:
    """Return an average of simple priors, without a comparison: there are no tasks to hold out."""
    problem, target, kinds = asked.problem, asked.target, asked.kinds
    chosen = without_test(problem, sample, target, options, kinds)
    if isinstance(problem, Numbers) and problem.has_pooled_models:
        chosen = chosen._replace(pooled=pooled_models(problem, sample, target, options, kinds))
    if not problem.has_covariates(kinds):
        return chosen
    few = " are not used: held-out tasks tell whether they help, and no environment with weight has two tasks. "
    warn_caller(Message(Argument("covariates"), few, "Pass more tasks, or leave the covariates out."))
    return chosen._replace(covariates={NO_COVARIATES: 1.0})


def _compare(asked: Asked, sample: Sample, held_out: int) -> Compared:
    """Return the comparison on most tasks that there is time for."""
    if asked.search_time is None:
        return _compare_on(asked, sample, held_out, None)
    deadline, found, seconds = time.monotonic() + asked.search_time, None, 0.0
    for part in _growing(sample, asked.seed, asked.problem.labels):
        started = time.monotonic()
        if found is not None and started + seconds * _cost(part) / _cost(found.sample) > deadline:
            break
        latest = _compare_on(asked, part, held_out, deadline)
        found, seconds = latest if found is None or latest.complete else found, time.monotonic() - started
        if not latest.complete:
            break
    assert found is not None, "there is at least one sample"
    if not found.complete or found.without_features or _cost(found.sample) < _cost(sample):
        n_used, n_all = (sum(map(len, tasks)) for tasks in (found.sample, sample))
        most = max(len(task.y) for tasks in found.sample for task in tasks)
        made = f"made on {n_used} of {n_all} tasks, with up to {most} {asked.problem.outputs} of each"
        made += "" if found.complete else f", and of the first {len(found.search.options)} environment weights only"
        made += ", without learned features" if found.without_features else ""
        warn_caller(
            Message(Argument("search_time"), f" of {asked.search_time:g} s ended the comparison: it was {made}.")
        )
    return found


def _compare_on(asked: Asked, sample: Sample, held_out: int, deadline: float | None) -> Compared:
    """Compare on some tasks, until the deadline."""
    started, counts = time.monotonic(), [len(tasks) for tasks in sample]
    given = asked.target, asked.seed, held_out, asked.rule, asked.kinds
    search = Search(asked.problem, sample, *given)
    complete = add_options(search, _options(asked, counts), "environment weights", deadline, asked.progress)
    if complete and asked.chooses_alpha and held_out == asked.target:
        complete = _compare_sources(search, counts, deadline, asked.progress)
    if complete and search.has_covariates:
        complete = _compare_covariates(search, deadline, asked.progress)
    without_features = False
    if complete and asked.problem.learns_features and may_be_learned(sample, search.kinds):
        with progress_bar("learning features", None, "", asked.progress):
            if are_worth_trying(search):
                without_features = not _has_time(deadline, time.monotonic() - started)
                if not without_features:
                    add_features(search)
    return Compared(search, sample, complete, without_features)


def _has_time(deadline: float | None, seconds: float) -> bool:
    """Return whether there is time to learn features, given that of the other families."""
    return deadline is None or time.monotonic() + FEATURES_COST * seconds < deadline


def add_options(
    search: Search, options: Sequence[Option], what: str, deadline: float | None, progress: bool | None
) -> bool:
    """Compare options until the deadline, always the first; return whether there was time for all."""
    n_tasks = sum(map(len, search.environments))
    with progress_bar(f"comparing {what}", len(options), f"on {n_tasks} tasks", progress) as move:
        for i, option in enumerate(options):
            if search.options and is_over(deadline):
                return False
            if move is not None:
                move(i, f"alpha = {1.0 - option.weights[search.target]:.2g}")
            search.add(option)
    return True


def _compare_covariates(search: Search, deadline: float | None, progress: bool | None) -> bool:
    """Compare common means with and without covariates until the deadline; return whether there was time for all."""
    candidates = covariate_candidates(search)
    with progress_bar("comparing covariates", len(candidates), "", progress) as move:
        for i, (option, covariates) in enumerate(candidates):
            if is_over(deadline):
                return False
            if move is not None:
                move(i, covariates)
            search.add_covariates(option, covariates)
    return True


def _compare_sources(search: Search, counts: Sequence[int], deadline: float | None, progress: bool | None) -> bool:
    """With several sources, compare each source alone with the target, then the helpful ones combined."""
    single = single_source_weights(counts, search.target)
    if not single:
        return True
    before = len(search.options)
    complete = add_options(search, [Option(weights) for _, _, weights in single], "single sources", deadline, progress)
    of_target, *means = search.option_scores()[[0, *range(before, len(search.options))]].mean(axis=1).tolist()
    scores = [(source, discount, score) for (source, discount, _), score in zip(single, means, strict=False)]
    known = [option.weights for option in search.options]
    several = combined_source_weights(counts, search.target, of_target, scores)
    combined = [Option(w, from_scores=True) for w in several if w not in known]
    return complete and add_options(search, combined, "combined sources", deadline, progress)


def is_over(deadline: float | None) -> bool:
    """Return whether the time of a search is over."""
    return deadline is not None and time.monotonic() > deadline


def n_phases(asked: Asked, sample: Sample) -> int:
    """Return how many phases `compare_priors` has, if there is time for all."""
    counts, target, problem = [len(tasks) for tasks in sample], asked.target, asked.problem
    held_out = _held_out(counts, target, _options(asked, counts))
    if counts[held_out] < 2:
        return 0
    single_sources = asked.chooses_alpha and held_out == target and bool(single_source_weights(counts, target))
    features = problem.learns_features and may_be_learned(sample, asked.kinds)
    return 2 + 2 * single_sources + problem.has_covariates(asked.kinds) + features  # weights and averaging, at least


def _held_out(counts: Sequence[int], target: int, options: Sequence[Option]) -> int:
    """Return the environment whose tasks are held out: the target, or the largest of those with weight.

    Environments without weight must not have any effect.
    """
    if counts[target] > 1:
        return target
    used = np.min([option.weights for option in options], axis=0) > 0
    return int(np.argmax(np.where(used, counts, 0)))


def _options(asked: Asked, counts: Sequence[int]) -> list[Option]:
    """Return the environment weights to compare: target-only first, then ever more of the source."""
    target = asked.target
    if not asked.chooses_alpha:
        return [Option(weights) for weights in resolve_weights(asked.alpha, asked.names, counts, target)]
    if sum(counts) == counts[target]:
        return [Option(discounted(counts, target, 0.0))]
    if not counts[target]:
        return [Option(discounted(counts, target, np.inf))]
    if counts[target] == 1:
        return [Option(discounted(counts, target, r)) for r in DISCOUNTS_UNTRIED]
    plain = [Option(discounted(counts, target, r)) for r in DISCOUNTS]
    if not asked.problem.has_environment_effects:
        return plain
    return plain + [Option(discounted(counts, target, r), environment=True) for r in ENVIRONMENT_DISCOUNTS]


def _growing(sample: Sample, seed: int, labels: bool = False) -> Iterator[Sample]:
    """Yield random parts of a sample, the next with twice the tasks and more readings of each, up to the whole."""
    n_tasks, n_readings = FIRST_TASKS, float(FIRST_READINGS)
    part = _part(sample, n_tasks, FIRST_READINGS, seed, labels)
    while WORTH_PARTS * _cost(part) < _cost(sample) or (n_tasks > FIRST_TASKS and _cost(part) < _cost(sample)):
        yield part
        n_tasks, n_readings = GROWTH * n_tasks, GROWTH**0.5 * n_readings
        part = _part(sample, n_tasks, int(n_readings), seed, labels)
    yield sample


def _part(sample: Sample, n_tasks: int, n_readings: int, seed: int, labels: bool) -> Sample:
    """Return up to so many random tasks of each environment, with up to so many readings each."""
    rng = np.random.default_rng(seed)
    chosen = [np.sort(rng.permutation(len(tasks))[:n_tasks]).tolist() for tasks in sample]
    pairs = zip(sample, chosen, strict=True)
    return [[thin_task(tasks[i], n_readings, rng, labels) for i in rows] for tasks, rows in pairs]


def _cost(sample: Sample) -> int:
    """Return a number that the time of a comparison grows with."""
    return sum(len(task.y) ** 2 for tasks in sample for task in tasks)
