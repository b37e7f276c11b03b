"""Approximations of the Gibbs hyper-posterior by particles: MAP and Stein variational gradient descent.

A method is a direction of ascent for a set of particles, given the score of the Gibbs density at each. Everything
else (optimiser, mini-batches, loop) is shared. One SVGD particle moves along its own score: that is MAP.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from metaprior.checks import check_choice, check_positive
from metaprior.meta.hyperprior import HyperPrior

Start = Literal["initialiser", "hyperprior"]
SCATTER = 0.1


@dataclass(frozen=True)
class MAP:
    """The mode of the Gibbs hyper-posterior. Several particles are independent solutions: an ensemble."""

    start: Start = "initialiser"

    def __post_init__(self):
        check_choice("start", self.start, ("initialiser", "hyperprior"))

    def direction(self, particles: PyTree, scores: PyTree) -> PyTree:
        """Each particle climbs on its own."""
        return scores


@dataclass(frozen=True)
class SVGD:
    """Stein variational gradient descent with the kernel exp(-||theta - theta'||^2 / (2 l)).

    `length_scale` is l itself (not squared), or 'median': l = median of the squared distances between particles /
    (2 log(K + 1)), which makes the kernel values of a typical particle sum to about one.
    """

    length_scale: float | Literal["median"] = "median"
    start: Start = "initialiser"

    def __post_init__(self):
        check_choice("start", self.start, ("initialiser", "hyperprior"))
        if not (isinstance(self.length_scale, str) and self.length_scale == "median"):
            check_positive("length_scale", self.length_scale, ", or 'median'")

    def direction(self, particles: PyTree, scores: PyTree) -> PyTree:
        """(1/K) sum_j [k(theta_j, theta_k) score_j + grad_{theta_j} k(theta_j, theta_k)] for every particle k.

        The gradient is taken in closed form and in theta_j alone: k_jk (theta_k - theta_j) / l pushes k away from j.
        """
        distances = squared_distances(particles)
        length_scale = self._length_scale(distances)
        kernel = jnp.exp(-distances / (2.0 * length_scale))
        n_particles = kernel.shape[0]

        def leaf_direction(particle: Array, score: Array) -> Array:
            attraction = kernel @ score.reshape(n_particles, -1)
            repulsion = jnp.sum(kernel[:, :, None] * _differences(particle), axis=1) / length_scale
            return ((attraction + repulsion) / n_particles).reshape(particle.shape)

        return jax.tree.map(leaf_direction, particles, scores)

    def _length_scale(self, distances: Float[Array, "k k"]) -> Float[Array, ""]:
        n_particles = distances.shape[0]
        if not (isinstance(self.length_scale, str) and self.length_scale == "median"):
            return jnp.asarray(self.length_scale, distances.dtype)
        if n_particles == 1:
            return jnp.ones((), distances.dtype)
        median = jnp.median(distances[jnp.triu_indices(n_particles, 1)])
        tiny = jnp.finfo(distances.dtype).tiny
        return jnp.maximum(median / (2.0 * math.log(n_particles + 1)), tiny)


METHODS = {"map": MAP, "svgd": SVGD}
Method = MAP | SVGD


def squared_distances(particles: PyTree) -> Float[Array, "k k"]:
    """||theta_j - theta_k||^2 for all pairs, over all leaves."""
    squares = jax.tree.map(lambda leaf: jnp.sum(_differences(leaf) ** 2, axis=2), particles)
    return jnp.sum(jnp.stack(jax.tree.leaves(squares)), axis=0)


def _differences(leaf: Array) -> Float[Array, "k k size"]:
    """theta_k - theta_j at [k, j]. Expanding the products instead would cancel for particles that are close."""
    flat = leaf.reshape(leaf.shape[0], -1)
    return flat[:, None] - flat[None]


def place_particles(key: PRNGKeyArray, initial: PyTree, hyperprior: HyperPrior, start: Start) -> PyTree:
    """Where K particles start, given K draws from the initialiser: there, or at draws from the hyper-prior.

    What the initialiser does not randomise (scales, own finished modules) is scattered around its value by a tenth
    of the hyper-prior's standard deviation: particles that coincide would never part. The first is where MAP starts.
    """
    n_particles = len(jax.tree.leaves(initial)[0])
    if n_particles == 1 and start == "initialiser":
        return initial
    draws = jax.vmap(hyperprior.sample)(jax.random.split(key, n_particles))
    if start == "hyperprior":
        return draws

    def scatter(leaf: Array, draw: Array, mean: Array) -> Array:
        coincide = jnp.all(leaf == leaf[:1])
        moved = leaf + jnp.where(coincide, SCATTER, 0.0).astype(leaf.dtype) * (draw - mean[None])
        return leaf.at[1:].set(moved[1:])

    return jax.tree.map(scatter, initial, draws, hyperprior.mean)


def resolve_inference(inference: Any) -> Method:
    """A method from what the user passed as `inference`."""
    if isinstance(inference, MAP | SVGD):
        return inference
    if isinstance(inference, str) and inference in METHODS:
        return METHODS[inference]()
    raise ValueError(f"inference must be 'map', 'svgd', MAP(...) or SVGD(...); got {inference!r}.")
