"""Approximations of the Gibbs hyper-posterior by particles: MAP, Stein variational gradient descent, Laplace.

A method is a direction of ascent for a set of particles, given the score of the Gibbs density at each. Everything
else (optimizer, mini-batches, loop) is shared. One SVGD particle moves along its own score: that is MAP.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from metaprior.checks import check_choice, check_integer, check_positive
from metaprior.meta.hyperprior import HyperPrior

Start = Literal["initializer", "hyperprior"]
SCATTER = 0.1


@dataclass(frozen=True)
class MAP:
    """The mode of the Gibbs hyper-posterior. Several particles are independent solutions: an ensemble."""

    start: Start = "initializer"
    interacts: ClassVar[bool] = False  # whether the direction of a particle depends on the others

    def __post_init__(self):
        check_choice("start", self.start, ("initializer", "hyperprior"))

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
    start: Start = "initializer"
    interacts: ClassVar[bool] = True

    def __post_init__(self):
        check_choice("start", self.start, ("initializer", "hyperprior"))
        if not (isinstance(self.length_scale, str) and self.length_scale == "median"):
            check_positive("length_scale", self.length_scale, ", or 'median'")

    def direction(self, particles: PyTree, scores: PyTree) -> PyTree:
        """(1/K) sum_j [k(theta_j, theta_k) score_j + grad_{theta_j} k(theta_j, theta_k)] for every particle k.

        The gradient is taken in closed form and in theta_j alone: k_jk (theta_k - theta_j) / l pushes k away from j.
        """
        flat, unravel = _flatten(particles)
        kernel, length_scale = self.kernel(flat)
        repulsion = jax.lax.map(lambda pair: pair[0] @ (pair[1][None] - flat), (kernel, flat)) / length_scale
        return unravel((kernel @ _flatten(scores)[0] + repulsion) / len(flat))

    def kernel(self, flat: Float[Array, "k size"]) -> tuple[Float[Array, "k k"], Float[Array, ""]]:
        """Its values between particles, and l."""
        distances = squared_distances(flat)
        length_scale = self._length_scale(distances)
        return jnp.exp(-distances / (2.0 * length_scale)), length_scale

    def _length_scale(self, distances: Float[Array, "k k"]) -> Float[Array, ""]:
        n_particles = distances.shape[0]
        if not (isinstance(self.length_scale, str) and self.length_scale == "median"):
            return jnp.asarray(self.length_scale, distances.dtype)
        if n_particles == 1:
            return jnp.ones((), distances.dtype)
        median = jnp.median(distances[jnp.triu_indices(n_particles, 1)])
        tiny = jnp.finfo(distances.dtype).tiny
        return jnp.maximum(median / (2.0 * math.log(n_particles + 1)), tiny)


@dataclass(frozen=True)
class Laplace:
    """Laplace's approximation: the normal that fits the Gibbs hyper-posterior at its mode, and draws from it.

    Training finds the mode, as for MAP; `meta.laplace` draws the particles. For priors of up to 2000 parameters.
    """

    start: Start = "initializer"
    n_draws: int = 10
    interacts: ClassVar[bool] = False

    def __post_init__(self):
        check_choice("start", self.start, ("initializer", "hyperprior"))
        check_integer("n_draws", self.n_draws, least=1)

    def direction(self, particles: PyTree, scores: PyTree) -> PyTree:
        """Uphill, to the mode."""
        return scores


METHODS = {"map": MAP, "svgd": SVGD, "laplace": Laplace}
Method = MAP | SVGD | Laplace


def squared_distances(flat: Float[Array, "k size"]) -> Float[Array, "k k"]:
    """||theta_j - theta_k||^2 for all pairs.

    From differences, one particle after another: expanding the square would cancel for particles that are close,
    and all differences at once would not fit for many particles.
    """
    return jax.lax.map(lambda particle: jnp.sum((flat - particle[None]) ** 2, axis=1), flat)


def _flatten(particles: PyTree) -> tuple[Float[Array, "k size"], Callable[[Array], PyTree]]:
    """Particles as rows of a matrix, and the way back."""
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], particles))
    return jax.vmap(lambda particle: ravel_pytree(particle)[0])(particles), jax.vmap(unravel)


class Interaction(NamedTuple):
    """How much particles of SVGD have to do with each other."""

    kernel: np.ndarray  # (particles, particles), values of the SVGD kernel
    neighbors: float  # what those with the others sum to, for a typical particle: 0 alone, K - 1 all as one
    repulsion: float  # what drives a typical particle from the others, in units of the pull of its own score at one
    # hyper-prior standard deviation from the mode, sqrt(parameters): below one they cannot fill the hyper-posterior

    def __str__(self) -> str:
        if len(self.kernel) == 1:
            return "One particle: nothing to interact with."
        if self.neighbors < 0.01:
            return f"Particles act alone (kernel values between them sum to {self.neighbors:.2g}), as those of MAP do."
        weak = "too weak to spread them over the hyper-posterior" if self.repulsion < 1.0 else "enough to spread them"
        return f"Particles share {self.neighbors:.2g} neighbors each; repulsion is {self.repulsion:.2g}, {weak}."


def interaction(particles: PyTree, method: "Method") -> Interaction:
    """Whether particles interact, by the kernel values between them. Those of MAP and Laplace do not."""
    flat, _ = _flatten(particles)
    n_particles, size = flat.shape
    if not isinstance(method, SVGD):
        return Interaction(np.eye(n_particles), 0.0, 0.0)
    kernel, length_scale = (np.asarray(value, float) for value in method.kernel(flat))
    others = kernel - np.diag(np.diag(kernel))
    forces = (others.sum(axis=1)[:, None] * np.asarray(flat) - others @ np.asarray(flat)) / length_scale
    strength = float(np.median(np.linalg.norm(forces, axis=1)) / math.sqrt(size))
    return Interaction(kernel, float(np.median(others.sum(axis=1))), strength)


def place_particles(key: PRNGKeyArray, initial: PyTree, hyperprior: HyperPrior, start: Start) -> PyTree:
    """Where K particles start, given K draws from the initializer: there, or at draws from the hyper-prior.

    What the initializer does not randomize (scales, own finished modules) is scattered around its value by a tenth
    of the hyper-prior's standard deviation: particles that coincide would never part. The first is where MAP starts.
    """
    n_particles = len(jax.tree.leaves(initial)[0])
    if n_particles == 1 and start == "initializer":
        return initial
    draws = jax.vmap(hyperprior.sample)(jax.random.split(key, n_particles))
    if start == "hyperprior":
        return draws

    def scatter(leaf: Array, draw: Array, mean: Array) -> Array:
        coincide = jnp.all(leaf == leaf[:1])
        moved = leaf + jnp.where(coincide, SCATTER, 0.0).astype(leaf.dtype) * (draw - mean[None])
        return leaf.at[1:].set(moved[1:])

    return jax.tree.map(scatter, initial, draws, hyperprior.mean)


def resolve_inference(inference: Any) -> Method | None:
    """A method from what the user passed as `inference`; None for 'auto'."""
    if isinstance(inference, str) and inference == "auto":
        return None
    if isinstance(inference, Method):
        return inference
    if isinstance(inference, str) and inference in METHODS:
        return METHODS[inference]()
    raise ValueError(
        f"inference must be 'auto', 'map', 'svgd', 'laplace', MAP(...), SVGD(...) or Laplace(...); got {inference!r}."
    )
