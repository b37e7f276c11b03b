"""The comparison of priors: which environment weights are tried, on how many tasks, and for how long.

Learned features join where tasks are many and inputs several. Whether two covariates act together, which the default
does not model, is tested too.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, warn_caller
from metaprior.conventions import convergence_warning
from metaprior.prior.families import FEATURES, NO_COVARIATES, fit_features
from metaprior.prior.fitted import Prior
from metaprior.progress import progress_bar
from metaprior.search.averaging import (
    DISCOUNTS_UNTRIED,
    Candidate,
    averaging_weights,
    combined_source_weights,
    discounted,
    resolve_weights,
    single_source_weights,
)
from metaprior.search.held_out import DEFAULT_RULE
from metaprior.search.problems import Numbers, Problem, pooled_models
from metaprior.search.search import (
    FamilyChoice,
    Scored,
    Search,
    best_covariates,
    choose_members,
    choose_untested,
    covariate_candidates,
    without_test,
)
from metaprior.tasks.categories import ColumnKinds
from metaprior.tasks.splits import ContextRule, thin_task
from metaprior.tasks.types import Task

DISCOUNTS = (0.0, 0.1, 0.4, 1.0)
ENVIRONMENT_DISCOUNTS = (0.4, 1.0)  # at which the target's mean may also deviate from the sources'
FIRST_TASKS, FIRST_READINGS = 20, 25  # of each environment, and of each task: a comparison of about a second
GROWTH = 2  # of the tasks from one comparison to the next, if there is time
WORTH_PARTS = 4  # times the first comparison: a longer one begins with a part of the tasks

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
    problem, target, kinds = asked.problem, asked.target, asked.kinds
    counts = [len(tasks) for tasks in sample]
    options = _options(asked, counts)
    held_out, known = _held_out(counts, target, options), []
    if counts[held_out] < 2:
        chosen = without_test(problem, sample, target, options, kinds)
        if problem.has_covariates(kinds):
            few = " are not used: held-out tasks tell whether they help, and no environment with weight has two tasks. "
            warn_caller(Message(Argument("covariates"), few, "Pass more tasks, or leave the covariates out."))
            chosen = chosen._replace(covariates={NO_COVARIATES: 1.0})
    else:
        search, sample, *_ = _compare(asked, sample, held_out)
        with progress_bar("averaging predictions", None, "", asked.progress):
            chosen = (choose_members if held_out == target else choose_untested)(search)
        known = list(zip(search.options, search.fits, strict=True))
    if isinstance(problem, Numbers) and problem.normal:
        chosen = chosen._replace(pooled=pooled_models(problem, sample, target, options, kinds, known))
    return chosen, sample


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
        ended = f" of {asked.search_time:g} s ended the comparison: it was {made}."
        warn_caller(Message(Argument("search_time"), ended))
    return found


def _compare_on(asked: Asked, sample: Sample, held_out: int, deadline: float | None) -> Compared:
    """Compare on some tasks, until the deadline."""
    started, counts, how = time.monotonic(), [len(tasks) for tasks in sample], (deadline, asked.progress)
    search = Search(asked.problem, sample, asked.target, asked.seed, held_out, asked.rule, asked.kinds)
    complete = add_options(search, _options(asked, counts), "environment weights", *how)
    if complete and asked.chooses_alpha and held_out == asked.target:
        complete = _compare_sources(search, counts, *how)
    if complete and search.has_covariates:
        effects = [(covariates, (option, covariates)) for option, covariates in covariate_candidates(search)]
        complete = _try_all(search, search.add_covariates, effects, "comparing covariates", "", *how)
    without_features = False
    if complete and asked.problem.normal and may_be_learned(sample, search.kinds):
        with progress_bar("learning features", None, "", asked.progress):
            if are_worth_trying(search):
                seconds = FEATURES_COST * (time.monotonic() - started)
                without_features = deadline is not None and time.monotonic() + seconds >= deadline
                if not without_features:
                    add_features(search)
    return Compared(search, sample, complete, without_features)


def add_options(
    search: Search, options: Sequence[Candidate], what: str, deadline: float | None, progress: bool | None
) -> bool:
    """Compare options until the deadline, always the first; return whether there was time for all."""
    about = f"on {sum(map(len, search.environments))} tasks"
    named = [(f"alpha = {1.0 - option.weights[search.target]:.2g}", (option,)) for option in options]
    return _try_all(search, search.add, named, f"comparing {what}", about, deadline, progress)


def _try_all(
    search: Search,
    add: Callable[..., None],
    named: Sequence[tuple[str, tuple[Any, ...]]],
    what: str,
    about: str,
    deadline: float | None,
    progress: bool | None,
) -> bool:
    """Add candidates, given with their names, until the deadline; return whether there was time for all."""
    with progress_bar(what, len(named), about, progress) as move:
        for i, (name, given) in enumerate(named):
            if search.options and deadline is not None and time.monotonic() > deadline:
                return False
            if move is not None:
                move(i, name)
            add(*given)
    return True


def _compare_sources(search: Search, counts: Sequence[int], deadline: float | None, progress: bool | None) -> bool:
    """With several sources, compare each source alone with the target, then the helpful ones combined."""
    single = single_source_weights(counts, search.target)
    if not single:
        return True
    before, options = len(search.options), [Candidate(weights) for _, _, weights in single]
    complete = add_options(search, options, "single sources", deadline, progress)
    of_target, *means = search.option_scores()[[0, *range(before, len(search.options))]].mean(axis=1).tolist()
    scores = [(source, discount, score) for (source, discount, _), score in zip(single, means, strict=False)]
    known = [option.weights for option in search.options]
    several = combined_source_weights(counts, search.target, of_target, scores)
    combined = [Candidate(w, from_scores=True) for w in several if w not in known]
    return complete and add_options(search, combined, "combined sources", deadline, progress)


def n_phases(asked: Asked, sample: Sample) -> int:
    """Return how many phases `compare_priors` has, if there is time for all."""
    counts, target, problem = [len(tasks) for tasks in sample], asked.target, asked.problem
    held_out = _held_out(counts, target, _options(asked, counts))
    if counts[held_out] < 2:
        return 0
    single_sources = asked.chooses_alpha and held_out == target and bool(single_source_weights(counts, target))
    features = problem.normal and may_be_learned(sample, asked.kinds)
    return 2 + 2 * single_sources + problem.has_covariates(asked.kinds) + features  # weights and averaging, at least


def _held_out(counts: Sequence[int], target: int, options: Sequence[Candidate]) -> int:
    """Return the environment whose tasks are held out: the target, or the largest of those with weight.

    Environments without weight must not have any effect.
    """
    if counts[target] > 1:
        return target
    used = np.min([option.weights for option in options], axis=0) > 0
    return int(np.argmax(np.where(used, counts, 0)))


def _options(asked: Asked, counts: Sequence[int]) -> list[Candidate]:
    """Return the environment weights to compare: target-only first, then ever more of the source."""
    target = asked.target
    if not asked.chooses_alpha:
        return [Candidate(weights) for weights in resolve_weights(asked.alpha, asked.names, counts, target)]
    discounts = DISCOUNTS if counts[target] > 1 else DISCOUNTS_UNTRIED if counts[target] else (np.inf,)
    if sum(counts) == counts[target]:
        discounts = (0.0,)
    plain = [Candidate(discounted(counts, target, r)) for r in discounts]
    if discounts != DISCOUNTS or asked.problem.labels:
        return plain
    return plain + [Candidate(discounted(counts, target, r), environment=True) for r in ENVIRONMENT_DISCOUNTS]


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


MIN_TASKS, MIN_INPUTS = 50, 2  # from which features are tried
N_PARTS = 3  # in which the held-out tasks are left out: a network is fitted anew without each
MAX_READINGS = 30  # of each task that features are learned from
N_THREADS = 2
HOPELESS = 0.05  # weight in the average on the first part, below which the rest is not tried
FEATURES_COST = 5  # times all other families, at most


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
    option, problem, queries = _best_option(search), search.problem, search.queries
    groups = np.array_split(np.arange(len(search.folds.members)), min(N_PARTS, len(search.folds.members)))
    first, *others = [np.concatenate([search.folds.members[i] for i in group.tolist()]) for group in groups]
    try:
        parts = [(queries.rows_of(first), _fit(search, option, first))]
        _, predicted = problem.tested(queries, None, parts)
        scores = np.concatenate([search.scores(), queries.scores(predicted)[None]])[:, first]
        if averaging_weights(scores, problem.per_task)[-1] < HOPELESS:
            search.families[FEATURES] = None
            return
        with ThreadPoolExecutor(N_THREADS) as pool:
            prior, *priors = pool.map(lambda left_out: _fit(search, option, left_out), [np.zeros(0, int), *others])
        parts += [(queries.rows_of(members), each) for each, members in zip(priors, others, strict=True)]
        tested, held_out = problem.tested(queries, prior, parts)
    except np.linalg.LinAlgError:
        warn_caller("Learned features could not be fitted, and are left out.", convergence_warning())
        return
    search.families[FEATURES] = None
    search.scored.append(Scored(option, FEATURES, tested, held_out, best_covariates(search)))


def _best_option(search: Search) -> int:
    return int(np.argmax(search.option_scores().mean(axis=1)))


def _fit(search: Search, option: int, left_out: np.ndarray) -> Prior:
    """Fit features to all tasks but some of the held-out environment's."""
    problem, rng = search.problem, np.random.default_rng(0)
    assert isinstance(problem, Numbers)
    kept = [[thin_task(task, MAX_READINGS, rng) for task in tasks] for tasks in search.environments]
    kept[search.held_out] = [task for i, task in enumerate(kept[search.held_out]) if i not in left_out]
    chosen, sizes = search.options[option], [len(tasks) for tasks in search.environments]
    training = problem.training(kept, search.target, chosen, search.kinds, sizes)
    return fit_features(training, chosen.environment, problem.noise_std, best_covariates(search))


