"""Networks for means, feature maps and encoders, evaluated at one input point or at many.

Encoders that mean and kernel share: modules for one input point, and the descriptions they are built from.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


DEFAULT_FEATURES = 32
KERNEL_SIZE, POOLING = 3, 2
Image = Float[Array, "channels height width"]


class Conv(eqx.Module):
    """Blocks of convolution, normalization, ReLU and pooling on an image given as a flat vector."""

    blocks: tuple[eqx.nn.Conv2d, ...]
    image_shape: tuple[int, int, int] = eqx.field(static=True)  # height, width, channels

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " features"]:
        """Evaluate at one point."""
        image = jnp.transpose(x.reshape(self.image_shape), (2, 0, 1))
        for convolution in self.blocks:
            image = _pool(jax.nn.relu(_normalize(_convolve(convolution, image))))
        return image.ravel()


@dataclass(frozen=True)
class MLPEncoder:
    """Network encoder, `z = network(x)`.

    Parameters
    ----------
    hidden_sizes, activation
        As for `MLPKernel`.
    n_features : int, optional
        Number of outputs, 32 by default.
    residual : bool
        Whether z = x + network(x), which has as many features as inputs.
    """

    hidden_sizes: Sequence[int] = (32, 32, 32, 32)
    activation: str = "tanh"
    n_features: int | None = None
    residual: bool = False

    def __post_init__(self):
        check_features(self)

    def build(self, key: PRNGKeyArray, input_dim: int) -> MLP | Residual:
        """Draw the initial network."""
        return make_features(self, key, input_dim, DEFAULT_FEATURES)


@dataclass(frozen=True)
class ConvEncoder:
    """Conv-4, the usual encoder of few-shot learning: blocks of 3x3 convolution, ReLU and 2x2 max-pooling.

    Each image is normalized by itself after every convolution (layer normalization without parameters). Conv-4 has
    batch normalization, but the features of an image, and so a prior, must not depend on other images.

    Parameters
    ----------
    channels : sequence of int
        Number of channels of every block.
    image_shape : (height, width, channels), optional
        Shape of the inputs. By default they are square images with one or three channels.
    """

    channels: Sequence[int] = (64, 64, 64, 64)
    image_shape: Sequence[int] | None = None

    def __post_init__(self):
        object.__setattr__(self, "channels", check_sizes("channels", self.channels))
        if not self.channels:
            raise ValueError("channels must be a sequence of integers, at least one; got ().")
        if self.image_shape is not None:
            object.__setattr__(self, "image_shape", check_sizes("image_shape", self.image_shape))
            if len(self.image_shape) != 3:
                raise ValueError(f"image_shape must be (height, width, channels); got {self.image_shape!r}.")

    def build(self, key: PRNGKeyArray, input_dim: int) -> Conv:
        """Draw the initial network."""
        shape = self._shape(input_dim)
        sizes = (shape[2], *self.channels)
        blocks = tuple(
            eqx.nn.Conv2d(sizes[i], sizes[i + 1], KERNEL_SIZE, padding=KERNEL_SIZE // 2, key=block_key)
            for i, block_key in enumerate(jax.random.split(key, len(self.channels)))
        )
        return Conv(blocks, shape)

    def _shape(self, input_dim: int) -> tuple[int, int, int]:
        if self.image_shape is None:  # no number is both a square and three times a square
            channels = 1 if math.isqrt(input_dim) ** 2 == input_dim else 3
            height = width = math.isqrt(input_dim // channels)
            if height * width * channels != input_dim:
                raise ValueError(
                    f"encoder: {input_dim} inputs are not a square image with 1 or 3 channels; "
                    "pass ConvEncoder(image_shape=(height, width, channels))."
                )
        else:
            height, width, channels = self.image_shape
        shape, size, n_blocks = (height, width, channels), height * width * channels, len(self.channels)
        if size != input_dim:
            raise ValueError(f"encoder: image_shape {shape} has {size} numbers; inputs have {input_dim}.")
        if min(height, width) < (least := POOLING**n_blocks):
            raise ValueError(
                f"encoder: {n_blocks} blocks halve an image {n_blocks} times, so it must be at least {least}x{least}; "
                f"got {height}x{width}. Pass fewer channels, one number per block."
            )
        return shape


def _convolve(convolution: eqx.nn.Conv2d, image: Image) -> Float[Array, "features height width"]:
    """Convolve by a product with the patches: XLA's convolution is several times slower inside a loop on CPUs."""
    height, width = image.shape[1:]
    padded = jnp.pad(image, ((0, 0), (KERNEL_SIZE // 2,) * 2, (KERNEL_SIZE // 2,) * 2))
    shifts = [(row, column) for row in range(KERNEL_SIZE) for column in range(KERNEL_SIZE)]
    patches = jnp.stack([padded[:, row : row + height, column : column + width] for row, column in shifts], axis=1)
    weight = convolution.weight.reshape(convolution.out_channels, -1)
    features = weight @ patches.reshape(weight.shape[1], height * width)
    return features.reshape(-1, height, width) + jnp.asarray(convolution.bias)


def _normalize(image: Image) -> Image:
    centered = image - jnp.mean(image)
    return centered * jax.lax.rsqrt(jnp.mean(centered**2) + 1e-5)


def _pool(image: Image) -> Float[Array, "channels rows columns"]:
    """Return the 2x2 max-pooled image, without an odd last row or column."""
    channels, rows, columns = image.shape[0], image.shape[1] // POOLING, image.shape[2] // POOLING
    even = image[:, : rows * POOLING, : columns * POOLING]
    return jnp.max(even.reshape(channels, rows, POOLING, columns, POOLING), axis=(2, 4))
