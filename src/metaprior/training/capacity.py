"""What a fit will need, said before it starts."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metaprior.meta.runs import Settings, activations_per_sample
from metaprior.tasks.types import Task

LARGE_BATCH = 1000  # tasks, from which on more only take longer
COPIES = 45  # of all tasks that a search keeps: nine settings without each of five folds


def check_memory(
    environments: Sequence[Sequence[Task]], settings: Settings, batch_size: int | None, searched: bool, itemsize: int
) -> None:
    """Refuse what cannot fit, with what it would need and what to do, before hours are spent on it."""
    n_tasks = sum(map(len, environments))
    samples = sum(len(task.y) for group in environments for task in group)
    input_dim = next(task.x.shape[1] for group in environments for task in group)
    at_once = samples if batch_size is None else samples * min(batch_size / n_tasks, 1.0)
    gradient = at_once * activations_per_sample(input_dim, settings.encoder is not None) * settings.n_particles
    kept = samples * (input_dim + 2) * (COPIES if searched else 2)
    needed, there = itemsize * (gradient + kept), available_memory()
    if there is None or needed <= there:
        return
    advice = ["fewer tasks (a few thousand of an environment are plenty for most priors)"]
    if itemsize * kept < there:
        fitting = n_tasks * (there / itemsize - kept) / 2 / gradient * at_once / samples
        advice.append(f"batch_size={int(np.clip(fitting, 1, LARGE_BATCH))}")
    if searched:
        advice.append("a given alpha")
    advice.append("tasks on disk (metaprior.store_tasks)")
    raise ValueError(
        f"This fit of {n_tasks:,} tasks with {samples:,} readings needs about {needed / 1e9:.0f} GB of memory, and "
        f"{there / 1e9:.0f} GB are free. Take {', or '.join(advice)}."
    )


def available_memory() -> float | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024.0 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return None
