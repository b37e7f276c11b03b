"""The comparison of hierarchical priors: which environment weights are tried, on how many tasks, and for how long."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import Argument, Message, check_noise, warn_caller
from metaprior.estimators.arguments import OUTPUTS, NamedEnvironments
from metaprior.prior.families import NO_COVARIATES
from metaprior.progress import progress_bar
from metaprior.search.covariate_search import covariate_candidates
from metaprior.search.family_choice import FamilyChoice, choose_members, choose_untested, without_test
from metaprior.search.family_search import FamilySearch, Option
from metaprior.search.feature_search import add_features, are_worth_trying, may_be_learned
from metaprior.search.label_search import LabelSearch, labels_without_test
from metaprior.search.pooled_models import pooled_models
from metaprior.search.response_search import ResponseSearch, responses_without_test
from metaprior.search.weights import (
    DISCOUNTS_UNTRIED,
    combined_source_weights,
    discounted,
    resolve_weights,
    single_source_weights,
)
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.context_rules import as_context_rule
from metaprior.tasks.thinning import thin_task
from metaprior.tasks.types import Task

DISCOUNTS = (0.0, 0.1, 0.4, 1.0)
ENVIRONMENT_DISCOUNTS = (0.4, 1.0)  # at which the target's mean may also deviate from the sources'
FIRST_TASKS, FIRST_READINGS = 20, 25  # of each environment, and of each task: a comparison of about a second
GROWTH = 2  # of the tasks from one comparison to the next, if there is time
FEATURES_COST = 5  # times all other families, at most
WORTH_PARTS = 4  # times the first comparison: the cost of the whole from which on it pays to begin with a part

Sample = list[list[Task]]  # tasks of each environment


class Compared(NamedTuple):
    """A comparison, the tasks it was made on, whether there was time for all of it, and if features had no time."""

    search: FamilySearch
    sample: Sample
    complete: bool
    without_features: bool


def compare_priors(
    meta: Any, environments: NamedEnvironments, sample: Sample, seed: int
) -> tuple[FamilyChoice, Sample]:
    """Compare families and environment weights on held-out tasks; return the choice, and the tasks it was made by.

    With a `search_time` the comparison starts with few tasks and is repeated with twice as many for as long as there is
    time: all environment weights on some tasks tell more than some of them on all tasks.
    """
    names, _, target, *_ = environments
    counts = [len(tasks) for tasks in sample]
    options = _options(meta, names, counts, target)
    held_out = _held_out(counts, target, options)
    if counts[held_out] < 2:
        return _untested(meta, environments, sample, options), sample
    compared = _compare(meta, environments, sample, seed, held_out)
    with progress_bar("averaging predictions", None, "", meta.progress):
        search = compared.search
        chosen = (choose_members if held_out == target else choose_untested)(search)
        if meta._kind == "gaussian":
            fits = zip(search.options, search.fits, strict=True)
            noise_std, kinds = check_noise(meta.noise_std), environments.kinds
            pooled = pooled_models(compared.sample, target, options, noise_std, fits, kinds)
            chosen = chosen._replace(pooled=pooled)
        return chosen, compared.sample


def _untested(meta: Any, environments: NamedEnvironments, sample: Sample, options: Sequence[Option]) -> FamilyChoice:
    """Return an average of simple priors, without a comparison: there are no tasks to hold out."""
    target, kinds = environments.target, environments.kinds
    if meta._kind == "bernoulli":  # where covariates are inputs like others
        return labels_without_test(sample, target, options, _n_shared(meta), kinds)
    if meta._kind != "gaussian":
        chosen = responses_without_test(sample, target, options, meta._likelihood, meta._exposure, kinds)
    else:
        noise_std = check_noise(meta.noise_std)
        chosen = without_test(sample, target, options, noise_std, kinds)
        chosen = chosen._replace(pooled=pooled_models(sample, target, options, noise_std, (), kinds))
    if kinds is None or not kinds.covariates:
        return chosen
    few = " are not used: held-out tasks tell whether they help, and no environment with weight has two tasks. "
    warn_caller(Message(Argument("covariates"), few, "Pass more tasks, or leave the covariates out."))
    return chosen._replace(covariates={NO_COVARIATES: 1.0})


def _compare(meta: Any, environments: NamedEnvironments, sample: Sample, seed: int, held_out: int) -> Compared:
    """Return the comparison on most tasks that there is time for."""
    if meta.search_time is None:
        return _compare_on(meta, environments, sample, seed, held_out, None)
    deadline, found, seconds = time.monotonic() + meta.search_time, None, 0.0
    for part in _growing(sample, seed, meta._kind == "bernoulli"):
        started = time.monotonic()
        if found is not None and started + seconds * _cost(part) / _cost(found.sample) > deadline:
            break
        latest = _compare_on(meta, environments, part, seed, held_out, deadline)
        found, seconds = latest if found is None or latest.complete else found, time.monotonic() - started
        if not latest.complete:
            break
    assert found is not None, "there is at least one sample"
    if not found.complete or found.without_features or _cost(found.sample) < _cost(sample):
        n_used, n_all = (sum(map(len, tasks)) for tasks in (found.sample, sample))
        most = max(len(task.y) for tasks in found.sample for task in tasks)
        made = f"made on {n_used} of {n_all} tasks, with up to {most} {OUTPUTS[meta._kind]} of each"
        made += "" if found.complete else f", and of the first {len(found.search.options)} environment weights only"
        made += ", without learned features" if found.without_features else ""
        warn_caller(
            Message(Argument("search_time"), f" of {meta.search_time:g} s ended the comparison: it was {made}.")
        )
    return found


def _compare_on(
    meta: Any, environments: NamedEnvironments, sample: Sample, seed: int, held_out: int, deadline: float | None
) -> Compared:
    """Compare on some tasks, until the deadline."""
    started, (names, _, target, *_) = time.monotonic(), environments
    counts = [len(tasks) for tasks in sample]
    options = _options(meta, names, counts, target)
    search = _make_search(meta, sample, target, seed, held_out, environments.kinds)
    complete = add_options(search, options, "environment weights", deadline, meta.progress)
    if complete and _is_auto(meta.alpha) and held_out == target:
        complete = _compare_sources(search, counts, deadline, meta.progress)
    if complete and search.has_covariates:
        complete = _compare_covariates(search, deadline, meta.progress)
    without_features = False
    if complete and search.features and may_be_learned(sample, search.kinds):
        with progress_bar("learning features", None, "", meta.progress):
            if are_worth_trying(search):
                without_features = not _has_time(deadline, time.monotonic() - started)
                if not without_features:
                    add_features(search)
    return Compared(search, sample, complete, without_features)


def _has_time(deadline: float | None, seconds: float) -> bool:
    """Return whether there is time to learn features, given that of the other families."""
    return deadline is None or time.monotonic() + FEATURES_COST * seconds < deadline


def add_options(
    search: FamilySearch, options: Sequence[Option], what: str, deadline: float | None, progress: bool | None
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


def _compare_covariates(search: FamilySearch, deadline: float | None, progress: bool | None) -> bool:
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


def _compare_sources(
    search: FamilySearch, counts: Sequence[int], deadline: float | None, progress: bool | None
) -> bool:
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


def n_phases(meta: Any, environments: NamedEnvironments, sample: Sample) -> int:
    """Return how many phases `compare_priors` has, if there is time for all."""
    counts, target = [len(tasks) for tasks in sample], environments.target
    held_out = _held_out(counts, target, _options(meta, environments.names, counts, target))
    if counts[held_out] < 2:
        return 0
    single_sources = _is_auto(meta.alpha) and held_out == target and bool(single_source_weights(counts, target))
    kinds, likelihood = environments.kinds, meta._kind
    covariates = kinds is not None and bool(kinds.covariates) and likelihood != "bernoulli"
    features = likelihood == "gaussian" and may_be_learned(sample, kinds)
    return 2 + 2 * single_sources + covariates + features  # environment weights and averaging, at least


def _held_out(counts: Sequence[int], target: int, options: Sequence[Option]) -> int:
    """Return the environment whose tasks are held out: the target, or the largest of those with weight.

    Environments without weight must not have any effect.
    """
    if counts[target] > 1:
        return target
    used = np.min([option.weights for option in options], axis=0) > 0
    return int(np.argmax(np.where(used, counts, 0)))


def _make_search(
    meta: Any, sample: Sample, target: int, seed: int, held_out: int, kinds: ColumnKinds | None
) -> FamilySearch:
    rule = as_context_rule(meta.context)
    if meta._kind == "bernoulli":
        return LabelSearch(sample, target, _n_shared(meta), seed, held_out, meta.calibrate, rule, kinds)
    if meta._kind != "gaussian":
        return ResponseSearch(sample, target, meta._likelihood, meta._exposure, seed, held_out, rule, kinds)
    return FamilySearch(sample, target, check_noise(meta.noise_std), seed, held_out, rule, kinds)


def _n_shared(meta: Any) -> int | None:
    """Return the number of classes that all tasks share, or None if each has its own."""
    return None if meta.classes_ is None else len(meta.classes_)


def _options(meta: Any, names: Sequence[str], counts: Sequence[int], target: int) -> list[Option]:
    """Return the environment weights to compare: target-only first, then ever more of the source."""
    if not _is_auto(meta.alpha):
        return [Option(weights) for weights in resolve_weights(meta.alpha, names, counts, target)]
    if sum(counts) == counts[target]:
        return [Option(discounted(counts, target, 0.0))]
    if not counts[target]:
        return [Option(discounted(counts, target, np.inf))]
    if counts[target] == 1:
        return [Option(discounted(counts, target, r)) for r in DISCOUNTS_UNTRIED]
    plain = [Option(discounted(counts, target, r)) for r in DISCOUNTS]
    if meta._kind == "bernoulli":
        return plain
    return plain + [Option(discounted(counts, target, r), environment=True) for r in ENVIRONMENT_DISCOUNTS]


def _is_auto(alpha: Any) -> bool:
    return isinstance(alpha, str) and alpha == "auto"


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
