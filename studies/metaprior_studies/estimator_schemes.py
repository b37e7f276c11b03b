"""Schemes that are estimators with their arguments, fitted and scored on the tasks of a draw."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from metaprior_studies.drawn_tasks import DrawnTasks

# The paper's networks by MAP, as arguments of WFEMRegressor. "bayes" counts every reading once: at the paper's own
# temperature a hyper-prior of width one would outweigh the tasks.
PAPER_PRIOR: dict[str, Any] = {"kernel": "mlp", "mean": "mlp", "inference": "map", "temperature": "bayes"}


class EstimatorScheme(NamedTuple):
    """A way to learn from a draw: how many of its tasks are used, and an estimator with its arguments."""

    name: str
    n_source: int
    n_target: int
    make: Callable[..., Any]  # MetaGPRegressor, WFEMRegressor, ...
    arguments: dict[str, Any]

    def estimator(self, random_state: int) -> Any:
        """Return the unfitted estimator of this scheme."""
        return self.make(**self.arguments, random_state=random_state)

    def tasks(self, draw: DrawnTasks) -> DrawnTasks:
        """Return the first tasks of a draw, as many as this scheme uses, and all test tasks."""
        return DrawnTasks(draw.source[: self.n_source], draw.target[: self.n_target], draw.test)


def fit_and_score(meta: Any, tasks: DrawnTasks) -> tuple[Mapping[str, Any], float]:
    """Fit an estimator, and return its scores on the test tasks and the seconds that the fit took."""
    started = time.perf_counter()
    meta.fit(tasks.source or None, tasks.target)
    seconds = time.perf_counter() - started
    return meta.evaluate(tasks.test), seconds
