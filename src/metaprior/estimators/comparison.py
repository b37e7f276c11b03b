"""Baselines that learn from the context of one task alone: what meta-learning has to beat.

A classification baseline maps (x_context, y_context, x_query, n_classes) of a task, with labels 0, 1, ..., to the
probabilities of its classes at the queries, (queries, classes).

How a prior compares, on the same test tasks, with what its users would fit without it.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax, stdtrit
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits  # a dependency of scikit-learn

from metaprior.checks import check_positive, counted
from metaprior.conventions import Bunch, own_float_errors
from metaprior.metrics import (
    LOSSES,
    Scores,
    check_codes,
    interval_coverage,
    interval_width,
    mean_and_standard_error,
    report,
    summarize,
    summarize_labels,
)
from metaprior.predict.batches import predict_tasks
from metaprior.predict.conformal import predict_bands
from metaprior.predict.ensemble import Ensemble
from metaprior.predict.predictive import GaussianMixture
from metaprior.search.numbers import HIERARCHICAL_GP, MIXED_MODEL
from metaprior.tasks.types import TestTask, as_inputs, as_test_tasks

Baseline = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]

MIN_PROBABILITY = 1e-12  # of a class: no query costs more than 27.6 nats
# In units of the standard deviation of the context, in x and in y. The noise bound, a tenth of it, favors this
# baseline: with few readings the likelihood is often highest without noise, and a tiny predicted deviation is costly.
# With scikit-learn's own bound of 1e-5 the RMSE is much the same, but the negative log likelihood is many times as
# large.
KERNEL = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(1.0, (1e-2, 1e2)) + WhiteKernel(0.1, (1e-2, 1e1))
RESTARTS, SEED = 2, 0


def nearest_class_mean(
    x_context: np.ndarray, y_context: np.ndarray, x_query: np.ndarray, n_classes: int = 2
) -> np.ndarray:
    """Return p(y = c) proportional to exp(−‖x − m_c‖² / 2) with the class means m_c of the context.

    This is the posterior of equally likely Gaussian classes of unit covariance. Classes that the context lacks follow
    the rule of succession.
    """

    def among_present(codes: np.ndarray, n_present: int) -> np.ndarray:
        means = np.stack([x_context[codes == c].mean(axis=0, dtype=np.float64) for c in range(n_present)])
        # The same logits without the squares of x, which lose digits far from the origin.
        center = means.mean(axis=0)
        return softmax((x_query - center) @ (means - center).T - np.sum((means - center) ** 2, axis=1) / 2, axis=1)

    return _with_absent(among_present, y_context, len(x_query), n_classes)


def logistic_regression(
    x_context: np.ndarray, y_context: np.ndarray, x_query: np.ndarray, n_classes: int = 2
) -> np.ndarray:
    """Return p(y = c) by scikit-learn's LogisticRegression with C = 1, which suits inputs of unit variance.

    Classes that the context lacks follow the rule of succession.
    """

    def among_present(codes: np.ndarray, n_present: int) -> np.ndarray:
        return LogisticRegression(max_iter=10_000).fit(x_context, codes).predict_proba(x_query)

    return _with_absent(among_present, y_context, len(x_query), n_classes)


BASELINES: dict[str, Baseline] = {
    "nearest class mean": nearest_class_mean,
    "logistic regression": logistic_regression,
}


def score_baseline(
    baseline: Baseline, tasks: Sequence[TestTask], n_classes: np.ndarray | None = None
) -> dict[str, np.ndarray | float]:
    """Score a classification baseline on every task, by `summarize_labels`.

    `n_classes` are the numbers of classes of the tasks, whose labels are 0, 1, ...; by default all have two.
    """
    if len(tasks) == 0:
        raise ValueError("tasks is empty: there is nothing to score")
    tasks = as_test_tasks(tasks, "tasks", as_inputs(tasks[0][2], "tasks[0] query").shape[1])
    counts = [2] * len(tasks) if n_classes is None else np.asarray(n_classes).tolist()
    sizes = [len(task.y_query) for task in tasks]
    y, mask = np.zeros((len(tasks), max(sizes))), np.arange(max(sizes)) < np.array(sizes)[:, None]
    log_probabilities = np.full((max(counts), *mask.shape), -np.inf)
    for i, (task, count, size) in enumerate(zip(tasks, counts, sizes, strict=True)):
        check_codes(f"tasks[{i}]: y", np.concatenate([task.y_context, task.y_query]), count)
        predicted = baseline(task.x_context, task.y_context, task.x_query, count)
        if predicted.shape != (size, count):
            raise ValueError(f"baseline must return shape {(size, count)} for tasks[{i}]; got {predicted.shape}")
        y[i, :size] = task.y_query
        log_probabilities[:count, i, :size] = np.log(np.maximum(predicted, MIN_PROBABILITY)).T
    return summarize_labels(y, log_probabilities, mask)


def per_task_gp(
    x_context: np.ndarray, y_context: np.ndarray, x_query: np.ndarray, y_scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of new readings by scikit-learn's GP, fitted to one context by likelihood.

    Inputs are standardized by the context. For readings that are all equal the likelihood has no maximum; then the
    kernel keeps its initial parameters, in units of `y_scale`.
    """
    if len(y_context) == 0:
        raise ValueError("y_context is empty: a GP of one task needs at least one reading")
    check_positive("y_scale", y_scale, limits=None)
    scale = x_context.std(axis=0)
    center, scale = x_context.mean(axis=0), np.where(scale > 0, scale, 1.0)
    x, x_new = (x_context - center) / scale, (x_query - center) / scale
    if np.ptp(y_context) == 0:
        initial: Any = GaussianProcessRegressor(KERNEL, optimizer=None)  # type: ignore[arg-type]
        _, std = initial.fit(x, np.zeros(len(x))).predict(x_new, return_std=True)
        return np.full(len(x_new), y_context[0]), y_scale * std
    regressor: Any = GaussianProcessRegressor(
        KERNEL, normalize_y=True, n_restarts_optimizer=RESTARTS, random_state=SEED
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # raised for an optimum at a bound
        regressor.fit(x, y_context)
    return regressor.predict(x_new, return_std=True)


def score_per_task_gp(tasks: Sequence[Any], coverage: float = 0.9) -> Scores:
    """Return what `MetaGPRegressor.evaluate` returns, for `per_task_gp` on every task."""
    if len(tasks) == 0:
        raise ValueError("tasks is empty: there is nothing to score")
    tasks = as_test_tasks(tasks, "tasks", as_inputs(tasks[0][2], "tasks[0] query").shape[1])
    y_scale = float(np.std(np.concatenate([task.y_context for task in tasks]))) or 1.0
    shape = len(tasks), max(len(task.y_query) for task in tasks)
    y, mean, variance, mask = np.zeros(shape), np.zeros(shape), np.ones(shape), np.zeros(shape, bool)
    with threadpool_limits(1):  # a few readings take three times as long on several cores (measured)
        for i, task in enumerate(tasks):
            n = len(task.y_query)
            predicted, std = per_task_gp(task.x_context, task.y_context, task.x_query, y_scale)
            y[i, :n], mean[i, :n], variance[i, :n], mask[i, :n] = task.y_query, predicted, std**2, True
    return report(summarize(GaussianMixture(mean[None], variance[None]), y, mask, coverage), coverage)


def _with_absent(
    among_present: Callable[[np.ndarray, int], np.ndarray], y_context: np.ndarray, n_query: int, n_classes: int
) -> np.ndarray:
    """Return the probabilities of all classes, given those of the classes in the context among each other.

    Every class that the n labels of the context lack has the probability 1 / (n + classes) of Laplace's rule of
    succession. `among_present` gets the labels as 0, 1, ..., numbers among the classes present, of which it has two or
    more.
    """
    check_codes("y_context", y_context, n_classes)
    present, codes = np.unique(y_context.astype(np.int64), return_inverse=True)
    absent = 1.0 / (len(y_context) + n_classes)
    probabilities = np.full((n_query, n_classes), absent)
    if len(present):
        share = 1.0 - (n_classes - len(present)) * absent
        among = among_present(codes, len(present)) if len(present) > 1 else np.ones((n_query, 1))
        probabilities[:, present] = share * among
    return probabilities


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
    from metaprior.estimators.comparison import score_per_task_gp  # scikit-learn's GPs take long to import

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
    from metaprior.estimators.comparison import BASELINES, score_baseline

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
