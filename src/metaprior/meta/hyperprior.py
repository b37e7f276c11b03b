"""The hyper-prior p(theta): independent normals with a mean and a standard deviation per group of parameters."""

import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from metaprior.checks import Argument, Message, is_number
from metaprior.gp.parameters import groups

GROUPS = ("weights", "biases", "scales")


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


def check_prior_mean(prior_mean: Any) -> dict[str, Any]:
    """Return the mean of each group. 'zero' (the paper) is for networks: scales are centered on their initial value."""
    if isinstance(prior_mean, str) and prior_mean == "zero":
        return {"weights": 0.0, "biases": 0.0, "scales": "initial"}
    if isinstance(prior_mean, str) and prior_mean == "initial":
        return dict.fromkeys(GROUPS, "initial")
    if isinstance(prior_mean, Mapping):
        means = {**check_prior_mean("zero"), **_known_groups(prior_mean, "prior_mean")}
        named = {"zero": 0.0, "initial": "initial"}
        means = {name: named.get(mean, mean) if isinstance(mean, str) else mean for name, mean in means.items()}
        if all(is_number(mean) or (isinstance(mean, str) and mean == "initial") for mean in means.values()):
            return means
    raise ValueError(
        "prior_mean must be 'zero', 'initial', or a mapping from group (weights, biases, scales) to 'zero', "
        f"'initial' or a number; got {prior_mean!r}."
    )


def check_prior_std(prior_std: Any) -> dict[str, float]:
    """Return the standard deviation of each group, from one number or a mapping (1 for groups that it lacks)."""
    stds: dict[str, Any] = dict.fromkeys(GROUPS, 1.0 if isinstance(prior_std, Mapping) else prior_std)
    if isinstance(prior_std, Mapping):
        stds |= _known_groups(prior_std, "prior_std")
    if not all(is_number(std) and std > 0 for std in stds.values()):
        expected = "a positive number, or a mapping from group (weights, biases, scales) to positive numbers, or 'auto'"
        raise ValueError(Message(Argument("prior_std"), f" must be {expected}; got {prior_std!r}."))
    return {name: float(std) for name, std in stds.items()}


def _known_groups(given: Mapping[str, Any], argument: str) -> dict[str, Any]:
    unknown = set(given) - set(GROUPS)
    if unknown:
        raise ValueError(f"{argument} must have groups weights, biases, scales; got {sorted(map(str, unknown))}.")
    return dict(given)
