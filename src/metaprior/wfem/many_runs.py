"""Many runs of equal shapes: trained as stacked programs, as many at once as fit into memory."""

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.memory import RUN_ADVICE, in_chunks
from metaprior.progress import progress_bar
from metaprior.wfem.checkpoint import Checkpoint
from metaprior.wfem.inference import Method
from metaprior.wfem.loop import BatchSource, Result, Validation, train
from metaprior.wfem.mini_batches import batch_plan
from metaprior.wfem.objective import BLOCK_SAMPLES
from metaprior.wfem.runs import Run, stack_runs
from metaprior.wfem.steps import CHUNK, TrainConfig

MAX_BYTES = 2**32  # kept at once for the gradients of several runs


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
        with progress_bar(description, n_steps, "steps", options.progress, "compiling") as move:
            result = train(
                stacked.problem,
                stacked.particles,
                stacked.key,
                config,
                n_steps,
                jnp.full(len(part), options.learning_rate, rate_dtype),
                None if validation is None else stack_validation(validation[chosen]),
                patience,
                None if move is None else lambda done, loss: move(done, f"loss {loss:.4f}"),
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
    shapes = [np.shape(bucket.x) for bucket in run.problem.tasks.buckets]
    sizes = np.concatenate([np.full(n_tasks, size) for n_tasks, size, _ in shapes])
    numbers = gradient_numbers(sizes, shapes[0][2], run.problem.rest.encoder is not None)
    return runs_that_fit(numbers * len(jax.tree.leaves(run.particles)[0]))


def runs_that_fit(numbers: float) -> int:
    """Return how many runs to compute at once (at least one) if each keeps so many numbers."""
    most = min(MAX_BYTES, (_total_memory() or np.inf) / 4)  # not what is free: another split may round otherwise
    return max(int(most / (jnp.zeros(()).dtype.itemsize * numbers)), 1)


def numbers_per_sample(size: Any, input_dim: int, encoded: bool) -> Any:
    """Return about how many numbers are kept per sample and particle of a task of this size (measured).

    A thousand activations, or hundreds per pixel for convolutions, and ten rows of covariance matrices.
    """
    return (600 * input_dim if encoded else 1000 + input_dim) + 10 * size


def gradient_numbers(sizes: np.ndarray, input_dim: int, encoded: bool) -> float:
    """Return about how many numbers the gradient over tasks of these sizes keeps for one particle.

    Accelerators take all tasks at once, CPUs a block (`loss_and_slope`).
    """
    of_tasks = sizes * numbers_per_sample(sizes, input_dim, encoded)
    at_once = max(float(of_tasks.sum()), float(of_tasks.max()))
    if jax.default_backend() != "cpu":
        return at_once
    block = float(BLOCK_SAMPLES * numbers_per_sample(sizes.max(), input_dim, encoded))
    return min(at_once, max(block, float(of_tasks.max())))


def _total_memory() -> float | None:
    if jax.default_backend() != "cpu":
        found = [device.memory_stats() or {} for device in jax.local_devices()]
        known = [stats["bytes_limit"] for stats in found if "bytes_limit" in stats]
        return float(min(known)) if known else None
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return None


def _select_run(result: Result, i: int) -> Result:
    """Return the result of one run, without the axis of runs."""
    particles = jax.tree.map(lambda leaf: np.asarray(leaf)[i], result.particles)
    return Result(particles, *(np.asarray(trace)[i] for trace in result[1:]))
