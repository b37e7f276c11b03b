"""The GP prior of all tasks: encoder, mean, kernel and likelihood."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from metaprior.checks import counted
from metaprior.gp.count_likelihoods import NegativeBinomial, Poisson
from metaprior.gp.kernels import compare, embed
from metaprior.gp.likelihoods import Bernoulli, Gaussian
from metaprior.gp.networks import at_points
from metaprior.gp.parameters import Fixed, merge, split
from metaprior.gp.rank_likelihoods import Ordinal
from metaprior.gp.response_likelihoods import ResponseLikelihood
from metaprior.gp.robust_likelihoods import StudentT

Likelihood = Gaussian | Bernoulli | ResponseLikelihood
RESPONSES = {kind.name: kind for kind in (StudentT, Poisson, NegativeBinomial)}


class Points(NamedTuple):
    """All that a prior computes per input point."""

    mean: Float[Array, " n"]
    embedded: PyTree[Shaped[Array, "n ..."]]  # what the kernel compares: (encoded) inputs, or features of them


class GPPrior(eqx.Module):
    """t(x) ~ GP(mu_theta(z), k_theta(z, z')) with z = encoder(x) or z = x, and y ~ p(y | t(x)).

    Theta is every float outside `Fixed`. The exposure of counts is a column of x that is no input: its logarithm is
    added to the mean.
    """

    mean: Callable[..., Array]
    kernel: Callable[..., Array]
    likelihood: Likelihood
    encoder: Callable[..., Array] | None = None
    exposure: int | None = eqx.field(static=True, default=None)  # column

    def encode(self, x: Float[Array, "n d"]) -> Float[Array, "n z"]:
        """Return the inputs of mean and kernel; differentiable any number of times."""
        x = inputs_of(x, self.exposure)
        return x if self.encoder is None else jax.vmap(self.encoder)(x)

    def points(self, x: Float[Array, "n d"]) -> Points:
        """Evaluate mean and features at every point, of one task or of all tasks of a batch in a row."""
        inputs = inputs_of(x, self.exposure)
        encoded = inputs if self.encoder is None else at_points(self.encoder, inputs)
        mean = at_points(self.mean, encoded)
        if self.exposure is not None and isinstance(self.likelihood, ResponseLikelihood):
            mean = mean + log_exposure(x, self.exposure) / self.likelihood.scale
        return Points(mean, embed(self.kernel, encoded))

    @property
    def magnitude(self) -> Float[Array, ""] | float:
        """Size of the terms that the kernel is a difference of, whose rounding errors remain; zero if it is none."""
        return getattr(self.kernel, "magnitude", 0.0)

    def covariance(self, points: Points, others: Points | None = None) -> Float[Array, "n ..."]:
        """Return the covariances between two sets of points, or the variances of one."""
        return compare(self.kernel, points.embedded, None if others is None else others.embedded)


def inputs_of(x: Float[Array, "*n d"], exposure: int | None) -> Float[Array, "*n inputs"]:
    """Return the columns of x that are inputs."""
    return x if exposure is None else jnp.concatenate([x[..., :exposure], x[..., exposure + 1 :]], axis=-1)


def log_exposure(x: Float[Array, "*n d"], exposure: int) -> Float[Array, "*n"]:
    """Return the logarithm of the exposure; that of padding, which has none, is zero."""
    return jnp.log(jnp.where(x[..., exposure] > 0.0, x[..., exposure], 1.0))


class ResponseStart(NamedTuple):
    """What a response starts from: its parameters, and the units t = center + scale u."""

    parameters: Any  # (p,)
    center: Any  # ()
    scale: Any  # ()


def make_prior(
    key: PRNGKeyArray,
    input_dim: int,
    mean: Any,
    kernel: Any,
    likelihood: Likelihood,
    encoder: Any = None,
    exposure: int | None = None,
) -> GPPrior:
    """Draw a prior from a mean, a kernel and an encoder, each a description (with `build`) or a module.

    `input_dim` is the number of inputs, without an exposure.
    """
    mean_key, kernel_key = jax.random.split(key)
    if hasattr(encoder, "build"):
        encoder = encoder.build(jax.random.fold_in(key, 2), input_dim)  # 0 and 1 are the keys of the split above
    if encoder is not None:
        input_dim = _encoded_dim(encoder, input_dim)
    return GPPrior(
        mean=mean.build(mean_key, input_dim) if hasattr(mean, "build") else mean,
        kernel=kernel.build(kernel_key, input_dim) if hasattr(kernel, "build") else kernel,
        likelihood=likelihood,
        encoder=encoder,
        exposure=exposure,
    )


def make_likelihood(
    kind: str, noise_std: Any, learn_noise: bool, start: ResponseStart | None = None, lowest: int = 0
) -> Likelihood:
    """Return the 'bernoulli' likelihood of labels, the 'gaussian' one with its noise, or that of a response."""
    if kind == "bernoulli":
        return Bernoulli()
    if start is not None:
        return _make_response(kind, start, lowest)
    log_noise_std = jnp.log(jnp.asarray(noise_std))
    return Gaussian(log_noise_std if learn_noise else Fixed(log_noise_std))


def _make_response(kind: str, start: ResponseStart, lowest: int) -> ResponseLikelihood:
    units, parameters = (Fixed(start.center), Fixed(start.scale)), jnp.asarray(start.parameters)
    if kind == Ordinal.name:
        return Ordinal(*units, parameters[0], parameters[1:], lowest)
    return RESPONSES[kind](*units, *parameters)


def check_prior(prior: GPPrior, input_dim: int) -> None:
    """Raise if a custom mean or kernel fails or returns the wrong shape. Nothing is computed."""
    prior = merge(*split(prior))
    if prior.encoder is not None:
        input_dim = _encoded_dim(prior.encoder, input_dim)
    x1, x2 = jnp.zeros((2, input_dim)), jnp.zeros((3, input_dim))
    for call, expected, evaluate in (
        ("mean(x) of one point", (), lambda: prior.mean(x1[0])),
        ("kernel(X1, X2) of 2 and 3 points", (2, 3), lambda: prior.kernel(x1, x2)),
        ("kernel(X) of 2 points", (2,), lambda: prior.kernel(x1)),
    ):
        shape = _output_shape(call, input_dim, evaluate)
        if shape != expected:
            raise ValueError(f"{call.partition('(')[0]}: {call} must have shape {expected}; got {shape}.")


def _encoded_dim(encoder: Callable[..., Array], input_dim: int) -> int:
    """Return the number of features of one encoded point."""
    x = jnp.zeros(input_dim)
    shape = _output_shape("encoder(x) of one point", input_dim, lambda: merge(*split(encoder))(x))
    if len(shape) != 1 or shape[0] == 0:
        raise ValueError(f"encoder: encoder(x) of one point must have shape (n_features,), at least one; got {shape}.")
    return shape[0]


def _output_shape(call: str, input_dim: int, evaluate: Callable[[], Array]) -> tuple[int, ...]:
    try:
        return jax.eval_shape(evaluate).shape
    except Exception as error:
        raise ValueError(
            f"{call.partition('(')[0]}: {call} with {counted(input_dim, 'input dimension')} failed: "
            f"{type(error).__name__}: {error}"
        ) from error
