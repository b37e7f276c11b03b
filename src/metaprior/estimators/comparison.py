"""How a prior compares, on the same test tasks, with what its users would fit without it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from metaprior.checks import counted
from metaprior.conventions import Bunch
from metaprior.float_errors import own_float_errors
from metaprior.metrics import (
    LOSSES,
    Scores,
    interval_coverage,
    interval_width,
    mean_and_standard_error,
    report,
    summarize,
)
from metaprior.predict.batches import predict_tasks
from metaprior.predict.conformal import predict_bands
from metaprior.predict.ensemble import Ensemble
from metaprior.search.pooled_models import HIERARCHICAL_GP, MIXED_MODEL
from metaprior.tasks.types import TestTask

OURS, PER_TASK_GP = "metaprior", "GP per task"
POOLED = (MIXED_MODEL, HIERARCHICAL_GP)
MAIN = ("nll", "log_loss")  # the loss that sentences are about
ARTICLES = {"logistic regression": "", PER_TASK_GP: "a "}
LEVEL = 0.05  # of the paired t-test whether there is a difference


@own_float_errors
@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Scores of a prior and of other models on the same test tasks. Printed, a table and what it says.

    Attributes
    ----------
    scores : dict of str to Scores
        What `evaluate` returns, for "metaprior" and for each other model.
    missing : str
        With which models there is no comparison, and why; empty if there is one with all.
    """

    scores: dict[str, Scores]
    missing: str = ""

    @property
    def gains(self) -> dict[str, Bunch]:
        """By how much the losses of "metaprior" are lower than those of each other model.

        Differences are taken task by task, so that tasks which are hard for all models do not add to the standard
        errors `..._se`.
        """
        ours, found = self.scores[OURS].per_task, {}
        for who, other in self.scores.items():
            if who != OURS:
                gains: dict[str, float] = {}
                for name in (name for name in LOSSES if name in ours):
                    gains[name], gains[f"{name}_se"] = mean_and_standard_error(other.per_task[name] - ours[name])
                found[who] = Bunch(**gains)
        return found

    @property
    def sentences(self) -> list[str]:
        """What the gains say, a sentence for each other model."""
        return [gain_in_words(who, gain, self.scores[OURS].n_tasks) for who, gain in self.gains.items()]

    def __repr__(self) -> str:
        names = [name for name in self.scores[OURS].per_task if not name.endswith("width")]
        rows = [("", *(name.replace("_", " ") for name in names))]
        for who, score in self.scores.items():
            rows.append((who, *(with_error(score.get(name), score.get(f"{name}_se")) for name in names)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
        lines = [*(line.rstrip() for line in table), *self.sentences, *([self.missing] if self.missing else [])]
        tasks = counted(self.scores[OURS].n_tasks, "test task")
        title = f"Means over {tasks} ± standard error; scores has all of them, gains the differences."
        return "\n".join([title, *lines])


def gain_in_words(who: str, gain: Mapping[str, Any], n_tasks: int) -> str:
    """Return a sentence about the paired difference in the main loss."""
    name = next(name for name in MAIN if name in gain)
    value, error = (np.nan if each is None else each for each in (gain[name], gain[f"{name}_se"]))
    is_clear = n_tasks > 1 and abs(value) > stdtrit(n_tasks - 1, 1.0 - LEVEL / 2) * (0.0 if np.isnan(error) else error)
    size, direction = with_error(abs(value), error), "lower" if value >= 0 else "higher"
    on = f"on {counted(n_tasks, 'task')}" + ("" if is_clear else ", which is no clear difference")
    return f"metaprior's {LOSSES[name]} is {size} {direction} than that of {ARTICLES.get(who, 'the ')}{who} {on}."


def with_error(value: float | None, error: float | None) -> str:
    """Return a number and its standard error, if there is one."""
    number = "-" if value is None else f"{value:.3g}"
    return number if error is None or not np.isfinite(error) else f"{number} ± {error:.2g}"


def compare_readings(meta: Any, tests: Sequence[TestTask], coverage: float) -> Comparison:
    """Compare a prior of readings with pooled models, and with a GP fitted to the context of each task."""
    from metaprior.estimators.baselines import score_per_task_gp  # scikit-learn's GPs take long to import

    models = {OURS: meta.model_, **meta.baselines_}
    scores = {who: score_model(model, tests, coverage) for who, model in models.items()}
    if has_contexts(tests) and meta.likelihood_ == "gaussian":
        scores[PER_TASK_GP] = score_per_task_gp(as_numbers(meta.model_, tests), coverage)
    return Comparison(scores, missing_models(meta, tests))


def as_numbers(model: Ensemble, tests: Sequence[TestTask]) -> Sequence[TestTask]:
    """Return test tasks whose categories and covariates are columns of numbers, for models that know no others."""
    scaling = model.members[0].scaling
    if scaling.kinds is None:
        return tests
    inputs = ((scaling.inputs(test.x_context), scaling.inputs(test.x_query)) for test in tests)
    return [test._replace(x_context=x, x_query=new) for test, (x, new) in zip(tests, inputs, strict=True)]


def compare_labels(ours: Scores, tests: Sequence[TestTask], n_classes: np.ndarray) -> Comparison:
    """Compare the scores of a prior of labels with models that are fitted to the context of each task."""
    from metaprior.estimators.baselines import BASELINES, score_baseline

    if not has_contexts(tests):
        return Comparison({OURS: ours}, "Without context there is nothing to compare with.")
    others = {name: report(score_baseline(model, tests, n_classes)) for name, model in BASELINES.items()}
    return Comparison({OURS: ours, **others})


def score_model(model: Ensemble, tests: Sequence[TestTask], coverage: float) -> Scores:
    """Return the scores of a model of readings."""
    predictive, y, mask = predict_tasks(model, tests)
    summary = summarize(predictive, y, mask, coverage)
    if model.conformal is not None and coverage <= model.conformal.max_coverage:
        lower, upper = predict_bands(model, tests, coverage)
        summary["conformal_coverage"] = interval_coverage(y, lower, upper, mask)
        summary["conformal_width"] = interval_width(lower, upper, mask)
    scores = report(summary, float(coverage))
    if model.likelihood.outputs != "readings":
        scores["outputs"] = model.likelihood.outputs
    return scores


def has_contexts(tests: Sequence[TestTask]) -> bool:
    """Return whether every task has a reading to fit a model of its own to."""
    return all(len(test.y_context) > 0 for test in tests)


def missing_models(meta: Any, tests: Sequence[TestTask]) -> str:
    """Return with which models a prior of readings cannot be compared, and why."""
    if meta.likelihood_ != "gaussian":
        return f"Models to compare with have Gaussian noise; this prior has likelihood={meta.likelihood_!r}."
    found = []
    lacking = [name for name in POOLED if name not in meta.baselines_]
    if lacking:
        why = "it could not be fitted" if meta._fits_pooled_models else "priors of MetaGPRegressor have them"
        found.append(f"This prior has no {' and no '.join(lacking)} to compare with: {why}.")
    if not has_contexts(tests):
        found.append("Without context there is no GP per task to compare with.")
    return " ".join(found)