LEVEL = 0.01  # of the test whether covariates act together
MIN_TESTED, MAX_LEVELS = 15, 5  # tasks, and levels of a category


def acting_together(prior: Prior, tasks: Sequence[Task], kinds: ColumnKinds) -> tuple[int, int] | None:
    """Return the two columns of X whose product explains most of what is left, if that is significant."""
    if len(tasks) < MIN_TESTED or len(kinds.covariates) < 2:
        return None
    left = [_left(prior, task, kinds) for task in tasks]
    outcomes = [_normal_scores(values) for values in np.array(left).T if np.ptp(values) > 0]
    columns = [(i, column) for i in kinds.covariates for column in _columns(tasks, i, kinds.levels[i])]
    pairs = [(a, b) for a, b in combinations(columns, 2) if a[0] != b[0]]
    found = [(_p_value(y, a, b), (i, j)) for y in outcomes for (i, a), (j, b) in pairs]
    smallest = min(found, default=(1.0, (0, 0)))
    return smallest[1] if smallest[0] * len(found) < LEVEL else None


def _left(prior: Prior, task: Task, kinds: ColumnKinds) -> list[float]:
    """Return the mean of what the common mean leaves of a task, and its slopes along inputs that are numbers."""
    scaled = prior.scaling.task(task)
    rest = scaled.y - prior.process.describe(scaled.x).common @ prior.process.common_mean
    inputs = [scaled.x[:, i] for i in range(kinds.input_widths.count(1))]
    slopes = [float(np.cov(x, rest)[0, 1] / max(x.var(), 1e-12)) if len(x) > 2 else 0.0 for x in inputs]
    return [float(rest.mean()), *slopes]


