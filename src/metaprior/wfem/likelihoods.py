"""Likelihoods p(y | t): descriptions, modules for training in JAX, and their averages over a Gaussian t in NumPy."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metaprior.checks import Argument, Message, check_noise
from metaprior.likelihoods import gaussian, softmax
from metaprior.likelihoods.base import Likelihood as NumpyLikelihood
from metaprior.wfem.networks import Fixed, Parameter

Latent = Float[Array, "*n"]  # t, or as many outputs, means or variances


@runtime_checkable
class Likelihood(Protocol):
    """A likelihood p(y | t) of numbers, log-concave in t, as a user may write it: a frozen dataclass without arrays.

    Training needs its logarithm in JAX. Predictions need what it is in NumPy, averaged over t ~ N(mean, variance): its
    response, such as `Poisson()`, or a `ConditionalLikelihood`.
    """

    response: NumpyLikelihood  # what predictions average, such as `Poisson()` of `metaprior.likelihoods.counts`

    def log_density(self, y: Latent, t: Latent) -> Latent:
        """Return log p(y | t), elementwise, in JAX."""
        ...


def check_own(likelihood: Any) -> None:
    """Raise unless a likelihood is a custom one, with a response that predictions can average."""
    response, log_density = (getattr(likelihood, name, None) for name in ("response", "log_density"))
    if isinstance(likelihood, type) or not isinstance(response, NumpyLikelihood) or not callable(log_density):
        expected = " must be Gaussian(...), or one of your own with log_density(y, t) and a response, such as Poisson()"
        others = "The likelihoods of counts, ranks and outliers are those of metaprior.MetaGPRegressor."
        found = f" of metaprior.likelihoods.counts; got {likelihood!r}. {others}"
        raise ValueError(Message(Argument("likelihood"), expected + found))
    if response.n_parameters:
        has = f" must have a response without parameters; {type(response).__name__} has {response.n_parameters}."
        raise ValueError(Message(Argument("likelihood"), has))


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise, `y ~ N(t, noise_std^2)`.

    Parameters
    ----------
    noise_std : float or "learned"
        Standard deviation in the units of y. If it is learned, it is a part of theta that starts at a tenth of the
        standard deviation of y.
    """

    noise_std: Any = "learned"

    def __post_init__(self):
        check_noise(self.noise_std)

    @property
    def fixed_std(self) -> float | None:
        """The standard deviation if it is given, in the units of y."""
        return check_noise(self.noise_std)


class GaussianNoise(eqx.Module):
    """y ~ N(t, noise_std^2), in the units of the scaled y."""

    log_noise_std: Parameter

    @property
    def variance(self) -> Float[Array, ""]:
        """Return sigma^2."""
        return jnp.exp(2.0 * self.log_noise_std)


class Bernoulli(eqx.Module):
    """y in {0, 1} with p(y = 1 | t) = sigmoid(t), accurate in the tails."""

    def log_density(self, y: Latent, t: Latent) -> Latent:
        """Return log p(y | t)."""
        return y * jax.nn.log_sigmoid(t) + (1.0 - y) * jax.nn.log_sigmoid(-t)

    def gradient(self, y: Latent, t: Latent) -> Latent:
        """Return d log p(y | t) / dt = y - sigmoid(t), without cancellation."""
        return y * jax.nn.sigmoid(-t) - (1.0 - y) * jax.nn.sigmoid(t)

    def root_curvature(self, y: Latent, t: Latent) -> Latent:
        """Return the square root of W = -d^2 log p(y | t) / dt^2, which does not depend on y."""
        # From log W, so that its derivative is finite where W underflows.
        return jnp.exp(0.5 * (jax.nn.log_sigmoid(t) + jax.nn.log_sigmoid(-t)))


class Observed(eqx.Module):
    """y ~ p(y | t) with the density of a user, whose derivatives are JAX's."""

    own: Any = eqx.field(static=True)

    def log_density(self, y: Latent, t: Latent) -> Latent:
        """Return log p(y | t)."""
        return self.own.log_density(y, t)

    def gradient(self, y: Latent, t: Latent) -> Latent:
        """Return d log p(y | t) / dt."""
        return jax.grad(lambda t: jnp.sum(self.own.log_density(y, t)))(t)

    def root_curvature(self, y: Latent, t: Latent) -> Latent:
        """Return the square root of W = -d^2 log p(y | t) / dt^2."""
        _, second = jax.jvp(lambda t: self.gradient(y, t), (t,), (jnp.ones_like(t),))
        return jnp.sqrt(jnp.maximum(-second, jnp.finfo(t.dtype).tiny))


Observation = GaussianNoise | Bernoulli | Observed


def make_likelihood(likelihood: Any, noise_std: Any) -> Observation:
    """Return the module of a description, given the noise of Gaussian readings, in the units of the scaled y."""
    if isinstance(likelihood, Gaussian):
        log_noise_std = jnp.log(jnp.asarray(noise_std))
        return GaussianNoise(log_noise_std if likelihood.fixed_std is None else Fixed(log_noise_std))
    return likelihood if isinstance(likelihood, Bernoulli) else Observed(likelihood)


class Labels:
    """Labels 0 and 1 in predictions: p(y | t), averaged over t."""

    def log_density(self, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return log E[p(y | t)] over t ~ N(mean, variance); the probabilities of both labels sum to one."""
        signed = np.where(y > 0.5, mean, -mean)
        found, other = (softmax.log_logistic(each, variance) for each in (signed, -signed))
        return found - np.logaddexp(found, other)


def in_predictions(observed: Observation) -> Any:
    """Return the likelihood in NumPy, which averages over t."""
    if isinstance(observed, Observed):
        return observed.own.response
    return Labels() if isinstance(observed, Bernoulli) else gaussian.Gaussian()


def parameters(observed: Observation, shape: tuple[int, ...]) -> np.ndarray:
    """Return its parameters for all particles, (*shape, parameters): the log noise of the scaled y, otherwise none."""
    if not isinstance(observed, GaussianNoise):
        return np.zeros((*shape, 0))
    log_std = np.asarray(observed.log_noise_std, np.float64)
    return np.broadcast_to(log_std.reshape(*log_std.shape, *(1,) * (len(shape) - log_std.ndim)), shape)[..., None]
