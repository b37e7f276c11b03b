"""Candidate settings scored on held-out target tasks: each is trained without each fold, all in one program."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

from metaprior.memory import RUN_ADVICE, in_chunks
from metaprior.meta.adaptation import pad_queries
from metaprior.meta.methods import MAP, Laplace, Method
from metaprior.meta.runs import Run, Settings, runs_at_once, scaling_of, set_up, stack_runs
from metaprior.search.folds import make_folds, split_task
from metaprior.search.weights import Weights
from metaprior.tasks.scaling import Scaling, fit_scaling
from metaprior.tasks.types import Task, TestTask
from metaprior.training.checkpoint import Checkpoint
from metaprior.training.loop import Validation, query_log_densities, train
from metaprior.training.steps import TrainConfig

MOST_PARTICLES = 3


@dataclass(frozen=True)
class Candidate:
    """What a search chooses from: environment weights and settings. Those of one search differ in numbers alone."""

    weights: Weights
    settings: Settings


class Folds(NamedTuple):
    """The target tasks of each fold, and the splits of every target task into context and queries."""

    members: list[np.ndarray]
    splits: list[list[TestTask]]


class HeldOutRun(NamedTuple):
    """A run that lacks one fold of the target tasks, and that fold to score it on."""

    run: Run
    validation: Validation  # a row for every split of every task of the fold
    tasks: np.ndarray  # (rows,): the target task of each row, -1 for padding
    log_unit: float  # log y_std: takes log densities to the units of y


def hold_out(target_tasks: Sequence[Task], seed: int, labels: bool) -> Folds:
    """Deal the target tasks into folds and split each into context and queries."""
    rng = np.random.default_rng(seed)
    members = make_folds(len(target_tasks), rng)
    return Folds(members, [split_task(task, rng, labels) for task in target_tasks])


def held_out_runs(
    environments: Sequence[Sequence[Task]], target: int, candidate: Candidate, folds: Folds, seed: int
) -> list[HeldOutRun]:
    """The candidate's runs, one per fold, each scaled by the tasks it sees. All start from the same particles.

    The environments keep their weights: with a fold less, a target task weighs a little more.

    Up to three independent particles stand for the many, or the interacting ones, that will predict in the end (draws
    of Laplace's approximation for themselves). One would not do: averaging particles makes up for overconfidence, and
    so moves the best alpha towards zero.
    """
    settings = candidate.settings
    n_particles = min(settings.n_particles, MOST_PARTICLES)
    settings = replace(settings, method=search_method(settings.method), n_particles=n_particles)
    n_rows = max(sum(len(folds.splits[i]) for i in members.tolist()) for members in folds.members)
    runs = []
    for members in folds.members:
        included = [np.ones(len(tasks), bool) for tasks in environments]
        included[target][members] = False
        kept = [[t for t, keep in zip(*pair, strict=True) if keep] for pair in zip(environments, included, strict=True)]
        scaling = scaling_of(kept, candidate.weights, settings)
        run = set_up(environments, candidate.weights, scaling, settings, seed, included)
        rows = [(i, split) for i in members.tolist() for split in folds.splits[i]]
        validation = _pad_rows([split for _, split in rows], n_rows, folds, scaling)
        owners = np.array([i for i, _ in rows] + [-1] * (n_rows - len(rows)))
        runs.append(HeldOutRun(run, validation, owners, math.log(scaling.y_std)))
    return runs


def search_method(method: Method) -> Method:
    """What a search trains by in place of the method."""
    return method if isinstance(method, Laplace) else MAP(method.start)


def train_and_score(
    runs: Sequence[HeldOutRun],
    train_config: TrainConfig,
    n_steps: int,
    learning_rate: float,
    on_chunk: Callable[[int, float], None] | None = None,
    deadline: float | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[np.ndarray, int]:
    """Train all runs and give the log density of every query of their folds, (runs, rows, queries), in the units of y.

    NaN where there is no query, minus infinity where a run diverged. The steps taken come with it: fewer than asked for
    where `deadline` would not be met, and the same for all runs.
    """
    n_taken = None  # by the first part, and then by all

    def run(part: Sequence[HeldOutRun], _: int) -> np.ndarray:
        nonlocal n_taken
        stacked = stack_runs([held_out.run for held_out in part])
        validation = jax.tree.map(lambda *leaves: np.stack(leaves), *(held_out.validation for held_out in part))
        share, now = len(part) / len(runs), time.monotonic()
        result = train(
            stacked.problem,
            stacked.particles,
            stacked.key,
            train_config,
            n_steps if n_taken is None else n_taken,
            jnp.full(len(part), learning_rate, jnp.zeros(()).dtype),
            on_chunk=on_chunk,
            deadline=None if deadline is None or n_taken is not None else now + share * (deadline - now),
            check_divergence=False,
            checkpoint=checkpoint,
        )
        score = np.asarray(query_log_densities(result.particles, stacked.problem.rest, validation), np.float64)
        score = np.where(np.isfinite(score), score, -np.inf) - np.array([each.log_unit for each in part])[:, None, None]
        n_taken = result.loss.shape[1]
        return np.where(validation.mask, score, np.nan)

    scores = list(in_chunks(run, runs, runs_at_once(runs[0].run), "runs of a search", RUN_ADVICE))
    return np.concatenate(scores), n_steps if n_taken is None else n_taken


def by_task(log_densities: np.ndarray, runs: Sequence[HeldOutRun], folds: Folds) -> np.ndarray:
    """What `train_and_score` gives for the runs of some candidates, as (candidates, target tasks, queries).

    The queries of all splits of a task lie side by side; NaN where there is none.
    """
    n_folds, n_queries = len(folds.members), log_densities.shape[2]
    n_splits = max(len(splits) for splits in folds.splits)
    gathered = np.full((len(runs) // n_folds, len(folds.splits), n_splits, n_queries), np.nan)
    for i, held_out in enumerate(runs):
        for task in np.unique(held_out.tasks[held_out.tasks >= 0]).tolist():
            rows = np.flatnonzero(held_out.tasks == task)
            gathered[i // n_folds, task, : len(rows)] = log_densities[i, rows]
    return gathered.reshape(*gathered.shape[:2], -1)


def reference_log_densities(target_tasks: Sequence[Task], folds: Folds, labels: bool) -> np.ndarray:
    """log p_0 of `averaging.contaminated` at the queries of `by_task`: what one would say of them without any model.

    Labels are even; readings are normal with the mean and the spread of all target readings.
    """
    units = fit_scaling([target_tasks], [1.0])  # knows of constant and of very large readings
    shape = (max(map(len, folds.splits)), max(len(split.y_query) for splits in folds.splits for split in splits))
    reference = np.full((len(folds.splits), *shape), np.nan)
    for i, splits in enumerate(folds.splits):
        for j, split in enumerate(splits):
            normal = norm.logpdf(units.outputs(split.y_query)) - np.log(units.y_std)
            reference[i, j, : len(split.y_query)] = math.log(0.5) if labels else normal
    return reference.reshape(len(folds.splits), -1)


def _pad_rows(splits: Sequence[TestTask], n_rows: int, folds: Folds, scaling: Scaling) -> Validation:
    """Scaled rows, padded to the sizes that all folds share."""
    dtype = jnp.zeros(()).dtype
    every = [split for task in folds.splits for split in task]
    n_context, n_query = (max(len(getattr(split, part)) for split in every) for part in ("y_context", "y_query"))
    padded = pad_queries(splits, scaling, n_context, n_query, dtype)
    missing = n_rows - len(splits)
    return jax.tree.map(lambda part: np.pad(part, ((0, missing), *((0, 0),) * (part.ndim - 1))), Validation(*padded))
