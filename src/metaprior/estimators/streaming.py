"""Fits on stored tasks: what there is to choose is chosen on a sample, then every member is trained on a stream."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from metaprior.estimators.members import FittedMembers, TrainingOptions, padded_validation, select_run
from metaprior.meta.methods import MAP, Laplace, Method
from metaprior.meta.runs import Run, Settings, scaling_of, set_up, stack_runs, training_dtype
from metaprior.prediction.ensemble import Ensemble, Model
from metaprior.search.held_out import Candidate
from metaprior.search.selection import Choice
from metaprior.search.weights import Weights
from metaprior.storage import stored_scaling
from metaprior.storage.feed import Feed, sample_tasks, stream_temperature
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task
from metaprior.training.loop import Result, train
from metaprior.training.progress import progress_bar
from metaprior.training.steps import TrainConfig

SAMPLE = 500  # tasks of each environment by which settings are chosen, and inducing points placed
BATCH = 256  # tasks a step where `batch_size` says nothing


class Stream(NamedTuple):
    """Stored tasks of all environments, and how many of them make a step."""

    environments: list[StoredTasks]
    batch_size: int

    def counts(self, alpha: Any) -> list[int]:
        """Tasks of each environment, or of its part of the sample where alpha is chosen.

        alpha='auto' weighs a task of a source r times as much as one of the target. Of a million tasks any r worth
        trying would leave nothing to a hundred target tasks, and yet what limits the source is how far it is from the
        target, which a million tasks show no better than a few hundred. So r is between tasks of the sample.
        """
        chosen = isinstance(alpha, str) and alpha == "auto"
        return [min(len(stored), SAMPLE) if chosen else len(stored) for stored in self.environments]

    def sample(self, seed: int) -> list[list[Task]]:
        """Tasks in memory, to choose by."""
        return sample_tasks(self.environments, SAMPLE, seed)

    def scaling(self, weights: Weights, settings: Settings, sample: Sequence[Sequence[Task]]) -> Scaling:
        """That of all tasks; correlations within the classes of tasks are those of the sample."""
        if settings.likelihood == "bernoulli" or not settings.standardize:
            return scaling_of(sample, weights, settings)
        return stored_scaling(self.environments, weights)

    def dtype(self, options: Sequence[Weights], settings: Settings) -> str:
        """That of the most demanding option: `training_dtype` asks for the largest task of each environment."""
        largest = [[stored[int(np.argmax(stored.sizes))]] if len(stored) else [] for stored in self.environments]
        pairs = [(weights, self.scaling(weights, settings, largest)) for weights in options]
        return max(training_dtype(largest, weights, scaling, settings) for weights, scaling in pairs)


def stream_of(environments: Sequence[Sequence[Task]], batch_size: int | None) -> Stream | None:
    """The stream, if any environment is stored: those in memory then join it. None if all tasks are in memory."""
    input_dims = [tasks.input_dim for tasks in environments if isinstance(tasks, StoredTasks)]
    if not input_dims:
        return None
    stored = [StoredTasks.from_tasks(tasks, input_dims[0]) for tasks in environments]
    return Stream(stored, BATCH if batch_size is None else int(batch_size))


def streamed_method(method: Method | None) -> Method:
    """How a stream is trained: Laplace's approximation would take the curvature at every task.

    Of that many tasks the hyper-posterior is hardly wider than its mode.
    """
    if isinstance(method, Laplace):
        raise ValueError(
            "inference='laplace' needs all tasks in memory; stored tasks are streamed. Take inference='map' (what "
            "'auto' is for them), 'svgd', or a list of some of the tasks: list(tasks[:1000])."
        )
    return MAP() if method is None else method


def train_streamed(
    stream: Stream,
    sample: Sequence[Sequence[Task]],
    choice: Choice,
    seed: int,
    train_config: TrainConfig,
    training_options: TrainingOptions,
) -> FittedMembers:
    """Train the members of the choice one after another, each on a stream of its own."""
    results: list[Result] = []
    models: list[Model] = []
    temperatures = []
    for member, _ in choice.members:
        scaling = stream.scaling(member.weights, member.settings, sample)
        run = stack_runs([set_up_streamed(stream, sample, member, scaling, seed)])
        held_out = None
        if training_options.validation_tasks is not None:
            padded = padded_validation(training_options.validation_tasks, scaling)
            held_out = jax.tree.map(lambda leaf: np.asarray(leaf)[None], padded)
        dtype = jnp.zeros(()).dtype
        feed = Feed(
            stream.environments, member.weights, scaling, stream.batch_size, seed, training_options.n_steps, dtype
        )
        with feed, progress_bar("meta-training", training_options.n_steps, training_options.progress) as on_chunk:
            result = train(
                run.problem,
                run.particles,
                run.key,
                train_config._replace(plan=None, chunk=feed.chunk_steps),
                training_options.n_steps,
                jnp.full(1, training_options.learning_rate, dtype),
                held_out,
                training_options.patience,
                on_chunk,
                checkpoint=training_options.checkpoint,
                feed=feed,
            )
        results.append(select_run(result, 0))
        rest = jax.tree.map(lambda leaf: np.asarray(leaf)[0] if eqx.is_array(leaf) else leaf, run.problem.rest)
        models.append(Model(results[-1].particles, rest, scaling))
        temperatures.append(float(run.problem.temperature[0]))
    averaging = np.array([weight for _, weight in choice.members])
    return FittedMembers(Ensemble(tuple(models), averaging), results, np.array(temperatures))


def set_up_streamed(
    stream: Stream, sample: Sequence[Sequence[Task]], member: Candidate, scaling: Scaling, seed: int
) -> Run:
    """A run whose prior knows the sample (inducing points lie among its inputs), at the temperature of all tasks."""
    run = set_up(sample, member.weights, scaling, member.settings, seed)
    rule = member.settings.temperature
    if not isinstance(rule, str):
        return run
    gamma = stream_temperature(rule, stream.environments, member.weights) * member.settings.temperature_factor
    problem = replace(run.problem, temperature=jnp.asarray(gamma, run.problem.temperature.dtype))
    return run._replace(problem=problem)
