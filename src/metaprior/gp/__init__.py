"""Gaussian processes for one task: priors, and exact or approximate inference."""

from metaprior.gp.encoders import ConvEncoder, MLPEncoder
from metaprior.gp.inducing import InducingKernel, InducingMean
from metaprior.gp.kernels import LinearKernel, LinearRBFKernel, MLPKernel, RBFKernel
from metaprior.gp.means import ConstantMean, LinearMean, MLPMean, ZeroMean
from metaprior.gp.parameters import Fixed
from metaprior.gp.prior import GPPrior

__all__ = [
    "ConstantMean",
    "ConvEncoder",
    "Fixed",
    "GPPrior",
    "InducingKernel",
    "InducingMean",
    "LinearKernel",
    "LinearMean",
    "LinearRBFKernel",
    "MLPEncoder",
    "MLPKernel",
    "MLPMean",
    "RBFKernel",
    "ZeroMean",
]
