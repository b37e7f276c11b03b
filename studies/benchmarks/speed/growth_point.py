"""One point of item 5, in its own process: `python -m speed.growth_point '{"tasks": 1000}'` prints JSON."""

import json
import resource
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.tasks.types import Task
from metaprior.wfem import MAP, SVGD
from metaprior.wfem.loop import TrainConfig, train
from metaprior.wfem.objective import Problem, TaskBatch, TaskSet, pad_tasks, temperature
from metaprior.wfem.runs import Run, draw_prior, stack_runs
from speed.problem import LEARNING_RATE, make_settings
from speed.timing import Spread, repeat, seconds, spread

RAGGED_TASKS, LARGEST = 300, 64
SIZES = (1, 2, 4, 8, 16, 32, 64)  # sizes at which the time per task is measured, to estimate training without padding
SAME_SIZE = 100
STATUS = Path("/proc/self/status")


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Measure the requested point."""
    if asked.get("without_padding"):
        return without_padding(asked["budget"])
    if "buckets" in asked:
        tasks = ragged_tasks(asked["buckets"])
    else:
        tasks = equal_tasks(asked.get("tasks", 30), asked.get("samples", 5), asked.get("input_dim", 1))
    return measure_step(tasks, asked.get("particles", 1), asked["budget"])


def measure_step(tasks: TaskSet, n_particles: int, budget: float) -> dict[str, Any]:
    """Return seconds per step, compilation time, and the increase to the peak of memory during training."""
    shapes = [np.shape(bucket.mask) for bucket in tasks.buckets]
    padded, samples = sum(n * m for n, m in shapes), sum(int(np.sum(bucket.mask)) for bucket in tasks.buckets)
    effort = n_particles * (padded * 2e4 + 4 * sum(n * m**3 for n, m in shapes))
    n_steps = int(np.clip(6e8 / effort, 1, 100))
    stacked = stack_runs([make_problem(tasks, n_particles)])
    train_config = TrainConfig(_method(n_particles), "adam", "constant", chunk=n_steps)
    rate = jnp.full(1, LEARNING_RATE)
    before = held_before()
    call = lambda: train(stacked.problem, stacked.particles, stacked.key, train_config, n_steps, rate)  # noqa: E731
    first = seconds(call)
    times = spread([time / n_steps for time in repeat(call, budget, most=20)])
    return {
        "seconds": times._asdict(),
        "first_call": first - n_steps * times.median,
        "peak_bytes": peak() - before,
        "padding": padded / samples,
        "steps": n_steps,
        "buckets": len(shapes),
    }


def without_padding(budget: float) -> dict[str, Any]:
    """Estimate seconds per step of the ragged tasks from the time per task in batches of one size, interpolated."""
    per_task = []
    for size in SIZES:
        of_size = measure_step(equal_tasks(SAME_SIZE, size, 1), 1, budget / 4)["seconds"]
        per_task.append([of_size[name] / SAME_SIZE for name in ("median", "low", "high")])
    sizes, per_task = ragged_sizes(), np.array(per_task)
    sums = [np.exp(np.interp(np.log(sizes), np.log(SIZES), np.log(column))).sum() for column in per_task.T]
    return {"seconds": Spread(*map(float, sums), len(SIZES))._asdict(), "padding": 1.0}


def equal_tasks(n_tasks: int, n_samples: int, input_dim: int) -> TaskSet:
    """Make tasks of one size as arrays; a list of 100,000 tasks would need more memory than training."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n_tasks, n_samples, input_dim), np.float32)
    y = np.sin(x.sum(axis=2)) + 0.1 * rng.standard_normal((n_tasks, n_samples), np.float32)
    n_target = max(n_tasks // 6, 1)
    counts = (n_tasks - n_target, n_target)
    return TaskSet((TaskBatch(x, y, np.ones(y.shape, bool), np.ones(n_tasks, bool), counts),))


def ragged_sizes() -> np.ndarray:
    """Return log-uniform sizes from 1 to 64."""
    exponents = np.random.default_rng(0).uniform(0.0, np.log(LARGEST + 1), RAGGED_TASKS)
    return np.floor(np.exp(exponents)).astype(int)


def ragged_tasks(n_buckets: int) -> TaskSet:
    """Return tasks of log-uniform sizes in at most `n_buckets` buckets."""
    rng = np.random.default_rng(1)
    drawn = [rng.uniform(-3.0, 3.0, (size, 1)) for size in ragged_sizes()]
    return pad_tasks([[Task(x, np.sin(x[:, 0])) for x in drawn]], max_buckets=n_buckets)


def make_problem(tasks: TaskSet, n_particles: int) -> Run:
    """Return a run with the paper's prior, without the padding and scaling that `make_run` does task by task."""
    settings = make_settings(method=_method(n_particles))
    input_dim = tasks.buckets[0].x.shape[2]  # type: ignore[union-attr]
    particles, rest, hyperprior = draw_prior(jax.random.key(0), input_dim, settings, 1.0, np.float32)
    n_environments = len(tasks.environment_counts)
    weights = jnp.full(n_environments, 1.0 / n_environments)
    sizes = [np.concatenate([np.sum(bucket.mask, axis=1, dtype=float) for bucket in tasks.buckets])]  # of all, alike
    gamma = jnp.asarray(temperature("bayes", sizes, [1.0]), jnp.float32)
    problem = Problem(tasks, rest, hyperprior, weights, gamma)
    return Run(problem, particles, jax.random.key(1))


def _method(n_particles: int) -> MAP | SVGD:
    return MAP() if n_particles == 1 else SVGD(n_particles)


def held_before() -> int:
    """Return the resident bytes of this process, and reset the kernel's record of its peak.

    This works on Linux, where `getrusage` would include the peak of the parent process. Elsewhere return the peak.
    """
    if not STATUS.exists():
        return peak()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """Return the peak resident bytes of this process."""
    if STATUS.exists():
        return _status("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status(name: str) -> int:
    [line] = [line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
