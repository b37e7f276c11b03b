"""Held-out tasks of a report, each predicted by a prior that has not seen it: those of --hold-out, or of folds."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from metaprior_app.report_data import Sample
from metaprior.checks import counted
from metaprior.cli.console import task_label
from metaprior.cli.scores import fitted_rule, knows_classes, split_held_out
from metaprior.cli.training_data import Fit
from metaprior.estimators.baselines import score_per_task_gp
from metaprior.estimators.comparison import (
    OURS,
    PER_TASK_GP,
    Comparison,
    as_numbers,
    compare_labels,
    missing_models,
    score_model,
)
from metaprior.metrics import Scores, calibration_error, report, score_labels
from metaprior.predict.batches import predict_labels, predict_tasks
from metaprior.progress import progress_bar
from metaprior.tasks.labels import as_labeled_tests
from metaprior.tasks.thinning import thin_task
from metaprior.tasks.types import TestTask, as_inputs

N_FOLDS = 3  # each costs a fit
MAX_TESTED = 100  # tasks; the GP of each that the prior is compared with takes longest
MAX_READINGS = 100  # of a tested task
COVERAGE = 0.9
ADVICE = "Fit with --hold-out 0.2 to test the prior on tasks that it is not fitted to."


class Group(NamedTuple):
    """Test tasks, and a prior that has not seen them."""

    meta: Any
    tests: list[TestTask]
    names: list[str]


class Tested(NamedTuple):
    """Held-out tasks and how all models do on them; without groups, `how` says why there are none."""

    how: str
    groups: list[Group]
    compared: Comparison

    @property
    def scores(self) -> dict[str, Scores]:
        """Of each model, by name."""
        return self.compared.scores


def _untested(why: str) -> Tested:
    return Tested(why, [], Comparison({}))


def held_out_tasks(fitted: Fit, sample: Sample) -> Tested:
    """Return the tasks of --hold-out, or else those of a cross-validation over target tasks."""
    outputs, of_target = fitted.meta.transfer_report().outputs, f" of {fitted.target}" if fitted.target else ""
    if fitted.held_out is not None:
        places, tests, compared, _ = fitted.held_out
        names, tests = [task_label(fitted.tasks.held_out_names[i]) for i in places], _coded(fitted.meta, tests)
        tasks = counted(len(tests), "task")
        how = f"{tasks}{of_target} {'was' if len(tests) == 1 else 'were'} held out of the fit (--hold-out). "
        return Tested(how + _given(fitted.meta, outputs), [Group(fitted.meta, tests, names)], compared)
    if fitted.tasks.held_out:
        what = "labels" if fitted.tasks.labels else "levels"
        return _untested(f"No held-out task has {what} of the fit only, so there is none to test the prior on.")
    if hasattr(fitted.meta, "loss_trace_"):
        return _untested(f"Priors of metaprior wfem take too long to fit again without some tasks. {ADVICE}")
    target = fitted.target or ""
    able = [i for i, task in enumerate(sample.tasks[target]) if len(task.y) > 1]
    if len(sample.tasks[target]) < N_FOLDS or not able:
        few = f"{counted(len(sample.tasks[target]), 'task')}{of_target}"
        found = f"There are {few}" if able else f"The {few} have one of the {outputs} each"
        few = f"{found}, too few to fit the prior again without some of them. Held-out tasks need more."
        return _untested(few)
    return _cross_validate(fitted, sample, able, outputs, of_target)


def _cross_validate(fitted: Fit, sample: Sample, able: list[int], outputs: str, of_target: str) -> Tested:
    """Fit again without each third of the target tasks, and predict these."""
    rng = np.random.default_rng(fitted.seed)
    tasks = sample.tasks[fitted.target or ""]
    chosen = set(rng.permutation(able)[:MAX_TESTED].tolist())
    folds = [np.sort(fold).tolist() for fold in np.array_split(rng.permutation(len(tasks)), N_FOLDS)]
    groups = []
    with progress_bar("fitting again without each third of the tasks, for the report", N_FOLDS, "fits") as move:
        for i, fold in enumerate(folds):
            try:
                meta = _fit_without(fitted, sample, set(fold))
            except ValueError as error:  # such as a class that no other task has
                return _untested(f"The prior could not be fitted without some of the tasks: {error} {ADVICE}")
            known = [place for place in fold if place in chosen and knows_classes(meta, tasks[place])]
            rule = fitted_rule(meta)
            tests = [split_held_out(thin_task(tasks[place], MAX_READINGS, rng), rule, rng) for place in known]
            names = [sample.names[fitted.target or ""][place] for place in known]
            groups += [Group(meta, _coded(meta, tests), names)] if tests else []
            if move is not None:
                move(i + 1, "")
    if not groups:
        what = "label" if fitted.tasks.labels else "level"
        return _untested(f"Every task has a {what} that the others lack. {ADVICE}")
    n_tested = sum(len(group.tests) for group in groups)
    drawn = "" if sample.is_whole else f" Of each environment up to {sample.most} tasks were drawn for this."
    how = (
        f"For this report the {counted(len(tasks), 'task')}{of_target} were dealt into {N_FOLDS} folds, and the prior "
        f"was fitted again without each, with the same settings: it has not seen the {counted(n_tested, 'task')} that "
        f"it predicts here.{drawn} {_given(fitted.meta, outputs)}"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compared = _compare_labels(groups) if fitted.tasks.labels else _compare_readings(groups)
    return Tested(how, groups, compared)


def _coded(meta: Any, tests: Sequence[TestTask]) -> list[TestTask]:
    """Return tests with the codes of levels that a prior has learned, where it has categories or covariates."""
    if meta.features_.kinds is None:
        return list(tests)
    coded = [[as_inputs(x, "tests", meta.features_) for x in (test.x_context, test.x_query)] for test in tests]
    return [test._replace(x_context=x[0], x_query=x[1]) for test, x in zip(tests, coded, strict=True)]


def _given(meta: Any, outputs: str) -> str:
    given = fitted_rule(meta).words(outputs.removesuffix("s"))
    return f"Of each task (of shorter ones half) was given: {given}. The others were predicted."


def _fit_without(fitted: Fit, sample: Sample, fold: set[int]) -> Any:
    """Return a prior fitted with the same settings to all tasks but those of a fold."""
    meta: Any = clone(fitted.meta)
    meta.set_params(progress=False)  # there is a bar around it
    environments = dict(sample.tasks)
    target = fitted.target or ""
    environments[target] = [task for i, task in enumerate(sample.tasks[target]) if i not in fold]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit to all tasks has said it
        if fitted.target is None:
            return meta.fit(target_tasks=environments[target])
        return meta.fit(environments, target=target)


def _compare_readings(groups: Sequence[Group]) -> Comparison:
    """Return what `compare` would return if one prior had predicted all groups."""
    tests, meta = [test for group in groups for test in group.tests], groups[0].meta
    scores = {OURS: _pooled_readings(groups, [group.meta.model_ for group in groups])}
    for name in groups[0].meta.baselines_:
        models = [group.meta.baselines_.get(name) for group in groups]
        if None not in models:  # it could be fitted without each fold
            scores[name] = _pooled_readings(groups, models)
    if meta.likelihood_ == "gaussian":
        numbers = [test for group in groups for test in as_numbers(group.meta.model_, group.tests)]
        scores[PER_TASK_GP] = score_per_task_gp(numbers)
    return Comparison(scores, missing_models(meta, tests) if meta.likelihood_ != "gaussian" else "")


def _compare_labels(groups: Sequence[Group]) -> Comparison:
    """Return what `compare` would return if one prior had predicted all groups."""
    tests = [test for group in groups for test in as_numbers(group.meta.model_, group.tests)]
    return compare_labels(
        _pooled_labels(groups), *as_labeled_tests(tests, "tests", tests[0].x_query.shape[1], groups[0].meta.classes_)
    )


def _pooled_readings(groups: Sequence[Group], models: Sequence[Any]) -> Scores:
    """Return what `evaluate` would return if one of these models had predicted all groups."""
    parts, transforms = [], []
    for group, model in zip(groups, models, strict=True):
        parts.append(score_model(model, group.tests, COVERAGE).per_task)
        transforms.append(_transforms(model, group.tests))
    below, up_to = np.concatenate(transforms, axis=1)
    shared = [name for name in parts[0] if all(name in part for part in parts)]  # conformal intervals may be missing
    summary = {name: np.concatenate([part[name] for part in parts]) for name in shared}
    discrete = below if models[0].likelihood.discrete else None
    return report({**summary, "calibration_error": calibration_error(up_to, below=discrete)}, COVERAGE)


def _transforms(model: Any, tests: Sequence[TestTask]) -> np.ndarray:
    """Return P(Y < y) and P(Y <= y) of all queries, (2, queries)."""
    predictive, y, mask = predict_tasks(model, tests)
    return np.stack([each[mask] for each in _cumulative(predictive, y)])


def _cumulative(predictive: Any, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return P(Y < y) and P(Y <= y), which differ for counts and ranks."""
    up_to = predictive.cdf(y)
    return (predictive.below(y) if getattr(predictive, "is_discrete", False) else up_to), up_to


