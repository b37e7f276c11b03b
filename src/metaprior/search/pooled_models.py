"""What users would fit without metaprior: a linear mixed model and a hierarchical GP, of all tasks pooled.

Two families of hierarchical priors are these models, where every task counts once and the target has no mean of its
own. They are left as they are: not averaged, not calibrated, and with one noise for all tasks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from metaprior.hierarchical.families import LINEAR, NO_COVARIATES, SHIFT, SMOOTH, FamilyFit, fit_families
from metaprior.hierarchical.hierarchical_prior import HierarchicalPrior
from metaprior.hierarchical.task_scales import ONE_SCALE
from metaprior.search.family_search import Option, training_tasks
from metaprior.tasks.column_kinds import ColumnKinds
from metaprior.tasks.types import Task

MIXED_MODEL, HIERARCHICAL_GP = "mixed model", "hierarchical GP"
FAMILIES = {MIXED_MODEL: LINEAR, HIERARCHICAL_GP: SMOOTH}


def pooled_models(
    environments: Sequence[Sequence[Task]],
    target: int,
    options: Sequence[Option],
    noise_std: float | None,
    fitted: Iterable[tuple[Option, FamilyFit]],
    kinds: ColumnKinds | None = None,
) -> dict[str, HierarchicalPrior]:
    """Return the models by name, of all environments that have weight in an option; none that cannot be fitted.

    A search with an option of equal weights has fitted them: `fitted` are its options and fits, without covariates of
    tasks. Where there are covariates they shift the mean, as the fixed effects of a mixed model do.
    """
    has_covariates = kinds is not None and bool(kinds.covariates)
    pooled = pooled_option([len(tasks) for tasks in environments], options)
    known = (fit for option, fit in fitted if _is_same(option, pooled))
    found = None if has_covariates else next(known, None)
    if found is None:
        training, effect = (
            training_tasks(environments, target, pooled, None, kinds),
            SHIFT if has_covariates else NO_COVARIATES,
        )
        try:
            found = fit_families(training, False, noise_std, covariates=effect, simple=True)
        except np.linalg.LinAlgError:
            return {}
    pairs = {name: found.priors.get(family) for name, family in FAMILIES.items()}
    return {name: replace(prior, scales=ONE_SCALE) for name, prior in pairs.items() if prior is not None}


def pooled_option(counts: Sequence[int], options: Sequence[Option]) -> Option:
    """Return the weights with which every task of an environment that has weight in an option counts once."""
    used = np.max([option.weights for option in options], axis=0) > 0
    weights = used * np.asarray(counts, float)
    return Option(tuple((weights / weights.sum()).tolist()))


def _is_same(option: Option, pooled: Option) -> bool:
    return not option.environment and np.allclose(option.weights, pooled.weights, rtol=0.0, atol=1e-9)
