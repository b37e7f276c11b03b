"""Approximations of the Gibbs hyper-posterior by particles: MAP, and Stein variational gradient descent.

A method gives the ascent direction of a set of particles from the score of the Gibbs density at each. Optimizer,
mini-batches and loop are shared. A single SVGD particle follows its score, which is MAP.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from metaprior.checks import check_choice, check_integer, check_positive
from metaprior.wfem.hyperprior import Density

Start = Literal["initializer", "hyperprior"]
STARTS = ("initializer", "hyperprior")
SCATTER = 0.1  # hyper-prior standard deviations between particles that would start at the same point


@runtime_checkable
class Method(Protocol):
    """How particles approximate the Gibbs hyper-posterior q(theta).

    A method of your own is a frozen dataclass like these. It may also have `finish(particles, gibbs, key)`, which
    returns the particles that are kept when training has ended: draws around them, say, or a Markov chain from there.
    Its `gibbs` has `log_density(theta)`, and `theta` is one particle.
    """

    interacts: ClassVar[bool]  # whether the direction of a particle depends on the others

    @property
    def n_particles(self) -> int:
        """Number of particles that are trained."""
        ...

    @property
    def start(self) -> Start:
        """Where they start."""
        ...

    def direction(self, particles: PyTree, scores: PyTree) -> PyTree:
        """Return where particles move, given grad log q at each; leaves are (particles, ...)."""
        ...


@dataclass(frozen=True)
class MAP:
    """Maximum a posteriori, `argmax log q(theta)` of the Gibbs hyper-posterior q.

    Parameters
    ----------
    n_particles : int
        Number of particles. Several are independent solutions: an ensemble.
    start : {'initializer', 'hyperprior'}
        Draw the initial particles from the initializers of mean and kernel, or from the hyper-prior.
    """

    n_particles: int = 1
    start: Start = "initializer"
    interacts: ClassVar[bool] = False

    def __post_init__(self):
        check_integer("n_particles", self.n_particles, least=1)
        check_choice("start", self.start, STARTS)

    def direction(self, particles: PyTree, scores: PyTree) -> PyTree:
        """Return the score of each particle."""
        return scores


@dataclass(frozen=True)
class SVGD:
    """Stein variational gradient descent with the kernel `exp(-||theta - theta'||^2 / (2 l))`.

    Parameters
    ----------
    n_particles : int
        Number of particles. One is MAP.
    length_scale : float or 'median'
        The number l itself, not its square root. 'median' is the median of the squared distances between K particles
        over 2 log(K + 1), with which the kernel values of a typical particle sum to about one.
    start : {'initializer', 'hyperprior'}
        As for `MAP`.
    """

    n_particles: int = 10
    length_scale: float | Literal["median"] = "median"
    start: Start = "initializer"
    interacts: ClassVar[bool] = True

    def __post_init__(self):
        check_integer("n_particles", self.n_particles, least=1)
        check_choice("start", self.start, STARTS)
        if not (isinstance(self.length_scale, str) and self.length_scale == "median"):
            check_positive("length_scale", self.length_scale, ", or 'median'")

    def direction(self, particles: PyTree, scores: PyTree) -> PyTree:
        """Return (1/K) sum_j [k(theta_j, theta_k) score_j + grad_{theta_j} k(theta_j, theta_k)] for every particle k.

        The gradient by theta_j alone, k_jk (theta_k - theta_j) / l, pushes particle k away from j.
        """
        flat, unravel = _flatten(particles)
        kernel, length_scale = self.kernel(flat)
        repulsion = jax.lax.map(lambda pair: pair[0] @ (pair[1][None] - flat), (kernel, flat)) / length_scale
        return unravel((kernel @ _flatten(scores)[0] + repulsion) / len(flat))

    def kernel(self, flat: Float[Array, "k size"]) -> tuple[Float[Array, "k k"], Float[Array, ""]]:
        """Return the kernel matrix of the particles, and l."""
        distances = squared_distances(flat)
        length_scale = self._length_scale(distances)
        return jnp.exp(-distances / (2.0 * length_scale)), length_scale

    def _length_scale(self, distances: Float[Array, "k k"]) -> Float[Array, ""]:
        n_particles = distances.shape[0]
        if not isinstance(self.length_scale, str):
            return jnp.asarray(self.length_scale, distances.dtype)
        if n_particles == 1:
            return jnp.ones((), distances.dtype)
        median = jnp.median(distances[jnp.triu_indices(n_particles, 1)])
        tiny = jnp.finfo(distances.dtype).tiny
        return jnp.maximum(median / (2.0 * math.log(n_particles + 1)), tiny)


def squared_distances(flat: Float[Array, "k size"]) -> Float[Array, "k k"]:
    """Return ||theta_j - theta_k||^2 for all pairs.

    From differences, one particle after another: expanding the square would cancel for close particles, and all
    differences at once would need too much memory for many.
    """
    return jax.lax.map(lambda particle: jnp.sum((flat - particle[None]) ** 2, axis=1), flat)


def _flatten(particles: PyTree) -> tuple[Float[Array, "k size"], Callable[[Array], PyTree]]:
    """Return particles as rows of a matrix, and the inverse function."""
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], particles))
    return jax.vmap(lambda particle: ravel_pytree(particle)[0])(particles), jax.vmap(unravel)


class Interaction(NamedTuple):
    """How strongly SVGD particles interact.

    Attributes
    ----------
    kernel : ndarray of shape (n_particles, n_particles)
        Values of the SVGD kernel between particles.
    neighbors : float
        Sum of the kernel values with all others, for the median particle: 0 without interaction, at most K - 1.
    repulsion : float
        Repulsion of the median particle relative to sqrt(n_parameters), the score of the hyper-prior one standard
        deviation from its mode in every parameter. Below one, particles cannot spread over the hyper-posterior.
    """

    kernel: np.ndarray
    neighbors: float
    repulsion: float

    def __str__(self) -> str:
        if len(self.kernel) == 1:
            return "One particle: nothing to interact with."
        if self.neighbors < 0.01:
            return f"Particles do not interact (their kernel values sum to {self.neighbors:.2g}): they are like MAP's."
        weak = "too weak to spread them over the hyper-posterior" if self.repulsion < 1.0 else "enough to spread them"
        return f"Particles have {self.neighbors:.2g} neighbors each; their repulsion is {self.repulsion:.2g}, {weak}."


def interaction(particles: PyTree, method: Method) -> Interaction:
    """Return how strongly particles interact. Those of other methods than SVGD do not."""
    flat, _ = _flatten(particles)
    n_particles, size = flat.shape
    if not isinstance(method, SVGD):
        return Interaction(np.eye(n_particles), 0.0, 0.0)
    kernel, length_scale = (np.asarray(value, float) for value in method.kernel(flat))
    others = kernel - np.diag(np.diag(kernel))
    forces = (others.sum(axis=1)[:, None] * np.asarray(flat) - others @ np.asarray(flat)) / length_scale
    repulsion = float(np.median(np.linalg.norm(forces, axis=1)) / math.sqrt(size))
    return Interaction(kernel, float(np.median(others.sum(axis=1))), repulsion)


def place_particles(key: PRNGKeyArray, initial: PyTree, hyperprior: Density, start: Start) -> PyTree:
    """Return K initial particles, given K draws from the initializer: these draws, or draws from the hyper-prior.

    Leaves that the initializer does not randomize (scales, custom modules) are scattered around their value by
    `SCATTER` hyper-prior standard deviations, since particles that coincide would never separate. The first particle is
    the start of MAP.
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
