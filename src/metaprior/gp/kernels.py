"""Kernels k_theta as tinygp kernels: written for one pair of points, so sums and products with any other work."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import tinygp
from jaxtyping import Array, Float, PRNGKeyArray

from metaprior.checks import check_bool, check_integer, check_positive
from metaprior.gp.linalg import product
from metaprior.gp.means import LinearMean
from metaprior.gp.networks import MLP, Residual, at_points, check_network, make_mlp, make_residual
from metaprior.gp.parameters import Fixed, Parameter, as_arrays, groups, split

DEFAULT_FEATURES = 8


class RBF(tinygp.kernels.Kernel):
    """output_scale * exp(-||(x - x') / length_scale||^2 / 2), length scales shared or one per input."""

    log_length_scale: Parameter
    log_output_scale: Parameter

    def evaluate(self, X1: Array, X2: Array) -> Array:
        """The kernel at one pair of points."""
        difference = (X1 - X2) * jnp.exp(-self.log_length_scale)
        return jnp.exp(self.log_output_scale - 0.5 * jnp.sum(difference**2))


class Linear(tinygp.kernels.Kernel):
    """output_scale * x . x'."""

    log_output_scale: Parameter

    def evaluate(self, X1: Array, X2: Array) -> Array:
        """The kernel at one pair of points."""
        return jnp.exp(self.log_output_scale) * jnp.sum(X1 * X2)

    def __call__(self, X1: Array, X2: Array | None = None) -> Array:
        """The kernel matrix of two sets of points as one product, or the diagonal of one."""
        if X2 is None:
            return jnp.exp(self.log_output_scale) * jnp.sum(X1**2, axis=1)
        return jnp.exp(self.log_output_scale) * product(X1, X2.T)


class FeatureKernel(tinygp.kernels.Kernel):
    """base(Phi(x), Phi(x')) with a learned feature map Phi, evaluated once per point and not once per pair."""

    features: MLP | Residual
    base: tinygp.kernels.Kernel

    def evaluate(self, X1: Array, X2: Array) -> Array:
        """The kernel at one pair of points."""
        return self.base.evaluate(self.features(X1), self.features(X2))

    def __call__(self, X1: Array, X2: Array | None = None) -> Array:
        """The kernel matrix of two sets of points, or the diagonal of one."""
        features1 = jax.vmap(self.features)(X1)
        if X2 is None:
            return self.base(features1)
        return self.base(features1, features1 if X2 is X1 else jax.vmap(self.features)(X2))

    def embed(self, X: Array) -> Array:
        """What `compare` takes in the place of points."""
        return at_points(self.features, X)

    def compare(self, E1: Array, E2: Array | None = None) -> Array:
        """The kernel matrix of two sets of embedded points, or the diagonal of one."""
        return self.base(E1, E2)


class SumKernel(tinygp.kernels.Kernel):
    """first + second, each evaluated in its own best way (tinygp's Sum would evaluate features per pair)."""

    first: tinygp.kernels.Kernel
    second: tinygp.kernels.Kernel

    def evaluate(self, X1: Array, X2: Array) -> Array:
        """The kernel at one pair of points."""
        return self.first.evaluate(X1, X2) + self.second.evaluate(X1, X2)

    def __call__(self, X1: Array, X2: Array | None = None) -> Array:
        """The kernel matrix of two sets of points, or the diagonal of one."""
        return self.first(X1, X2) + self.second(X1, X2)

    def embed(self, X: Array) -> tuple[Any, Any]:
        """What `compare` takes in the place of points."""
        return embed(self.first, X), embed(self.second, X)

    def compare(self, E1: tuple[Any, Any], E2: tuple[Any, Any] | None = None) -> Array:
        """The kernel matrix of two sets of embedded points, or the diagonal of one."""
        first2, second2 = (None, None) if E2 is None else E2
        return compare(self.first, E1[0], first2) + compare(self.second, E1[1], second2)


def embed(kernel: Callable[..., Array], X: Float[Array, "n d"]) -> Any:
    """All that a kernel makes of points one by one, such as features, before it compares them."""
    return kernel.embed(X) if _embeds(kernel) else X  # type: ignore[attr-defined]


def compare(kernel: Callable[..., Array], E1: Any, E2: Any = None) -> Array:
    """The kernel matrix of two sets of embedded points, or the diagonal of one."""
    if not _embeds(kernel):
        return kernel(E1) if E2 is None else kernel(E1, E2)
    return kernel.compare(E1, E2)  # type: ignore[attr-defined]


def _embeds(kernel: Callable[..., Array]) -> bool:
    return hasattr(kernel, "embed") and hasattr(kernel, "compare")


class PositiveKernel(tinygp.kernels.Kernel):
    """A kernel somebody brought, its positive numbers learned as logarithms so that they stay positive."""

    parameters: tinygp.kernels.Kernel  # logarithms where `positive`, as they are elsewhere
    positive: tinygp.kernels.Kernel = eqx.field(static=True)
    rest: tinygp.kernels.Kernel

    def kernel(self) -> tinygp.kernels.Kernel:
        """The kernel in its own parameters."""
        values = jax.tree.map(
            lambda value, positive: jnp.exp(value) if positive else value, self.parameters, self.positive
        )
        return eqx.combine(values, self.rest)

    def evaluate(self, X1: Array, X2: Array) -> Array:
        """The kernel at one pair of points."""
        return self.kernel().evaluate(X1, X2)

    def __call__(self, X1: Array, X2: Array | None = None) -> Array:
        """The kernel matrix of two sets of points, or the diagonal of one."""
        return self.kernel()(X1, X2)


def learn_positive(kernel: tinygp.kernels.Kernel) -> tinygp.kernels.Kernel:
    """Make every float of a brought kernel learnable: as a logarithm if it starts positive.

    Network weights and biases, and names that begin with log_, are learned as they are. Integers stay fixed.
    """
    parameters, rest = split(as_arrays(kernel))  # what is `Fixed` inside a brought kernel stays so

    def starts_positive(path: tuple, leaf: Array, group: str) -> bool:
        log_already = any(str(getattr(key, "name", "")).startswith("log_") for key in path)
        return group == "scales" and not log_already and bool(jnp.all(leaf > 0))

    positive = jax.tree_util.tree_map_with_path(starts_positive, parameters, groups(parameters))
    logs = jax.tree.map(lambda leaf, is_positive: jnp.log(leaf) if is_positive else leaf, parameters, positive)
    return PositiveKernel(logs, positive, rest)


@dataclass(frozen=True)
class RBFKernel:
    """output_scale * exp(-||(x - x') / length_scale||^2 / 2), with one learned length scale per input."""

    length_scale: float = 1.0
    output_scale: float = 1.0
    learn_output_scale: bool = True

    def __post_init__(self):
        check_positive("length_scale", self.length_scale)
        check_positive("output_scale", self.output_scale)
        check_bool("learn_output_scale", self.learn_output_scale)

    def build(self, key: PRNGKeyArray, input_dim: int) -> RBF:
        """Draw the module."""
        log_length_scale = jnp.full((input_dim,), math.log(self.length_scale))
        return RBF(log_length_scale, _log(self.output_scale, self.learn_output_scale))


@dataclass(frozen=True)
class MLPKernel:
    """The paper's kernel, output_scale * exp(-||Phi(x) - Phi(x')||^2), with a network Phi.

    Phi has `n_features` outputs, by default 8; `residual=True` makes it x + network(x), with as many as inputs.
    """

    hidden_sizes: Sequence[int] = (32, 32, 32, 32)
    activation: str = "tanh"
    n_features: int | None = None
    residual: bool = False
    output_scale: float = 0.5
    learn_output_scale: bool = False

    def __post_init__(self):
        _check_features(self)

    def build(self, key: PRNGKeyArray, input_dim: int) -> FeatureKernel:
        """Draw the module."""
        # exp(-d^2) is the RBF of length scale 1/sqrt(2)
        log_length_scale = Fixed(jnp.asarray(-0.5 * math.log(2.0)))
        base = RBF(log_length_scale, _log(self.output_scale, self.learn_output_scale))
        return FeatureKernel(_feature_map(self, key, input_dim), base)


@dataclass(frozen=True)
class LinearRBFKernel:
    """linear_scale * x . x' / d + rbf_scale * exp(-||x - x'||^2 / (2 d length_scale^2)), three learned numbers.

    Linear functions and smooth deviations from them, for standardized (or encoded) inputs of any dimension d: divided
    by d, the scales mean the same in two dimensions as in a thousand.
    """

    linear_scale: float = 16.0
    rbf_scale: float = 4.0
    length_scale: float = 1.0

    def __post_init__(self):
        for name in ("linear_scale", "rbf_scale", "length_scale"):
            check_positive(name, getattr(self, name))

    @property
    def default_mean(self) -> LinearMean:
        """The mean that goes with it."""
        return LinearMean(1.0)

    def build(self, key: PRNGKeyArray, input_dim: int) -> SumKernel:
        """Draw the module."""
        log_linear_scale = jnp.asarray(math.log(self.linear_scale / input_dim))
        log_length_scale = jnp.asarray(math.log(self.length_scale * math.sqrt(input_dim)))
        return SumKernel(Linear(log_linear_scale), RBF(log_length_scale, jnp.asarray(math.log(self.rbf_scale))))


@dataclass(frozen=True)
class LinearKernel:
    """output_scale * Phi(x) . Phi(x') + rbf_scale * RBF(x, x'): linear in learned features plus a small RBF.

    The RBF, with learned scales, keeps the prior from being certain outside the span of the features.
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
        _check_features(self)
        check_positive("rbf_scale", self.rbf_scale)
        check_positive("rbf_length_scale", self.rbf_length_scale)

    def build(self, key: PRNGKeyArray, input_dim: int) -> SumKernel:
        """Draw the module."""
        linear = Linear(_log(self.output_scale, self.learn_output_scale))
        rbf = RBFKernel(self.rbf_length_scale, self.rbf_scale).build(key, input_dim)
        return SumKernel(FeatureKernel(_feature_map(self, key, input_dim), linear), rbf)


def _feature_map(spec: MLPKernel | LinearKernel, key: PRNGKeyArray, input_dim: int) -> MLP | Residual:
    if spec.residual:
        return make_residual(key, input_dim, spec.hidden_sizes, spec.activation)
    return make_mlp(key, input_dim, spec.n_features or DEFAULT_FEATURES, spec.hidden_sizes, spec.activation)


def _log(value: Any, learned: bool) -> Parameter:
    log = jnp.asarray(math.log(value))
    return log if learned else Fixed(log)


def _check_features(spec: MLPKernel | LinearKernel) -> None:
    object.__setattr__(spec, "hidden_sizes", check_network(spec.hidden_sizes, spec.activation))
    check_positive("output_scale", spec.output_scale)
    check_bool("residual", spec.residual)
    check_bool("learn_output_scale", spec.learn_output_scale)
    if spec.n_features is not None:
        check_integer("n_features", spec.n_features, least=1)
        if spec.residual:
            raise ValueError("n_features must be left out with residual=True: x + network(x) has as many as x.")
