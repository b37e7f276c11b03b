"""Kernels k_theta: tinygp kernels for one pair of points, and the descriptions they are built from."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import tinygp
from jaxtyping import Array, Float, PRNGKeyArray

from metaprior.checks import check_bool, check_positive
from metaprior.wfem.hyperprior import Fixed, Parameter
from metaprior.wfem.linalg import product
from metaprior.wfem.networks import MLP, Residual, at_points, check_features, make_features

DEFAULT_FEATURES = 8


class RBF(tinygp.kernels.Kernel):
    """output_scale * exp(-||(x - x') / length_scale||^2 / 2), with a shared length scale or one per input."""

    log_length_scale: Parameter
    log_output_scale: Parameter

    def evaluate(self, X1: Array, X2: Array) -> Array:
        """Evaluate at one pair of points."""
        difference = (X1 - X2) * jnp.exp(-self.log_length_scale)
        return jnp.exp(self.log_output_scale - 0.5 * jnp.sum(difference**2))


class Linear(tinygp.kernels.Kernel):
    """output_scale * x . x'."""

    log_output_scale: Parameter

    def evaluate(self, X1: Array, X2: Array) -> Array:
        """Evaluate at one pair of points."""
        return jnp.exp(self.log_output_scale) * jnp.sum(X1 * X2)

    def __call__(self, X1: Array, X2: Array | None = None) -> Array:
        """Return the kernel matrix as one product, or its diagonal."""
        return jnp.exp(self.log_output_scale) * (jnp.sum(X1**2, axis=1) if X2 is None else product(X1, X2.T))


class FeatureKernel(tinygp.kernels.Kernel):
    """base(Phi(x), Phi(x')) with a learned feature map Phi, evaluated once per point, not once per pair."""

    features: MLP | Residual
    base: tinygp.kernels.Kernel

    def evaluate(self, X1: Array, X2: Array) -> Array:
        """Evaluate at one pair of points."""
        return self.base.evaluate(self.features(X1), self.features(X2))

    def __call__(self, X1: Array, X2: Array | None = None) -> Array:
        """Return the kernel matrix, or its diagonal; differentiable any number of times."""
        phi1 = jax.vmap(self.features)(X1)
        return self.base(phi1, phi1 if X2 is X1 else None if X2 is None else jax.vmap(self.features)(X2))

    def embed(self, X: Array) -> Array:
        """Return the features of every point."""
        return at_points(self.features, X)

    def compare(self, E1: Array, E2: Array | None = None) -> Array:
        """Return the kernel matrix of embedded points, or its diagonal."""
        return self.base(E1, E2)


class SumKernel(tinygp.kernels.Kernel):
    """first + second. Unlike in tinygp's Sum, features are evaluated once per point."""

    first: tinygp.kernels.Kernel
    second: tinygp.kernels.Kernel

    def evaluate(self, X1: Array, X2: Array) -> Array:
        """Evaluate at one pair of points."""
        return self.first.evaluate(X1, X2) + self.second.evaluate(X1, X2)

    def __call__(self, X1: Array, X2: Array | None = None) -> Array:
        """Return the kernel matrix, or its diagonal."""
        return self.first(X1, X2) + self.second(X1, X2)

    def embed(self, X: Array) -> tuple[Any, Any]:
        """Return the embeddings of both kernels."""
        return embed(self.first, X), embed(self.second, X)

    def compare(self, E1: tuple[Any, Any], E2: tuple[Any, Any] | None = None) -> Array:
        """Return the kernel matrix of embedded points, or its diagonal."""
        first2, second2 = (None, None) if E2 is None else E2
        return compare(self.first, E1[0], first2) + compare(self.second, E1[1], second2)


def embed(kernel: Callable[..., Array], X: Float[Array, "n d"]) -> Any:
    """Return what a kernel computes per point, such as features; X itself for a kernel without `embed`."""
    return kernel.embed(X) if _embeds(kernel) else X  # type: ignore[attr-defined]


def compare(kernel: Callable[..., Array], E1: Any, E2: Any = None) -> Array:
    """Return the kernel matrix of two sets of embedded points, or the diagonal for one set."""
    if _embeds(kernel):
        return kernel.compare(E1, E2)  # type: ignore[attr-defined]
    return kernel(E1) if E2 is None else kernel(E1, E2)


def _embeds(kernel: Callable[..., Array]) -> bool:
    return hasattr(kernel, "embed") and hasattr(kernel, "compare")


@dataclass(frozen=True)
class RBFKernel:
    """RBF kernel, `k(x, x') = output_scale * exp(-||(x - x') / length_scale||^2 / 2)`.

    Parameters
    ----------
    length_scale : float
        Initial value of the length scales, one per input, which are learned.
    output_scale : float
        Variance, or its initial value if `learn_output_scale`.
    learn_output_scale : bool
        Whether the variance is learned.
    """

    length_scale: float = 1.0
    output_scale: float = 1.0
    learn_output_scale: bool = True

    def __post_init__(self):
        check_positive("length_scale", self.length_scale)
        check_positive("output_scale", self.output_scale)
        check_bool("learn_output_scale", self.learn_output_scale)

    def build(self, key: PRNGKeyArray, input_dim: int) -> RBF:
        """Return the module."""
        log_length_scale = jnp.full((input_dim,), math.log(self.length_scale))
        return RBF(log_length_scale, _log(self.output_scale, self.learn_output_scale))


@dataclass(frozen=True)
class MLPKernel:
    """RBF kernel of learned features, `k(x, x') = output_scale * exp(-||Phi(x) - Phi(x')||^2)`: the paper's kernel.

    Parameters
    ----------
    hidden_sizes : sequence of int
        Width of every hidden layer of the network Phi.
    activation : {'tanh', 'relu', 'elu', 'gelu', 'silu', 'softplus'}
        Activation of the hidden layers.
    n_features : int, optional
        Number of outputs of Phi, 8 by default.
    residual : bool
        Whether Phi(x) = x + network(x), which has as many features as inputs.
    output_scale, learn_output_scale : float, bool
        As for `RBFKernel`.
    """

    hidden_sizes: Sequence[int] = (32, 32, 32, 32)
    activation: str = "tanh"
    n_features: int | None = None
    residual: bool = False
    output_scale: float = 0.5
    learn_output_scale: bool = False

    def __post_init__(self):
        check_features(self)
        check_positive("output_scale", self.output_scale)
        check_bool("learn_output_scale", self.learn_output_scale)

    def build(self, key: PRNGKeyArray, input_dim: int) -> FeatureKernel:
        """Draw the initial network."""
        log_length_scale = Fixed(jnp.asarray(-0.5 * math.log(2.0)))  # exp(-d^2) has length scale 1/sqrt(2)
        base = RBF(log_length_scale, _log(self.output_scale, self.learn_output_scale))
        return FeatureKernel(make_features(self, key, input_dim, DEFAULT_FEATURES), base)


@dataclass(frozen=True)
class LinearRBFKernel:
    """Linear plus RBF, `linear_scale * x . x' / d + rbf_scale * exp(-||x - x'||^2 / (2 d length_scale^2))`.

    Linear functions with smooth deviations, for standardized or encoded inputs. Dividing by the dimension d gives the
    scales the same meaning in any dimension.

    Parameters
    ----------
    linear_scale, rbf_scale, length_scale : float
        Initial values of the three learned parameters.
    """

    linear_scale: float = 16.0
    rbf_scale: float = 4.0
    length_scale: float = 1.0

    def __post_init__(self):
        for name in ("linear_scale", "rbf_scale", "length_scale"):
            check_positive(name, getattr(self, name))

    def build(self, key: PRNGKeyArray, input_dim: int) -> SumKernel:
        """Return the module."""
        log_linear_scale = jnp.asarray(math.log(self.linear_scale / input_dim))
        log_length_scale = jnp.asarray(math.log(self.length_scale * math.sqrt(input_dim)))
        return SumKernel(Linear(log_linear_scale), RBF(log_length_scale, jnp.asarray(math.log(self.rbf_scale))))


@dataclass(frozen=True)
class LinearKernel:
    """Linear kernel of learned features plus a small RBF, `k(x, x') = output_scale * Phi(x) . Phi(x') + RBF(x, x')`.

    The RBF, whose scales are learned, keeps the prior from being certain outside the span of the features.

    Parameters
    ----------
    hidden_sizes, activation, n_features, residual, output_scale, learn_output_scale
        As for `MLPKernel`.
    rbf_scale, rbf_length_scale : float
        Initial variance and length scale of the RBF.
    """

    hidden_sizes: Sequence[int] = (32, 32, 32, 32)
    activation: str = "tanh"
    n_features: int | None = None
    residual: bool = False
    output_scale: float = 1.0
    learn_output_scale: bool = False
    rbf_scale: float = 0.01
    rbf_length_scale: float = 0.5

    def __post_init__(self):
        MLPKernel.__post_init__(self)  # type: ignore[arg-type]
        check_positive("rbf_scale", self.rbf_scale)
        check_positive("rbf_length_scale", self.rbf_length_scale)

    def build(self, key: PRNGKeyArray, input_dim: int) -> SumKernel:
        """Draw the initial network."""
        linear = Linear(_log(self.output_scale, self.learn_output_scale))
        rbf = RBFKernel(self.rbf_length_scale, self.rbf_scale).build(key, input_dim)
        return SumKernel(FeatureKernel(make_features(self, key, input_dim, DEFAULT_FEATURES), linear), rbf)


def _log(value: Any, learned: bool) -> Parameter:
    log = jnp.asarray(math.log(value))
    return log if learned else Fixed(log)
