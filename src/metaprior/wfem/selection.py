"""From candidate settings to the few that predictions are averaged over."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from metaprior.checks import Message
from metaprior.search.averaging import Candidate, Choice, averaging_weights, select_weights
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
from metaprior.wfem.loop import DIVERGENCE_ADVICE, TrainingDiverged
from metaprior.wfem.many_runs import TrainingOptions
from metaprior.wfem.runs import Settings

TEMPERATURE_FACTORS = (0.25, 4.0)  # besides the temperature 'bayes' itself
PRIOR_STD_FACTORS = (0.5, 2.0)  # besides 1
STEPS_DIVISOR = 4  # a run of the search takes a quarter of the steps
WEIGHTS = "environment weights"


@dataclass(frozen=True)
class AutoSettings:
    """Which settings are chosen by cross-validation."""

    weights: bool = False
    temperature: bool = False
    prior_std: bool = False


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
    settings: Settings,
    auto: AutoSettings,
    search: SearchOptions,
) -> Choice:
    """Weight the options (and variations of the settings) by cross-validation.

    With fewer than two target tasks nothing can be held out: then source tasks count a tenth, 0.4 times and as much as
    a target task, and the three are averaged with equal weights.
    """
    counts = [len(tasks) for tasks in environments]
    n_steps = search.training.n_steps
    if len(options) == 1 and not (auto.temperature or auto.prior_std):
        return Choice([Candidate(options[0], settings)], np.ones(1), None)
    if counts[target] < 2 or n_steps == 0:
        return untested(counts, target, options, settings, auto, DISCOUNTS_UNTRIED if n_steps > 0 else (1.0,))
    candidates = [Candidate(weights, settings) for weights in options]
    validation = CrossValidation(environments, target, search.seed, settings.labels, search.rule)
    score_candidates([validation], candidates, search.training, search.deadline, WEIGHTS)
    if auto.weights and len(options) > 1:
        candidates += _compare_sources(validation, candidates, counts, search)
    if auto.temperature or auto.prior_std:
        best = candidates[int(choice_of(validation, candidates).weights.argmax())]
        varied = _variations(best, auto)
        if score_candidates([validation], varied, search.training, search.deadline, "variations"):
            candidates += varied
    return choice_of(validation, candidates)


def n_phases(counts: Sequence[int], target: int, options: Sequence[Weights], auto: AutoSettings, n_steps: int) -> int:
    """Return how many phases `choose` has, at most: without helpful sources none are combined."""
    varied = auto.temperature or auto.prior_std
    if (len(options) == 1 and not varied) or counts[target] < 2 or n_steps == 0:
        return 0
    sources = auto.weights and len(options) > 1 and bool(single_source_weights(counts, target))
    return 1 + 2 * sources + varied


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
    scaled = PRIOR_STD_FACTORS if auto.prior_std else ()
    varied += [replace(settings, hyperprior=settings.hyperprior.scaled(factor)) for factor in scaled]
    return [replace(candidate, settings=each) for each in varied]
