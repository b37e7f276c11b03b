"""Encoders that mean and kernel share: descriptions, and the modules they are built from, for one input point."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metaprior.checks import check_bool, check_integer
from metaprior.gp.networks import MLP, Residual, check_network, make_mlp, make_residual

KERNEL_SIZE, POOLING = 3, 2


class Conv(eqx.Module):
    """Blocks of convolution, normalization, ReLU and pooling on an image that comes as a flat vector."""

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
    """A network with `n_features` outputs; `residual=True` makes it x + network(x), with as many as inputs."""

    hidden_sizes: Sequence[int] = (32, 32, 32, 32)
    activation: str = "tanh"
    n_features: int | None = None  # 32 if left out
    residual: bool = False

    def __post_init__(self):
        object.__setattr__(self, "hidden_sizes", check_network(self.hidden_sizes, self.activation))
        check_bool("residual", self.residual)
        if self.n_features is not None:
            check_integer("n_features", self.n_features, least=1)
            if self.residual:
                raise ValueError("n_features must be left out with residual=True: x + network(x) has as many as x.")

    def build(self, key: PRNGKeyArray, input_dim: int) -> MLP | Residual:
        """Draw the module."""
        if self.residual:
            return make_residual(key, input_dim, self.hidden_sizes, self.activation)
        return make_mlp(key, input_dim, self.n_features or 32, self.hidden_sizes, self.activation)


@dataclass(frozen=True)
class ConvEncoder:
    """Conv-4, the usual encoder of few-shot learning: per block a 3x3 convolution, ReLU and 2x2 max-pooling.

    An image is normalized on its own after every convolution (layer normalization without parameters), where Conv-4
    has batch normalization: an image's features, and so a prior, must not depend on its neighbors. `image_shape` is
    (height, width, channels); left out, inputs are square images of one or three channels.
    """

    channels: Sequence[int] = (64, 64, 64, 64)
    image_shape: Sequence[int] | None = None

    def __post_init__(self):
        for name, given in (("channels", self.channels), ("image_shape", self.image_shape)):
            if given is not None and (isinstance(given, str) or not isinstance(given, Sequence) or not len(given)):
                raise ValueError(f"{name} must be a sequence of integers; got {given!r}.")
        channels = tuple(check_integer(f"channels[{i}]", n, least=1) for i, n in enumerate(self.channels))
        object.__setattr__(self, "channels", channels)
        if self.image_shape is not None:
            shape = tuple(check_integer(f"image_shape[{i}]", n, least=1) for i, n in enumerate(self.image_shape))
            if len(shape) != 3:
                raise ValueError(f"image_shape must be (height, width, channels); got {self.image_shape!r}.")
            object.__setattr__(self, "image_shape", shape)

    def build(self, key: PRNGKeyArray, input_dim: int) -> Conv:
        """Draw the module."""
        shape = self._shape(input_dim)
        sizes = (shape[2], *self.channels)
        blocks = tuple(
            eqx.nn.Conv2d(sizes[i], sizes[i + 1], KERNEL_SIZE, padding=KERNEL_SIZE // 2, key=block_key)
            for i, block_key in enumerate(jax.random.split(key, len(self.channels)))
        )
        return Conv(blocks, shape)

    def _shape(self, input_dim: int) -> tuple[int, int, int]:
        shape: Any = self.image_shape
        if shape is None:  # no number is both a square and three times a square
            sides = [(math.isqrt(input_dim // n), n) for n in (1, 3)]
            shape = next(((side, side, n) for side, n in sides if side * side * n == input_dim), None)
            if shape is None:
                raise ValueError(
                    f"encoder: inputs of {input_dim} numbers are no square images of 1 or 3 channels; "
                    "pass ConvEncoder(image_shape=(height, width, channels))."
                )
        if math.prod(shape) != input_dim:
            raise ValueError(f"encoder: image_shape {shape} has {math.prod(shape)} numbers; inputs have {input_dim}.")
        least = POOLING ** len(self.channels)
        if min(shape[:2]) < least:
            raise ValueError(
                f"encoder: {len(self.channels)} blocks halve an image {len(self.channels)} times, so it must be at "
                f"least {least}x{least}; got {shape[0]}x{shape[1]}. Pass fewer channels, one number per block."
            )
        return shape


def _convolve(
    convolution: eqx.nn.Conv2d, image: Float[Array, "channels height width"]
) -> Float[Array, "features height width"]:
    """The convolution as a product with the patches: XLA's own is several times slower inside a loop on CPUs."""
    height, width = image.shape[1:]
    padded = jnp.pad(image, ((0, 0), (KERNEL_SIZE // 2,) * 2, (KERNEL_SIZE // 2,) * 2))
    shifts = [(row, column) for row in range(KERNEL_SIZE) for column in range(KERNEL_SIZE)]
    patches = jnp.stack([padded[:, row : row + height, column : column + width] for row, column in shifts], axis=1)
    weight = convolution.weight.reshape(convolution.out_channels, -1)
    features = weight @ patches.reshape(weight.shape[1], height * width)
    return features.reshape(-1, height, width) + jnp.asarray(convolution.bias)


def _normalize(image: Float[Array, "channels height width"]) -> Float[Array, "channels height width"]:
    centered = image - jnp.mean(image)
    return centered * jax.lax.rsqrt(jnp.mean(centered**2) + 1e-5)


def _pool(image: Float[Array, "channels height width"]) -> Float[Array, "channels rows columns"]:
    """2x2 max-pooling; an odd last row or column is left out."""
    channels, rows, columns = image.shape[0], image.shape[1] // POOLING, image.shape[2] // POOLING
    even = image[:, : rows * POOLING, : columns * POOLING]
    return jnp.max(even.reshape(channels, rows, POOLING, columns, POOLING), axis=(2, 4))
