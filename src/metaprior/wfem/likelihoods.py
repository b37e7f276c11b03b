"""Likelihoods p(y | t): descriptions and modules, and predictive probabilities for a Gaussian t."""

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float

from metaprior.checks import Argument, Message, check_noise
from metaprior.likelihoods.base import Likelihood as NumpyLikelihood
from metaprior.wfem.hyperprior import Fixed, Parameter

# Variance from which the roles of t and the logistic are swapped in the quadrature; about the variance of the logistic.
MAX_NARROW_VARIANCE = math.pi
HALVINGS = 60
MILLS_FAR, MILLS_TERMS = 4.0, 30  # the continued fraction of so many terms is exact to 1e-16 from there on

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
    """Raise unless a likelihood is one of a user's own, with a response that predictions can average."""
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

    def log_predictive(self, y: Latent, mean: Latent, variance: Latent) -> Latent:
        """Return the log of the integral of p(y | t) over t ~ N(mean, variance)."""
        return jax.scipy.stats.norm.logpdf(y, mean, jnp.sqrt(variance + self.variance))


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

    def log_predictive(self, y: Latent, mean: Latent, variance: Latent) -> Latent:
        """Return the log of the integral of p(y | t) over t ~ N(mean, variance)."""
        # Quadrature has an absolute error. Far in the tail a lower bound that is exact there replaces it.
        mean = jnp.where(y > 0.5, mean, -mean)
        probability = jnp.maximum(predictive_probability(mean, variance), jnp.finfo(mean.dtype).tiny)
        return jnp.maximum(jnp.log(probability), _log_lower_bound(mean, variance))


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

    def log_predictive(self, y: Latent, mean: Latent, variance: Latent, n_nodes: int = 32) -> Latent:
        """Return the log of the integral of p(y | t) over t ~ N(mean, variance).

        By Gauss-Hermite quadrature around the mode of p(y | t) N(t): of large counts it is far narrower than N(t).
        """
        variance = jnp.maximum(variance, jnp.finfo(mean.dtype).tiny)
        mode = self._mode(y, mean, variance)
        deviation = 1.0 / jnp.sqrt(self.root_curvature(y, mode) ** 2 + 1.0 / variance)
        nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
        t = mode[..., None] + deviation[..., None] * _last_axis(nodes, mean)
        of_t = self.own.log_density(y[..., None], t) - 0.5 * (t - mean[..., None]) ** 2 / variance[..., None]
        log_weights = _last_axis(np.log(weights / weights.sum()) + 0.5 * nodes**2, mean)
        return jax.nn.logsumexp(of_t + log_weights, axis=-1) + jnp.log(deviation) - 0.5 * jnp.log(variance)

    def _mode(self, y: Latent, mean: Latent, variance: Latent) -> Latent:
        """Return the mode of p(y | t) N(t) by bisection: the slope falls, so that it lies between the two ends."""
        end = mean + variance * self.gradient(y, mean)

        def halve(_: Any, ends: tuple[Latent, Latent]) -> tuple[Latent, Latent]:
            middle = 0.5 * (ends[0] + ends[1])
            rises = self.gradient(y, middle) > (middle - mean) / variance
            return jnp.where(rises, middle, ends[0]), jnp.where(rises, ends[1], middle)

        return jax.lax.fori_loop(0, HALVINGS, halve, (jnp.minimum(mean, end), jnp.maximum(mean, end)))[0]


Observation = GaussianNoise | Bernoulli | Observed


def make_likelihood(likelihood: Any, noise_std: Any) -> Observation:
    """Return the module of a description, given the noise of Gaussian readings, in the units of the scaled y."""
    if isinstance(likelihood, Gaussian):
        log_noise_std = jnp.log(jnp.asarray(noise_std))
        return GaussianNoise(log_noise_std if likelihood.fixed_std is None else Fixed(log_noise_std))
    return likelihood if isinstance(likelihood, Bernoulli) else Observed(likelihood)


