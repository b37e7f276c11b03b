"""Meta-learning from many tasks: hyper-prior, weighted free energy, MAP, SVGD and Laplace, and the training loop."""

from metaprior.meta.hyperprior import HyperPrior
from metaprior.meta.inference import MAP, SVGD, Laplace
from metaprior.meta.loop import TrainingDiverged, train
from metaprior.meta.memory import OutOfMemoryWarning
from metaprior.meta.mesh import ProcessLost
from metaprior.meta.objective import Problem, log_gibbs
from metaprior.meta.steps import Recipe

__all__ = [
    "MAP",
    "SVGD",
    "HyperPrior",
    "Laplace",
    "OutOfMemoryWarning",
    "Problem",
    "ProcessLost",
    "Recipe",
    "TrainingDiverged",
    "log_gibbs",
    "train",
]
