"""What users would fit without metaprior: a linear mixed model and a hierarchical GP, of all tasks pooled.

Every task counts once, and the target has no mean of its own. They are left as they are: not averaged, not calibrated,
and with one noise for all tasks. The hierarchical GP is the smooth family of hierarchical priors.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from metaprior.prior.families import (
    NO_COVARIATES,
    SHIFT,
    SMOOTH,
    FamilyFit,
    TrainingTasks,
    fit_families,
)
from metaprior.prior.fitted import Prior
from metaprior.prior.mixed_model import fit_mixed_model
from metaprior.prior.task_scales import ONE_SCALE
from metaprior.search.numbers import Numbers
from metaprior.search.search import Option, Search
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.types import Task

MIXED_MODEL, HIERARCHICAL_GP = "mixed model", "hierarchical GP"


def pooled_models(
    problem: Numbers,
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[Option],
    kinds: ColumnKinds | None = None,
    search: Search | None = None,
) -> dict[str, Prior]:
    """Return the models by name, of all environments that have weight in an option; none that cannot be fitted.

    A search with an option of equal weights has fitted the hierarchical GP, without covariates of tasks. Where there
    are covariates they shift the mean, as the fixed effects of a mixed model do.
    """
    effect = SHIFT if kinds is not None and kinds.covariates else NO_COVARIATES
    pooled = pooled_option([len(tasks) for tasks in environments], options)
    training = problem.training(environments, target, pooled, kinds)
    fitted = [] if search is None else zip(search.options, search.fits, strict=True)
    known = [fit for option, fit in fitted if effect == NO_COVARIATES and _is_same(option, pooled)]
    models = {}
    with suppress(np.linalg.LinAlgError):
        models[MIXED_MODEL] = fit_mixed_model(training, problem.noise_std, effect)
    smooth = _smooth(training, problem.noise_std, effect, next(iter(known), None))
    if smooth is not None:
        models[HIERARCHICAL_GP] = replace(smooth, scales=ONE_SCALE)
    return models


def _smooth(training: TrainingTasks, noise_std: float | None, effect: str, found: FamilyFit | None) -> Prior | None:
    """Return the prior of the smooth family, of a fit that is known or of a new one; None if it cannot be fitted."""
    if found is None:
        try:
            found = fit_families(training, False, noise_std, covariates=effect, simple=True)
        except np.linalg.LinAlgError:
            return None
    return found.priors.get(SMOOTH)


def pooled_option(counts: Sequence[int], options: Sequence[Option]) -> Option:
    """Return the weights with which every task of an environment that has weight in an option counts once."""
    used = np.max([option.weights for option in options], axis=0) > 0
    weights = used * np.asarray(counts, float)
    return Option(tuple((weights / weights.sum()).tolist()))


def _is_same(option: Option, pooled: Option) -> bool:
    return not option.environment and np.allclose(option.weights, pooled.weights, rtol=0.0, atol=1e-9)
