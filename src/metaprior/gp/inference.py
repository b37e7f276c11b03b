"""Inference for one task, chosen by the likelihood: exact for Gaussian noise, Laplace for labels. One contract."""

from types import ModuleType

from jaxtyping import Array, Bool, Float

from metaprior.gp import exact, laplace
from metaprior.gp.likelihoods import Bernoulli
from metaprior.gp.posterior import TaskPosterior
from metaprior.gp.prior import GPPrior


def log_evidence(
    prior: GPPrior, x: Float[Array, "n d"], y: Float[Array, " n"], mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """ln p_theta(Y | X), or its approximation, of the samples where `mask` is True."""
    return _method(prior).log_evidence(prior, x, y, mask)


def condition(prior: GPPrior, x: Float[Array, "n d"], y: Float[Array, " n"], mask: Bool[Array, " n"]) -> TaskPosterior:
    """Adapt to one task."""
    return _method(prior).condition(prior, x, y, mask)


def _method(prior: GPPrior) -> ModuleType:
    return laplace if isinstance(prior.likelihood, Bernoulli) else exact
