"""The GP prior of all tasks: encoder, mean, kernel and likelihood."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from metaprior.checks import counted
from metaprior.wfem.hyperprior import cast, merge, split
from metaprior.wfem.kernels import compare, embed
from metaprior.wfem.likelihoods import Observation
from metaprior.wfem.networks import at_points


class Points(NamedTuple):
    """All that a prior computes per input point."""

    mean: Float[Array, " n"]
    embedded: PyTree[Shaped[Array, "n ..."]]  # what the kernel compares: (encoded) inputs, or features of them


class GPPrior(eqx.Module):
    """t(x) ~ GP(mu_theta(z), k_theta(z, z')) with z = encoder(x) or z = x, and y ~ p(y | t(x)).

    Theta is every float outside `Fixed`.
    """

    mean: Callable[..., Array]
    kernel: Callable[..., Array]
    likelihood: Observation
    encoder: Callable[..., Array] | None = None

    def encode(self, x: Float[Array, "n d"]) -> Float[Array, "n z"]:
        """Return the inputs of mean and kernel; differentiable any number of times."""
        return x if self.encoder is None else jax.vmap(self.encoder)(x)

    def points(self, x: Float[Array, "n d"]) -> Points:
        """Evaluate mean and features at every point, of one task or of all tasks of a batch in a row."""
        encoded = x if self.encoder is None else at_points(self.encoder, x)
        return Points(at_points(self.mean, encoded), embed(self.kernel, encoded))

    def covariance(self, points: Points, others: Points | None = None) -> Float[Array, "n ..."]:
        """Return the covariances between two sets of points, or the variances of one."""
        return compare(self.kernel, points.embedded, None if others is None else others.embedded)


def make_prior(
    key: PRNGKeyArray,
    input_dim: int,
    mean: Any,
    kernel: Any,
    likelihood: Observation,
    encoder: Any = None,
) -> GPPrior:
    """Draw a prior from a mean, a kernel and an encoder, each a description (with `build`) or a module."""
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
    )


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
    encoder = cast(encoder, x.dtype)  # a custom module may come in another precision
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
