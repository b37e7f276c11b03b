"""metaprior: Gaussian-process priors learned from many small tasks, most of them from another environment."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaprior.estimators.classifier import MetaGPClassifier
    from metaprior.estimators.files import load
    from metaprior.estimators.regressor import MetaGPRegressor
    from metaprior.estimators.seen_tasks import SeenTasksWarning
    from metaprior.files import InvalidFile
    from metaprior.likelihoods import LikelihoodHint
    from metaprior.memory import OutOfMemoryWarning
    from metaprior.predict.adapted import AdaptedRegressor, AdaptedRegressors
    from metaprior.predict.adapted_labels import AdaptedClassifier, AdaptedClassifiers
    from metaprior.predict.plausibility import ImplausibleContextWarning
    from metaprior.predict.predictive import GaussianMixture, HeavyTailWarning, Predictive
    from metaprior.predict.single_task import SingleTaskClassifier, SingleTaskRegressor
    from metaprior.search.report import TransferReport
    from metaprior.storage.stored_tasks import StoredTasks
    from metaprior.storage.task_folders import open_tasks, store_tasks
    from metaprior.tables.columns import TableWarning
    from metaprior.tables.frames import predict_frame, tasks_from_frame
    from metaprior.tasks.columns import ExtrapolationWarning

__version__ = "0.1.0"

__all__ = [
    "AdaptedClassifier",
    "AdaptedClassifiers",
    "AdaptedRegressor",
    "AdaptedRegressors",
    "ExtrapolationWarning",
    "GaussianMixture",
    "HeavyTailWarning",
    "ImplausibleContextWarning",
    "InvalidFile",
    "LikelihoodHint",
    "MetaGPClassifier",
    "MetaGPRegressor",
    "OutOfMemoryWarning",
    "Predictive",
    "SeenTasksWarning",
    "SingleTaskClassifier",
    "SingleTaskRegressor",
    "StoredTasks",
    "TableWarning",
    "TransferReport",
    "load",
    "open_tasks",
    "predict_frame",
    "store_tasks",
    "tasks_from_frame",
]

# Imported when first used: `import metaprior` then takes no time, and each use waits for what it needs only.
_MODULES = {
    "estimators.classifier": ["MetaGPClassifier"],
    "estimators.files": ["load"],
    "estimators.regressor": ["MetaGPRegressor"],
    "estimators.seen_tasks": ["SeenTasksWarning"],
    "files": ["InvalidFile"],
    "likelihoods": ["LikelihoodHint"],
    "memory": ["OutOfMemoryWarning"],
    "predict.adapted": ["AdaptedRegressor", "AdaptedRegressors"],
    "predict.adapted_labels": ["AdaptedClassifier", "AdaptedClassifiers"],
    "predict.plausibility": ["ImplausibleContextWarning"],
    "predict.predictive": ["GaussianMixture", "HeavyTailWarning", "Predictive"],
    "predict.single_task": ["SingleTaskClassifier", "SingleTaskRegressor"],
    "search.report": ["TransferReport"],
    "storage.stored_tasks": ["StoredTasks"],
    "storage.task_folders": ["open_tasks", "store_tasks"],
    "tables.columns": ["TableWarning"],
    "tables.frames": ["predict_frame", "tasks_from_frame"],
    "tasks.columns": ["ExtrapolationWarning"],
}
_MODULE_OF = {name: f"metaprior.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'metaprior' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