def _columns(tasks: Sequence[Task], column: int, n_levels: int) -> list[np.ndarray]:
    """Return a covariate of all tasks as standardized columns: its values, or who has each of its first levels."""
    values = np.array([task.x[0, column] for task in tasks])
    levels = range(min(n_levels, MAX_LEVELS) - 1)  # the last follows from the others
    columns = [np.where(values == level, 1.0, 0.0) for level in levels] if n_levels else [values]
    columns = [np.where(np.isnan(each), np.nanmean(each), each) for each in columns if np.isfinite(each).any()]
    return [(each - each.mean()) / each.std() for each in columns if each.std() > 0]


def _normal_scores(values: np.ndarray) -> np.ndarray:
    from scipy import stats  # which takes long to import

    return stats.norm.ppf((stats.rankdata(values) - 0.5) / len(values))


def _p_value(y: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """Return that of Student's t test of the product."""
    others = np.column_stack([np.ones(len(y)), a, b, a**2, b**2])
    both = np.column_stack([y, a * b])
    y, product = (both - others @ np.linalg.lstsq(others, both, rcond=None)[0]).T
    n_free = len(y) - np.linalg.matrix_rank(others) - 1
    size = float(product @ product)
    if n_free < 3 or size < 1e-6 * len(y):
        return 1.0
    slope = float(product @ y) / size
    error = np.sqrt(float(np.sum((y - slope * product) ** 2)) / n_free / size)
    from scipy import stats

    return float(2.0 * stats.t.sf(abs(slope) / max(error, 1e-12), n_free))
