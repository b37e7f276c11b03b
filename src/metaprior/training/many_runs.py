"""Many runs of equal shapes: trained as stacked programs, as many at once as fit into memory."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.checks import Argument, Message
from metaprior.memory import RUN_ADVICE, in_chunks
from metaprior.meta.methods import Method
from metaprior.meta.mini_batches import batch_plan
from metaprior.meta.runs import Run, Settings, stack_runs
from metaprior.tasks.types import Task
from metaprior.training.checkpoint import Checkpoint
from metaprior.training.loop import BatchSource, Result, Validation, train
from metaprior.training.monitoring import progress_bar
from metaprior.training.steps import CHUNK, TrainConfig

MAX_NUMBERS = 2**30  # numbers kept at once for gradients: 4 GB in float32
MAX_ADVISED_BATCH = 1000  # tasks per step beyond which training only takes longer
SEARCH_COPIES = 45  # of all tasks that a search holds: nine candidates without each of five folds


class TrainingOptions(NamedTuple):
    """How runs are trained, shared by the search and the final fit."""

    n_steps: int
    learning_rate: float
    optimizer: str = "adam"
    schedule: str = "cosine"
    batch_size: int | None = None  # tasks per step; None: all
    n_devices: int | None = None  # None: all
    progress: bool | None = None  # None: a progress bar if standard error is a terminal
    checkpoint: Checkpoint | None = None

    def config(self, method: Method, run: Run, streamed: bool = False) -> TrainConfig:
        """Return what is compiled for runs of these shapes."""
        tasks, plan = run.problem.tasks, None
        if not streamed and self.batch_size is not None and self.batch_size < sum(tasks.environment_counts):
            plan = batch_plan(tasks, self.batch_size)
        return TrainConfig(method, self.optimizer, self.schedule, plan, self.n_devices)  # type: ignore[arg-type]


def train_runs(
    runs: Sequence[Run],
    method: Method,
    options: TrainingOptions,
    *,
    description: str = "meta-training",
    validation: Sequence[Validation] | None = None,
    patience: int | None = None,
    deadline: float | None = None,
    check_divergence: bool = True,
    batches: BatchSource | None = None,
    chunk: int = CHUNK,
) -> list[Result]:
    """Train runs of equal shapes and return the result of each.

    If a `deadline` shortens the first runs that are trained together, all runs take as many steps as these.
    """
    config = options.config(method, runs[0], batches is not None)._replace(chunk=chunk)
    n_steps, rate_dtype = options.n_steps, jnp.zeros(()).dtype

    def train_part(part: range, _: int) -> list[Result]:
        nonlocal n_steps
        chosen, limit = slice(part.start, part.stop), None
        stacked = stack_runs(runs[chosen])
        if deadline is not None and part.start == 0:
            now = time.monotonic()
            limit = now + len(part) / len(runs) * (deadline - now)
        with progress_bar(description, n_steps, options.progress) as on_chunk:
            result = train(
                stacked.problem,
                stacked.particles,
                stacked.key,
                config,
                n_steps,
                jnp.full(len(part), options.learning_rate, rate_dtype),
                None if validation is None else stack_validation(validation[chosen]),
                patience,
                on_chunk,
                deadline=limit,
                check_divergence=check_divergence,
                checkpoint=options.checkpoint,
                batches=batches,
            )
        if deadline is not None:
            n_steps = result.loss.shape[1]
        return [_select_run(result, i) for i in range(len(part))]

    parts = in_chunks(train_part, range(len(runs)), runs_at_once(runs[0]), "runs", RUN_ADVICE)
    return [result for part in parts for result in part]


def stack_validation(validation: Sequence[Validation]) -> Validation:
    """Stack the validation tasks of several runs along a new first axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *validation)


def runs_at_once(run: Run) -> int:
    """Return how many such runs to train at once (at least one), so that their activations fit into memory."""
    samples = sum(np.size(bucket.y) for bucket in run.problem.tasks.buckets)
    input_dim = run.problem.tasks.buckets[0].x.shape[-1]  # type: ignore[union-attr]
    per_sample = activations_per_sample(input_dim, run.problem.rest.encoder is not None)
    n_particles = len(jax.tree.leaves(run.particles)[0])
    return max(MAX_NUMBERS // (samples * per_sample * n_particles), 1)


def activations_per_sample(input_dim: int, encoded: bool) -> int:
    """Return about how many numbers a gradient keeps per sample (measured): convolutions keep hundreds per pixel."""
    return 600 * input_dim if encoded else 1000 + input_dim


def check_memory(
    environments: Sequence[Sequence[Task]], settings: Settings, batch_size: int | None, searched: bool, itemsize: int
) -> None:
    """Raise before training starts if a fit cannot fit into memory, and say what would."""
    n_tasks = sum(map(len, environments))
    samples = sum(len(task.y) for group in environments for task in group)
    input_dim = next(task.x.shape[1] for group in environments for task in group)
    at_once = samples if batch_size is None else samples * min(batch_size / n_tasks, 1.0)
    gradient = at_once * activations_per_sample(input_dim, settings.encoder is not None) * settings.n_particles
    kept = samples * (input_dim + 2) * (SEARCH_COPIES if searched else 2)
    needed, available = itemsize * (gradient + kept), available_memory()
    if available is None or needed <= available:
        return
    advice: list[Argument | str] = [Argument("fewer tasks")]
    if itemsize * kept < available:
        fitting = n_tasks * (available / itemsize - kept) / 2 / gradient * at_once / samples
        advice.append(Argument("batch_size", int(np.clip(fitting, 1, MAX_ADVISED_BATCH))))
    if searched:
        advice.append("a given alpha")
    use = [part for each in advice for part in (each, ", or ")]
    raise ValueError(
        Message(
            f"This fit of {n_tasks:,} tasks with {samples:,} readings needs about {needed / 1e9:.0f} GB of memory; "
            f"{available / 1e9:.0f} GB are free. Use ",
            *(*use, "tasks on disk (", Argument("metaprior.store_tasks"), ")."),
        )
    )


def available_memory() -> float | None:
    """Return the bytes that can be allocated without swapping, or None if the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024.0 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return None


def _select_run(result: Result, i: int) -> Result:
    """Return the result of one run, without the axis of runs."""
    particles = jax.tree.map(lambda leaf: np.asarray(leaf)[i], result.particles)
    return Result(particles, *(np.asarray(trace)[i] for trace in result[1:]))
