"""metaprior: Gaussian-process priors learned from many small tasks, most of them from somewhere else."""

from metaprior.adapted import AdaptedTask
from metaprior.estimators import MetaGPRegressor, load
from metaprior.gp import ConstantMean, LinearKernel, MLPKernel, MLPMean, RBFKernel, ZeroMean
from metaprior.meta import MAP, SVGD, TrainingDiverged
from metaprior.predictive import GaussianMixture

__version__ = "0.1.0"

__all__ = [
    "MAP",
    "SVGD",
    "AdaptedTask",
    "ConstantMean",
    "GaussianMixture",
    "LinearKernel",
    "MLPKernel",
    "MLPMean",
    "MetaGPRegressor",
    "RBFKernel",
    "TrainingDiverged",
    "ZeroMean",
    "load",
]