def _pooled_labels(groups: Sequence[Group]) -> Scores:
    """Return what `evaluate` would return if one prior had predicted all groups; without a confusion matrix."""
    parts = []
    for group in groups:
        encoded, n_classes = as_labeled_tests(group.tests, "tests", group.meta.features_, group.meta.classes_)
        parts.append(predict_labels(group.meta.model_, encoded, n_classes))
    n_queries, most = max(y.shape[1] for _, y, _ in parts), max(len(log_p) for log_p, _, _ in parts)

    def padded(values: np.ndarray, fill: float) -> np.ndarray:
        return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, n_queries - values.shape[-1])], constant_values=fill)

    log_p = [np.pad(log_p, [(0, most - len(log_p)), (0, 0), (0, 0)], constant_values=-np.inf) for log_p, _, _ in parts]
    all_log_p = np.concatenate([padded(each, np.nan) for each in log_p], axis=1)
    y, mask = (np.concatenate([padded(part[i], fill) for part in parts]) for i, fill in ((1, np.nan), (2, False)))
    return score_labels(y, all_log_p, mask)


def coverage_of_tasks(groups: Sequence[Group], levels: np.ndarray) -> np.ndarray:
    """Return the share of each task's held-back readings inside the central interval of each level, (tasks, levels).

    A count or rank stands for all of u between P(Y < y) and P(Y <= y), of which the part between (1 - c) / 2 and
    (1 + c) / 2 lies inside: intervals of whole numbers hold more than c, even if the prediction is right.
    """
    shares = []
    for group in groups:
        predictive, y, mask = predict_tasks(group.meta.model_, group.tests)
        below, up_to = (np.where(mask, each, 0.0)[..., None] for each in _cumulative(predictive, y))
        ends = 0.5 * (1.0 - levels), 0.5 * (1.0 + levels)
        if getattr(predictive, "is_discrete", False):
            overlap = np.minimum(up_to, ends[1]) - np.maximum(below, ends[0])
            inside = np.clip(overlap / np.maximum(up_to - below, 1e-300), 0.0, 1.0)
        else:
            inside = np.abs(2.0 * up_to - 1.0) <= levels
        shares.append((inside * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True))
    return np.concatenate(shares)
