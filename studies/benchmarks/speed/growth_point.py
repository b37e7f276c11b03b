"""One point of item 5, in a process of its own: `python -m speed.growth_point '{"tasks": 1000}'` prints JSON."""

import json
import resource
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.meta.methods import MAP, SVGD
from metaprior.meta.objective import Problem, temperature
from metaprior.meta.runs import Run, draw_prior, stack_runs
from metaprior.tasks.padding import TaskBatch, TaskSet, pad_tasks
from metaprior.tasks.types import Task
from metaprior.training.loop import TrainConfig, train
from speed.problem import LEARNING_RATE, make_settings
from speed.timing import Spread, repeat, seconds, spread

RAGGED_TASKS, LARGEST = 300, 64
SIZES = (1, 2, 4, 8, 16, 32, 64)  # where the time of a task is measured, to know what no padding at all would take
SAME_SIZE = 100
STATUS = Path("/proc/self/status")


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, measured."""
    if asked.get("without_padding"):
        return without_padding(asked["budget"])
    if "buckets" in asked:
        tasks = ragged_tasks(asked["buckets"])
    else:
        tasks = equal_tasks(asked.get("tasks", 30), asked.get("samples", 5), asked.get("input_dim", 1))
    return measure_step(tasks, asked.get("particles", 1), asked["budget"])


def measure_step(tasks: TaskSet, n_particles: int, budget: float) -> dict[str, Any]:
    """Seconds per step, compilation, and the peak of memory over what was held before training."""
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
    """Seconds per step of the ragged tasks if each took what one among many of its size takes (interpolated)."""
    per_task = []
    for size in SIZES:
        of_size = measure_step(equal_tasks(SAME_SIZE, size, 1), 1, budget / 4)["seconds"]
        per_task.append([of_size[name] / SAME_SIZE for name in ("median", "low", "high")])
    sizes, per_task = ragged_sizes(), np.array(per_task)
    sums = [np.exp(np.interp(np.log(sizes), np.log(SIZES), np.log(column))).sum() for column in per_task.T]
    return {"seconds": Spread(*map(float, sums), len(SIZES))._asdict(), "padding": 1.0}


def equal_tasks(n_tasks: int, n_samples: int, input_dim: int) -> TaskSet:
    """Tasks of one size, made at once: 100,000 of them as a list would fill memory before training does."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n_tasks, n_samples, input_dim), np.float32)
    y = np.sin(x.sum(axis=2)) + 0.1 * rng.standard_normal((n_tasks, n_samples), np.float32)
    n_target = max(n_tasks // 6, 1)
    counts = (n_tasks - n_target, n_target)
    return TaskSet((TaskBatch(x, y, np.ones(y.shape, bool), np.ones(n_tasks, bool), counts),))


def ragged_sizes() -> np.ndarray:
    """Log-uniform from 1 to 64."""
    exponents = np.random.default_rng(0).uniform(0.0, np.log(LARGEST + 1), RAGGED_TASKS)
    return np.floor(np.exp(exponents)).astype(int)


def ragged_tasks(n_buckets: int) -> TaskSet:
    """Tasks of log-uniform sizes in at most so many buckets."""
    rng = np.random.default_rng(1)
    drawn = [rng.uniform(-3.0, 3.0, (size, 1)) for size in ragged_sizes()]
    return pad_tasks([[Task(x, np.sin(x[:, 0])) for x in drawn]], max_buckets=n_buckets)


def make_problem(tasks: TaskSet, n_particles: int) -> Run:
    """The paper's prior for such tasks, without the padding and scaling that `make_run` does task by task."""
    settings = make_settings(method=_method(n_particles), n_particles=n_particles)
    input_dim = tasks.buckets[0].x.shape[2]  # type: ignore[union-attr]
    particles, rest, hyperprior = draw_prior(jax.random.key(0), input_dim, settings, 1.0, np.float32)
    n_environments = len(tasks.environment_counts)
    weights = jnp.full(n_environments, 1.0 / n_environments)
    sizes = [np.concatenate([np.sum(bucket.mask, axis=1, dtype=float) for bucket in tasks.buckets])]  # of all, alike
    gamma = jnp.asarray(temperature("bayes", sizes, [1.0]), jnp.float32)
    problem = Problem(tasks, rest, hyperprior, weights, gamma)
    return Run(problem, particles, jax.random.key(1))


def _method(n_particles: int) -> MAP | SVGD:
    return MAP() if n_particles == 1 else SVGD()


def held_before() -> int:
    """Bytes this process holds now; the kernel's record of its peak starts again from here.

    On Linux, where what `getrusage` says starts from what the parent process held. Elsewhere the peak so far.
    """
    if not STATUS.exists():
        return peak()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """The most bytes this process has held."""
    if STATUS.exists():
        return _status("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status(name: str) -> int:
    [line] = [line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
