"""Schemes that are estimators with other arguments, fitted and scored on the tasks of a draw."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from metaprior_studies.drawn_tasks import DrawnTasks


class EstimatorScheme(NamedTuple):
    """A way to learn from a draw: how many of its tasks are used, and the arguments of the estimator."""

    name: str
    n_source: int
    n_target: int
    arguments: dict[str, Any]

    def estimator(self, make: Callable[..., Any], **defaults: Any) -> Any:
        """Return an unfitted estimator with the arguments of this scheme."""
        return make(**{**defaults, **self.arguments}, progress=False)

    def tasks(self, draw: DrawnTasks) -> DrawnTasks:
        """Return the first tasks of a draw, as many as this scheme uses, and all test tasks."""
        return DrawnTasks(draw.source[: self.n_source], draw.target[: self.n_target], draw.test)


def fit_and_score(meta: Any, tasks: DrawnTasks) -> tuple[Mapping[str, Any], float]:
    """Fit an estimator, and return its scores on the test tasks and the seconds that the fit took."""
    started = time.perf_counter()
    meta.fit(tasks.source or None, tasks.target)
    seconds = time.perf_counter() - started
    return meta.evaluate(tasks.test), seconds
