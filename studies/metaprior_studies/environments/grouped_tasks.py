"""Tasks of a source and a target environment, and random draws of them that keep groups of related tasks apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metaprior.checks import check_integer
from metaprior.tasks.types import Task, TestTask
from metaprior_studies.drawn_tasks import DrawnTasks

Array = np.ndarray
Seed = int | np.random.Generator


@dataclass(frozen=True, eq=False)
class GroupedTasks:
    """All tasks of a source and a target environment; test tasks are drawn from the target too."""

    name: str
    source: tuple[Task, ...] = field(repr=False)
    target: tuple[Task, ...] = field(repr=False)
    n_context: int  # context readings of a test task
    target_groups: tuple[int, ...] | None = field(default=None, repr=False)  # of each target task; None: all distinct

    def __post_init__(self):
        check_integer("n_context", self.n_context, 0)
        fewest = min((len(task.y) for task in self.target), default=math.inf)
        if self.n_context >= fewest:
            raise ValueError(
                f"n_context must leave a reading to predict in every target task of {self.name}, the smallest of "
                f"which has {fewest}; got {self.n_context}."
            )
        if self.target_groups is not None and len(self.target_groups) != len(self.target):
            raise ValueError(
                f"target_groups must have one group per target task, {len(self.target)}; got {len(self.target_groups)}."
            )

    def draw(self, n_source: int, n_target: int, n_test: int, rng: Seed, max_samples: int | None = None) -> DrawnTasks:
        """Draw tasks without replacement; no group has tasks in both target and test.

        A test task is split at random into `n_context` context readings and queries. Meta-training tasks with more
        than `max_samples` readings keep a random subset of that size.

        With the same seed, asking for fewer tasks gives the first of them, and the number of one kind of task does
        not change the others, as long as half of the groups suffice for the target and half for the test tasks.
        """
        for name, value in (("n_source", n_source), ("n_target", n_target), ("n_test", n_test)):
            check_integer(name, value, 0)
        if max_samples is not None:
            check_integer("max_samples", max_samples, 1)
        if n_source > len(self.source):
            most = f"{len(self.source)}, the source tasks of {self.name}"
            raise ValueError(f"n_source must be at most {most}; got {n_source}.")
        seeds = np.random.default_rng(rng).integers(2**63, size=4)
        for_halves, for_source, for_target, for_test = map(np.random.default_rng, seeds)
        target, test = self._halves(n_target, n_test, for_halves)
        source = for_source.permutation(len(self.source))
        return DrawnTasks(
            [_subsample(self.source[i], max_samples, for_source) for i in source[:n_source]],
            [_subsample(self.target[i], max_samples, for_target) for i in for_target.permutation(target)[:n_target]],
            [_split(self.target[i], self.n_context, for_test) for i in for_test.permutation(test)[:n_test]],
        )

    def _halves(self, n_target: int, n_test: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return indices of the tasks to draw target and test tasks from: half each, or as near as the numbers allow.

        Halves, because tasks of many groups are more informative than as many tasks of few groups.
        """
        n_tasks = len(self.target)
        _, groups = np.unique(self.target_groups or np.arange(n_tasks), return_inverse=True)
        sizes = np.bincount(groups)
        order = rng.permutation(len(sizes))
        before = np.concatenate([[0], np.cumsum(sizes[order])])  # tasks in the first 0, 1, ... groups
        enough = np.flatnonzero((before >= n_target) & (n_tasks - before >= n_test))
        if not len(enough):
            raise ValueError(
                f"n_target + n_test must be at most {n_tasks}, the target tasks of {self.name}, and less if that "
                f"would split one of their {len(sizes)} groups; got {n_target} + {n_test}."
            )
        cut = enough[np.abs(before[enough] - n_tasks / 2).argmin()]
        in_target = np.argsort(order)[groups] < cut
        return np.flatnonzero(in_target), np.flatnonzero(~in_target)


def tasks_of_rows(
    where: str, rows: Any, keys: Sequence[str], x: Sequence[str], y: str, least: int
) -> tuple[tuple[Task, ...], tuple[int, ...]]:
    """Return a task per combination of keys with at least `least` rows of a data frame, and each task's first key."""
    group = rows.groupby(list(keys), sort=True).ngroup().to_numpy()
    parts = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    parts = [part for part in parts if len(part) >= least]
    if not parts:
        raise ValueError(f"{where}: expected a task of at least {least} readings; got none.")
    inputs, outputs = rows[list(x)].to_numpy(float), rows[y].to_numpy(float)
    first_key = rows[keys[0]].to_numpy()
    return tuple(Task(inputs[part], outputs[part]) for part in parts), tuple(int(first_key[part[0]]) for part in parts)


def _subsample(task: Task, max_samples: int | None, rng: np.random.Generator) -> Task:
    if max_samples is None or len(task.y) <= max_samples:
        return task
    kept = np.sort(rng.choice(len(task.y), max_samples, replace=False))
    return Task(task.x[kept], task.y[kept])


def _split(task: Task, n_context: int, rng: np.random.Generator) -> TestTask:
    context, query = np.split(rng.permutation(len(task.y)), [n_context])
    return TestTask(task.x[context], task.y[context], task.x[query], task.y[query])
