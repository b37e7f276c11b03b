"""metaprior: Gaussian-process priors learned from many small tasks, most of them from somewhere else."""

from metaprior.adapted import AdaptedClassifier, AdaptedTask
from metaprior.adapted_many import AdaptedClassifiers, AdaptedTasks
from metaprior.estimators import MetaGPClassifier, MetaGPRegressor, load
from metaprior.frames import predict_frame
from metaprior.gp import (
    ConstantMean,
    ConvEncoder,
    InducingKernel,
    InducingMean,
    LinearKernel,
    LinearMean,
    LinearRBFKernel,
    MLPEncoder,
    MLPKernel,
    MLPMean,
    RBFKernel,
    ZeroMean,
)
from metaprior.meta import MAP, SVGD, Laplace, OutOfMemoryWarning, ProcessLost, TrainingDiverged
from metaprior.predictive import GaussianMixture
from metaprior.tasks import StoredTasks, open_tasks, store_tasks, tasks_from_frame
from metaprior.transfer import TransferReport

__version__ = "0.1.0"

__all__ = [
    "MAP",
    "SVGD",
    "AdaptedClassifier",
    "AdaptedClassifiers",
    "AdaptedTask",
    "AdaptedTasks",
    "ConstantMean",
    "ConvEncoder",
    "GaussianMixture",
    "InducingKernel",
    "InducingMean",
    "Laplace",
    "LinearKernel",
    "LinearMean",
    "LinearRBFKernel",
    "MLPEncoder",
    "MLPKernel",
    "MLPMean",
    "MetaGPClassifier",
    "MetaGPRegressor",
    "OutOfMemoryWarning",
    "ProcessLost",
    "RBFKernel",
    "StoredTasks",
    "TrainingDiverged",
    "TransferReport",
    "ZeroMean",
    "load",
    "open_tasks",
    "predict_frame",
    "store_tasks",
    "tasks_from_frame",
]
