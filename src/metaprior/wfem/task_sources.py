"""Where a fit gets its tasks from: all in memory, or streamed from disk. One interface for both."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from metaprior.checks import Argument, Message
from metaprior.search.averaging import Candidate
from metaprior.search.weights import Weights
from metaprior.storage.stored_tasks import StoredTasks, sample_tasks, stored_scaling
from metaprior.tasks.scaling import Scaling, with_kinds
from metaprior.tasks.thinning import thin_tasks
from metaprior.tasks.types import Task
from metaprior.wfem.feed import Feed
from metaprior.wfem.hyper_laplace import Laplace
from metaprior.wfem.inference import Method
from metaprior.wfem.loop import Result, Validation
from metaprior.wfem.many_runs import TrainingOptions, train_runs
from metaprior.wfem.objective import temperature
from metaprior.wfem.runs import Run, Settings, make_run, make_scaling, training_dtype

Environments = Sequence[Sequence[Task]]
SAMPLE_SIZE = 500  # tasks of each stored environment that settings are chosen by
STREAM_BATCH_SIZE = 256  # tasks per step of a stream if `batch_size` is not given


@dataclass(frozen=True)
class InMemoryTasks:
    """All tasks are in memory: the search and the fit see every one of them."""

    environments: Environments
    batch_size: int | None

    def counts(self, alpha: Any) -> list[int]:
        """Return the number of tasks of each environment that environment weights are computed with."""
        return [len(tasks) for tasks in self.environments]

    def sample(self, seed: int) -> Environments:
        """Return the tasks that settings are chosen by."""
        return self.environments

    def scaling(self, weights: Weights, settings: Settings, sample: Environments) -> Scaling:
        """Return the scaling of all tasks."""
        return make_scaling(self.environments, weights, settings)

    def dtype(self, options: Sequence[Weights], settings: Settings) -> str:
        """Return the training precision that the most demanding option needs."""
        scaled = ((weights, make_scaling(self.environments, weights, settings)) for weights in options)
        return max(training_dtype(self.environments, weights, scaling, settings) for weights, scaling in scaled)

    def check_method(self, method: Method) -> None:
        """Every method can have all tasks."""

    def make_run(self, sample: Environments, member: Candidate, scaling: Scaling, seed: int) -> Run:
        """Return the run that trains a member of the ensemble."""
        return make_run(sample, member.weights, scaling, member.settings, seed)

    def train(
        self,
        members: Sequence[Candidate],
        runs: Sequence[Run],
        scalings: Sequence[Scaling],
        options: TrainingOptions,
        validation: Sequence[Validation] | None,
        patience: int | None,
        seed: int,
    ) -> list[Result]:
        """Train all members in one program."""
        method = members[0].settings.method
        return train_runs(runs, method, options, validation=validation, patience=patience)


@dataclass(frozen=True)
class StreamedTasks:
    """Tasks are stored on disk: settings are chosen on a sample, and every member is trained on its own stream."""

    environments: Sequence[StoredTasks]
    batch_size: int

    def counts(self, alpha: Any) -> list[int]:
        """Return the number of tasks of each environment, or of its part of the sample if alpha is chosen.

        With alpha='auto' a source task weighs r times as much as a target task. Beside a million source tasks any r
        worth trying would leave nothing to a hundred target tasks. What limits the source is its distance from the
        target, which a million tasks show no better than a few hundred. So r is a ratio between tasks of the sample.
        """
        chosen = isinstance(alpha, str) and alpha == "auto"
        return [min(len(stored), SAMPLE_SIZE) if chosen else len(stored) for stored in self.environments]

    def sample(self, seed: int) -> Environments:
        """Return the tasks, in memory, that settings are chosen by."""
        return sample_tasks(self.environments, SAMPLE_SIZE, seed)

    def scaling(self, weights: Weights, settings: Settings, sample: Environments) -> Scaling:
        """Return the scaling of all tasks; correlations within classes are those of the sample."""
        if not settings.scales_outputs:
            return make_scaling(sample, weights, settings)
        scaling, kinds = stored_scaling(self.environments, weights), settings.kinds
        return scaling if kinds is None else with_kinds(scaling, kinds, np.zeros(sum(kinds.widths)))

    def dtype(self, options: Sequence[Weights], settings: Settings) -> str:
        """Return the training precision that the most demanding option needs, given the largest task of each."""
        largest = [[stored[int(np.argmax(stored.sizes))]] if len(stored) else [] for stored in self.environments]
        pairs = [(weights, self.scaling(weights, settings, largest)) for weights in options]
        return max(training_dtype(largest, weights, scaling, settings) for weights, scaling in pairs)

    def check_method(self, method: Method) -> None:
        """Raise if a method needs all tasks at once, as Laplace's approximation does, and others that have a `finish`.

        With that many tasks the hyper-posterior is so narrow that its mode is enough.
        """
        if getattr(method, "finish", None) is not None:
            raise ValueError(
                Message(
                    Argument("inference", "laplace" if isinstance(method, Laplace) else method),
                    " needs all tasks in memory, but stored tasks are streamed. Use ",
                    Argument("inference", "map"),
                    ", 'svgd', or a list of some of the tasks: list(tasks[:1000]).",
                )
            )

    def make_run(self, sample: Environments, member: Candidate, scaling: Scaling, seed: int) -> Run:
        """Return a run of the sample, at the temperature of all tasks."""
        run = make_run(sample, member.weights, scaling, member.settings, seed)
        rule = member.settings.temperature
        if not isinstance(rule, str):
            return run
        sizes = [stored.sizes for stored in self.environments]
        gamma = temperature(rule, sizes, member.weights) * member.settings.temperature_factor
        problem = replace(run.problem, temperature=jnp.asarray(gamma, run.problem.temperature.dtype))
        return run._replace(problem=problem)

    def train(
        self,
        members: Sequence[Candidate],
        runs: Sequence[Run],
        scalings: Sequence[Scaling],
        options: TrainingOptions,
        validation: Sequence[Validation] | None,
        patience: int | None,
        seed: int,
    ) -> list[Result]:
        """Train the members one after another."""
        results, dtype = [], jnp.zeros(()).dtype
        for i, (member, scaling) in enumerate(zip(members, scalings, strict=True)):
            held_out = None if validation is None else validation[i : i + 1]
            feed = Feed(self.environments, member.weights, scaling, self.batch_size, seed, options.n_steps, dtype)
            with feed:
                results += train_runs(
                    runs[i : i + 1],
                    member.settings.method,
                    options,
                    validation=held_out,
                    patience=patience,
                    batches=feed,
                    chunk=feed.chunk_steps,
                )
        return results


TaskSource = InMemoryTasks | StreamedTasks


def make_source(environments: Environments, batch_size: int | None, labels: bool = False) -> TaskSource:
    """Return a stream if any environment is stored (those in memory then join it), else all tasks in memory.

    Tasks in memory are thinned to the samples that training can use.
    """
    input_dims = [tasks.input_dim for tasks in environments if isinstance(tasks, StoredTasks)]
    if not input_dims:
        return InMemoryTasks(thin_tasks(environments, labels=labels), None if batch_size is None else int(batch_size))
    stored = [StoredTasks.from_tasks(tasks, input_dims[0]) for tasks in environments]
    return StreamedTasks(stored, STREAM_BATCH_SIZE if batch_size is None else int(batch_size))
