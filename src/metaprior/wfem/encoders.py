"""Encoders that mean and kernel share: modules for one input point, and the descriptions they are built from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metaprior.wfem.networks import MLP, Residual, check_features, check_sizes, make_features

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
