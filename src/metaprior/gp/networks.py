"""Feed-forward networks for mean functions and feature maps."""

from collections.abc import Callable, Sequence

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


class MLP(eqx.Module):
    """A fully connected network: hidden layers with an activation, a linear layer at the end."""

    layers: tuple[eqx.nn.Linear, ...]
    activation: str = eqx.field(static=True)

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Evaluate at one point."""
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](layer(x))
        return self.layers[-1](x)


class Residual(eqx.Module):
    """A feature map that starts from the inputs themselves: x + network(x)."""

    network: MLP

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " inputs"]:
        """Evaluate at one point."""
        return x + self.network(x)


def make_mlp(key: PRNGKeyArray, n_inputs: int, n_outputs: int, hidden_sizes: Sequence[int], activation: str) -> MLP:
    """Draw a network: weights and biases uniform in +-1/sqrt(fan-in)."""
    sizes = (n_inputs, *hidden_sizes, n_outputs)
    keys = jax.random.split(key, len(sizes) - 1)
    layers = tuple(
        eqx.nn.Linear(fan_in, fan_out, key=k) for fan_in, fan_out, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
    )
    return MLP(layers, activation)


def check_network(hidden_sizes: Sequence[int], activation: str) -> None:
    """Raise a clear error for a network that cannot be built."""
    if isinstance(hidden_sizes, str) or not isinstance(hidden_sizes, Sequence):
        raise ValueError(f"hidden_sizes must be a sequence of integers, one per hidden layer; got {hidden_sizes!r}.")
    for layer, size in enumerate(hidden_sizes):
        check_integer(f"hidden_sizes[{layer}]", size, least=1)
    check_choice("activation", activation, ACTIVATIONS)
