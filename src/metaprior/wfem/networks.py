"""Networks for means, feature maps and encoders, evaluated at one input point or at many."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metaprior.checks import check_bool, check_choice, check_integer

ACTIVATIONS = {name: getattr(jax.nn, name) for name in ("tanh", "relu", "elu", "gelu", "silu", "softplus")}
ALIGNMENT = 16  # rows of activations are padded to a multiple of this, for vector instructions
Weight = Float[Array, "outputs inputs"]


class Layer(eqx.Module):
    """weight @ x + bias."""

    weight: Weight
    bias: Float[Array, " outputs"]


class MLP(eqx.Module):
    """Fully connected network: hidden layers with an activation, and a linear output layer."""

    layers: tuple[Layer, ...]
    activation: str = eqx.field(static=True)

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Evaluate at one point."""
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](layer.weight @ x + layer.bias)
        return self.layers[-1].weight @ x + self.layers[-1].bias

    def at_points(self, X: Float[Array, "n inputs"]) -> Float[Array, "n outputs"]:
        """Evaluate at many points at once. Supports first derivatives in reverse mode only."""
        # As columns: long rows of activations vectorize well, which is twice as fast on CPUs as a row per point.
        x = jnp.pad(X.T, ((0, 0), (0, -len(X) % ALIGNMENT)))
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](_affine(layer.weight, layer.bias, x))
        return _affine(self.layers[-1].weight, self.layers[-1].bias, x)[:, : len(X)].T


class Residual(eqx.Module):
    """x + network(x): a feature map that a zero-mean hyper-prior pulls towards the identity."""

    network: MLP

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " inputs"]:
        """Evaluate at one point."""
        return x + self.network(x)

    def at_points(self, X: Float[Array, "n inputs"]) -> Float[Array, "n inputs"]:
        """Evaluate at many points at once."""
        return X + self.network.at_points(X)


def at_points(function: Callable[..., Array], X: Float[Array, "n inputs"]) -> Float[Array, "n *outputs"]:
    """Evaluate a function of one point at every row of X, by its `at_points` if it has one."""
    return function.at_points(X) if hasattr(function, "at_points") else jax.vmap(function)(X)  # type: ignore[attr-defined]


@jax.custom_vjp
def _affine(weight: Weight, bias: Float[Array, " outputs"], x: Float[Array, "inputs n"]) -> Float[Array, "outputs n"]:
    return weight @ x + bias[:, None]


def _affine_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array, Array]:
    """Return the gradients without JAX's transposes, which copy, and without products of single rows or columns."""
    weight, x = saved
    by_bias = jnp.sum(cotangent, axis=1)
    if weight.shape[0] == 1:
        return jnp.sum(cotangent * x, axis=1)[None], by_bias, weight.T * cotangent
    if weight.shape[1] == 1:
        return jnp.sum(cotangent * x, axis=1)[:, None], by_bias, jnp.sum(weight * cotangent, axis=0)[None]
    by_weight = jax.lax.dot_general(cotangent, x, (((1,), (1,)), ((), ())))
    return by_weight, by_bias, jax.lax.dot_general(weight, cotangent, (((0,), (0,)), ((), ())))


_affine.defvjp(lambda weight, bias, x: (_affine(weight, bias, x), (weight, x)), _affine_backward)


def make_mlp(key: PRNGKeyArray, n_inputs: int, n_outputs: int, hidden_sizes: Sequence[int], activation: str) -> MLP:
    """Draw a network with weights and biases uniform in +-1/sqrt(fan-in)."""
    sizes = [(fan_out, fan_in) for fan_in, fan_out in itertools.pairwise((n_inputs, *hidden_sizes, n_outputs))]
    # All numbers from one draw: a draw per array would take longer to compile than the training step.
    numbers = jax.random.uniform(key, (sum(out * (fan_in + 1) for out, fan_in in sizes),), minval=-1.0, maxval=1.0)
    layers, start = [], 0
    for out, fan_in in sizes:
        block = numbers[start : start + out * (fan_in + 1)].reshape(out, fan_in + 1) / math.sqrt(fan_in)
        layers.append(Layer(block[:, :-1], block[:, -1]))
        start += block.size
    return MLP(tuple(layers), activation)


def make_features(spec: Any, key: PRNGKeyArray, n_inputs: int, n_features: int) -> MLP | Residual:
    """Draw the feature map of a description, with `n_features` outputs by default."""
    n_outputs = n_inputs if spec.residual else spec.n_features or n_features
    network = make_mlp(key, n_inputs, n_outputs, spec.hidden_sizes, spec.activation)
    if not spec.residual:
        return network
    zero = jax.tree.map(jnp.zeros_like, network.layers[-1])  # start as the identity
    return Residual(eqx.tree_at(lambda network: network.layers[-1], network, zero))


def check_network(hidden_sizes: Any, activation: Any) -> tuple[int, ...]:
    """Return the hidden sizes as plain integers; raise if the network cannot be built."""
    check_choice("activation", activation, ACTIVATIONS)
    return check_sizes("hidden_sizes", hidden_sizes)


def check_sizes(name: str, sizes: Any) -> tuple[int, ...]:
    """Return a sequence of positive integers as a tuple."""
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        raise ValueError(f"{name} must be a sequence of integers; got {sizes!r}.")
    return tuple(check_integer(f"{name}[{i}]", size, least=1) for i, size in enumerate(sizes))


def check_features(spec: Any) -> None:
    """Check hidden_sizes, activation, n_features and residual of a description."""
    object.__setattr__(spec, "hidden_sizes", check_network(spec.hidden_sizes, spec.activation))
    check_bool("residual", spec.residual)
    if spec.n_features is not None:
        check_integer("n_features", spec.n_features, least=1)
        if spec.residual:
            raise ValueError("n_features must be None with residual=True: x + network(x) has as many features as x.")
