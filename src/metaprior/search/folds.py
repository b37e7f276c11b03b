"""Folds of held-out tasks, and splits of each held-out task into context and queries."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from metaprior.tasks.context_rules import ContextRule, split_often
from metaprior.tasks.scaling import output_scaling
from metaprior.tasks.types import Task, TestTask

N_FOLDS, LEAVE_ONE_OUT_BELOW = 5, 8  # with fewer than eight target tasks every task is a fold
N_SPLITS = 5  # of a held-out task into context and queries
DEFAULT_RULE = ContextRule()
Split = Callable[[Task, np.random.Generator], list[TestTask]]


class Folds(NamedTuple):
    """The target tasks of each fold, and the splits of every target task into context and queries."""

    members: list[np.ndarray]
    splits: list[list[TestTask]]


def make_folds(target_tasks: Sequence[Task], seed: int, labels: bool, rule: ContextRule = DEFAULT_RULE) -> Folds:
    """Deal the target tasks into folds, and split each into context and queries, by a rule or with `split_task`."""
    return _make(target_tasks, seed, rule, lambda task, rng: split_task(task, rng, labels))


def make_label_folds(
    target_tasks: Sequence[Task], seed: int, by_class: bool, rule: ContextRule = DEFAULT_RULE
) -> Folds:
    """Deal the target tasks into folds, and split each by a rule or with `split_labels`."""
    return _make(target_tasks, seed, rule, lambda task, rng: split_labels(task, rng, by_class))


def _make(target_tasks: Sequence[Task], seed: int, rule: ContextRule, split: Split) -> Folds:
    rng = np.random.default_rng(seed)
    members = _deal(len(target_tasks), rng)
    if not rule.is_default:
        return Folds(members, [split_often(task, rule, rng, N_SPLITS) for task in target_tasks])
    return Folds(members, [split(task, rng) for task in target_tasks])


def split_task(task: Task, rng: np.random.Generator, labels: bool = False) -> list[TestTask]:
    """Split a held-out task into context (half of the samples, rounded down) and queries, in up to five ways.

    The contexts are spread evenly over the samples in random order. With `labels` each class is split in this way, so
    that contexts have every class with two samples or more. A task of one sample has no context: it is predicted from
    the prior. So is a task with one sample per class, whose queries would all be of classes that the context lacks.
    """
    order = rng.permutation(len(task.y))
    codes = np.unique(task.y, return_inverse=True)[1] if labels else np.zeros(len(order), int)
    in_context = _spread(order, codes, min(len(order), N_SPLITS))
    return [TestTask(task.x[own], task.y[own], task.x[~own], task.y[~own]) for own in in_context]


def split_labels(task: Task, rng: np.random.Generator, by_class: bool) -> list[TestTask]:
    """Split a held-out task five-fold: every sample is a query once, given about four fifths of the task.

    How certain labels of new samples are depends on the size of the context, which should be near that of new tasks.
    With `by_class` folds are stratified, and the only sample of a class is always context. If there are no others, the
    task is predicted from the prior.
    """
    order, n_splits = rng.permutation(len(task.y)), N_SPLITS
    if by_class:
        order = order[np.argsort(task.y[order], kind="stable")]
        _, codes, sizes = np.unique(task.y[order], return_inverse=True, return_counts=True)
        order, n_splits = (order, 1) if sizes.max() == 1 else (order[sizes[codes] > 1], N_SPLITS)
    n_splits = min(len(order), n_splits)
    asked = [np.sort(order[first::n_splits]) for first in range(n_splits)]
    contexts = [np.setdiff1d(np.arange(len(task.y)), queries) for queries in asked]
    return [TestTask(task.x[c], task.y[c], task.x[q], task.y[q]) for c, q in zip(contexts, asked, strict=True)]


def reference_log_densities(
    target_tasks: Sequence[Task], folds: Folds, labels: bool, n_classes: int | np.ndarray = 2
) -> np.ndarray:
    """Return the log density p_0 of `averaging.contaminated` at every query: what can be said without a model.

    All of a task's `n_classes` are equally likely, a number or one per task; readings are normal with the mean and
    standard deviation of all target readings.
    """
    chance = -np.log(np.broadcast_to(n_classes, len(folds.splits)))
    units = output_scaling(target_tasks)
    shape = (max(map(len, folds.splits)), max(len(split.y_query) for splits in folds.splits for split in splits))
    reference = np.full((len(folds.splits), *shape), np.nan)
    for i, splits in enumerate(folds.splits):
        for j, split in enumerate(splits):
            z = units.outputs(split.y_query)
            normal = -0.5 * z**2 - 0.5 * math.log(2.0 * math.pi) - np.log(units.y_std)
            reference[i, j, : len(split.y_query)] = chance[i] if labels else normal
    return reference.reshape(len(folds.splits), -1)


def _deal(n_tasks: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the tasks of each fold."""
    n_folds = n_tasks if n_tasks < LEAVE_ONE_OUT_BELOW else N_FOLDS
    return [np.sort(fold) for fold in np.array_split(rng.permutation(n_tasks), n_folds)]


def _spread(order: np.ndarray, codes: np.ndarray, n_splits: int) -> np.ndarray:
    """Return which samples are context, (splits, samples): half of each class, taken in turn.

    Of classes with an odd number of samples every other one gives one more, so that half of all samples are context.
    """
    sizes, split = np.bincount(codes), np.arange(n_splits)[:, None]
    if sizes.max() == 1:
        return np.zeros((1, len(codes)), bool)
    is_odd = sizes % 2 == 1
    n_odd, place = max(is_odd.sum(), 1), np.cumsum(is_odd) - 1 + order[0]  # a random class is the first
    gives_more = is_odd & ((place - split * n_odd // n_splits) % n_odd < n_odd // 2)
    ranks = np.empty(len(codes), int)  # within the class, in random order
    ranks[order[np.argsort(codes[order], kind="stable")]] = np.concatenate([np.arange(size) for size in sizes])
    n = sizes[codes]
    return (ranks - split * n // n_splits) % n < n // 2 + gives_more[:, codes]
