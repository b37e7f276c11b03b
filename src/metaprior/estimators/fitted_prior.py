"""The result of a fit, whatever fitted it: what the estimators record, save and describe."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metaprior.files import package_versions
from metaprior.predict.ensemble import Ensemble
from metaprior.search.report import TransferReport
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.tasks.scaling import Scaling
from metaprior.tasks.types import Task

MAX_RECORDED_INPUTS = 100  # whose scaling is recorded; images have thousands


@dataclass(frozen=True, eq=False)
class FittedPrior:
    """A fitted prior and the record of its fit."""

    model: Ensemble
    report: TransferReport
    family: str  # of the largest weight
    training: dict[str, Any]  # entries of `training_` that only this way to fit has
    attributes: dict[str, Any] = field(default_factory=dict)  # of the estimator, that only this way to fit has
    sample: Sequence[Sequence[Task]] | None = None  # what the fit has used of the tasks of each environment
    baselines: dict[str, Ensemble] = field(default_factory=dict)  # what users would fit instead, see `pooled_models`


def training_record(
    names: Sequence[str], tasks: Sequence[Sequence[Task]], target: int, fitted: FittedPrior, seconds: float
) -> dict[str, Any]:
    """Describe the training for the saved file and `metaprior info`; the scaling is that of the largest weight."""
    member = heaviest(fitted.model)
    scaling = getattr(member, "terms", member).scaling  # that of the latent function, where there is one
    named = zip(names, tasks, fitted.sample or tasks, strict=True)
    return {
        "environments": {name: _counts(group, used) for name, group, used in named},
        "target": names[target],
        "scaling": _describe_scaling(scaling),
        **fitted.training,
        "seconds": round(seconds, 1),
        "versions": package_versions(),
    }


def heaviest(model: Ensemble) -> Any:
    """Return the member of largest weight."""
    return model.members[int(np.argmax(model.weights))]


def _describe_scaling(scaling: Scaling) -> dict[str, Any]:
    return {
        "x_mean": np.asarray(scaling.x_mean[:MAX_RECORDED_INPUTS], float).tolist(),
        "x_std": np.asarray(scaling.x_std[:MAX_RECORDED_INPUTS], float).tolist(),
        "y_mean": float(scaling.y_mean),
        "y_std": float(scaling.y_std),
    }


def _counts(tasks: Sequence[Task], used: Sequence[Task]) -> dict[str, int]:
    """Count the tasks and samples of an environment and, if the fit has used fewer, those too."""
    counts = {"tasks": len(tasks), "samples": _count_samples(tasks)}
    of_used = {"used_tasks": len(used), "used_samples": _count_samples(used)}
    return counts if [*counts.values()] == [*of_used.values()] else {**counts, **of_used}


def _count_samples(tasks: Sequence[Task]) -> int:
    return tasks.n_samples if isinstance(tasks, StoredTasks) else sum(len(task.y) for task in tasks)
