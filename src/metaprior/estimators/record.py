"""What a fitted prior knows of its training, for its file and for `metaprior info`."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from metaprior.estimators.environments import Environments
from metaprior.files import package_versions
from metaprior.prediction.ensemble import Model
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.types import Task

MOST_INPUTS = 100  # whose scales are told; images have thousands


def training_record(environments: Environments, member: Model, loss: np.ndarray, seconds: float) -> dict[str, Any]:
    """The environments it was trained on, and of the prior with the most weight: scaling, free energy, particles."""
    names, tasks, target, _ = environments
    scaling = member.scaling
    spread = [np.std(np.asarray(leaf, float), axis=0).ravel() for leaf in jax.tree.leaves(member.particles)]
    return {
        "environments": {
            name: {"tasks": len(group), "samples": _samples(group)} for name, group in zip(names, tasks, strict=True)
        },
        "target": names[target],
        "scaling": {
            "x_mean": np.asarray(scaling.x_mean[:MOST_INPUTS], float).tolist(),
            "x_std": np.asarray(scaling.x_std[:MOST_INPUTS], float).tolist(),
            "y_mean": float(scaling.y_mean),
            "y_std": float(scaling.y_std),
        },
        "free_energy": float(loss[-1]) if len(loss) else None,
        "particles": len(jax.tree.leaves(member.particles)[0]),
        "parameters": int(sum(len(values) for values in spread)),
        "particle_spread": float(np.sqrt(np.mean(np.concatenate(spread) ** 2))),
        "seconds": round(seconds, 1),
        "versions": package_versions(),
    }


def _samples(tasks: Sequence[Task]) -> int:
    return tasks.n_samples if isinstance(tasks, StoredTasks) else sum(len(task.y) for task in tasks)
