"""The fit itself: every member of a choice trained on all tasks, in one program."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.memory import RUN_ADVICE, in_chunks
from metaprior.meta.adaptation import pad_queries
from metaprior.meta.runs import Run, runs_at_once, scaling_of, set_up, stack_runs
from metaprior.prediction.ensemble import Ensemble, Model, padded_size
from metaprior.search.selection import Choice
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task, TestTask
from metaprior.training.checkpoint import Checkpoint
from metaprior.training.loop import Result, Validation, train
from metaprior.training.progress import progress_bar
from metaprior.training.steps import TrainConfig


class FittedMembers(NamedTuple):
    """The priors, and what their training showed, one entry per member."""

    ensemble: Ensemble
    results: list[Result]
    temperatures: np.ndarray


class TrainingOptions(NamedTuple):
    """How long members are trained, and what is looked at meanwhile."""

    n_steps: int
    learning_rate: float
    validation_tasks: Sequence[TestTask] | None
    patience: int | None
    progress: bool | None
    checkpoint: Checkpoint | None


def train_members(
    tasks: Sequence[Sequence[Task]],
    choice: Choice,
    seed: int,
    train_config: Callable[[Run], TrainConfig],
    training_options: TrainingOptions,
) -> FittedMembers:
    """Train all members of the choice, each with the scaling that its weights give. They start from equal particles."""
    members, averaging = zip(*choice.members, strict=True)
    scalings = [scaling_of(tasks, member.weights, member.settings) for member in members]
    pairs = list(zip(members, scalings, strict=True))
    runs = [set_up(tasks, member.weights, scaling, member.settings, seed) for member, scaling in pairs]
    held_out = None
    if training_options.validation_tasks is not None:
        padded = [padded_validation(training_options.validation_tasks, scaling) for scaling in scalings]
        held_out = jax.tree.map(lambda *leaves: np.stack(leaves), *padded)

    def run(part: range, _: int) -> list[Result]:
        chosen = slice(part.start, part.stop)
        stacked = stack_runs(runs[chosen])
        with progress_bar("meta-training", training_options.n_steps, training_options.progress) as on_chunk:
            result = train(
                stacked.problem,
                stacked.particles,
                stacked.key,
                train_config(runs[0]),
                training_options.n_steps,
                jnp.full(len(part), training_options.learning_rate, jnp.zeros(()).dtype),
                jax.tree.map(lambda leaf: leaf[chosen], held_out),
                training_options.patience,
                on_chunk,
                checkpoint=training_options.checkpoint,
            )
        return [select_run(result, i) for i in range(len(part))]

    parts = in_chunks(run, range(len(runs)), runs_at_once(runs[0]), "runs", RUN_ADVICE)
    results = [result for part in parts for result in part]
    models = [
        Model(result.particles, run.problem.rest, scaling)
        for result, run, scaling in zip(results, runs, scalings, strict=True)
    ]
    temperatures = np.array([float(run.problem.temperature) for run in runs])
    return FittedMembers(Ensemble(tuple(models), np.array(averaging)), results, temperatures)


def select_run(result: Result, i: int) -> Result:
    """What training gave one of its runs, without the axis of runs."""
    particles = jax.tree.map(lambda leaf: np.asarray(leaf)[i], result.particles)
    return Result(particles, result.loss[i], result.validation[i], result.best_step[i])


def padded_validation(tasks: Sequence[TestTask], scaling: Scaling) -> Validation:
    """Held-out tasks, scaled and padded."""
    n_context, n_query = (max(len(getattr(task, part)) for task in tasks) for part in ("y_context", "y_query"))
    sizes = (padded_size(n_context), padded_size(n_query))
    return Validation(*pad_queries(tasks, scaling, *sizes, jnp.zeros(()).dtype))
