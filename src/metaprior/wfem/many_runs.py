"""Many runs of equal shapes: trained as stacked programs, as many at once as fit into memory."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.checks import Argument, Message
from metaprior.memory import RUN_ADVICE, in_chunks
from metaprior.progress import progress_bar
from metaprior.tasks.types import Task
from metaprior.wfem.checkpoint import Checkpoint
from metaprior.wfem.inference import Laplace, Method
from metaprior.wfem.loop import BatchSource, Result, Validation, train
from metaprior.wfem.mini_batches import batch_plan
from metaprior.wfem.objective import BLOCK_SAMPLES
from metaprior.wfem.runs import Run, Settings, count_parameters, stack_runs
from metaprior.wfem.steps import CHUNK, TrainConfig

MAX_BYTES = 2**32  # kept at once for the gradients of several runs
ADVISED_BATCHES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # with more tasks per step training only takes longer
ADVISED_PARTICLES = (100, 10, 1)
CURVATURE_NUMBERS = 800  # that Laplace's curvature keeps per sample of all tasks (measured: up to 760)
CURVATURE_COPIES = 5  # of the derivatives of the largest task's covariance by every parameter (measured)
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


def gradient_numbers(sizes: np.ndarray, input_dim: int, encoded: bool, share: float = 1.0) -> float:
    """Return about how many numbers the gradient over tasks of these sizes keeps for one particle.

    Accelerators take all tasks (or a `share` of them, a mini-batch) at once, CPUs a block (`loss_and_slope`).
    """
    of_tasks = sizes * numbers_per_sample(sizes, input_dim, encoded)
    at_once = max(share * float(of_tasks.sum()), float(of_tasks.max()))
    if jax.default_backend() != "cpu":
        return at_once
    block = float(BLOCK_SAMPLES * numbers_per_sample(sizes.max(), input_dim, encoded))
    return min(at_once, max(block, float(of_tasks.max())))


def check_memory(
    environments: Sequence[Sequence[Task]], settings: Settings, batch_size: int | None, searched: bool, itemsize: int
) -> None:
    """Raise before training starts if a fit cannot fit into memory, and say what would."""
    sizes = np.array([len(task.y) for group in environments for task in group])
    n_tasks, n_samples = len(sizes), int(sizes.sum())
    input_dim = next(task.x.shape[1] for group in environments for task in group)

    curvature = 0.0
    if isinstance(settings.method, Laplace):
        by_parameter = CURVATURE_COPIES * count_parameters(settings, input_dim) * float(sizes.max()) ** 2
        curvature = CURVATURE_NUMBERS * n_samples + by_parameter

    def needed(batch_size: float, curvature: float = curvature, n_particles: int = settings.n_particles) -> float:
        gradient = gradient_numbers(sizes, input_dim, settings.encoder is not None, min(batch_size / n_tasks, 1.0))
        kept = n_samples * (input_dim + 2) * (SEARCH_COPIES if searched else 2)
        return itemsize * (max(gradient * n_particles, curvature) + kept)

    asked = n_tasks if batch_size is None else min(batch_size, n_tasks)
    available = available_memory()
    if available is None or needed(asked) <= available:
        return
    advice: list[Argument | str] = [Argument("fewer tasks")]
    if needed(asked, curvature=0.0) <= available:
        advice.insert(0, Argument("inference", "map"))
    fewer = [n for n in ADVISED_PARTICLES if n < settings.n_particles and needed(asked, n_particles=n) <= available]
    if fewer:
        advice.insert(0, Argument("n_particles", fewer[0]))
    fitting = [size for size in ADVISED_BATCHES if size < asked and needed(size) <= available]
    if fitting:
        advice.append(Argument("batch_size", fitting[-1]))
    if searched:
        advice.append(Message("a given ", Argument("alpha")))
    use = [part for each in advice for part in (each, ", or ")]
    where = "" if jax.default_backend() == "cpu" else f" on the {jax.default_backend().upper()}"
    raise ValueError(
        Message(
            f"This fit of {n_tasks:,} tasks with {n_samples:,} readings needs about {needed(asked) / 1e9:.2g} GB of "
            f"memory{where}; {available / 1e9:.2g} GB are free. Use ",
            *(*use, "tasks on disk (", Argument("metaprior.store_tasks"), ")."),
        )
    )


def available_memory() -> float | None:
    """Return the free bytes of the memory that training uses, or None if they are not known.

    They are the accelerator's if there is one, and else those that the host can allocate without swapping.
    """
    if jax.default_backend() != "cpu":
        return _device_memory(free=True)
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024.0 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return _total_memory()


def _total_memory() -> float | None:
    if jax.default_backend() != "cpu":
        return _device_memory(free=False)
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return None


def _device_memory(free: bool) -> float | None:
    """Return the bytes, or the free bytes, of the accelerator that has the fewest."""
    found = [device.memory_stats() or {} for device in jax.local_devices()]
    known = [stats["bytes_limit"] - free * stats.get("bytes_in_use", 0) for stats in found if "bytes_limit" in stats]
    return float(min(known)) if known else None


def _select_run(result: Result, i: int) -> Result:
    """Return the result of one run, without the axis of runs."""
    particles = jax.tree.map(lambda leaf: np.asarray(leaf)[i], result.particles)
    return Result(particles, *(np.asarray(trace)[i] for trace in result[1:]))
