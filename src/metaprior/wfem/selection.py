"""From candidate settings to the few that predictions are averaged over."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from metaprior.checks import Message
from metaprior.search.averaging import averaging_weights, select_weights
from metaprior.search.candidates import AutoSettings, Candidate, Choice
from metaprior.search.folds import DEFAULT_RULE
from metaprior.search.weights import (
    DISCOUNTS_UNTRIED,
    Weights,
    combined_source_weights,
    discounted,
    single_source_weights,
)
from metaprior.tasks.context_rules import ContextRule
from metaprior.tasks.types import Task
from metaprior.wfem.cross_validation import CrossValidation, score_candidates
from metaprior.wfem.divergence import DIVERGENCE_ADVICE, TrainingDiverged
from metaprior.wfem.many_runs import TrainingOptions
from metaprior.wfem.runs import Settings

TEMPERATURE_FACTORS = (0.25, 4.0)  # besides the temperature 'bayes' itself
PRIOR_STD_FACTORS = (0.5, 2.0)  # besides 1
FAMILY_DISCOUNTS = (0.1, 1.0)  # at which families of priors are compared
FAMILY_TASKS, FAMILY_ERRORS = 10, 2.0  # target tasks and standard errors needed to prefer another family to the first
STEPS_DIVISOR = 4  # a run of the search takes a quarter of the steps
WEIGHTS = "environment weights"


class SearchOptions(NamedTuple):
    """How the runs of a search are trained, and when it has to end."""

    training: TrainingOptions
    seed: int
    deadline: float | None = None  # of time.monotonic
    rule: ContextRule = DEFAULT_RULE  # by which held-out tasks are split into context and queries


def choose(
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[Weights],
    families: Sequence[Settings],
    auto: AutoSettings,
    search: SearchOptions,
) -> tuple[int, Choice]:
    """Choose a family of priors and weight the options (and variations of the settings) by cross-validation.

    Return the index of the family and the choice. With fewer than two target tasks nothing can be held out: then source
    tasks count a tenth, 0.4 times and as much as a target task, and the three are averaged with equal weights.
    """
    counts = [len(tasks) for tasks in environments]
    n_steps = search.training.n_steps
    family, validation = 0, None
    if _compares_families(counts[target], families, n_steps):
        family, validation = _choose_family(environments, target, options, families, search)
    settings = families[family]
    if len(options) == 1 and not (auto.temperature or auto.prior_std):
        return family, Choice([Candidate(options[0], settings)], np.ones(1), None)
    if counts[target] < 2 or n_steps == 0:
        return family, untested(counts, target, options, settings, auto, DISCOUNTS_UNTRIED if n_steps > 0 else (1.0,))
    candidates = [Candidate(weights, settings) for weights in options]
    if validation is None or not score_candidates([validation], candidates, search.training, search.deadline, WEIGHTS):
        # Nothing to reuse, or no time to train all candidates for as many steps: then all take fewer.
        validation = _cross_validation(environments, target, settings, search)
        score_candidates([validation], candidates, search.training, search.deadline, WEIGHTS)
    if auto.weights and len(options) > 1:
        candidates += _compare_sources(validation, candidates, counts, search)
    if auto.temperature or auto.prior_std:
        best = candidates[int(choice_of(validation, candidates).weights.argmax())]
        varied = _variations(best, auto)
        if score_candidates([validation], varied, search.training, search.deadline, "variations"):
            candidates += varied
    return family, choice_of(validation, candidates)


def n_phases(
    counts: Sequence[int],
    target: int,
    options: Sequence[Weights],
    families: Sequence[Settings],
    auto: AutoSettings,
    n_steps: int,
) -> int:
    """Return how many phases `choose` has, at most: without helpful sources none are combined."""
    n_first = int(_compares_families(counts[target], families, n_steps))
    varied = auto.temperature or auto.prior_std
    if (len(options) == 1 and not varied) or counts[target] < 2 or n_steps == 0:
        return n_first
    sources = auto.weights and len(options) > 1 and bool(single_source_weights(counts, target))
    weights = len(options) > 1 or not n_first  # the only option has been scored with the families
    return n_first + weights + 2 * sources + varied


def _compares_families(n_target: int, families: Sequence[Settings], n_steps: int) -> bool:
    return len(families) > 1 and n_target >= FAMILY_TASKS and n_steps > 0


def untested(
    counts: Sequence[int],
    target: int,
    options: Sequence[Weights],
    settings: Settings,
    auto: AutoSettings,
    discounts: Sequence[float] = DISCOUNTS_UNTRIED,
) -> Choice:
    """Average over the given options or, if these are to be chosen, over some discounts of the source."""
    if auto.weights and len(options) > 1:
        options = [discounted(counts, target, discount) for discount in discounts]
    return Choice(
        [Candidate(weights, settings) for weights in options], np.full(len(options), 1.0 / len(options)), None
    )


def choice_of(validation: CrossValidation, candidates: list[Candidate]) -> Choice:
    """Weight scored candidates in the averaged prediction."""
    scores = validation.scores(candidates)
    if not np.isfinite(scores).all(axis=1).any():
        raise TrainingDiverged(
            Message("Every candidate diverged in the search. Try, in this order: ", *DIVERGENCE_ADVICE)
        )
    target_only = [i for i, candidate in enumerate(candidates) if candidate.weights[validation.target] == 1.0]
    weights = select_weights(averaging_weights(scores), scores, target_only[0] if target_only else None)
    return Choice(candidates, weights, scores)


def _cross_validation(
    environments: Sequence[Sequence[Task]], target: int, settings: Settings, search: SearchOptions
) -> CrossValidation:
    labels = settings.likelihood == "bernoulli"
    return CrossValidation(environments, target, search.seed, labels, search.rule)


def _choose_family(
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[Weights],
    families: Sequence[Settings],
    search: SearchOptions,
) -> tuple[int, CrossValidation]:
    """Return the first family, unless another predicts held-out target tasks clearly better, and its scores so far.

    Clearly better is by more than two standard errors over ten tasks or more; each family at the better of two
    discounts, or at the only option. On five tasks, or by one standard error, networks were chosen that did worse on
    new tasks.
    """
    counts = [len(tasks) for tasks in environments]
    if len(options) > 1:
        options = [discounted(counts, target, r) for r in FAMILY_DISCOUNTS]
    scores, validations = [], []
    for i, settings in enumerate(families):
        deadline = search.deadline
        if deadline is not None:  # the time left is shared with the families to come and with the rest of the search
            now = time.monotonic()
            deadline = now + (deadline - now) / (len(families) - i + 1)
        validation = _cross_validation(environments, target, settings, search)
        candidates = [Candidate(weights, settings) for weights in options]
        score_candidates([validation], candidates, search.training, deadline, "kernels")
        of_task = validation.scores(candidates)
        scores.append(of_task[int(np.argmax(of_task.mean(axis=1)))])
        validations.append(validation)
    first, best = scores[0], int(np.argmax([score.mean() for score in scores]))
    if np.isfinite(first).all() and np.isfinite(scores[best]).all():
        gain = scores[best] - first
        best = best if gain.mean() > FAMILY_ERRORS * gain.std(ddof=1) / np.sqrt(len(gain)) else 0
    return best, validations[best]


def _compare_sources(
    validation: CrossValidation, known: list[Candidate], counts: list[int], search: SearchOptions
) -> list[Candidate]:
    """With several sources, score each source alone with the target, then the helpful ones combined.

    The first known candidate is target-only. Return the new candidates that there was time to score.
    """
    first, tried = known[0], [candidate.weights for candidate in known]
    sources = single_source_weights(counts, validation.target)
    single = [Candidate(weights, first.settings) for _, _, weights in sources]
    if not sources or not score_candidates([validation], single, search.training, search.deadline, "single sources"):
        return []
    of_target, *means = validation.scores([first, *single]).mean(axis=1).tolist()
    scores = [(source, discount, score) for (source, discount, _), score in zip(sources, means, strict=True)]
    several = combined_source_weights(counts, validation.target, of_target, scores)
    combined = [Candidate(weights, first.settings, from_scores=True) for weights in several if weights not in tried]
    if combined and not score_candidates([validation], combined, search.training, search.deadline, "combined sources"):
        combined = []
    return [*single, *combined]


def _variations(candidate: Candidate, auto: AutoSettings) -> list[Candidate]:
    """Return the candidate with other temperatures, and with other scales of the hyper-prior."""
    settings = candidate.settings
    varied = [replace(settings, temperature_factor=factor) for factor in TEMPERATURE_FACTORS if auto.temperature]
    for factor in PRIOR_STD_FACTORS if auto.prior_std else ():
        prior_std = {name: factor * value for name, value in settings.prior_std.items()}
        varied.append(replace(settings, prior_std=prior_std))
    return [replace(candidate, settings=each) for each in varied]
