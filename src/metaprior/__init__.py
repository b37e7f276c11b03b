"""metaprior: Gaussian-process priors learned from many small tasks, most of them from another environment."""

from metaprior.estimators.classifier import MetaGPClassifier
from metaprior.estimators.persistence import load
from metaprior.estimators.regressor import MetaGPRegressor
from metaprior.files import InvalidFile
from metaprior.gp.encoders import ConvEncoder, MLPEncoder
from metaprior.gp.inducing import InducingKernel, InducingMean
from metaprior.gp.kernels import LinearKernel, LinearRBFKernel, MLPKernel, RBFKernel
from metaprior.gp.means import ConstantMean, LinearMean, MLPMean, ZeroMean
from metaprior.memory import OutOfMemoryWarning
from metaprior.meta.methods import MAP, SVGD, Laplace
from metaprior.prediction.adapted import AdaptedRegressor, AdaptedRegressors
from metaprior.prediction.adapted_labels import AdaptedClassifier, AdaptedClassifiers
from metaprior.prediction.mixtures import GaussianMixture
from metaprior.search.report import TransferReport
from metaprior.storage.stored_tasks import StoredTasks
from metaprior.storage.task_folders import open_tasks, store_tasks
from metaprior.tables.columns import TableWarning
from metaprior.tables.frames import predict_frame, tasks_from_frame
from metaprior.training.devices import ProcessLost
from metaprior.training.loop import TrainingDiverged

__version__ = "0.1.0"

__all__ = [
    "MAP",
    "SVGD",
    "AdaptedClassifier",
    "AdaptedClassifiers",
    "AdaptedRegressor",
    "AdaptedRegressors",
    "ConstantMean",
    "ConvEncoder",
    "GaussianMixture",
    "InducingKernel",
    "InducingMean",
    "InvalidFile",
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
    "TableWarning",
    "TrainingDiverged",
    "TransferReport",
    "ZeroMean",
    "load",
    "open_tasks",
    "predict_frame",
    "store_tasks",
    "tasks_from_frame",
]
