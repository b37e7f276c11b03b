"""Gaussian processes for one task: priors, and exact inference."""

from metaprior.gp.kernels import LinearKernel, MLPKernel, RBFKernel
from metaprior.gp.means import ConstantMean, MLPMean, ZeroMean
from metaprior.gp.parameters import Fixed
from metaprior.gp.prior import GPPrior

__all__ = [
    "ConstantMean",
    "Fixed",
    "GPPrior",
    "LinearKernel",
    "MLPKernel",
    "MLPMean",
    "RBFKernel",
    "ZeroMean",
]
