"""The hyper-prior p(theta): independent normals with a mean and a standard deviation per group of parameters."""

import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from metaprior.wfem.parameters import groups


class HyperPrior(eqx.Module):
    """p(theta) = prod_j N(theta_j | mean_j, std_j^2), with one `std` per leaf of theta."""

    mean: PyTree
    std: PyTree

    def log_density(self, theta: PyTree) -> Float[Array, ""]:
        """Return log p(theta)."""

        def leaf_log_density(value: Array, mean: Array, std: Array) -> Array:
            constant = jnp.log(std) + 0.5 * math.log(2.0 * math.pi)
            return -0.5 * jnp.sum(((value - mean) / std) ** 2) - value.size * constant

        return jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(leaf_log_density, theta, self.mean, self.std))))

    def sample(self, key: PRNGKeyArray) -> PyTree:
        """Draw theta ~ p(theta)."""
        flat, unravel = jax.flatten_util.ravel_pytree(self.mean)
        noise = unravel(jax.random.normal(key, flat.shape, flat.dtype))  # one draw compiles quickly
        return jax.tree.map(lambda mean, std, draw: mean + std * draw, self.mean, self.std, noise)


def make_hyperprior(theta: PyTree, mean: Mapping[str, Any], std: Mapping[str, Any]) -> HyperPrior:
    """Return p(theta) with the mean ('initial' or a number) and the standard deviation of each group."""
    names = groups(theta)
    means = jax.tree.map(
        lambda leaf, name: leaf if mean[name] == "initial" else jnp.full_like(leaf, mean[name]), theta, names
    )
    stds = jax.tree.map(lambda leaf, name: jnp.asarray(std[name], leaf.dtype), theta, names)
    return HyperPrior(means, stds)