def predictive_probability(mean: Latent, variance: Latent, n_nodes: int = 32) -> Latent:
    """Return p(y = 1), the integral of sigmoid(t) over t ~ N(mean, variance), by Gauss-Hermite quadrature.

    For a narrow t the nodes are those of t. For a wide t they are too coarse for the sigmoid (32 nodes err by 0.06 at
    variance 1000), so the roles are swapped: sigmoid(t) = p(l < t) for a logistic l, whose nodes come from N(0, pi),
    and t is integrated out in closed form. The largest error, for any mean and variance, is 2e-5 with 16 nodes, 8e-8
    with 32 and 3e-11 with 64, at the variance where the roles are swapped.
    """
    nodes, weights = np.polynomial.hermite.hermgauss(n_nodes)
    logistic = math.sqrt(2.0 * MAX_NARROW_VARIANCE) * nodes
    ratio = np.exp(np.log(weights) + nodes**2 - np.logaddexp(0.0, logistic) - np.logaddexp(0.0, -logistic))

    def average(values: Float[Array, "*n nodes"], weights: np.ndarray) -> Latent:
        return jnp.sum(values * _last_axis(weights / weights.sum(), mean), axis=-1)

    deviation = jnp.sqrt(jnp.maximum(variance, jnp.finfo(variance.dtype).tiny))[..., None]
    t = mean[..., None] + math.sqrt(2.0) * deviation * _last_axis(nodes, mean)
    narrow = average(jax.nn.sigmoid(t), weights)
    score = (mean[..., None] - _last_axis(logistic, mean)) / jnp.maximum(deviation, 1.0)
    wide = average(jax.scipy.special.ndtr(score), ratio)
    return jnp.clip(jnp.where(variance < MAX_NARROW_VARIANCE, narrow, wide), 0.0, 1.0)


def _log_lower_bound(mean: Latent, variance: Latent) -> Latent:
    """Return the log of a lower bound of E[sigmoid(t)]: e^t - e^2t below zero and 1/2 above, over N(mean, variance).

    A positive mean is replaced by zero, which lowers the bound and avoids overflow where the variance vanishes.
    """
    mean = jnp.minimum(mean, 0.0)
    deviation = jnp.sqrt(jnp.maximum(variance, jnp.finfo(variance.dtype).tiny))

    def log_partial(k: float) -> Latent:  # log E[e^kt; t < 0]
        far = (mean + k * variance) / deviation
        # k mean + k^2 variance / 2 would cancel against the logarithm of the tail, of the same size.
        above = log_mills_ratio(far) - 0.5 * (mean / deviation) ** 2 - 0.5 * math.log(2.0 * math.pi)
        return jnp.where(far > 0.0, above, k * mean + 0.5 * k**2 * variance + log_ndtr(-jnp.minimum(far, 0.0)))

    first, second = log_partial(1.0), log_partial(2.0)
    below = first + jnp.log(-jnp.expm1(jnp.minimum(second - first, -jnp.finfo(mean.dtype).tiny)))
    return jnp.logaddexp(below, log_ndtr(mean / deviation) - math.log(2.0))


def log_mills_ratio(z: Latent) -> Latent:
    """Return log (1 - Phi(z)) / phi(z) of the normal distribution, for z >= 0, without cancellation."""
    near, far = jnp.clip(z, 0.0, MILLS_FAR), jnp.maximum(z, MILLS_FAR)
    fraction = far
    for k in range(MILLS_TERMS, 0, -1):  # z + 1 / (z + 2 / (z + 3 / ...))
        fraction = far + k / fraction
    direct = log_ndtr(-near) + 0.5 * near**2 + 0.5 * math.log(2.0 * math.pi)
    return jnp.where(z < MILLS_FAR, direct, -jnp.log(fraction))


def _last_axis(numbers: np.ndarray, like: Latent) -> Float[Array, "*ones nodes"]:
    return jnp.asarray(numbers, like.dtype).reshape((1,) * like.ndim + numbers.shape)
