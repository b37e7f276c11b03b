"""The paper's method: priors of neural networks, learned by weighted free energy minimization. It needs JAX."""

from importlib.util import find_spec

from metaprior.checks import MissingExtra

if missing := [name for name in ("jax", "equinox", "optax", "tinygp", "jaxtyping") if find_spec(name) is None]:
    raise MissingExtra(f"metaprior.wfem needs {', '.join(missing)}: run pip install 'metaprior[wfem]'.")

from metaprior.likelihoods.base import ConditionalLikelihood
from metaprior.wfem.estimators import WFEMClassifier, WFEMRegressor
from metaprior.wfem.hyperprior import HyperPrior
from metaprior.wfem.inference import MAP, SVGD, Laplace
from metaprior.wfem.kernels import LinearKernel, LinearRBFKernel, MLPKernel, RBFKernel
from metaprior.wfem.likelihoods import Gaussian
from metaprior.wfem.loop import TrainingDiverged
from metaprior.wfem.means import ConstantMean, LinearMean, MLPMean, ZeroMean
from metaprior.wfem.networks import ConvEncoder, MLPEncoder
from metaprior.wfem.objective import Gibbs
from metaprior.wfem.runs import Training

__all__ = [
    "MAP",
    "SVGD",
    "ConditionalLikelihood",
    "ConstantMean",
    "ConvEncoder",
    "Gaussian",
    "Gibbs",
    "HyperPrior",
    "Laplace",
    "LinearKernel",
    "LinearMean",
    "LinearRBFKernel",
    "MLPEncoder",
    "MLPKernel",
    "MLPMean",
    "RBFKernel",
    "Training",
    "TrainingDiverged",
    "WFEMClassifier",
    "WFEMRegressor",
    "ZeroMean",
]
