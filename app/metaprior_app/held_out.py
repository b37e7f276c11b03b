"""Held-out tasks of a report, each predicted by a prior that has not seen it: those of --hold-out, or of folds."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone

from metaprior.checks import counted
from metaprior.cli.console import task_label
from metaprior.cli.evaluate import fitted_rule, knows_classes, split_held_out
from metaprior.cli.training_data import Fit, TrainingData
from metaprior.conventions import Bunch
from metaprior.estimators.classifier import MetaGPClassifier
from metaprior.estimators.comparison import Comparison
from metaprior.estimators.regressor import MetaGPRegressor
from metaprior.metrics import report
from metaprior.predict.batches import predict_tasks
from metaprior.progress import progress_bar
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.splits import thin_task
from metaprior.tasks.types import Task, TestTask, as_inputs
from metaprior_app.charts import Prior

MAX_TASKS = 300  # of each environment that a report looks at
N_FOLDS = 3  # each costs a fit
MAX_TESTED = 100  # tasks; the GP of each that the prior is compared with takes longest
MAX_READINGS = 100  # of a tested task
COVERAGE = 0.9
ADVICE = "Fit with --hold-out 0.2 to test the prior on tasks that it is not fitted to."


@dataclass(frozen=True)
class Sample:
    """Up to MAX_TASKS tasks of each environment, with their names."""

    tasks: dict[str, list[Task]]
    names: dict[str, list[str]]
    is_whole: bool  # whether these are all tasks


@dataclass(frozen=True)
class Group:
    """Test tasks, with codes for levels, and a prior that has not seen them."""

    meta: Prior
    tests: list[TestTask]
    names: list[str]


@dataclass(frozen=True)
class Tested:
    """Held-out tasks and how all models do on them; without groups, `how` says why there are none."""

    how: str
    groups: list[Group] = field(default_factory=list)
    compared: Comparison = field(default_factory=lambda: Comparison({}))


def sample_training(data: TrainingData, seed: int) -> Sample:
    rng, tasks, names = np.random.default_rng(seed), {}, {}
    for name, given in data.environments.items():
        places = np.sort(rng.choice(len(given), min(len(given), MAX_TASKS), replace=False)).tolist()
        tasks[name] = [given[i] for i in places]
        names[name] = [task_label(data.places[name](i)[0]) for i in places]
        if isinstance(given, StoredTasks):
            given.release()
    return Sample(tasks, names, all(len(tasks[name]) == len(given) for name, given in data.environments.items()))


def held_out_tasks(fitted: Fit, sample: Sample) -> Tested:
    """Return the tasks of --hold-out, or else those of a cross-validation over target tasks."""
    meta, tasks = fitted.meta, sample.tasks[fitted.target or ""]
    of_target = f" of {fitted.target}" if fitted.target else ""
    if fitted.held_out is not None:
        places, tests, compared, _ = fitted.held_out
        names = [task_label(fitted.tasks.held_out_names[i]) for i in places]
        was = "was" if len(tests) == 1 else "were"
        how = f"{counted(len(tests), 'task')}{of_target} {was} held out of the fit (--hold-out). {_given(meta)}"
        return Tested(how, [Group(meta, _coded(meta, tests), names)], compared)
    if fitted.tasks.held_out:
        what = "labels" if fitted.tasks.labels else "levels"
        return Tested(f"No held-out task has {what} of the fit only, so there is none to test the prior on.")
    if not isinstance(meta, MetaGPRegressor | MetaGPClassifier):
        return Tested(f"Priors of metaprior wfem take too long to fit again without some tasks. {ADVICE}")
    able = [i for i, task in enumerate(tasks) if len(task.y) > 1]
    if len(tasks) < N_FOLDS or not able:
        found = f"There are {counted(len(tasks), 'task')}{of_target}"
        if not able:
            found = f"The {counted(len(tasks), 'task')}{of_target} have one of the {meta.report_.outputs} each"
        return Tested(f"{found}, too few to fit the prior again without some of them. Held-out tasks need more.")
    return _cross_validate(fitted, sample, able)


def _cross_validate(fitted: Fit, sample: Sample, able: list[int]) -> Tested:
    """Fit again without each third of the target tasks, and predict these."""
    rng, target = np.random.default_rng(fitted.seed), fitted.target or ""
    tasks, names = sample.tasks[target], sample.names[target]
    chosen = set(rng.permutation(able)[:MAX_TESTED].tolist())
    groups, compared = list[Group](), list[Comparison]()
    with (
        progress_bar("fitting again without each third of the tasks, for the report", N_FOLDS, "fits") as move,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the fit to all tasks has said it
        for i, fold in enumerate(np.array_split(rng.permutation(len(tasks)), N_FOLDS)):
            try:
                meta = _fit_without(fitted, sample, set(fold.tolist()))
            except ValueError as error:  # such as a class that no other task has
                return Tested(f"The prior could not be fitted without some of the tasks: {error} {ADVICE}")
            known = [place for place in sorted(fold.tolist()) if place in chosen and knows_classes(meta, tasks[place])]
            rule = fitted_rule(meta)
            if tests := [split_held_out(thin_task(tasks[place], MAX_READINGS, rng), rule, rng) for place in known]:
                groups.append(Group(meta, _coded(meta, tests), [names[place] for place in known]))
                compared.append(meta.compare(tests))
            if move is not None:
                move(i + 1, "")
    if not groups:
        return Tested(f"Every task has a {'label' if fitted.tasks.labels else 'level'} that the others lack. {ADVICE}")
    drawn = "" if sample.is_whole else f" Of each environment up to {MAX_TASKS} tasks were drawn for this."
    of_target = f" of {target}" if target else ""
    how = (
        f"For this report the {counted(len(tasks), 'task')}{of_target} were dealt into {N_FOLDS} folds, and the prior "
        f"was fitted again without each, with the same settings: it has not seen the "
        f"{counted(sum(len(group.tests) for group in groups), 'task')} that it predicts here.{drawn} "
    )
    return Tested(how + _given(fitted.meta), groups, _pooled(compared))


def _given(meta: Prior) -> str:
    given = fitted_rule(meta).words(meta.report_.outputs.removesuffix("s"))
    return f"Of each task (of shorter ones half) was given: {given}. The others were predicted."


def _fit_without(fitted: Fit, sample: Sample, fold: set[int]) -> Any:
    target = fitted.target or ""
    kept = [task for i, task in enumerate(sample.tasks[target]) if i not in fold]
    meta: Any = clone(fitted.meta)
    meta.set_params(progress=False)  # there is a bar around it
    if fitted.target is None:
        return meta.fit(target_tasks=kept)
    return meta.fit({**sample.tasks, target: kept}, target=target)


def _coded(meta: Prior, tests: Sequence[TestTask]) -> list[TestTask]:
    """Return tests with the codes of levels that a prior has learned, where it has categories or covariates."""
    if meta.features_.kinds is None:
        return list(tests)
    coded = [[as_inputs(x, "tests", meta.features_) for x in (test.x_context, test.x_query)] for test in tests]
    return [test._replace(x_context=x[0], x_query=x[1]) for test, x in zip(tests, coded, strict=True)]


def _pooled(parts: Sequence[Comparison]) -> Comparison:
    """Return the comparison on all folds, of the models that could be fitted without each."""
    scores = {}
    for who in parts[0].scores:
        folds = [part.scores[who] for part in parts if who in part.scores]
        if len(folds) < len(parts):
            continue
        shared = [name for name in folds[0].per_task if all(name in fold.per_task for fold in folds)]
        summary = {name: np.concatenate([fold.per_task[name] for fold in folds]) for name in shared}
        scores[who] = report({**summary, "calibration_error": np.nan}, COVERAGE)
        if "reliability" in folds[0]:
            bins = {name: np.concatenate([fold.reliability[name] for fold in folds]) for name in folds[0].reliability}
            scores[who]["reliability"] = Bunch(**bins)
    return Comparison(scores, parts[0].missing)


def coverage_of_tasks(groups: Sequence[Group], levels: np.ndarray) -> np.ndarray:
    """Return the share of each task's held-back readings inside the central interval of each level, (tasks, levels).

    A count or rank stands for all of u between P(Y < y) and P(Y <= y), of which the part between (1 - c) / 2 and
    (1 + c) / 2 lies inside: intervals of whole numbers hold more than c, even if the prediction is right.
    """
    shares = []
    for group in groups:
        predictive, y, mask = predict_tasks(group.meta.model_, group.tests)
        up_to = np.where(mask, predictive.cdf(y), 0.0)[..., None]
        if getattr(predictive, "is_discrete", False):
            below = np.where(mask, predictive.below(y), 0.0)[..., None]
            overlap = np.minimum(up_to, 0.5 * (1.0 + levels)) - np.maximum(below, 0.5 * (1.0 - levels))
            inside = np.clip(overlap / np.maximum(up_to - below, 1e-300), 0.0, 1.0)
        else:
            inside = np.abs(2.0 * up_to - 1.0) <= levels
        shares.append((inside * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True))
    return np.concatenate(shares)
