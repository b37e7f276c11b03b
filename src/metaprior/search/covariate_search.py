"""Covariates of tasks join the search: at the best environment weights, in the common mean of every family."""

import numpy as np

from metaprior.prior.families import BEND, CURVED, NO_COVARIATES, SHIFT
from metaprior.search.search import Search

N_OPTIONS = 2  # environment weights at which covariates are tried: the best ones without them, and target-only
OUTWEIGHED = 5.0  # nats of evidence by which one use of covariates rules out another
CONTRADICTED = 2.0  # standard errors by which held-out tasks must not disagree


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
