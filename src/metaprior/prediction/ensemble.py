"""Fitted priors, single or averaged."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree
from scipy.special import logsumexp
from sklearn.utils.validation import check_is_fitted

from metaprior.gp.likelihoods import Gaussian
from metaprior.gp.prior import GPPrior
from metaprior.meta.adaptation import Prediction
from metaprior.tasks.scaling import Scaling


class Model(NamedTuple):
    """A fitted prior: particles of theta, the rest of the prior, and the scaling of its data."""

    particles: PyTree
    rest: GPPrior
    scaling: Scaling

    @property
    def input_dim(self) -> int:
        """Number of input columns."""
        return len(self.scaling.x_mean)


class Ensemble(NamedTuple):
    """Fitted priors whose predictions are averaged, with weights that sum to one."""

    members: tuple[Model, ...]
    weights: np.ndarray  # (members,)

    @property
    def input_dim(self) -> int:
        """Number of input columns."""
        return self.members[0].input_dim

    @property
    def n_particles(self) -> int:
        """Number of particles of each member."""
        return len(jax.tree.leaves(self.members[0].particles)[0])

    @property
    def particle_weights(self) -> np.ndarray:
        """Weights of the particles of all members, one member after another."""
        return np.repeat(self.weights / self.n_particles, self.n_particles)


def predicts_labels(meta: Any) -> bool:
    """Return whether a fitted estimator predicts labels; raise if `meta` is not a fitted estimator."""
    if getattr(meta, "likelihood", None) not in ("gaussian", "bernoulli"):
        raise ValueError(f"meta must be a fitted MetaGPRegressor or MetaGPClassifier; got {type(meta).__name__}.")
    check_is_fitted(meta, "model_")
    return meta.likelihood == "bernoulli"


def average_log(log_probabilities: Any, weights: np.ndarray) -> np.ndarray:
    """Return the log of the members' average probability, over the first axis."""
    log_probabilities = np.asarray(log_probabilities)
    if len(weights) == 1:
        return log_probabilities[0]  # exactly as it is
    log_weights = np.log(weights).reshape(-1, *(1,) * (log_probabilities.ndim - 1))
    return np.asarray(logsumexp(log_probabilities + log_weights, 0))


def observations(prediction: Prediction, scaling: Scaling, latent: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and (co)variance of new observations, or of the latent function, in the units of y."""
    mean, variance = np.asarray(prediction.mean), np.asarray(prediction.variance)
    if not latent:
        assert isinstance(prediction.likelihood, Gaussian)  # labels have probabilities, not noise
        noise = np.exp(2.0 * np.asarray(prediction.likelihood.log_noise_std))
        noise = noise.reshape(-1, *(1,) * (variance.ndim - 1))
        variance = variance + (noise * np.eye(mean.shape[-1]) if variance.ndim > mean.ndim else noise)
    return scaling.undo_mean(mean), scaling.undo_variance(variance)
