"""What y holds in all tasks of a fit, checked for the likelihood; a hint where its values suggest another one."""

from typing import Any

import numpy as np

from metaprior.estimators.arguments import NamedEnvironments
from metaprior.estimators.seen_tasks import task_blocks
from metaprior.predict.response_mixtures import make_response
from metaprior.predict.responses import Response
from metaprior.tasks.input_columns import Features
from metaprior.tasks.outcome_rules import Levels, Outcomes, find_levels, warn_if_suggested

MAX_LOOKED_AT = 100_000  # readings of each environment


def check_outcomes(likelihood: str, environments: NamedEnvironments, features: Features) -> Outcomes:
    """Raise if y of a task cannot be observed under the likelihood, or an exposure is not positive.

    Returns what checks y of new tasks: ranks must be of the levels of these.
    """
    if likelihood == "gaussian":
        warn_if_suggested(_some_readings(environments))
        return Outcomes(likelihood)
    outcomes, seen = Outcomes(likelihood), np.zeros(0)
    for tasks, argument in zip(environments.tasks, environments.arguments, strict=True):
        first = 0
        for x, y, sizes in task_blocks(tasks):
            if not (outcomes.allow(y) and features.allow(x)):
                starts = np.cumsum(sizes) - sizes
                for i, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
                    where = f"{argument}[{first + i}]"
                    outcomes.check(y[start : start + size], f"{where}: y")
                    features.check_exposure(x[start : start + size], where)
            seen = np.union1d(seen, y) if likelihood == "ordinal" else seen
            first += len(sizes)
    return Outcomes(likelihood, find_levels(seen) if likelihood == "ordinal" else None)


def response_of(meta: Any) -> tuple[Response, int | None]:
    """Return the response of a regressor whose tasks were checked, and the column of the exposure."""
    levels = meta._outcomes.levels or Levels(0, 0)
    return make_response(meta._kind, levels.number, levels.lowest), meta._exposure


def _some_readings(environments: NamedEnvironments) -> np.ndarray:
    found = [np.zeros(0)]
    for tasks in environments.tasks:
        n = 0
        for _, y, _ in task_blocks(tasks):
            found.append(y)
            n += len(y)
            if n > MAX_LOOKED_AT:
                break
    return np.concatenate(found)
