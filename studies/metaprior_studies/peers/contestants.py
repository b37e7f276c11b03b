"""All contestants by name, and the scores of one on a draw."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from metaprior import MetaGPRegressor
from metaprior.estimators.comparison import per_task_gp
from metaprior.metrics import summarize
from metaprior.predict.predictive import GaussianMixture, Predictive
from metaprior.tasks.columns import no_extrapolation_warnings
from metaprior.tasks.types import TestTask
from metaprior_studies.drawn_tasks import DrawnTasks
from metaprior_studies.peers.context_boosting import fit_context_boosting
from metaprior_studies.peers.gpboost_models import fit_gpboost
from metaprior_studies.peers.hierarchical_gp import fit_hierarchical
from metaprior_studies.peers.mixed_model import fit_mixed
from metaprior_studies.peers.protocol import Array, Contestant, Fitted, Tasks, contexts_of

METRICS = ("rmse", "nll", "coverage", "width")
COVERAGE = 0.9


def fit_metaprior(source: Tasks, target: Tasks, seed: int) -> Fitted:
    """Fit MetaGPRegressor with its defaults."""
    return as_contestant(MetaGPRegressor(random_state=seed, progress=False).fit(list(source), list(target)))


def as_contestant(meta: MetaGPRegressor) -> Fitted:
    """Return a fitted estimator as a contestant."""

    @no_extrapolation_warnings()  # all contestants predict the same held-out readings, wherever they are
    def predict(contexts: Tasks, queries: Sequence[Array]) -> Any:
        return meta.adapt_many([(task.x, task.y) for task in contexts]).predictive(list(queries))

    return Fitted(predict)


def fit_per_task(source: Tasks, target: Tasks, seed: int) -> Fitted:
    """Learn nothing: scikit-learn's GP is fitted to each context alone."""
    y_spread = float(np.std(np.concatenate([task.y for task in target]))) or 1.0

    def predict(contexts: Tasks, queries: Sequence[Array]) -> Any:
        predicted = []
        for task, x_query in zip(contexts, queries, strict=True):
            mean, std = per_task_gp(task.x, task.y, x_query, y_spread)
            predicted.append(GaussianMixture(mean[None], std[None] ** 2))
        return predicted

    return Fitted(predict)


CONTESTANTS: dict[str, Contestant] = {
    "metaprior": fit_metaprior,
    "gpboost": fit_gpboost,
    "mixedlm": fit_mixed,
    "hierarchical-gp": fit_hierarchical,
    "hierarchical-gp-env": partial(fit_hierarchical, environments=True),
    "context-boosting": fit_context_boosting,
    "gp-per-task": fit_per_task,
}
LABELS = {
    "metaprior": "metaprior",
    "gpboost": "GPBoost",
    "mixedlm": "mixed model",
    "hierarchical-gp": "hierarchical GP",
    "hierarchical-gp-env": "hierarchical GP, env.",
    "context-boosting": "context boosting",
    "gp-per-task": "GP per task",
}


def run(contestant: Contestant, tasks: DrawnTasks, seed: int) -> dict[str, Any]:
    """Fit a contestant and predict all test tasks; return scores, seconds, and what it chose."""
    started = time.perf_counter()
    with threadpool_limits(1):  # matrices are small, and seconds comparable
        fitted = contestant(tasks.source, tasks.target, seed)
        predicted = fitted.predict(*contexts_of(tasks.test))
    seconds = time.perf_counter() - started
    return {**score(predicted, tasks.test), "seconds": seconds, "choice": fitted.choice}


def score(predicted: Sequence[GaussianMixture | Predictive], tests: Sequence[TestTask]) -> dict[str, float]:
    """Return means over test tasks of RMSE, NLL per reading, and coverage and width of the central 90% interval."""
    pairs = zip(predicted, tests, strict=True)
    each: list[dict[str, Any]] = [summarize(mixture, test.y_query, coverage=COVERAGE) for mixture, test in pairs]
    return {metric: float(np.mean([scores[metric] for scores in each])) for metric in METRICS}
