"""Settings scored on held-out target tasks: every candidate trained without each fold, all in one program."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.meta.adaptation import Queries
from metaprior.meta.loop import Recipe, Validation, log_densities, train
from metaprior.meta.setup import Run, Settings, scaling_of, set_up, stack_runs
from metaprior.tasks import Scaling, Task, TestTask, make_folds, pad_to, split_task


@dataclass(frozen=True)
class Candidate:
    """What a search may vary: the weights of the environments, the temperature and the hyper-prior's scale."""

    weights: tuple[float, ...]
    temperature: float | str
    temperature_factor: float
    prior_std: dict[str, float]


class HeldOutRun(NamedTuple):
    """A run that lacks one fold of the target tasks, and that fold to score it on."""

    run: Run
    validation: Validation  # a row for every split of every task of the fold
    tasks: np.ndarray  # (rows,): the target task of each row, -1 for padding
    log_unit: float  # log y_std: brings log densities to the units of y


class Folds(NamedTuple):
    """The target tasks of each fold, and the splits of every target task."""

    members: list[np.ndarray]
    splits: list[list[TestTask]]


def hold_out(target_tasks: Sequence[Task], seed: int, labels: bool) -> Folds:
    """Deal the target tasks into folds and split each into context and queries."""
    rng = np.random.default_rng(seed)
    members = make_folds(len(target_tasks), rng)
    return Folds(members, [split_task(task, rng, labels) for task in target_tasks])


def held_out_runs(
    environments: Sequence[Sequence[Task]], target: int, candidate: Candidate, folds: Folds, settings: Settings, seed: int
) -> list[HeldOutRun]:
    """The candidate's runs, one per fold, each scaled by the tasks it sees. All have the same initial particles."""
    settings = replace(settings, temperature=candidate.temperature, prior_std=candidate.prior_std)
    n_rows = max(sum(len(folds.splits[i]) for i in members.tolist()) for members in folds.members)
    runs = []
    for members in folds.members:
        included = [np.ones(len(tasks), bool) for tasks in environments]
        included[target][members] = False
        kept = [[t for t, keep in zip(*pair, strict=True) if keep] for pair in zip(environments, included, strict=True)]
        scaling = scaling_of(kept, candidate.weights, settings)
        run = set_up(environments, candidate.weights, scaling, settings, seed, included)
        run = run._replace(problem=_scale_temperature(run.problem, candidate.temperature_factor))
        rows = [(i, split) for i in members.tolist() for split in folds.splits[i]]
        validation = _pad_rows([split for _, split in rows], n_rows, folds, scaling)
        owners = np.array([i for i, _ in rows] + [-1] * (n_rows - len(rows)))
        runs.append(HeldOutRun(run, validation, owners, float(np.log(scaling.y_std))))
    return runs


def score_runs(
    runs: Sequence[HeldOutRun],
    recipe: Recipe,
    n_steps: int,
    learning_rate: float,
    on_chunk: Callable[[int, float], None] | None = None,
    deadline: float | None = None,
) -> np.ndarray:
    """Train all runs and score each on its fold: mean log density per query of each row, (runs, rows).

    NaN for padding; minus infinity where a run diverged.
    """
    stacked = stack_runs([held_out.run for held_out in runs])
    validation = jax.tree.map(lambda *leaves: np.stack(leaves), *(held_out.validation for held_out in runs))
    rates = jnp.full(len(runs), learning_rate, jnp.zeros(()).dtype)
    result = train(
        stacked.problem, stacked.particles, stacked.key, recipe, n_steps, rates,
        on_chunk=on_chunk, deadline=deadline, guard=False,
    )
    scores = np.asarray(log_densities(result.particles, stacked.problem.rest, validation), np.float64)
    scores = np.where(np.isfinite(scores), scores, -np.inf) - np.array([r.log_unit for r in runs])[:, None]
    return np.where(np.stack([r.tasks for r in runs]) >= 0, scores, np.nan)


def _scale_temperature(problem: Any, factor: float) -> Any:
    import equinox as eqx
    return eqx.tree_at(lambda p: p.temperature, problem, problem.temperature * factor)


def _pad_rows(splits: Sequence[TestTask], n_rows: int, folds: Folds, scaling: Scaling) -> Validation:
    """Scaled rows, padded to the sizes that all folds share."""
    dtype = jnp.zeros(()).dtype
    every = [split for task in folds.splits for split in task]
    n_context, n_query = (max(len(getattr(split, part)) for split in every) for part in ("y_context", "y_query"))
    contexts = [scaling.task(Task(split.x_context, split.y_context)) for split in splits]
    queries = [scaling.task(Task(split.x_query, split.y_query)) for split in splits]
    parts = (*pad_to(contexts, n_context, dtype), *pad_to(queries, n_query, dtype))
    missing = n_rows - len(splits)
    x_context, y_context, context_mask, x_query, y_query, mask = (
        np.pad(part, ((0, missing), *((0, 0),) * (part.ndim - 1))) for part in parts
    )
    return Validation(Queries(x_context, y_context, context_mask, x_query), y_query, mask)
