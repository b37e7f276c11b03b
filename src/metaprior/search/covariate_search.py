"""Covariates of tasks join the search: at the best environment weights, in the common mean of every family."""

import numpy as np

from metaprior.hierarchical.families import BEND, NO_COVARIATES, SHIFT
from metaprior.search.family_search import FamilySearch

N_OPTIONS = 2  # environment weights at which covariates are tried: the best ones without them


def covariate_candidates(search: FamilySearch) -> list[tuple[int, str]]:
    """Return at which options covariates are tried, and what they do there."""
    best = np.argsort(-search.option_scores().mean(axis=1), kind="stable")[:N_OPTIONS].tolist()
    return [(option, covariates) for option in best for covariates in (SHIFT, BEND)]


def best_covariates(search: FamilySearch) -> str:
    """Return what covariates do in the best of all that was compared."""
    if not search.has_covariates:
        return NO_COVARIATES
    return search.scored[int(np.argmax(search.scores().mean(axis=1)))].covariates
