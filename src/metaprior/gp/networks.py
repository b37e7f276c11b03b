"""Feed-forward networks for mean functions and feature maps."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metaprior.checks import check_choice, check_integer

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
}
ALIGNMENT = 16  # numbers that a processor takes at once: rows of activations are padded to a multiple


class Layer(eqx.Module):
    """weight @ x + bias."""

    weight: Float[Array, "outputs inputs"]
    bias: Float[Array, " outputs"]

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Evaluate at one point."""
        return self.weight @ x + self.bias


class MLP(eqx.Module):
    """A fully connected network: hidden layers with an activation, a linear layer at the end."""

    layers: tuple[Layer, ...]
    activation: str = eqx.field(static=True)

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Evaluate at one point."""
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](layer(x))
        return self.layers[-1](x)

    def at_points(self, X: Float[Array, "n inputs"]) -> Float[Array, "n outputs"]:
        """Evaluate at many points at once, as columns.

        Activations then lie in long rows, which processors go through many numbers at a time: on CPUs this is twice as
        fast as a row for each point. Only first derivatives, taken backwards, pass.
        """
        x = jnp.pad(X.T, ((0, 0), (0, -len(X) % ALIGNMENT)))
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](_affine(layer.weight, layer.bias, x))
        return _affine(self.layers[-1].weight, self.layers[-1].bias, x)[:, : len(X)].T


class Residual(eqx.Module):
    """x + network(x): a feature map that starts from the inputs themselves, and under a zero-mean hyper-prior tends to.

    Made by `make_residual`, its network is zero at first.
    """

    network: MLP

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " inputs"]:
        """Evaluate at one point."""
        return x + self.network(x)

    def at_points(self, X: Float[Array, "n inputs"]) -> Float[Array, "n inputs"]:
        """Evaluate at many points at once."""
        return X + self.network.at_points(X)


def at_points(function: Callable[..., Array], X: Float[Array, "n inputs"]) -> Float[Array, "n *outputs"]:
    """A function of one point at every row of X, in its own best way if it has one."""
    return function.at_points(X) if hasattr(function, "at_points") else jax.vmap(function)(X)  # type: ignore[attr-defined]


@jax.custom_vjp
def _affine(
    weight: Float[Array, "outputs inputs"], bias: Float[Array, " outputs"], x: Float[Array, "inputs n"]
) -> Float[Array, "outputs n"]:
    return weight @ x + bias[:, None]


def _affine_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array, Array]:
    """As JAX would, but for the gradient by x, of which JAX makes rows, and turns them.

    What has one row or column is no matrix product: XLA is slow there. Nor are matrices turned, which would copy them.
    """
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
    """Draw a network: weights and biases uniform in +-1/sqrt(fan-in).

    All in one draw: a draw per array would take longer to compile than the training step.
    """
    sizes = [(fan_out, fan_in) for fan_in, fan_out in itertools.pairwise((n_inputs, *hidden_sizes, n_outputs))]
    numbers = jax.random.uniform(key, (sum(out * (fan_in + 1) for out, fan_in in sizes),), minval=-1.0, maxval=1.0)
    layers, start = [], 0
    for out, fan_in in sizes:
        block = numbers[start : start + out * (fan_in + 1)].reshape(out, fan_in + 1) / math.sqrt(fan_in)
        layers.append(Layer(block[:, :-1], block[:, -1]))
        start += block.size
    return MLP(tuple(layers), activation)


def make_residual(key: PRNGKeyArray, n_inputs: int, hidden_sizes: Sequence[int], activation: str) -> Residual:
    """Draw the hidden layers of a residual map; its last layer is zero, so that it is the identity."""
    network = make_mlp(key, n_inputs, n_inputs, hidden_sizes, activation)
    last = lambda network: (network.layers[-1].weight, network.layers[-1].bias)  # noqa: E731
    return Residual(eqx.tree_at(last, network, replace_fn=jnp.zeros_like))


def check_network(hidden_sizes: Any, activation: Any) -> tuple[int, ...]:
    """The sizes as plain integers, or a clear error for a network that cannot be built."""
    if isinstance(hidden_sizes, str) or not isinstance(hidden_sizes, Sequence):
        raise ValueError(f"hidden_sizes must be a sequence of integers, one per hidden layer; got {hidden_sizes!r}.")
    check_choice("activation", activation, ACTIVATIONS)
    return tuple(check_integer(f"hidden_sizes[{layer}]", size, least=1) for layer, size in enumerate(hidden_sizes))
